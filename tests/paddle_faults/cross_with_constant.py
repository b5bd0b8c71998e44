"""The gradient of ``cross`` with an operand that needs none ends the process."""

import paddle
from endings import ending


def train() -> None:
    x = paddle.rand([4, 3])
    x.stop_gradient = False
    paddle.cross(x, paddle.rand([4, 3])).sum().backward()


def fault() -> str:
    return ending(train)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
