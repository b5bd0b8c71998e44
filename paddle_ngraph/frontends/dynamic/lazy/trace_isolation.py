"""Trace isolation: thread-local copies of Paddle's global state while a thread builds a graph.

Operators of other threads are blocked meanwhile (``_core.ExclusiveSection``), as are calls that get
or set the insertion point of operators. But Python code of other threads runs between two calls of
Paddle, and reads state of the process: the initial mode of new threads, the default programs, which
each optimizer update switches, too, and the precision of ``auto_cast``.
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

# Globals of Paddle's module of default programs, as copied for a thread that builds a graph.
_variables: ThreadLocal[dict[str, Any] | None] = ThreadLocal(None)


def isolated_tracing() -> AbstractContextManager[None]:
    """Returns a context manager in which this thread builds a graph on copies of global state."""
    return _variables.overridden(variables_of_programs())


def install() -> None:
    """Patches the functions that set global state or warn, for threads that build a graph."""
    replaced.SET_MODE.replace(_with_thread_local_mode)
    replaced.PLACE_OF_VALUE.replace(_without_place_warning)
    patches: dict[PatchTarget, Callable[..., Any]] = {
        replaced.SET_PRECISION: _without_mixed_precision
    }
    patches |= dict.fromkeys(replaced.DEFAULT_PROGRAMS, _with_thread_local_variables)
    originals = [target.current for target in patches]
    for target, patch in patches.items():
        target.replace(patch)
    replace_everywhere(zip(originals, [target.current for target in patches]))


def _is_tracing() -> bool:
    return _variables.value is not None


def _with_thread_local_variables(original: FunctionType) -> Callable[..., Any]:
    """Wraps a function of the module to use the thread's copy of the module's globals, if any."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        variables = _variables.value
        if variables is None:
            return original(*args, **kwargs)
        own = FunctionType(original.__code__, variables, argdefs=original.__defaults__)
        return own(*args, **kwargs)

    return call


def _without_place_warning(original: property) -> property:
    """Patch of ``Value.place``: suppresses the warning that it prints while gradients are built."""

    @wraps(original.__get__)
    def place(value: Any) -> Any:
        return None if _is_tracing() else original.__get__(value)

    return property(place, doc=original.__doc__)


def _without_mixed_precision(
    original: Callable[..., Any],
) -> Callable[..., AbstractContextManager[None]]:
    """Patch of ``auto_cast``: off while gradients of a trace are built, as in CPU programs."""

    @wraps(original)
    def auto_cast(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        return nullcontext() if _is_tracing() else original(*args, **kwargs)

    return auto_cast


def _with_thread_local_mode(original: Callable[..., None]) -> Callable[..., None]:
    """Keeps the mode thread-local: Paddle gives new threads the mode that any thread set last."""

    @wraps(original)
    def __setattr__(self: Any, name: str, val: Any) -> None:
        if name == TRACER and _is_tracing():
            switch_tracer(val)
            attributes_of(self)[name] = val
        else:
            original(self, name, val)

    return __setattr__
