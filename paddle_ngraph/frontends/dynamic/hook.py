"""Autotuner of dynamic layers: times Paddle and the engine per layer, and picks the faster one.

Calls with gradients off are inference, the others are training. Training calls are compiled only
with ``enable(dynamic="training")``.

Only the outermost layer of nested calls is tuned, as one function with the layers that it calls.
Inputs of one shape and dtype run by Paddle first, then compiled, and from then on by the faster of
the two. Rare shapes of one signature (a text that grows token by token) are decided together in
inference. Tuning takes at most a share of the time that Paddle has run the layer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from math import inf
from statistics import fmean
from typing import Any
from weakref import WeakSet, ref

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.frontends.dynamic.compiled_layer import (
    Compiled,
    CompiledReport,
    explain_traces,
)
from paddle_ngraph.frontends.dynamic.lazy.capture import TraceCache
from paddle_ngraph.frontends.dynamic.lazy.trace_graph import compile_budget_set
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
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.lru_cache import LRUCache, cache_of_each
from paddle_ngraph.utils.thread_local import ThreadLocal

# The name of the attribute in which a layer has its ``_LayerTuner``.
_TUNER_ATTRIBUTE = "_ngraph_wrapping"

_SIGNATURES = cache_of_each(
    "dynamic layer",
    __name__,
    "signatures",
    "tuners of the layer's calls",
    key="types of the inputs, sizes excluded",
    bound=SETTINGS.max_signatures_per_layer,
)
_SHAPE_TRIALS = cache_of_each(
    "signature of a dynamic layer",
    __name__,
    "shape_trials",
    "times of calls by Paddle and compiled, and the choice",
    key="sizes of the inputs",
    bound=SETTINGS.max_shapes_per_signature,
)
_INNER_LAYERS, _BUDGET = int(_core.Reason.INNER_LAYERS), int(_core.Reason.BUDGET)
_SLOWER, _TIMING = int(_core.Reason.SLOWER), int(_core.Reason.TIMING)
_IN_BACKWARD = int(_core.Reason.IN_BACKWARD)
_ticks, _record_event = _core.ticks, _core.record_event
_is_on = False
_trains = False  # whether calls that compute gradients are compiled, too
_is_in_outermost_layer = ThreadLocal(False)
# Whether this thread runs a layer by Paddle since no training is compiled, as an event records.
_is_untuned = ThreadLocal(False)
# The profiler of the outermost layer that this thread runs; ``None`` if it is not profiled.
_profiler: ThreadLocal[_InnerLayerProfiler | None] = ThreadLocal(None)
_calling_layer_id = ThreadLocal(0)  # id() of the layer whose forward this thread runs


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
    tuner: _InferenceTuner = attributes_of(layer)[_TUNER_ATTRIBUTE].latest
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
            profiler = _profiler.value
            if profiler is None:
                return original(self, *inputs, **kwargs)
            return profiler.run_inner(original, self, inputs, kwargs)
        if not flags.get("use_ngraph"):
            return original(self, *inputs, **kwargs)
        return _run_outermost(original, self, inputs, kwargs)

    codes = __call__.__code__, _run_outermost.__code__  # type: ignore[attr-defined]
    # Paddle exempts the code of its own ``__call__`` from SOT, and this function replaces that one.
    exempt_from_sot_fallback(codes)
    return __call__


def _run_outermost(original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
    """Runs a layer that is not called by another layer, by Paddle or compiled."""
    if dynamic_tracer() is None:
        return original(layer, *inputs, **kwargs)
    trains = paddle.is_grad_enabled()
    if (trains and not _trains) or is_sot_tracing():
        return original(layer, *inputs, **kwargs)
    if trains and not gradients.may_compile():
        return _run_untuned(original, layer, inputs, kwargs)
    tuner: _InferenceTuner | None = None
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
        return tuner.run(original, layer, inputs, kwargs)
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
        self._tuners: dict[bool, _InferenceTuner] = {}
        self.latest = self.tuner(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> _LayerTuner:
        return _LayerTuner()

    def __reduce__(self) -> Any:
        return _LayerTuner, ()

    def tuner(self, trains: bool) -> _InferenceTuner:
        """Returns the tuner for training or for inference, which becomes the latest."""
        found = self._tuners.get(trains)
        if found is None:
            found = self._tuners.setdefault(
                trains, _TrainingTuner() if trains else _InferenceTuner()
            )
        self.latest = found
        return found


class _InferenceTuner:
    """Tuner of a layer's inference calls.

    Args:
        now: The clock, in seconds.

    Attributes:
        traces: Traces of the layer's calls.
        is_given_up: Whether the layer is not tuned any more, so that its inner layers are.
        why_native: Reason why Paddle runs the layer for the inputs of its last call, or ``None``.
    """

    trains = False

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self.is_given_up = False
        self.traces = TraceCache(self.trains)
        self.why_native: str | None = None
        self._signatures: LRUCache[Hashable, _SignatureTuner] = LRUCache(_SIGNATURES.bound)
        # In seconds: the time that Paddle has run the layer; the time that trials have taken beyond
        # that of Paddle; the expected time to build the programs of the current call; and the
        # budget that must be available before tuning continues.
        self._native_seconds = self._tuning_seconds = self._expected_build_seconds = (
            self._needed_seconds
        ) = 0.0

    def run(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Runs the layer by Paddle or compiled; times the call until its shape is decided."""
        sizes: list[int] = []
        named = _signature_of(kwargs, sizes) if kwargs else None
        key = (layer.training, _signature_of(inputs, sizes), named)
        signature = self._signatures.get_or_create(key, self._new_signature)
        trial = signature.trial(tuple(sizes))
        if trial.is_compiled is not None:
            self.why_native = trial.why_native
            if trial.is_compiled:
                return self.traces.run(original, (layer, *inputs), kwargs)
            # As run_natively(), inlined, since a layer may take microseconds.
            begin = _ticks()
            try:
                return original(layer, *inputs, **kwargs)
            finally:
                _record_event(_SLOWER, self.traces.id, begin)
        owner = signature.owner(trial)
        may_compile = self._compiles_trial(signature, trial)
        is_compiled = may_compile and self._continues_tuning(owner.deferred_build_seconds)
        start = self._now()
        try:
            if not is_compiled:
                call = partial(original, layer, *inputs, **kwargs)
                arguments = signature, tuple(sizes), layer, call
                reason = _BUDGET if may_compile else _TIMING
                return self.traces.run_natively(reason, self._run_natively, arguments, {})
            self._expected_build_seconds = owner.deferred_build_seconds = 0.0
            with (
                background_compile.compile_synchronously(),
                compile_budget_set(partial(self._may_compile_program, owner)),
            ):
                return self.traces.run(original, (layer, *inputs), kwargs)
        finally:
            self._finish_trial(_TrialCall(signature, trial, is_compiled, self._now() - start))

    def _new_signature(self) -> _SignatureTuner:
        return _SignatureTuner(now=self._now)

    def _run_natively(
        self,
        signature: _SignatureTuner,
        sizes: tuple[int, ...],
        layer: Any,
        call: Callable[[], Any],
    ) -> Any:
        """Runs a call by Paddle, for a shape that is not decided yet."""
        return call()

    def _compiles_trial(self, signature: _SignatureTuner, trial: _Trial) -> bool:
        """Returns whether a call is compiled, for a shape that is not decided yet."""
        return signature.compiles_trial(trial)

    def _finish_trial(self, call: _TrialCall) -> None:
        """Records the time of a finished call, for a shape that is not decided yet."""
        self._record(call, call.seconds)

    def _may_compile_program(self, owner: _Trial, operators: int) -> bool:
        """Returns whether the budget allows to build a program of this many operators now."""
        each = (
            SETTINGS.build_seconds_per_trained_operator
            if self.trains
            else SETTINGS.build_seconds_per_operator
        )
        expected = SETTINGS.build_seconds_per_program + operators * each
        if self._can_afford(self._expected_build_seconds + expected):
            self._expected_build_seconds += expected
            return True
        owner.deferred_build_seconds = expected
        return False

    def _continues_tuning(self, deferred_build_seconds: float) -> bool:
        """Returns whether the budget suffices to continue tuning, with any deferred build."""
        goes_on = self._can_afford(max(deferred_build_seconds, self._needed_seconds))
        self._needed_seconds = 0.0 if goes_on else SETTINGS.tuning_burst_seconds
        return goes_on

    def _can_afford(self, seconds: float) -> bool:
        """Returns whether the tuning budget allows another ``seconds``."""
        if self._tuning_seconds + seconds <= SETTINGS.max_tuning_time_share * self._native_seconds:
            return True
        self.why_native = (
            f"it has run for {self._native_seconds:.3g} s, "
            "and to compile it may take a share of that"
        )
        return False

    def _record(self, call: _TrialCall, seconds: float) -> None:
        """Adds the time of a call to the times of its shape, and to the tuning budget."""
        trial = call.trial
        if call.is_compiled:
            overhead = seconds - call.signature.native_seconds(trial)
            self._tuning_seconds = max(0.0, self._tuning_seconds + overhead)
            if call.signature.owner(trial).deferred_build_seconds > 0.0:
                # The build was deferred, so the call ran its operators one by one: its time is not
                # that of a compiled call.
                return
        else:
            self._native_seconds += seconds
        call.signature.add(trial, call.is_compiled, seconds)
        if trial.is_compiled is None:
            return
        self.why_native = trial.why_native
        if call.is_compiled and not self.traces.graphs():
            self.is_given_up = True
            self.why_native = "no two of its calls had the same operators"


