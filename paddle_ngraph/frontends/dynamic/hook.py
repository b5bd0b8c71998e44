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
    explain_captures,
)
from paddle_ngraph.frontends.dynamic.lazy.capture import Captures
from paddle_ngraph.frontends.dynamic.lazy.trace_graph import building_if
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.paddle_private.names import (
    StaticFunction,
    attributes_of,
    dynamic_tracer,
    is_read_by_sot,
    is_watched_by_sot,
    kept_on,
    never_give_up,
)
from paddle_ngraph.paddle_private.replaced import CALL_LAYER
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.lru_cache import Latest
from paddle_ngraph.utils.thread_local import PerThread

_WRAPPING = "_ngraph_wrapping"  # of a layer: what it keeps of ours

# Kinds of inputs of a layer that times are kept of: so many sizes for each of so many forms.
_FORMS, _SIZES = 16, 1024
_DEPTH = 16  # of lists in lists that are looked at
# Calls of one kind: so many natively, then so many compiled; the first ones do not count, for they
# fill caches and compile functions.
_NATIVE, _NATIVE_COLD = 4, 1
_COMPILED, _COMPILED_COLD = 7, 3
# So many kinds of one form are decided together, if they come seldom, by so many calls of each way.
_TOGETHER, _CALLS_TOGETHER = 4, 16
# So many calls of a kind are remembered.
_KEPT = 64
# Where it trains: kinds than which so many are no smaller, and faster natively, are not tried.
_LARGER = 2
# What is compiled has to be as much faster as may be chance.
_MARGIN = 0.95
# Trying takes at most this share of the time that a layer has run natively.
_SHARE = 0.2
# Once it has taken that, it goes on when there are so many seconds: one compiled call after another
# is faster than one among native calls, after which threads and caches are cold.
_BURST = 0.02
# What a program is expected to take until it has run for the first time, and for each operator.
_SECONDS_PER_PROGRAM = 0.05
_SECONDS_PER_OPERATOR = 0.004
_SECONDS_PER_TRAINED_OPERATOR = 0.012  # with its gradient

# Once a layer has been trained with so many kinds of inputs, so many of its calls are watched.
# The layers that it calls are looked at instead, if those with fewer kinds take this share of it.
_MANY = 16
_WATCHED = 16
_INSIDE = 0.5

# Calls of other layers after which a layer that trains and is not called is no longer waited for.
_WAITS = 64

_is_on = False
_trains = False  # whether calls with gradients are compiled, too
_is_inside = PerThread(False)  # an outermost layer
_watch: PerThread[_Watch | None] = PerThread(None)  # who looks at what that layer calls
_caller = PerThread(0)  # the address of the layer that calls


def switch(on: bool, trains: bool = False) -> None:
    """Looks at the outermost layers, or no longer, from the next call on.

    Args:
        on: Whether it looks at those that infer.
        trains: Whether it looks at those that train, too.
    """
    global _is_on, _trains
    if on:
        CALL_LAYER.replace(_with_compilation)
    if trains:
        gradients.install()
    _is_on, _trains = on, trains


def explain(layer: Any) -> CompiledReport:
    """What became of a layer that was called.

    Raises:
        NgraphError: It was not compiled yet.
    """
    mode: _Mode = attributes_of(layer)[_WRAPPING].latest
    return explain_captures(mode.captures, mode.why_native)


def is_known(thing: Any) -> bool:
    """Whether it is a layer that was looked at."""
    return isinstance(thing, paddle.nn.Layer) and _WRAPPING in attributes_of(thing)


