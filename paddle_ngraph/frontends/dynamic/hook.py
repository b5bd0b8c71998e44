"""The hook of dynamic layers: the outermost call of a layer is compiled, where that pays.

Calls with gradients off infer, the others train; the latter are compiled only if that was asked for
(``enable(dynamic="training")``), since Python can differentiate twice, and a graph cannot
(gradients.py). Once a process does that, no layer is compiled for training any more.

A layer that calls others is one function with them: only the outermost is looked at. Inputs of one
kind run natively first, then compiled, and from then on as it was faster. Kinds that differ in
sizes only, of which each comes seldom (a text that grows word by word), are decided together where
they infer. To find that out may take a share of the time that the layer has run natively.
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

from paddle_ngraph import flags
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
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.lru_cache import LRUCache
from paddle_ngraph.utils.thread_local import ThreadLocal

_TUNER_ATTRIBUTE = "_ngraph_wrapping"  # of a layer: what it keeps of ours

# Kinds of inputs of a layer that times are kept of: so many sizes for each of so many forms.
_MAX_SIGNATURES, _MAX_SHAPES_PER_SIGNATURE = 16, 1024
_MAX_INPUT_DEPTH = 16  # of lists in lists that are looked at
# Calls of one kind: so many natively, then so many compiled; the first ones do not count, for they
# fill caches and compile functions.
_NATIVE_TRIAL_CALLS, _NATIVE_WARMUP_CALLS = 4, 1
_COMPILED_TRIAL_CALLS, _COMPILED_WARMUP_CALLS = 7, 3
# So many kinds of one form are decided together, if they come seldom, by so many calls of each way.
_MIN_SHAPES_POOLED, _MIN_POOLED_CALLS = 4, 16
# So many calls of a kind are remembered.
_MAX_TIMES_PER_SHAPE = 64
# Where it trains: kinds than which so many are no smaller, and faster natively, are not tried.
_MAX_SLOWER_LARGER_SHAPES = 2
# What is compiled has to be as much faster as may be chance.
_MAX_TIME_RATIO = 0.95
# Trying takes at most this share of the time that a layer has run natively.
_MAX_TUNING_TIME_SHARE = 0.2
# Once it has taken that, it goes on when there are so many seconds: one compiled call after another
# is faster than one among native calls, after which threads and caches are cold.
_TUNING_BURST_SECONDS = 0.02
# What a program is expected to take until it has run for the first time, and for each operator.
_SECONDS_PER_PROGRAM = 0.05
_SECONDS_PER_OPERATOR = 0.004
_SECONDS_PER_TRAINED_OPERATOR = 0.012  # with its gradient

# Once a layer has been trained with so many kinds of inputs, so many of its calls are watched.
# The layers that it calls are looked at instead, if those with fewer kinds take this share of it.
_MANY_SHAPES = 16
_PROFILED_CALLS = 16
_MIN_INNER_TIME_SHARE = 0.5

# Calls of other layers after which a layer that trains and is not called is no longer waited for.
_MAX_CALLS_WAITED_FOR_LAYER = 64

_is_on = False
_trains = False  # whether calls with gradients are compiled, too
_is_in_outermost_layer = ThreadLocal(False)  # an outermost layer
_profiler: ThreadLocal[_InnerLayerProfiler | None] = ThreadLocal(
    None
)  # who looks at what that layer calls
_calling_layer_id = ThreadLocal(0)  # the address of the layer that calls


def switch(on: bool, trains: bool = False) -> None:
    """Looks at the outermost layers, or no longer, from the next call on.

    Args:
        on: Whether it looks at those that infer.
        trains: Whether it looks at those that train, too.
    """
    global _is_on, _trains
    if on:
        CALL_LAYER.replace(_tuned_call)
    if trains:
        gradients.install()
    _is_on, _trains = on, trains


def explain(layer: Any) -> CompiledReport:
    """What became of a layer that was called.

    Raises:
        NgraphError: It was not compiled yet.
    """
    mode: _InferenceTuner = attributes_of(layer)[_TUNER_ATTRIBUTE].latest
    return explain_traces(mode.traces, mode.why_native)


def is_known(thing: Any) -> bool:
    """Whether it is a layer that was looked at."""
    return isinstance(thing, paddle.nn.Layer) and _TUNER_ATTRIBUTE in attributes_of(thing)


def _tuned_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if is_sot_simulating():  # it has to find Paddle's method, or it ends its graph here
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
    exempt_from_sot_fallback(codes)  # as Paddle says of its own __call__
    return __call__


def _run_outermost(original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
    """Runs a layer that no other layer calls."""
    if dynamic_tracer() is None:
        return original(layer, *inputs, **kwargs)
    trains = paddle.is_grad_enabled()
    if trains and not (_trains and gradients.may_compile()):
        return original(layer, *inputs, **kwargs)
    if is_sot_tracing():
        return original(layer, *inputs, **kwargs)
    mode: _InferenceTuner | None = None
    if not isinstance(layer.forward, (StaticFunction, Compiled)):
        mode = attached_to(layer, _TUNER_ATTRIBUTE, _LayerTuner).mode(trains)
        if mode.is_given_up:
            return original(layer, *inputs, **kwargs)
    _is_in_outermost_layer.value = True  # the layers that are called are left to this one
    try:
        if mode is None:
            return original(layer, *inputs, **kwargs)
        return mode.run(original, layer, inputs, kwargs)
    finally:
        _is_in_outermost_layer.value = False


class _LayerTuner:
    """What is known of a layer that was outermost. It is not copied with the layer, or saved.

    Attributes:
        latest: What it was called for last.
    """

    def __init__(self) -> None:
        self._modes: dict[bool, _InferenceTuner] = {}
        self.latest = self.mode(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> _LayerTuner:
        return _LayerTuner()

    def __reduce__(self) -> Any:
        return _LayerTuner, ()

    def mode(self, trains: bool) -> _InferenceTuner:
        """What is known of it where it trains, or infers."""
        found = self._modes.get(trains)
        if found is None:
            found = self._modes.setdefault(
                trains, _TrainingTuner() if trains else _InferenceTuner()
            )
        self.latest = found
        return found


class _InferenceTuner:
    """What is known of a layer where it infers.

    Args:
        now: The clock.

    Attributes:
        traces: Of its calls.
        is_given_up: Whether the layers that it calls are to be looked at instead.
        why_native: Why it runs natively with the inputs of its last call, or ``None``.
    """

    trains = False

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self.is_given_up = False
        self.traces = TraceCache(self.trains)
        self.why_native: str | None = None
        self._signatures: LRUCache[Hashable, _SignatureTuner] = LRUCache(_MAX_SIGNATURES)
        # Seconds: that it has run natively; that trials took more than Paddle would have; what the
        # programs of this call are expected to take; what there has to be left to go on.
        self._native_seconds = self._tuning_seconds = self._expected_build_seconds = (
            self._needed_seconds
        ) = 0.0

    def run(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Runs the layer natively or compiled, and looks at the clock as long as needed."""
        sizes: list[int] = []
        named = _signature_of(kwargs, sizes) if kwargs else None
        key = (layer.training, _signature_of(inputs, sizes), named)
        signature = self._signatures.get_or_create(key, self._new_signature)
        trial = signature.trial(tuple(sizes))
        if trial.is_compiled is not None:
            self.why_native = trial.why_native
            if trial.is_compiled:
                return self.traces.run(original, (layer, *inputs), kwargs)
            return original(layer, *inputs, **kwargs)
        owner = signature.owner(trial)
        is_compiled = self._compiles_trial(signature, trial) and self._continues_tuning(
            owner.deferred_build_seconds
        )
        start = self._now()
        try:
            if not is_compiled:
                call = partial(original, layer, *inputs, **kwargs)
                return self._run_natively(signature, tuple(sizes), layer, call)
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
        """A call of the layer that is not decided."""
        return call()

    def _compiles_trial(self, signature: _SignatureTuner, trial: _Trial) -> bool:
        """Whether a call that is not decided is to be compiled."""
        return signature.compiles_trial(trial)

    def _finish_trial(self, call: _TrialCall) -> None:
        """A call that was not decided is over."""
        self._record(call, call.seconds)

    def _may_compile_program(self, owner: _Trial, operators: int) -> bool:
        """Whether a program of so many operators is made now."""
        each = _SECONDS_PER_TRAINED_OPERATOR if self.trains else _SECONDS_PER_OPERATOR
        expected = _SECONDS_PER_PROGRAM + operators * each
        if self._can_afford(self._expected_build_seconds + expected):
            self._expected_build_seconds += expected
            return True
        owner.deferred_build_seconds = expected
        return False

    def _continues_tuning(self, deferred_build_seconds: float) -> bool:
        """Whether trying goes on, which may begin with a program that was put off."""
        goes_on = self._can_afford(max(deferred_build_seconds, self._needed_seconds))
        self._needed_seconds = 0.0 if goes_on else _TUNING_BURST_SECONDS
        return goes_on

    def _can_afford(self, seconds: float) -> bool:
        """Whether trying may take so much time."""
        if self._tuning_seconds + seconds <= _MAX_TUNING_TIME_SHARE * self._native_seconds:
            return True
        self.why_native = (
            f"it has run for {self._native_seconds:.3g} s, "
            "and to compile it may take a share of that"
        )
        return False

    def _record(self, call: _TrialCall, seconds: float) -> None:
        """Adds what a call has taken that was not decided."""
        trial = call.trial
        if call.is_compiled:
            overhead = seconds - call.signature.native_seconds(trial)
            self._tuning_seconds = max(0.0, self._tuning_seconds + overhead)
            if call.signature.owner(trial).deferred_build_seconds > 0.0:
                return  # its operators were called one by one
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
    """A call that was not decided, natively or compiled."""

    signature: _SignatureTuner
    trial: _Trial
    is_compiled: bool
    seconds: float


