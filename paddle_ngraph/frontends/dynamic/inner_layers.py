"""Profile of the layers that a layer calls, to find some that have fewer shapes of inputs.

A detector in training gets as many boxes as its images have, so that hardly two of its batches have
one shape. Its backbone gets the images only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from paddle_ngraph.frontends.dynamic import input_signature, tuning_policy
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.thread_local import ThreadLocal

# The profile of the outermost layer that this thread runs; ``None`` if it is not profiled.
profile_of_thread: ThreadLocal[InnerLayerProfile | None] = ThreadLocal(None)
_calling_layer_id = ThreadLocal(0)  # id() of the layer whose forward this thread runs


class InnerLayerProfile:
    """Profile of some calls of a layer.

    Args:
        now: The clock, in seconds.
    """

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self._calls = 0  # profiled
        self._outermost = 0  # id() of the outermost layer
        self._seconds = 0.0
        self._seen: set[tuple[int, ...]] = set()  # sizes of all calls
        self._shapes: set[tuple[int, ...]] = set()  # sizes of profiled calls
        # Keyed by id() of layers: the signatures and shapes of inner layers, and for each calling
        # layer, the seconds in the layers that it calls.
        self._inner_shapes: dict[int, set[Hashable]] = {}
        self._inner_seconds: dict[int, dict[int, float]] = {}

    def wants(self, sizes: tuple[int, ...]) -> bool:
        """Notes the sizes of a call's inputs; returns whether the call is to be profiled."""
        if self._calls >= tuning_policy.POLICY.profiled_calls:
            return False
        self._seen.add(sizes)
        return len(self._seen) >= tuning_policy.POLICY.min_profiled_shapes

    def run(
        self, sizes: tuple[int, ...], function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Runs a call of the outermost layer, and profiles the layers that it calls."""
        self._outermost = id(args[0])
        start = self._now()
        try:
            with profile_of_thread.overridden(self), _calling_layer_id.overridden(self._outermost):
                return function(*args, **kwargs)
        finally:
            self._calls += 1
            self._shapes.add(sizes)
            self._seconds += self._now() - start

    def run_inner(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Calls an inner layer, and adds its time to that of its caller."""
        signature = input_signature.of((inputs, kwargs))
        self._inner_shapes.setdefault(id(layer), set()).add((signature.types, signature.sizes))
        caller = _calling_layer_id.value
        start = self._now()
        try:
            with _calling_layer_id.overridden(id(layer)):
                return original(layer, *inputs, **kwargs)
        finally:
            called = self._inner_seconds.setdefault(caller, {})
            called[id(layer)] = called.get(id(layer), 0.0) + self._now() - start

    @property
    def are_inner_layers_better(self) -> bool:
        """Whether inner layers should be tuned instead of this layer.

        The condition: inner layers with at most half as many shapes take enough of its time.
        """
        if self._calls < tuning_policy.POLICY.profiled_calls:
            return False
        spent = 0.0
        pending, known = [self._outermost], {self._outermost}
        while pending:
            for inner, seconds in list(self._inner_seconds.get(pending.pop(), {}).items()):
                if 2 * len(self._inner_shapes[inner]) <= len(self._shapes):
                    spent += seconds
                elif inner not in known:
                    # An inner layer with many shapes may call layers that have fewer: these are
                    # searched, too.
                    known.add(inner)
                    pending.append(inner)
        return spent > 0.0 and spent >= tuning_policy.POLICY.min_inner_time_share * self._seconds
