"""What a thread switches in Paddle while it makes a graph is switched for no other thread.

The operators of others are kept out meanwhile (``_core.ExclusiveSection``), and so is whoever asks
or says where operators are added. But Python code runs on between two calls of Paddle, and finds
what is kept for the process: the mode that new threads begin in, the default programs, which each
step of an optimizer switches, too, and the precision that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import FunctionType
from typing import Any

from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    TRACER,
    attributes_of,
    switch_tracer,
    variables_of_programs,
)
from paddle_ngraph.paddle_private.place import PatchTarget, replace_everywhere
from paddle_ngraph.utils.thread_local import ThreadLocal

# The variables of Paddle's module of default programs, of a thread that makes a graph.
_variables: ThreadLocal[dict[str, Any] | None] = ThreadLocal(None)


def isolated_tracing() -> AbstractContextManager[None]:
    """Inside of ``with``, this thread makes a graph, alone."""
    return _variables.overridden(variables_of_programs())


def install() -> None:
    """Has Paddle switch for one thread only while that makes a graph, and warn of nothing then."""
    replaced.SET_MODE.replace(_with_thread_local_mode)
    replaced.PLACE_OF_VALUE.replace(_without_place_warning)
    makers: dict[PatchTarget, Callable[..., Any]] = {
        replaced.SET_PRECISION: _without_mixed_precision
    }
    makers |= dict.fromkeys(replaced.DEFAULT_PROGRAMS, _with_thread_local_variables)
    originals = [place.current for place in makers]
    for place, make in makers.items():
        place.replace(make)
    replace_everywhere(zip(originals, [place.current for place in makers]), except_in={})


def _is_tracing() -> bool:
    return _variables.value is not None


def _with_thread_local_variables(original: FunctionType) -> Callable[..., Any]:
    """A function of the module that reads and sets this thread's variables, if it has some."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        variables = _variables.value
        if variables is None:
            return original(*args, **kwargs)
        own = FunctionType(original.__code__, variables, argdefs=original.__defaults__)
        return own(*args, **kwargs)

    return call


def _without_place_warning(original: property) -> property:
    """Paddle asks for it while it makes gradients, and warns the user, who has not asked."""

    @wraps(original.__get__)
    def place(value: Any) -> Any:
        return None if _is_tracing() else original.__get__(value)

    return property(place, doc=original.__doc__)


def _without_mixed_precision(
    original: Callable[..., Any],
) -> Callable[..., AbstractContextManager[None]]:
    """Gradients are made without mixed precision, which programs on a CPU are, too."""

    @wraps(original)
    def auto_cast(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        return nullcontext() if _is_tracing() else original(*args, **kwargs)

    return auto_cast


def _with_thread_local_mode(original: Callable[..., None]) -> Callable[..., None]:
    """Paddle has new threads take over the mode that was set last, in any thread."""

    @wraps(original)
    def __setattr__(self: Any, name: str, val: Any) -> None:
        if name == TRACER and _is_tracing():
            switch_tracer(val)
            attributes_of(self)[name] = val
        else:
            original(self, name, val)

    return __setattr__
