"""The hook of dynamic layers: the outermost call of a layer is compiled, where that pays.

Only inference is: calls with gradients off. What trains is compiled by name, for a compiled
function does not allow all that Python can do with gradients (gradients.py).

A layer that calls others is one function with them: only the outermost is looked at. For inputs of
one kind it runs natively first, then compiled, and from then on as it was faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from time import perf_counter
from typing import Any

import paddle

from paddle_ngraph import flags
from paddle_ngraph.hook.capture import Captures
from paddle_ngraph.hook.compiled import Compiled, CompiledReport, explain_captures
from paddle_ngraph.latest import Latest
from paddle_ngraph.paddle_seam.names import (
    StaticFunction,
    attributes_of,
    dynamic_tracer,
    is_read_by_sot,
    is_watched_by_sot,
    kept_on,
    never_give_up,
)
from paddle_ngraph.paddle_seam.replaced import CALL_LAYER
from paddle_ngraph.program import background

_WRAPPING = "_ngraph_wrapping"  # of a layer: what it keeps of ours

# Kinds of inputs of a layer that times are kept of.
_KINDS = 64
# Calls of one kind: so many natively, then so many compiled; the first ones do not count, for they
# fill caches and compile functions.
_NATIVE, _NATIVE_COLD = 4, 1
_COMPILED, _COMPILED_COLD = 7, 3
# What is compiled has to be as much faster as may be chance.
_MARGIN = 0.95

_is_on = False
_here = threading.local()  # is_inside: whether this thread is inside an outermost layer


def switch(on: bool) -> None:
    """Looks at the outermost layers, or no longer, from the next call on."""
    global _is_on
    if on:
        CALL_LAYER.replace(_with_compilation)
    _is_on = on


def explain(layer: Any) -> CompiledReport:
    """What became of a layer that was called.

    Raises:
        NgraphError: It was not compiled yet.
    """
    wrapping = attributes_of(layer)[_WRAPPING]
    return explain_captures(wrapping.captures, wrapping.why_native)


def is_known(thing: Any) -> bool:
    """Whether it is a layer that was looked at."""
    return isinstance(thing, paddle.nn.Layer) and _WRAPPING in attributes_of(thing)


def _with_compilation(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if is_read_by_sot():  # it has to find Paddle's method, or it ends its graph here
            return original(self, *inputs, **kwargs)
        if not _is_on or getattr(_here, "is_inside", False) or not flags.get("use_ngraph"):
            return original(self, *inputs, **kwargs)
        return _outermost(original, self, inputs, kwargs)

    codes = __call__.__code__, _outermost.__code__  # type: ignore[attr-defined]
    never_give_up(codes)  # as Paddle says of its own __call__
    return __call__


def _outermost(original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
    """Runs a layer that no other layer calls."""
    if dynamic_tracer() is None or paddle.is_grad_enabled():
        return original(layer, *inputs, **kwargs)
    if is_watched_by_sot():
        return original(layer, *inputs, **kwargs)
    if isinstance(layer.forward, (StaticFunction, Compiled)):
        with _inside():
            return original(layer, *inputs, **kwargs)
    wrapping: _Wrapping = kept_on(layer, _WRAPPING, _Wrapping)
    if wrapping.is_given_up:
        return original(layer, *inputs, **kwargs)
    with _inside():
        return wrapping.run(original, layer, inputs, kwargs)


@contextmanager
def _inside() -> Iterator[None]:
    """Leaves the layers that are called to the one that calls them."""
    _here.is_inside = True
    try:
        yield
    finally:
        _here.is_inside = False


class _Wrapping:
    """What is known of a layer that was outermost. It is not copied with the layer, or saved.

    Attributes:
        is_given_up: Whether the layers that it calls are to be looked at instead.
        why_native: Why it runs natively with the inputs of its last call, or ``None``.
    """

    def __init__(self) -> None:
        self.is_given_up = False
        self.captures = Captures(trains=False)
        self.why_native: str | None = None
        self._trials: Latest[Hashable, _Trial] = Latest(_KINDS)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Wrapping:
        return _Wrapping()

    def __reduce__(self) -> Any:
        return _Wrapping, ()

    def run(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Runs the layer natively or compiled, and looks at the clock as long as needed."""
        key = (layer.training, _kind(inputs), _kind(kwargs))
        trial = self._trials.get_or_make(key, _Trial)
        is_decided = trial.is_compiled is not None
        try:
            with trial.measured() as is_compiled:
                if is_compiled:
                    with nullcontext() if is_decided else background.awaited():
                        return self.captures.run(original, (layer, *inputs), kwargs)
                return original(layer, *inputs, **kwargs)
        finally:
            self.why_native = trial.why_native
            if not is_decided and trial.is_compiled is not None and not self.captures.graphs():
                self.is_given_up = True
                self.why_native = "no two of its calls had the same operators"


class _Trial:
    """Times of a layer with inputs of one kind, until it is decided how to run it.

    Attributes:
        is_compiled: What was decided; ``None``: nothing yet.
        why_native: What was measured, if it speaks for Paddle.
    """

    def __init__(self) -> None:
        self.is_compiled: bool | None = None
        self.why_native: str | None = None
        self._calls = 0
        self._best = {False: float("inf"), True: float("inf")}

    @contextmanager
    def measured(self) -> Iterator[bool]:
        """While a call runs; whether it is to be compiled."""
        if self.is_compiled is not None:
            yield self.is_compiled
            return
        is_compiled = self._calls >= _NATIVE
        counts = self._calls >= (_NATIVE + _COMPILED_COLD if is_compiled else _NATIVE_COLD)
        self._calls += 1
        start = perf_counter()
        try:
            yield is_compiled
        finally:
            if counts:
                self._best[is_compiled] = min(self._best[is_compiled], perf_counter() - start)
            if self._calls >= _NATIVE + _COMPILED:
                self._decide()

    def _decide(self) -> None:
        native, compiled = self._best[False], self._best[True]
        self.is_compiled = compiled <= _MARGIN * native
        if not self.is_compiled:
            self.why_native = (
                f"a call took {compiled * 1e3:.3g} ms compiled and {native * 1e3:.3g} ms natively"
            )


def _kind(value: Any) -> Hashable:
    """What of an input decides how long it takes."""
    if isinstance(value, paddle.Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_kind, value))
    if isinstance(value, dict):
        return tuple((key, _kind(each)) for key, each in value.items())
    return type(value).__name__