class _TrainingTuner(_InferenceTuner):
    """What is known of a layer where it trains.

    A call takes what the backward passes take, too, which follow in its thread before its next one:
    all of them, since autograd tells no layers apart. So one layer is tried at a time, and once
    it is compiled, the times of others begin anew. Those of one layer for several kinds of inputs
    do not mix: batches that are as long as their longest text are tried side by side.

    Attributes:
        undecided: Of its kinds, those that are being tried.
        num_compiled: How many were decided to be compiled.
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
            self.why_native = "layers that it calls have fewer kinds of inputs"
        return result

    def _compiles_trial(self, signature: _SignatureTuner, trial: _Trial) -> bool:
        _tuning_slot.discard_stale_times(self, trial)
        tries = super()._compiles_trial(signature, trial)
        _tuning_slot.release(self, trial)  # larger ones may have decided it, whose turn it was
        return tries and _tuning_slot.acquire(self, trial)

    def _finish_trial(self, call: _TrialCall) -> None:
        self._finished_call = call, threading.get_ident(), gradients.seconds()

    def _record(self, call: _TrialCall, seconds: float) -> None:
        if call.trial.is_compiled is None:
            super()._record(call, seconds)
            _tuning_slot.release(self, call.trial)


class _TuningSlot:
    """Which layer that trains is tried now."""

    def __init__(self) -> None:
        self._holder: ref[_TrainingTuner] | None = None
        self._calls_waited = 0
        self._num_compiled = 0  # of kinds that were compiled, of all layers

    def discard_stale_times(self, layer: _TrainingTuner, trial: _Trial) -> None:
        """Times from before another layer was compiled do not count."""
        others = self._num_compiled - layer.num_compiled
        if trial.others_compiled != others and trial.calls[True] == 0:
            trial.reset()
        trial.others_compiled = others

    def acquire(self, layer: _TrainingTuner, trial: _Trial) -> bool:
        """Whether it is this layer's turn, or was when this kind was first tried."""
        holder = None if self._holder is None else self._holder()
        if holder is layer:
            if trial in layer.undecided:
                self._calls_waited = 0
                return True
            if self._calls_waited > 0 and layer.undecided:
                return False  # another layer is next
        elif (
            holder is not None
            and holder.undecided
            and self._calls_waited < _MAX_CALLS_WAITED_FOR_LAYER
        ):
            self._calls_waited += 1
            return False
        self._holder, self._calls_waited = ref(layer), 0
        layer.undecided.add(trial)
        return True

    def release(self, layer: _TrainingTuner, trial: _Trial) -> None:
        """Something may have been decided."""
        if trial.is_compiled is None:
            return
        layer.undecided.discard(trial)
        if trial.is_compiled:
            layer.num_compiled += 1
            self._num_compiled += 1


