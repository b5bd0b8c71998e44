"""The hook of dynamic mode: ``Layer.__call__`` runs layers through their autotuner.

Calls with gradients off are inference, the others are training. Training calls are compiled only
with ``enable(dynamic="training")``. Only the outermost layer of nested calls is tuned, as one
function with the layers that it calls. In a distributed job none is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.frontends.dynamic.autotuner import Tuner
from paddle_ngraph.frontends.dynamic.compiled_layer import (
    Compiled,
    CompiledReport,
    explain_traces,
)
from paddle_ngraph.frontends.dynamic.inner_layers import profile_of_thread
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.paddle_private.names import (
    StaticFunction,
    attached_to,
    attributes_of,
    dynamic_tracer,
    exempt_from_sot_fallback,
    is_sot_simulating,
    is_sot_tracing,
)
from paddle_ngraph.paddle_private.replaced import CALL_LAYER
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils.thread_local import ThreadLocal

# The name of the attribute in which a layer has its ``_LayerTuner``.
_TUNER_ATTRIBUTE = "_ngraph_wrapping"

_INNER_LAYERS = int(_core.Reason.INNER_LAYERS)
_IN_BACKWARD = int(_core.Reason.IN_BACKWARD)
_is_on = False
_trains = False  # whether calls that compute gradients are compiled, too
_is_in_outermost_layer = ThreadLocal(False)
# Whether this thread runs a layer by Paddle since no training is compiled, as an event records.
_is_untuned = ThreadLocal(False)


def switch(on: bool, trains: bool = False) -> None:
    """Switches the autotuner on or off, from the next call of a layer on.

    Args:
        on: Whether inference calls are tuned.
        trains: Whether training calls are tuned, too.
    """
    global _is_on, _trains
    if on:
        CALL_LAYER.replace(_tuned_call)
    _is_on, _trains = on, trains


def explain(layer: Any) -> CompiledReport:
    """Returns the graphs and graph breaks of a layer in the mode of its last call.

    Raises:
        NgraphError: The layer was not compiled yet.
    """
    tuner: Tuner = attributes_of(layer)[_TUNER_ATTRIBUTE].latest
    return explain_traces(tuner.traces, tuner.why_native)


def is_known(thing: Any) -> bool:
    """Returns whether an object is a layer that has been called with ``enable(dynamic=...)``."""
    return isinstance(thing, paddle.nn.Layer) and _TUNER_ATTRIBUTE in attributes_of(thing)


def _tuned_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        # While SOT traces, the call must reach Paddle's method, or SOT would break its graph at
        # this call.
        if is_sot_simulating():
            return original(self, *inputs, **kwargs)
        if not _is_on:
            return original(self, *inputs, **kwargs)
        if _is_in_outermost_layer.value:
            profile = profile_of_thread.value
            if profile is None:
                return original(self, *inputs, **kwargs)
            return profile.run_inner(original, self, inputs, kwargs)
        if not flags.get("use_ngraph"):
            return original(self, *inputs, **kwargs)
        return _run_outermost(original, self, inputs, kwargs)

    codes = __call__.__code__, _run_outermost.__code__  # type: ignore[attr-defined]
    # Paddle exempts the code of its own ``__call__`` from SOT, and this function replaces that one.
    exempt_from_sot_fallback(codes)
    return __call__


def _run_outermost(original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
    """Runs a layer that is not called by another layer, by Paddle or compiled."""
    # A choice by times would round differently on each rank, and after each start of a job.
    if dynamic_tracer() is None or background_compile.is_disabled():
        return original(layer, *inputs, **kwargs)
    trains = paddle.is_grad_enabled()
    if (trains and not _trains) or is_sot_tracing():
        return original(layer, *inputs, **kwargs)
    if trains and not gradients.may_compile():
        return _run_untuned(original, layer, inputs, kwargs)
    tuner: Tuner | None = None
    if not isinstance(layer.forward, (StaticFunction, Compiled)):
        tuner = attached_to(layer, _TUNER_ATTRIBUTE, _LayerTuner).tuner(trains)
        if tuner.is_given_up:
            return tuner.traces.run_natively(_INNER_LAYERS, original, (layer, *inputs), kwargs)
    # Inner layers that are called during this call are part of the outermost layer: none is tuned
    # alone.
    _is_in_outermost_layer.value = True
    try:
        if tuner is None:
            return original(layer, *inputs, **kwargs)
        return tuner.run(original, (layer, *inputs), kwargs)
    finally:
        _is_in_outermost_layer.value = False


def _run_untuned(original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
    """Runs a layer by Paddle while no training is compiled; an event records the outermost one."""
    if _is_untuned.value:
        return original(layer, *inputs, **kwargs)
    start = _core.ticks()
    try:
        with _is_untuned.overridden(True):
            return original(layer, *inputs, **kwargs)
    finally:
        _core.record_event(_IN_BACKWARD, 0, start)


class _LayerTuner:
    """Tuners of a layer for inference and for training. Copied and pickled without their state.

    Attributes:
        latest: The tuner of the last call's mode.
    """

    def __init__(self) -> None:
        self._tuners: dict[bool, Tuner] = {}
        self.latest = self.tuner(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> _LayerTuner:
        return _LayerTuner()

    def __reduce__(self) -> Any:
        return _LayerTuner, ()

    def tuner(self, trains: bool) -> Tuner:
        """Returns the tuner for training or for inference, which becomes the latest."""
        found = self._tuners.get(trains)
        if found is None:
            found = self._tuners.setdefault(trains, Tuner(trains))
        self.latest = found
        return found
