"""The gradient of ``amax`` over two axes of a tensor of rank 5 is memory that nobody wrote."""

import paddle
from endings import ending


def train() -> None:
    for axes in ([0, 2], [1, 3], [0, 4], [2, 4]):
        x = paddle.rand([2, 3, 2, 3, 2])
        x.stop_gradient = False
        out = paddle.amax(x, axes)
        out.sum().backward()
        assert abs(float(x.grad.sum()) - out.size) < 1e-3, "the gradient is arbitrary"


def fault() -> str:
    return ending(train, filled_with=165)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
