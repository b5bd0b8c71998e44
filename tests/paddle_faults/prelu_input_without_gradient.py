"""The gradient of PReLU ends the process if its input needs none."""

import paddle
from endings import ending
from paddle import nn


def train() -> None:
    nn.PReLU()(paddle.rand([3, 8])).sum().backward()


def fault() -> str:
    return ending(train)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