def _with_compilation(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if is_read_by_sot():  # it has to find Paddle's method, or it ends its graph here
            return original(self, *inputs, **kwargs)
        if not _is_on:
            return original(self, *inputs, **kwargs)
        if _is_inside.value:
            watch = _watch.value
            if watch is None:
                return original(self, *inputs, **kwargs)
            return watch.run_inner(original, self, inputs, kwargs)
        if not flags.get("use_ngraph"):
            return original(self, *inputs, **kwargs)
        return _outermost(original, self, inputs, kwargs)

    codes = __call__.__code__, _outermost.__code__  # type: ignore[attr-defined]
    never_give_up(codes)  # as Paddle says of its own __call__
    return __call__


def _outermost(original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
    """Runs a layer that no other layer calls."""
    if dynamic_tracer() is None:
        return original(layer, *inputs, **kwargs)
    trains = paddle.is_grad_enabled()
    if trains and not (_trains and gradients.may_compile()):
        return original(layer, *inputs, **kwargs)
    if is_watched_by_sot():
        return original(layer, *inputs, **kwargs)
    mode: _Mode | None = None
    if not isinstance(layer.forward, (StaticFunction, Compiled)):
        mode = kept_on(layer, _WRAPPING, _Wrapping).mode(trains)
        if mode.is_given_up:
            return original(layer, *inputs, **kwargs)
    _is_inside.value = True  # the layers that are called are left to this one
    try:
        if mode is None:
            return original(layer, *inputs, **kwargs)
        return mode.run(original, layer, inputs, kwargs)
    finally:
        _is_inside.value = False


class _Wrapping:
    """What is known of a layer that was outermost. It is not copied with the layer, or saved.

    Attributes:
        latest: What it was called for last.
    """

    def __init__(self) -> None:
        self._modes: dict[bool, _Mode] = {}
        self.latest = self.mode(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Wrapping:
        return _Wrapping()

    def __reduce__(self) -> Any:
        return _Wrapping, ()

    def mode(self, trains: bool) -> _Mode:
        """What is known of it where it trains, or infers."""
        found = self._modes.get(trains)
        if found is None:
            found = self._modes.setdefault(trains, _Training() if trains else _Mode())
        self.latest = found
        return found


class _Mode:
    """What is known of a layer where it infers.

    Args:
        now: The clock.

    Attributes:
        captures: Of its calls.
        is_given_up: Whether the layers that it calls are to be looked at instead.
        why_native: Why it runs natively with the inputs of its last call, or ``None``.
    """

    trains = False

    def __init__(self, now: Clock = clock.now) -> None:
        self._now = now
        self.is_given_up = False
        self.captures = Captures(self.trains)
        self.why_native: str | None = None
        self._forms: Latest[Hashable, _Form] = Latest(_FORMS)
        # Seconds: that it has run natively; that trials took more than Paddle would have; what the
        # programs of this call are expected to take; what there has to be left to go on.
        self._natively = self._trying = self._expected = self._needed = 0.0

    def run(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Runs the layer natively or compiled, and looks at the clock as long as needed."""
        sizes: list[int] = []
        named = _form_of(kwargs, sizes) if kwargs else None
        key = (layer.training, _form_of(inputs, sizes), named)
        form = self._forms.get_or_make(key, self._form)
        trial = form.trial(tuple(sizes))
        if trial.is_compiled is not None:
            self.why_native = trial.why_native
            if trial.is_compiled:
                return self.captures.run(original, (layer, *inputs), kwargs)
            return original(layer, *inputs, **kwargs)
        owner = form.owner(trial)
        is_compiled = self._tries(form, trial) and self._goes_on(owner.put_off)
        start = self._now()
        try:
            if not is_compiled:
                call = partial(original, layer, *inputs, **kwargs)
                return self._run_natively(form, tuple(sizes), layer, call)
            self._expected = owner.put_off = 0.0
            with background_compile.awaited(), building_if(partial(self._may_build, owner)):
                return self.captures.run(original, (layer, *inputs), kwargs)
        finally:
            self._end(_Tried(form, trial, is_compiled, self._now() - start))

    def _form(self) -> _Form:
        return _Form(now=self._now)

    def _run_natively(
        self, form: _Form, sizes: tuple[int, ...], layer: Any, call: Callable[[], Any]
    ) -> Any:
        """A call of the layer that is not decided."""
        return call()

    def _tries(self, form: _Form, trial: _Trial) -> bool:
        """Whether a call that is not decided is to be compiled."""
        return form.tries(trial)

    def _end(self, tried: _Tried) -> None:
        """A call that was not decided is over."""
        self._add(tried, tried.seconds)

    def _may_build(self, owner: _Trial, operators: int) -> bool:
        """Whether a program of so many operators is made now."""
        each = _SECONDS_PER_TRAINED_OPERATOR if self.trains else _SECONDS_PER_OPERATOR
        expected = _SECONDS_PER_PROGRAM + operators * each
        if self._can_afford(self._expected + expected):
            self._expected += expected
            return True
        owner.put_off = expected
        return False

    def _goes_on(self, put_off: float) -> bool:
        """Whether trying goes on, which may begin with a program that was put off."""
        goes_on = self._can_afford(max(put_off, self._needed))
        self._needed = 0.0 if goes_on else _BURST
        return goes_on

    def _can_afford(self, seconds: float) -> bool:
        """Whether trying may take so much time."""
        if self._trying + seconds <= _SHARE * self._natively:
            return True
        self.why_native = (
            f"it has run for {self._natively:.3g} s, and to compile it may take a share of that"
        )
        return False

    def _add(self, tried: _Tried, seconds: float) -> None:
        """Adds what a call has taken that was not decided."""
        trial = tried.trial
        if tried.is_compiled:
            more = seconds - tried.form.native_seconds(trial)
            self._trying = max(0.0, self._trying + more)
            if tried.form.owner(trial).put_off > 0.0:
                return  # its operators were called one by one
        else:
            self._natively += seconds
        tried.form.add(trial, tried.is_compiled, seconds)
        if trial.is_compiled is None:
            return
        self.why_native = trial.why_native
        if tried.is_compiled and not self.captures.graphs():
            self.is_given_up = True
            self.why_native = "no two of its calls had the same operators"


@dataclass(frozen=True)
class _Tried:
    """A call that was not decided, natively or compiled."""

    form: _Form
    trial: _Trial
    is_compiled: bool
    seconds: float


class _Training(_Mode):
    """What is known of a layer where it trains.

    A call takes what the backward passes take, too, which follow in its thread before its next one:
    all of them, since autograd tells no layers apart. So one layer is tried at a time, and once
    it is compiled, the times of others begin anew. Those of one layer for several kinds of inputs
    do not mix: batches that are as long as their longest text are tried side by side.

    Attributes:
        undecided: Of its kinds, those that are being tried.
        compiled: How many were decided to be compiled.
    """

    trains = True

    def __init__(self, now: Clock = clock.now) -> None:
        super().__init__(now)
        self.undecided: WeakSet[_Trial] = WeakSet()
        self.compiled = 0
        self._ended: tuple[_Tried, int, float] | None = None

    def run(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        ended, self._ended = self._ended, None
        if ended is not None:
            tried, thread, before = ended
            if thread == threading.get_ident():
                self._add(tried, tried.seconds + gradients.seconds() - before)
        return super().run(original, layer, inputs, kwargs)

    def _form(self) -> _Form:
        return _Form(is_trained=True, now=self._now)

    def _run_natively(
        self, form: _Form, sizes: tuple[int, ...], layer: Any, call: Callable[[], Any]
    ) -> Any:
        if not form.is_watched:
            return call()
        result = form.watch.run(sizes, layer, call)
        if form.watch.is_better_inside and not self.captures.graphs():
            self.is_given_up = True
            self.why_native = "layers that it calls have fewer kinds of inputs"
        return result

    def _tries(self, form: _Form, trial: _Trial) -> bool:
        _turn.begin(self, trial)
        tries = super()._tries(form, trial)
        _turn.end(self, trial)  # larger ones may have decided it, whose turn it was
        return tries and _turn.take(self, trial)

    def _end(self, tried: _Tried) -> None:
        self._ended = tried, threading.get_ident(), gradients.seconds()

    def _add(self, tried: _Tried, seconds: float) -> None:
        if tried.trial.is_compiled is None:
            super()._add(tried, seconds)
            _turn.end(self, tried.trial)


class _Turn:
    """Which layer that trains is tried now."""

    def __init__(self) -> None:
        self._holder: ref[_Training] | None = None
        self._waited = 0
        self._number = 0  # of kinds that were compiled, of all layers

    def begin(self, layer: _Training, trial: _Trial) -> None:
        """Times from before another layer was compiled do not count."""
        others = self._number - layer.compiled
        if trial.turn != others and trial.calls[True] == 0:
            trial.begin_anew()
        trial.turn = others

    def take(self, layer: _Training, trial: _Trial) -> bool:
        """Whether it is this layer's turn, or was when this kind was first tried."""
        holder = None if self._holder is None else self._holder()
        if holder is layer:
            if trial in layer.undecided:
                self._waited = 0
                return True
            if self._waited > 0 and layer.undecided:
                return False  # another layer is next
        elif holder is not None and holder.undecided and self._waited < _WAITS:
            self._waited += 1
            return False
        self._holder, self._waited = ref(layer), 0
        layer.undecided.add(trial)
        return True

    def end(self, layer: _Training, trial: _Trial) -> None:
        """Something may have been decided."""
        if trial.is_compiled is None:
            return
        layer.undecided.discard(trial)
        if trial.is_compiled:
            layer.compiled += 1
            self._number += 1


_turn = _Turn()


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
        turn: How many kinds of other layers were compiled when it began.
        put_off: What a program is expected to take, in seconds, that it was too soon for.
    """

    def __init__(self, is_trained: bool = False, sizes: tuple[int, ...] = ()) -> None:
        self.sizes = sizes
        self.is_compiled: bool | None = None
        self.why_native: str | None = None
        self.turn = 0
        self.put_off = 0.0
        self._is_trained = is_trained
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets all times."""
        self.calls = {False: 0, True: 0}
        self._seconds: dict[bool, deque[float]] = {each: deque(maxlen=_KEPT) for each in self.calls}

    def add(self, is_compiled: bool, seconds: float) -> None:
        """Adds a call that counts."""
        self._seconds[is_compiled].append(seconds)

    @property
    def native_seconds(self) -> float | None:
        """What a native call takes, where that is known."""
        return fmean(self._seconds[False]) if self._seconds[False] else None

    @property
    def pairs(self) -> int:
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
        self.is_compiled = compiled <= _MARGIN * native
        if not self.is_compiled:
            self.why_native = (
                f"a call took {compiled * 1e3:.3g} ms compiled and {native * 1e3:.3g} ms natively"
            )


class _Watch:
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
        self._kinds: set[tuple[int, ...]] = set()
        # Of each layer that is called, by its address: kinds of inputs, and the seconds that it has
        # taken in each layer that calls it.
        self._inner: dict[int, set[Hashable]] = {}
        self._inner_seconds: dict[int, dict[int, float]] = {}

    def run(self, sizes: tuple[int, ...], layer: Any, call: Callable[[], Any]) -> Any:
        """Calls the layer with inputs of these sizes."""
        self._outermost = id(layer)
        start = self._now()
        try:
            with _watch.set_to(self), _caller.set_to(id(layer)):
                return call()
        finally:
            self.calls += 1
            self._kinds.add(sizes)
            self._seconds += self._now() - start

    def run_inner(self, original: Callable[..., Any], layer: Any, inputs: Any, kwargs: Any) -> Any:
        """Calls a layer that the other one calls."""
        sizes: list[int] = []
        form = _form_of(inputs, sizes), _form_of(kwargs, sizes)
        self._inner.setdefault(id(layer), set()).add((form, tuple(sizes)))
        caller = _caller.value
        start = self._now()
        try:
            with _caller.set_to(id(layer)):
                return original(layer, *inputs, **kwargs)
        finally:
            called = self._inner_seconds.setdefault(caller, {})
            called[id(layer)] = called.get(id(layer), 0.0) + self._now() - start

    @property
    def is_better_inside(self) -> bool:
        """Whether layers with half as many kinds take enough of the time, as far as was seen."""
        if self.calls < _WATCHED:
            return False
        spent = 0.0
        open_, known = [self._outermost], {self._outermost}
        while open_:
            for at, seconds in list(self._inner_seconds.get(open_.pop(), {}).items()):
                if 2 * len(self._inner[at]) <= len(self._kinds):
                    spent += seconds
                elif at not in known:  # what it calls may have fewer
                    known.add(at)
                    open_.append(at)
        return spent > 0.0 and spent >= _INSIDE * self._seconds


class _Form:
    """Kinds of inputs that differ in sizes only.

    Args:
        is_trained: Whether the layer trains. Then each kind has graphs of its own, and is decided
            alone.
        now: The clock.

    Attributes:
        watch: Looks at some calls, once there are many kinds.
    """

    def __init__(self, is_trained: bool = False, now: Clock = clock.now) -> None:
        self.watch = _Watch(now)
        self._is_trained = is_trained
        self._trials: Latest[tuple[int, ...], _Trial] = Latest(_SIZES)
        self._together = _Trial()  # of those that come seldom
        self._measured: set[_Trial] = set()
        self._natively = 0.0
        self._faster_natively: list[tuple[int, ...]] = []  # sizes of kinds

    @property
    def is_watched(self) -> bool:
        """Whether its next call is one of those."""
        return len(self._trials) >= _MANY and self.watch.calls < _WATCHED

    def trial(self, sizes: tuple[int, ...]) -> _Trial:
        """The one for inputs of these sizes."""
        return self._trials.get_or_make(sizes, lambda: _Trial(self._is_trained, sizes))

    def owner(self, trial: _Trial) -> _Trial:
        """The one that its graphs belong to: kinds share them where the layer infers."""
        return trial if self._is_trained else self._together

    def tries(self, trial: _Trial) -> bool:
        """Whether a call that is not decided is to be compiled."""
        if self._is_trained and self._is_native_for_more(trial):
            trial.is_compiled = False
            trial.why_native = "calls with inputs no smaller were faster natively"
            return False
        if trial.calls[False] >= _NATIVE or self._together.is_compiled:
            return True
        has_many = len(self._trials) >= _TOGETHER and not self._is_trained
        is_known = trial.native_seconds is not None
        return has_many and is_known and self._together.calls[False] >= 4 * _NATIVE

    def _is_native_for_more(self, trial: _Trial) -> bool:
        """Whether what has no more to compute would be tried in vain."""
        if trial.calls[True] > 0:
            return False
        larger = [
            each
            for each in list(self._faster_natively)  # other threads may add some meanwhile
            if all(size >= own for size, own in zip(each, trial.sizes))
        ]
        return len(larger) >= _LARGER

    def native_seconds(self, trial: _Trial) -> float:
        """What a call takes natively, as far as that is known."""
        known = trial.native_seconds
        return self._natively / max(1, self._together.calls[False]) if known is None else known

    def add(self, trial: _Trial, is_compiled: bool, seconds: float) -> None:
        """Adds what a call has taken, and decides what can be decided."""
        together = self._together
        number = trial.calls[is_compiled]
        is_cold = number < _COMPILED_COLD if is_compiled else together.calls[False] < _NATIVE_COLD
        trial.calls[is_compiled] += 1
        together.calls[is_compiled] += 1
        if not is_compiled:
            self._natively += seconds
        if not is_cold:
            trial.add(is_compiled, seconds)
        if trial.pairs > 0 and together.is_compiled is None and not self._is_trained:
            self._measured.add(trial)
            self._decide_together()
        is_warm = is_compiled and not is_cold
        if together.is_compiled is False or (together.is_compiled and is_warm):
            trial.is_compiled, trial.why_native = together.is_compiled, together.why_native
        elif trial.calls[True] >= _COMPILED:
            trial.decide(*trial.compared())
            if not trial.is_compiled:
                self._faster_natively.append(trial.sizes)

    def _decide_together(self) -> None:
        measured = list(self._measured)  # other threads may add some meanwhile
        calls = sum(trial.pairs for trial in measured)
        if len(measured) < _TOGETHER or calls < _CALLS_TOGETHER:
            return
        self._together.decide(*_median(trial.compared() for trial in measured))
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


def _form_of(value: Any, sizes: list[int], depth: int = 0) -> Hashable:
    """What of an input, besides its sizes, decides how long it takes; adds the sizes."""
    if isinstance(value, paddle.Tensor):
        shape = value.shape
        sizes.extend(shape)  # += would be that of shapes
        return value.dtype, len(shape)
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        return (type(value), *[_form_of(each, sizes, depth + 1) for each in value])
    if depth < _DEPTH and isinstance(value, dict):
        return tuple([(key, _form_of(each, sizes, depth + 1)) for key, each in value.items()])
    return type(value).__name__
