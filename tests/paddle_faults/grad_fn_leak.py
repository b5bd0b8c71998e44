"""``Tensor.grad_fn`` keeps the autograd node, and what it has saved, in memory for good."""

import gc
import weakref
from typing import Any

import paddle

contexts: list[Any] = []


class Saved:
    """Contents of the context of a node."""


class Double(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.saved = Saved()
        contexts.append(weakref.ref(context.saved))
        return x * 2.0

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 2.0


def fault() -> str:
    x = paddle.ones([3])
    x.stop_gradient = False
    for reads in (False, True):
        y = Double.apply(x)
        if reads:
            y.grad_fn  # noqa: B018
        del y
    gc.collect()
    alive = [context() is not None for context in contexts]
    return "the node whose grad_fn was read is alive" if alive == [False, True] else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
