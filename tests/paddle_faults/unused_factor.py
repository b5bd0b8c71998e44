"""The gradient of ``qr`` of which only R is used ends the process."""

import paddle
from endings import ending


def train() -> None:
    x = paddle.rand([4, 3])
    x.stop_gradient = False
    paddle.linalg.qr(x)[1].sum().backward()


def fault() -> str:
    return ending(train)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