_tuning_slot = _TuningSlot()


class _Trial:
    """Times of a layer with inputs of one kind, until it is decided how to run it.

    Args:
        is_trained: Whether its calls differ, as backward passes follow some only: then their mean
            counts, else the fewest seconds of equally many calls.
        sizes: What tells the kind from others of its form.

    Attributes:
        is_compiled: What was decided; ``None``: nothing yet.
        why_native: What was measured, if it speaks for Paddle.
        calls: How many there were, natively and compiled.
        others_compiled: How many kinds of other layers were compiled when it began.
        deferred_build_seconds: What a program is expected to take, in seconds, that it was too
        soon for.
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
        """Forgets all times."""
        self.calls = {False: 0, True: 0}
        self._seconds: dict[bool, deque[float]] = {
            each: deque(maxlen=_MAX_TIMES_PER_SHAPE) for each in self.calls
        }

    def add(self, is_compiled: bool, seconds: float) -> None:
        """Adds a call that counts."""
        self._seconds[is_compiled].append(seconds)

    @property
    def native_seconds(self) -> float | None:
        """What a native call takes, where that is known."""
        return fmean(self._seconds[False]) if self._seconds[False] else None

    @property
    def num_pairs(self) -> int:
        """How many calls there are of both ways."""
        return min(map(len, self._seconds.values()))

    def compared(self) -> tuple[float, float]:
        """What a call takes natively and compiled; infinity: not known."""
        native, compiled = map(list, self._seconds.values())
        calls = min(len(native), len(compiled))
        if calls == 0:  # another thread may have begun anew meanwhile
            return inf, inf
        if self._is_trained:
            return fmean(native), fmean(compiled)
        # Of more calls the fastest one is faster, where other processes slow some down.
        return min(native[-calls:]), min(compiled[-calls:])

    def decide(self, native: float, compiled: float) -> None:
        """Decides by what calls take."""
        self.is_compiled = compiled <= _MAX_TIME_RATIO * native
        if not self.is_compiled:
            self.why_native = (
                f"a call took {compiled * 1e3:.3g} ms compiled and {native * 1e3:.3g} ms natively"
            )


class _InnerLayerProfiler:
    """Whether what a layer calls has fewer kinds of inputs than itself, in some of its calls.

    A detector that trains is given as many boxes as there are on the pictures, so that hardly two
    of its batches are of one kind. Its backbone is given the pictures only.

    Args:
        now: The clock.
    """

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self.calls = 0
        self._outermost = 0  # its address
        self._seconds = 0.0
        self._shapes: set[tuple[int, ...]] = set()
        # Of each layer that is called, by its address: kinds of inputs, and the seconds that it has
        # taken in each layer that calls it.
        self._inner_shapes: dict[int, set[Hashable]] = {}
        self._inner_seconds: dict[int, dict[int, float]] = {}

    def run(self, sizes: tuple[int, ...], layer: Any, call: Callable[[], Any]) -> Any:
        """Calls the layer with inputs of these sizes."""
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
        """Calls a layer that the other one calls."""
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
        """Whether layers with half as many kinds take enough of the time, as far as was seen."""
        if self.calls < _PROFILED_CALLS:
            return False
        spent = 0.0
        pending, known = [self._outermost], {self._outermost}
        while pending:
            for at, seconds in list(self._inner_seconds.get(pending.pop(), {}).items()):
                if 2 * len(self._inner_shapes[at]) <= len(self._shapes):
                    spent += seconds
                elif at not in known:  # what it calls may have fewer
                    known.add(at)
                    pending.append(at)
        return spent > 0.0 and spent >= _MIN_INNER_TIME_SHARE * self._seconds


class _SignatureTuner:
    """Kinds of inputs that differ in sizes only.

    Args:
        is_trained: Whether the layer trains. Then each kind has graphs of its own, and is decided
            alone.
        now: The clock.

    Attributes:
        profiler: Looks at some calls, once there are many kinds.
    """

    def __init__(self, is_trained: bool = False, now: Clock = clock.now) -> None:
        self.profiler = _InnerLayerProfiler(now)
        self._is_trained = is_trained
        self._trials: LRUCache[tuple[int, ...], _Trial] = LRUCache(_MAX_SHAPES_PER_SIGNATURE)
        self._pooled = _Trial()  # of those that come seldom
        self._measured: set[_Trial] = set()
        self._native_seconds = 0.0
        self._shapes_faster_natively: list[tuple[int, ...]] = []  # sizes of kinds

    @property
    def is_profiled(self) -> bool:
        """Whether its next call is one of those."""
        return len(self._trials) >= _MANY_SHAPES and self.profiler.calls < _PROFILED_CALLS

    def trial(self, sizes: tuple[int, ...]) -> _Trial:
        """The one for inputs of these sizes."""
        return self._trials.get_or_create(sizes, lambda: _Trial(self._is_trained, sizes))

    def owner(self, trial: _Trial) -> _Trial:
        """The one that its graphs belong to: kinds share them where the layer infers."""
        return trial if self._is_trained else self._pooled

    def compiles_trial(self, trial: _Trial) -> bool:
        """Whether a call that is not decided is to be compiled."""
        if self._is_trained and self._is_slower_for_larger_shapes(trial):
            trial.is_compiled = False
            trial.why_native = "calls with inputs no smaller were faster natively"
            return False
        if trial.calls[False] >= _NATIVE_TRIAL_CALLS or self._pooled.is_compiled:
            return True
        has_many = len(self._trials) >= _MIN_SHAPES_POOLED and not self._is_trained
        is_known = trial.native_seconds is not None
        return has_many and is_known and self._pooled.calls[False] >= 4 * _NATIVE_TRIAL_CALLS

    def _is_slower_for_larger_shapes(self, trial: _Trial) -> bool:
        """Whether what has no more to compute would be tried in vain."""
        if trial.calls[True] > 0:
            return False
        larger = [
            each
            for each in list(self._shapes_faster_natively)  # other threads may add some meanwhile
            if all(size >= own for size, own in zip(each, trial.sizes))
        ]
        return len(larger) >= _MAX_SLOWER_LARGER_SHAPES

    def native_seconds(self, trial: _Trial) -> float:
        """What a call takes natively, as far as that is known."""
        known = trial.native_seconds
        return self._native_seconds / max(1, self._pooled.calls[False]) if known is None else known

    def add(self, trial: _Trial, is_compiled: bool, seconds: float) -> None:
        """Adds what a call has taken, and decides what can be decided."""
        pooled = self._pooled
        number = trial.calls[is_compiled]
        is_cold = (
            number < _COMPILED_WARMUP_CALLS
            if is_compiled
            else pooled.calls[False] < _NATIVE_WARMUP_CALLS
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
        elif trial.calls[True] >= _COMPILED_TRIAL_CALLS:
            trial.decide(*trial.compared())
            if not trial.is_compiled:
                self._shapes_faster_natively.append(trial.sizes)

    def _decide_pooled(self) -> None:
        measured = list(self._measured)  # other threads may add some meanwhile
        calls = sum(trial.num_pairs for trial in measured)
        if len(measured) < _MIN_SHAPES_POOLED or calls < _MIN_POOLED_CALLS:
            return
        self._pooled.decide(*_median(trial.compared() for trial in measured))
        self._measured.clear()


def _median(compared: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Of times natively and compiled: those that are no better than others in half of the time.

    Their sums would be decided by the few calls that something else has held up.
    """
    best_first = sorted(compared, key=lambda times: times[1] / times[0])
    rest = sum(native for native, _ in best_first) / 2.0
    for times in best_first:
        rest -= times[0]
        if rest <= 0.0:
            break
    return times


def _signature_of(value: Any, sizes: list[int], depth: int = 0) -> Hashable:
    """What of an input, besides its sizes, decides how long it takes; adds the sizes."""
    if isinstance(value, paddle.Tensor):
        shape = value.shape
        sizes.extend(shape)  # += would be that of shapes
        return value.dtype, len(shape)
    if depth < _MAX_INPUT_DEPTH and isinstance(value, (list, tuple)):
        return (type(value), *[_signature_of(each, sizes, depth + 1) for each in value])
    if depth < _MAX_INPUT_DEPTH and isinstance(value, dict):
        return tuple([(key, _signature_of(each, sizes, depth + 1)) for key, each in value.items()])
    return type(value).__name__
