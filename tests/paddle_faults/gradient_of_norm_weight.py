"""``paddle.grad`` of the weight of a batch normalization alone is missing."""

import paddle
from paddle import nn


def fault() -> str:
    norm = nn.BatchNorm2D(4)
    loss = norm(paddle.rand([3, 4, 6, 6])).square().mean()
    found = paddle.grad(loss, [norm.weight], allow_unused=True)[0]
    return "" if found is not None else "the gradient is None"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
