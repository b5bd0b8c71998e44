"""A second backward pass through a ``PyLayer``, such as ``recompute``, ends the process."""

from typing import Any

import paddle
from endings import ending


class Double(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x * 2.0

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 2.0


def train() -> None:
    x = paddle.ones([2])
    x.stop_gradient = False
    y = Double.apply(x * 1.0).sum()
    y.backward(retain_graph=True)
    y.backward()


def fault() -> str:
    return ending(train)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
