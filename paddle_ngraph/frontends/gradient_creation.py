"""The patch of the function by which Paddle creates the gradient of an operator in a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.utils import signals


def install() -> None:
    """Patches Paddle; a second call changes nothing."""
    replaced.CREATE_GRADIENT.replace(_with_call_stack)


def _with_call_stack(original: Callable[..., list[list[Any]]]) -> Callable[..., list[list[Any]]]:
    """Gives a gradient operator the call stack of its forward operator; Paddle gives it none.

    A signal that came meanwhile ends the creation: the program of gradients of 2,400 operators
    takes Paddle two seconds.
    """

    @wraps(original)
    def call_vjp(forward: Any, *others: Any) -> list[list[Any]]:
        signals.safe_point()
        gradients = original(forward, *others)
        values = [value for group in gradients for value in group if value is not None]
        _core.inherit_call_stack(forward, values)
        return gradients

    return call_vjp