@dataclass(frozen=True)
class _TrialCall:
    """A finished call for an undecided shape, which ran by Paddle or compiled."""

    signature: _SignatureTuner
    trial: _Trial
    is_compiled: bool
    seconds: float


class _TrainingTuner(_InferenceTuner):
    """Tuner of a layer's training calls.

    The time of a call includes the backward passes that follow in its thread before the layer's
    next call: all of them, since autograd does not distinguish layers. So one layer is tuned at a
    time, and once it is compiled, the times of other layers are reset. Times of one layer for
    different shapes do not mix: batches padded to their longest text are tuned concurrently.

    Attributes:
        undecided: Trials of the layer's shapes that have begun and are not decided.
        num_compiled: Number of shapes that were decided to be compiled.
    """

    trains = True

    def __init__(self, now: Clock = clock.now) -> None:
        super().__init__(now)
        self.undecided: WeakSet[_Trial] = WeakSet()
        self.num_compiled = 0
        self._finished_call: tuple[_TrialCall, int, float] | None = None

    def run(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        ended, self._finished_call = self._finished_call, None
        if ended is not None:
            call, thread, before = ended
            if thread == threading.get_ident():
                self._record(call, call.seconds + gradients.seconds() - before)
        return super().run(original, layer, inputs, kwargs)

    def _new_signature(self) -> _SignatureTuner:
        return _SignatureTuner(is_trained=True, now=self._now)

    def _run_natively(
        self,
        signature: _SignatureTuner,
        sizes: tuple[int, ...],
        layer: Any,
        call: Callable[[], Any],
    ) -> Any:
        if not signature.is_profiled:
            return call()
        result = signature.profiler.run(sizes, layer, call)
        if signature.profiler.are_inner_layers_better and not self.traces.graphs():
            self.is_given_up = True
            self.why_native = "layers that it calls have fewer input signatures"
        return result

    def _compiles_trial(self, signature: _SignatureTuner, trial: _Trial) -> bool:
        _tuning_slot.discard_stale_times(self, trial)
        tries = super()._compiles_trial(signature, trial)
        # Releases the tuning slot for other layers if the trial is decided: the times of larger
        # shapes may have decided it.
        _tuning_slot.release(self, trial)
        return tries and _tuning_slot.acquire(self, trial)

    def _finish_trial(self, call: _TrialCall) -> None:
        self._finished_call = call, threading.get_ident(), gradients.seconds()

    def _record(self, call: _TrialCall, seconds: float) -> None:
        if call.trial.is_compiled is None:
            super()._record(call, seconds)
            _tuning_slot.release(self, call.trial)


class _TuningSlot:
    """The slot of the one layer whose training calls are tuned at a time."""

    def __init__(self) -> None:
        self._holder: ref[_TrainingTuner] | None = None
        self._calls_waited = 0
        # Number of shapes of all layers that the tuners have decided to compile.
        self._num_compiled = 0

    def discard_stale_times(self, layer: _TrainingTuner, trial: _Trial) -> None:
        """Resets a trial if another layer was compiled after its times were measured."""
        others = self._num_compiled - layer.num_compiled
        if trial.others_compiled != others and trial.calls[True] == 0:
            trial.reset()
        trial.others_compiled = others

    def acquire(self, layer: _TrainingTuner, trial: _Trial) -> bool:
        """Lets a layer take the trial slot, if it may; returns whether it may go on with the trial.

        The layer that holds the slot keeps it for a trial that has begun.
        """
        holder = None if self._holder is None else self._holder()
        if holder is layer:
            if trial in layer.undecided:
                self._calls_waited = 0
                return True
            if self._calls_waited > 0 and layer.undecided:
                # A layer with undecided shapes keeps the slot, unless another layer has waited for
                # it.
                return False
        elif (
            holder is not None
            and holder.undecided
            and self._calls_waited < SETTINGS.max_calls_waited_for_layer
        ):
            self._calls_waited += 1
            return False
        self._holder, self._calls_waited = ref(layer), 0
        layer.undecided.add(trial)
        return True

    def release(self, layer: _TrainingTuner, trial: _Trial) -> None:
        """Ends a trial of the layer, if its shape was decided."""
        if trial.is_compiled is None:
            return
        layer.undecided.discard(trial)
        if trial.is_compiled:
            layer.num_compiled += 1
            self._num_compiled += 1


_tuning_slot = _TuningSlot()


class _Trial:
    """Times of a layer for inputs of one shape, until the faster method is decided.

    Args:
        is_trained: Whether the layer trains. Then times vary, since only some calls have a
            backward pass, and means are compared; else the minima of equally many calls.
        sizes: All sizes of the inputs, which distinguish the shape from others of its signature.

    Attributes:
        is_compiled: The decision; ``None`` until it is made.
        why_native: The measured times, if Paddle was faster.
        calls: Number of calls by Paddle (``False``) and compiled (``True``).
        others_compiled: Number of compiled shapes of other layers when the trial began.
        deferred_build_seconds: Expected time of a build that exceeded the tuning budget, or 0.
    """

    def __init__(self, is_trained: bool = False, sizes: tuple[int, ...] = ()) -> None:
        self.sizes = sizes
        self.is_compiled: bool | None = None
        self.why_native: str | None = None
        self.others_compiled = 0
        self.deferred_build_seconds = 0.0
        self._is_trained = is_trained
        self.reset()

    def reset(self) -> None:
        """Discards the measured times of the shape, and restarts the count of its calls."""
        self.calls = {False: 0, True: 0}
        self._seconds: dict[bool, deque[float]] = {
            each: deque(maxlen=SETTINGS.max_times_per_shape) for each in self.calls
        }

    def add(self, is_compiled: bool, seconds: float) -> None:
        """Adds the time of a call of the shape, compiled or by Paddle, which is no warm-up call."""
        self._seconds[is_compiled].append(seconds)

    @property
    def native_seconds(self) -> float | None:
        """Mean seconds of a timed call by Paddle; ``None`` before the first one."""
        return fmean(self._seconds[False]) if self._seconds[False] else None

    @property
    def num_pairs(self) -> int:
        """Number of pairs of one timed call by Paddle and one timed compiled call."""
        return min(map(len, self._seconds.values()))

    def compared(self) -> tuple[float, float]:
        """Returns the seconds of a call by Paddle and of a compiled call; infinity if not timed."""
        native, compiled = map(list, self._seconds.values())
        calls = min(len(native), len(compiled))
        # Another thread may have called reset() since the caller checked that there are times.
        if calls == 0:
            return inf, inf
        if self._is_trained:
            return fmean(native), fmean(compiled)
        # Compares equally many calls of each kind: under load, the minimum over more calls is
        # lower.
        return min(native[-calls:]), min(compiled[-calls:])

    def decide(self, native: float, compiled: float) -> None:
        """Decides whether further calls of the layer are compiled or run by Paddle.

        Args:
            native: The seconds of a call by Paddle.
            compiled: The seconds of a compiled call.
        """
        self.is_compiled = compiled <= SETTINGS.max_compiled_time_ratio * native
        if not self.is_compiled:
            self.why_native = (
                f"a call took {compiled * 1e3:.3g} ms compiled and {native * 1e3:.3g} ms natively"
            )


class _InnerLayerProfiler:
    """Profiles some calls of a layer, to find inner layers that have fewer shapes of inputs.

    A detector in training gets as many boxes as its images have, so that hardly two of its batches
    have one shape. Its backbone gets the images only.

    Args:
        now: The clock, in seconds.
    """

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self.calls = 0
        self._outermost = 0  # id() of the outermost layer that is profiled
        self._seconds = 0.0
        self._shapes: set[tuple[int, ...]] = set()
        # Keyed by id() of layers: the signatures and shapes of inner layers, and for each calling
        # layer, the seconds in the layers that it calls.
        self._inner_shapes: dict[int, set[Hashable]] = {}
        self._inner_seconds: dict[int, dict[int, float]] = {}

    def run(self, sizes: tuple[int, ...], layer: Any, call: Callable[[], Any]) -> Any:
        """Runs ``call``, a call of the outermost layer, and profiles the layers that it calls.

        Args:
            sizes: The sizes of the inputs of the call, recorded as a shape of the layer.
            layer: The outermost layer.
            call: Calls the layer.
        """
        self._outermost = id(layer)
        start = self._now()
        try:
            with _profiler.overridden(self), _calling_layer_id.overridden(id(layer)):
                return call()
        finally:
            self.calls += 1
            self._shapes.add(sizes)
            self._seconds += self._now() - start

    def run_inner(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Calls an inner layer, and adds its time to that of its caller."""
        sizes: list[int] = []
        signature = _signature_of(inputs, sizes), _signature_of(kwargs, sizes)
        self._inner_shapes.setdefault(id(layer), set()).add((signature, tuple(sizes)))
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
        if self.calls < SETTINGS.profiled_calls:
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
        return spent > 0.0 and spent >= SETTINGS.min_inner_time_share * self._seconds


class _SignatureTuner:
    """Trials of all shapes of one signature: inputs that differ in sizes only.

    Args:
        is_trained: Whether the layer trains. Then each shape has separate graphs, and is decided
            alone.
        now: The clock, in seconds.

    Attributes:
        profiler: Profiles some calls, once there are many shapes.
    """

    def __init__(self, is_trained: bool = False, now: Clock = clock.now) -> None:
        self.profiler = _InnerLayerProfiler(now)
        self._is_trained = is_trained
        self._trials: LRUCache[tuple[int, ...], _Trial] = LRUCache(_SHAPE_TRIALS.bound)
        self._pooled = _Trial()  # times over all shapes, by which rare shapes are decided
        self._measured: set[_Trial] = set()
        self._native_seconds = 0.0
        self._shapes_faster_natively: list[tuple[int, ...]] = []

    @property
    def is_profiled(self) -> bool:
        """Whether the next call is to run under the profiler of inner layers."""
        return (
            len(self._trials) >= SETTINGS.min_profiled_shapes
            and self.profiler.calls < SETTINGS.profiled_calls
        )

    def trial(self, sizes: tuple[int, ...]) -> _Trial:
        """Returns the trial for inputs of these sizes; a new one for their first call."""
        return self._trials.get_or_create(sizes, lambda: _Trial(self._is_trained, sizes))

    def owner(self, trial: _Trial) -> _Trial:
        """Returns the trial whose graphs a call uses: in inference, one trial's for all shapes."""
        return trial if self._is_trained else self._pooled

    def compiles_trial(self, trial: _Trial) -> bool:
        """Returns whether a call is compiled, for a shape that is not decided yet."""
        if self._is_trained and self._is_slower_for_larger_shapes(trial):
            trial.is_compiled = False
            trial.why_native = "calls with inputs no smaller were faster natively"
            return False
        if trial.calls[False] >= SETTINGS.native_trial_calls or self._pooled.is_compiled:
            return True
        has_many = len(self._trials) >= SETTINGS.min_pooled_shapes and not self._is_trained
        is_known = trial.native_seconds is not None
        return (
            has_many and is_known and self._pooled.calls[False] >= 4 * SETTINGS.native_trial_calls
        )

    def _is_slower_for_larger_shapes(self, trial: _Trial) -> bool:
        """Returns whether Paddle was faster for enough shapes, none of which is smaller."""
        if trial.calls[True] > 0:
            return False
        larger = [
            each
            # A copy of the list, to which other threads may append during the loop.
            for each in list(self._shapes_faster_natively)
            if all(size >= own for size, own in zip(each, trial.sizes))
        ]
        return len(larger) >= SETTINGS.max_slower_larger_shapes

    def native_seconds(self, trial: _Trial) -> float:
        """Returns the mean seconds of a call by Paddle.

        The mean is over calls with the shape of the trial, or over all shapes if there were none.
        """
        known = trial.native_seconds
        return self._native_seconds / max(1, self._pooled.calls[False]) if known is None else known

    def add(self, trial: _Trial, is_compiled: bool, seconds: float) -> None:
        """Adds the time of a call, and decides its shape, or all shapes, once times suffice."""
        pooled = self._pooled
        number = trial.calls[is_compiled]
        is_cold = (
            number < SETTINGS.compiled_warmup_calls
            if is_compiled
            else pooled.calls[False] < SETTINGS.native_warmup_calls
        )
        trial.calls[is_compiled] += 1
        pooled.calls[is_compiled] += 1
        if not is_compiled:
            self._native_seconds += seconds
        if not is_cold:
            trial.add(is_compiled, seconds)
        if trial.num_pairs > 0 and pooled.is_compiled is None and not self._is_trained:
            self._measured.add(trial)
            self._decide_pooled()
        is_warm = is_compiled and not is_cold
        if pooled.is_compiled is False or (pooled.is_compiled and is_warm):
            trial.is_compiled, trial.why_native = pooled.is_compiled, pooled.why_native
        elif trial.calls[True] >= SETTINGS.compiled_trial_calls:
            trial.decide(*trial.compared())
            if not trial.is_compiled:
                self._shapes_faster_natively.append(trial.sizes)

    def _decide_pooled(self) -> None:
        # A copy of the set, to which other threads may add trials.
        measured = list(self._measured)
        calls = sum(trial.num_pairs for trial in measured)
        if len(measured) < SETTINGS.min_pooled_shapes or calls < SETTINGS.min_pooled_calls:
            return
        self._pooled.decide(*_median(trial.compared() for trial in measured))
        self._measured.clear()


def _median(compared: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Returns the weighted median, by ratio, of pairs of times by Paddle and compiled.

    The weights are Paddle's times. Sums would be decided by the few calls that were delayed by
    other processes.
    """
    best_first = sorted(compared, key=lambda times: times[1] / times[0])
    rest = sum(native for native, _ in best_first) / 2.0
    for times in best_first:
        rest -= times[0]
        if rest <= 0.0:
            break
    return times


def _signature_of(value: Any, sizes: list[int], depth: int = 0) -> Hashable:
    """Returns dtypes, ranks and structure of an input, and appends its sizes to ``sizes``."""
    if isinstance(value, paddle.Tensor):
        shape = value.shape
        sizes.extend(shape)  # extend(), since += would call an operator of Paddle's type of shapes
        return value.dtype, len(shape)
    if depth < SETTINGS.max_input_nesting_levels and isinstance(value, (list, tuple)):
        return (type(value), *[_signature_of(each, sizes, depth + 1) for each in value])
    if depth < SETTINGS.max_input_nesting_levels and isinstance(value, dict):
        return tuple([(key, _signature_of(each, sizes, depth + 1)) for key, each in value.items()])
    return type(value).__name__
