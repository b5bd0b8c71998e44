"""Capture of the operators that functions and layers call in dynamic mode.

See core/lazy/capture.h for the method, deferral_rules.py for the operators, and trace_graph.py
for the graphs that compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.frontends.dynamic.lazy import trace_graph, trace_isolation
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import (
    DATA_ACCESSES,
    EAGER_OPERATORS,
    GRADIENT_HOOKS,
    METADATA_ATTRIBUTES,
    METADATA_METHODS,
    METHODS,
    OPERATORS,
    READ_ONLY_DATA_ACCESSES,
    SETTABLE_METADATA,
    SHAPE_QUERIES,
    TRANSPARENT,
)
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    dynamic_tracer,
    expected_place,
    set_frame_callback,
    switch_tracer,
)
from paddle_ngraph.utils import first_use
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.once import once

_OPERATOR_CHECKS = int(_core.Reason.OPERATOR_CHECKS)
_CONFIGURATION = int(_core.Reason.CONFIGURATION)
_install_lock = new_lock()


def install() -> None:
    """Intercepts all calls of Paddle's core that can use a tensor; done once per process."""
    # One thread at a time installs the patches: several may create the first trace caches at once.
    with _install_lock:
        _install()


@once
def _install() -> None:
    """Patches Paddle, and registers the intercepted functions with the core."""
    first_use.begin()
    trace_isolation.install()
    for name, function in replaced.functions_of_tensors():
        _register_call(function, name, OPERATORS.get(name))
    for name, method in replaced.methods_of_tensors():
        if name in METADATA_METHODS:
            _core.set_call_effect(method, name, _core.CallEffect.METADATA_ONLY)
        else:
            _register_call(method, name, METHODS.get(name))
    replaced.CREATE_TENSOR.replace(_materializing)
    for name, function in replaced.other_functions_of_tensors():
        _core.set_call_effect(function, name, _core.CallEffect.GRAPH_BREAK)
    for name, function in replaced.other_functions():
        _core.set_call_effect(function, name, _core.CallEffect.BREAK_IF_LAZY_ARGUMENT)
    for name, function in replaced.functions_of_building():
        _core.set_call_effect(function, name, _core.CallEffect.METADATA_ONLY)
    for name, function in replaced.setting_functions():
        _core.set_call_effect(function, name, _core.CallEffect.FLAG_CHANGE)
    _core.set_call_effect(switch_tracer, "a static program", _core.CallEffect.TRACER_SWITCH)
    for name, attribute in replaced.attributes_of_tensors():
        _core.intercept_attribute(
            attribute, name, name in METADATA_ATTRIBUTES, name in SETTABLE_METADATA
        )


# First calls of Paddle's Python functions that read the data of a tensor: reported as one reason.
_BREAK_REASONS = dict.fromkeys(("_is_initialized", "numpy"), "the value of a tensor")


def _materializing(original: Callable[..., None]) -> Callable[..., None]:
    """Patch of ``Tensor.__init__``: computes lazy tensors first if an argument is a tensor."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(each, paddle.Tensor) for each in (*args, *kwargs.values())):
            _core.flush_captures()
        original(self, *args, **kwargs)

    return __init__


_NAN_CHECK_FLAG = "FLAGS_check_nan_inf"
# Effects of the functions that are neither deferrable operators nor mere graph breaks.
_SPECIAL_CALLS = {
    **dict.fromkeys(EAGER_OPERATORS, _core.CallEffect.EAGER_OPERATOR),
    **dict.fromkeys(DATA_ACCESSES, _core.CallEffect.DATA_ACCESS),
    **dict.fromkeys(READ_ONLY_DATA_ACCESSES, _core.CallEffect.READ_ONLY_DATA_ACCESS),
    **dict.fromkeys(GRADIENT_HOOKS, _core.CallEffect.GRADIENT_HOOK),
    **dict.fromkeys(SHAPE_QUERIES, _core.CallEffect.SHAPE_QUERY),
    **dict.fromkeys(TRANSPARENT, _core.CallEffect.TRANSPARENT),
    "register_saved_tensors_hooks": _core.CallEffect.SAVED_TENSOR_HOOKS_ON,
    "reset_saved_tensors_hooks": _core.CallEffect.SAVED_TENSOR_HOOKS_OFF,
}


def _register_call(function: Any, name: str, rule: _core.DeferralRule | None) -> None:
    if rule is None:
        _core.set_call_effect(
            function,
            _BREAK_REASONS.get(name, name),
            _SPECIAL_CALLS.get(name, _core.CallEffect.GRAPH_BREAK),
        )
        return
    _core.set_call_effect(function, name, _core.CallEffect.DEFERRABLE, rule)


class TraceCache:
    """Traces of earlier calls of a function.

    Args:
        trains: Whether operators whose results may get a gradient are captured, too.

    Attributes:
        id: Id of the traces in events.
    """

    def __init__(self, trains: bool = True) -> None:
        install()
        self._traces = _core.TraceCache(trace_graph.make_graph, trains)
        self.id: int = self._traces.id
        # The version of Paddle's settings for which ``_checks_nan_inf`` is valid.
        self._settings_version = -1
        self._checks_nan_inf = False

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls the function under capture, or as it is where capture is not possible."""
        if dynamic_tracer() is None:
            return function(*args, **kwargs)  # in static mode: no run
        if self._must_check_each_operator():
            return self.run_natively(_OPERATOR_CHECKS, function, args, kwargs)
        if not expected_place().is_cpu_place():
            return self.run_natively(_CONFIGURATION, function, args, kwargs)
        with _core.Capture(self._traces, set_frame_callback):
            return function(*args, **kwargs)

    def run_natively(
        self, reason: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Calls the function as it is, and records an event with the number of a reason."""
        start = _core.ticks()
        try:
            return function(*args, **kwargs)
        finally:
            _core.record_event(reason, self.id, start)

    def _must_check_each_operator(self) -> bool:
        """Whether Paddle checks the results of each operator for NaN, and raises at once."""
        if self._settings_version != (settings := _core.settings_version()):
            self._checks_nan_inf = bool(paddle.get_flags(_NAN_CHECK_FLAG)[_NAN_CHECK_FLAG])
            self._settings_version = settings
        return self._checks_nan_inf

    @property
    def num_additions(self) -> int:
        """Calls, graphs and sets of results that were new so far: none in a call that is known."""
        return self._traces.num_additions

    def graphs(self) -> list[trace_graph.TraceGraph]:
        """Returns the graphs that have been built so far."""
        built = (graph for _, _, graphs in self._traces.ends() for graph in graphs)
        # Traces of one group share a graph, which is listed once.
        return list(dict.fromkeys(built))

    def breaks(self) -> list[str]:
        """Returns the reasons of graph breaks, each with the line of the function's code."""
        found = {reason: None for _, reasons, _ in self._traces.ends() for reason in reasons}
        return [reason for reason in found if reason != _core.END_OF_FUNCTION]
