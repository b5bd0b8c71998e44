"""The gradient of ``max_pool2d`` with a mask writes out of bounds for windows of padding only."""

import paddle
import paddle.nn.functional as F
from endings import ending


def train() -> None:
    for _ in range(200):
        x = paddle.rand([2, 2, 4, 7])
        x.stop_gradient = False
        out, mask = F.max_pool2d(x, 2, (4, 2), ceil_mode=True, return_mask=True)
        assert (mask[:, :, 1] == -1).all()  # the second row of windows has no element
        out.sum().backward()
        assert x.grad.sum() == out[:, :, 0].size, "gradients are lost"


def fault() -> str:
    return ending(train)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
