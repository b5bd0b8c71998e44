"""Graphs of captured operators: what computes those results of a path that somebody wants.

A path (core/paddle/capture.h) is a list of calls of operators. It becomes stages, each a program
in a ``PartialProgramLayer``, which the to_static hook runs through the engine. There is one stage,
if nothing is to be differentiated. Else autograd has to find each tensor that the user has: what
depends on one of these is another stage, so that gradients pass through the tensor.

Views are Python's: where the user gets a result that has the memory of another tensor, that
operator is called natively, so that whoever writes to one of the two writes to the other.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.hook import gradients, making_graphs, run_scopes, to_static_hook
from paddle_ngraph.hook.captured_operators import (
    DRAWING,
    IN_EVALUATION,
    WRITERS,
    in_programs,
    natively,
)
from paddle_ngraph.locks import new_lock
from paddle_ngraph.paddle_seam.call_stacks import no_call_stacks
from paddle_ngraph.paddle_seam.names import (
    PartialProgramLayer,
    in_static_mode,
    make_parameter,
    operators,
    set_stop_gradient,
    set_training,
)
from paddle_ngraph.paddle_seam.protocols import Scope
from paddle_ngraph.per_thread import PerThread
from paddle_ngraph.program.report import Report

# Whom this thread asks before it makes a graph.
_may_build: PerThread[Callable[[int], bool] | None] = PerThread(None)
_NONE: frozenset[int] = frozenset()
_NO_GRADIENT = frozenset({-1})  # stands for all results that have none
_building = new_lock()
# The parameters that this thread runs a program on.
_weights: PerThread[Sequence[Any]] = PerThread(())
# Paddle keeps six threads and a megabyte of each scope that a program trains in, for good. It has
# as many as runs that wait for their backward passes (a cell that is called in a loop). Those that
# a program has beyond a few are counted for themselves, or long loops would leave none to others.
_MOST_TRAINING = 128
_MOST_OF_PROGRAM = 32
_FEW_OF_PROGRAM = 4
_MOST_OF_LOOPS = 64
_training = itertools.count(1)
_of_loops = itertools.count(1)


class Call(NamedTuple):
    """A call of an operator, see ``CapturedCall`` in core/paddle/capture.h."""

    name: str
    is_method: bool
    arguments: list[Any]
    keywords: list[str]
    result: Any
    has_gradient: bool
    first_value: int
    first_result: int
    views: dict[int, int]

    def apply(self, function: Callable[..., Any], values: dict[int, Any]) -> Any:
        """What a function returns for these values."""
        arguments = _replaced(self.arguments, values)
        first = len(arguments) - len(self.keywords)
        return function(*arguments[:first], **dict(zip(self.keywords, arguments[first:])))

    @property
    def reads(self) -> list[int]:
        """The values that it is given."""
        return list(_values_in(self.arguments))

    @property
    def results(self) -> list[int]:
        """The values that it makes."""
        return list(_values_in(self.result))

    @property
    def writes(self) -> bool:
        """Whether it writes over a value that it is given."""
        return self.name in WRITERS and bool(self.views) and not self._infers

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return self.name in DRAWING and not self._infers

    @property
    def _infers(self) -> bool:
        """Whether it is called in evaluation, where it only computes results."""
        given = dict(enumerate(self.arguments))
        return all(given.get(at) is value for at, value in IN_EVALUATION[self.name].items())

    @property
    def has_effect(self) -> bool:
        """Whether it has to run, whoever wants its results."""
        return self.writes or self.draws


class Kind(NamedTuple):
    """What is known of a value. A size that differs from call to call is -1."""

    dtype: str
    shape: list[int]
    stop_gradient: bool
    is_contiguous: bool
    is_parameter: bool

    @property
    def without_gradient(self) -> Kind:
        """The same of a value that no gradient comes to."""
        return Kind(self.dtype, self.shape, True, self.is_contiguous, self.is_parameter)


# How many stages at least are before the one of a call, and the results whose gradients come to it.
_Place = tuple[int, frozenset[int]]


class _Read(NamedTuple):
    """A value that a call is given, which is known by the first of its results."""

    result: int
    value: int


def _values_in(thing: Any) -> Iterator[int]:
    if isinstance(thing, _core.CapturedValue):
        yield thing.number
    elif isinstance(thing, (list, tuple)):
        for each in thing:
            yield from _values_in(each)


def _replaced(thing: Any, values: dict[int, Any]) -> Any:
    """An argument with tensors in it."""
    if isinstance(thing, _core.CapturedValue):
        return values[thing.number]
    if isinstance(thing, (list, tuple)):
        return type(thing)(_replaced(each, values) for each in thing)
    return thing


def make_graph(
    calls: Sequence[tuple[Any, ...]],
    kinds: Sequence[tuple[Any, ...]],
    wanted: list[int],
    examples: list[list[list[int]]],
) -> Graph | None:
    """What computes the wanted values of a path; ``None`` if its operators are to be called.

    Args:
        calls, kinds, wanted: What it is.
        examples: If sizes are open, the shapes of all values in some calls.

    Raises:
        Nothing: what cannot be built is called.
    """
    made = [Call(*call) for call in calls], [Kind(*kind) for kind in kinds]
    return Graph(*made, wanted, examples)


class Graph:
    """The graph of a path, or of all paths that differ in sizes only.

    Attributes:
        is_open: Whether there are several.
        why_native: Why its operators are called one by one instead, or ``None``.
        stages: Its programs, in their order.
    """

    def __init__(
        self,
        calls: list[Call],
        kinds: list[Kind],
        wanted: list[int],
        examples: list[list[list[int]]],
    ) -> None:
        self.wanted = wanted
        self.number_of_calls = len(calls)
        self.stages: list[Stage | Call] = []
        self.why_native: str | None = None
        self.is_open = bool(examples)
        self._calls, self._kinds, self._examples = calls, kinds, examples
        self._has_learned = False
        self._written = {at for call in calls if call.writes for at in call.views.values()}
        try:
            if self.is_open:
                _check_open(calls)
            self._find_stages(set())
        except _Native as reason:
            self.why_native = str(reason)

    def _find_stages(self, without: set[_Read]) -> None:
        self.stages = _stages(self._calls, self._kinds, self.wanted, without)
        for stage in self.stages:
            if isinstance(stage, Stage):
                stage.examples = self._examples

    @property
    def reports(self) -> list[Report]:
        """What the engine takes of each stage."""
        stages = [stage for stage in self.stages if isinstance(stage, Stage)]
        return [stage.report for stage in stages if stage.report is not None]

    def __call__(self, given: list[Any]) -> list[Any] | None:
        """The wanted values; ``None`` if nothing was done."""
        if self.why_native is not None:
            return None
        trains = any(isinstance(stage, Stage) and stage.trains for stage in self.stages)
        if trains and not _may_train():
            return None
        if self._written and self._writes_what_others_read(given):
            return None
        values = dict(enumerate(given))
        try:  # before anything is done
            steps = self._steps(values)
        except _Busy:
            return None
        except _Native as reason:
            self.why_native = str(reason)
            return None
        except Exception as error:  # Paddle can run it, whatever a program stumbles over
            if flags.get("ngraph_strict"):
                raise
            self.why_native = f"{type(error).__name__}: {error}"
            return None
        if not all(program.may_run() for _, program in steps if program is not None):
            return None
        with to_static_hook.switched_on():
            for stage, program in steps:
                if isinstance(stage, Call):
                    _call(stage, values)
                elif program is not None:
                    stage.run(program, values)
        return [values[number] for number in self.wanted]

    def _writes_what_others_read(self, given: list[Any]) -> bool:
        """Whether statistics have the memory of another tensor: when a program reads it is open."""
        written: list[Any] = []
        others: list[Any] = []
        for number, tensor in enumerate(given):
            (written if number in self._written else others).append(tensor)
        return _core.is_memory_shared(written, others)

    def _steps(self, values: dict[int, Any]) -> list[tuple[Stage | Call, _Program | None]]:
        """What is called, and the program of each stage; other threads may find others meanwhile.

        Raises:
            NgraphError: The engine takes nothing of any.
        """
        self._learn_of_gradients()
        steps: list[tuple[Stage | Call, _Program | None]] = []
        for stage in self.stages:
            program = stage.program_for(values) if isinstance(stage, Stage) else None
            if isinstance(stage, Stage) and program is None:
                steps += [(call, None) for call in stage.calls]  # sizes, say, beside a network
            else:
                steps.append((stage, program))
        if all(program is None for _, program in steps):
            raise NgraphError("the engine takes nothing of it")
        self.stages = [stage for stage, _ in steps]  # the next time they are known
        return steps

    def _learn_of_gradients(self) -> None:
        """Finds the stages once more, if there are some that train beside each other.

        What its readers only go by gets no gradient in the stage that makes it. That one would
        make zeros for all that it was made of.

        Raises:
            _Busy: It is too soon to ask programs.
        """
        if self._has_learned:
            return
        if sum(isinstance(stage, Stage) and stage.trains for stage in self.stages) > 1:
            with _making_programs(), paddle.set_grad_enabled(True):
                without = _in_static_mode(_without_gradient, self._calls, self._kinds)
            if without:
                self._find_stages(without)
        self._has_learned = True


# The thread whose graphs train, guarded by the lock.
_trainer: list[threading.Thread] = []
_choosing = new_lock()


def _may_train() -> bool:
    """Whether graphs of this thread may train: Paddle's interpreters stand one thread that does.

    The others call operators meanwhile, until it ends.
    """
    here = threading.current_thread()
    with _choosing:
        if not _trainer or not _trainer[0].is_alive():
            _trainer[:] = [here]
        return _trainer[0] is here


class _Busy(Exception):
    """Other threads would not leave Paddle alone, or it is too soon; some time later it may do."""


def building_if(may_build: Callable[[int], bool]) -> AbstractContextManager[None]:
    """Inside of ``with``, this thread asks before it makes a program of so many operators."""
    return _may_build.set_to(may_build)


# Between two trials to be alone: those who wait for a trial lose a twentieth of their time at most.
_PATIENCE = 1.0
_busy_until = 0.0  # guarded by the lock


@contextmanager
def _be_alone() -> Iterator[None]:
    """No other thread is in Paddle, nor enters it meanwhile.

    Raises:
        _Busy: They are in it, or were when this was tried last, a moment ago.
    """
    global _busy_until
    if monotonic() < _busy_until:
        raise _Busy
    with _core.Alone() as is_alone:
        if not is_alone:
            _busy_until = monotonic() + _PATIENCE
            raise _Busy
        yield


@contextmanager
def _making_programs() -> Iterator[None]:
    """Of one thread at a time, which leaves the others in their modes.

    Raises:
        _Busy: Others do not leave Paddle alone.
    """
    with _building, _be_alone(), making_graphs.making(), no_call_stacks():
        yield


class _Native(Exception):
    """A path is left to its operators; the message says why."""


def _call(call: Call, values: dict[int, Any]) -> None:
    """Calls an operator natively, with gradients as where the user called it."""
    with paddle.set_grad_enabled(call.has_gradient):
        _bind(call.result, call.apply(natively(call.name, call.is_method), values), values)


def _bind(expected: Any, result: Any, values: dict[int, Any]) -> None:
    if isinstance(expected, _core.CapturedValue):
        values[expected.number] = result
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(expected, result):
            _bind(one, other, values)


# -- stages --------------------------------------------------------------------------------------


def _stages(
    calls: list[Call], kinds: list[Kind], wanted: list[int], without: set[_Read]
) -> list[Stage | Call]:
    """What is called, in this order.

    Args:
        without: What is known to get no gradient.
    """
    maker = {value: call for call in calls for value in call.results}
    _check_writes(calls)
    _check_parameters(calls, kinds)
    native, needed = _natively_called(maker, wanted)
    flow = _Flow(calls, kinds, needed, without)
    level = _levels(calls, kinds, needed)
    _check_flags(calls, native, level)
    stages: list[Stage | Call] = []
    for number in range(max(level, default=0) + 1):
        here = [call for call, at in zip(calls, level) if at == number]
        later = [call for call, at in zip(calls, level) if at > number]
        read_later = {value for call in [*later, *native] for value in call.reads}
        made = {value for call in here for value in call.results}
        made.difference_update(value for call in native for value in call.results)
        given = needed.union(*map(flow.differentiated, later))
        stages += _stages_of_level(here, flow, made & (needed | read_later), given)
        stages += [call for call, at in zip(calls, level) if at == number and call in native]
    _check_order_of_draws(stages)
    if all(isinstance(stage, Call) for stage in stages):
        raise _Native("it only makes views")
    return stages


def _check_open(calls: list[Call]) -> None:
    """Sizes are open in what computes results and nothing else, so that it may be done again."""
    for call in calls:
        if call.has_effect or call.has_gradient:
            raise _Native(f"{call.name} does more than to compute results")


def _check_writes(calls: list[Call]) -> None:
    """Statistics that are written are no concern of another operator: their order would count."""
    for call in calls:
        written = set(call.views.values()) | set(call.views) if call.writes else set()
        if any(not written.isdisjoint(other.reads) for other in calls if other is not call):
            raise _Native(f"what {call.name} writes is used by another operator")


def _check_flags(calls: list[Call], native: list[Call], level: list[int]) -> None:
    """What has read a tensor before its gradient was switched off runs before that."""
    for call, switched in zip(calls, level):
        if call.name != "stop_gradient" or call not in native:
            continue
        (value,) = call.reads
        if any(value in other.reads and at > switched for other, at in zip(calls, level)):
            raise _Native("a tensor is read whose gradient was switched off")


# The arguments that are parameters, and those that are statistics.
_OF_NORMALIZATION = {"batch_norm": ((3, 4), (1, 2)), "instance_norm": ((1, 2), ())}


def _check_parameters(calls: list[Call], kinds: list[Kind]) -> None:
    """Normalizations whose parameters all get gradients, or none does.

    If one of the two is frozen, Python's operator leaves the other one without a gradient, and a
    program makes zeros, which an optimizer takes for one. So it is with statistics that are not
    frozen.
    """
    for call in calls:
        if call.name not in _OF_NORMALIZATION or not call.has_gradient:
            continue
        parameters, statistics = (
            {_is_frozen(call.arguments[at], kinds) for at in places}
            for places in _OF_NORMALIZATION[call.name]
        )
        if len(parameters) > 1 or False in statistics:
            raise _Native(f"some parameters of {call.name} are frozen, and some are not")


def _is_frozen(argument: Any, kinds: list[Kind]) -> bool:
    return all(kinds[value].stop_gradient for value in _values_in(argument))


def _check_order_of_draws(stages: list[Stage | Call]) -> None:
    calls = [call for stage in stages if isinstance(stage, Stage) for call in stage.calls]
    drawing = [call.first_value for call in calls if call.draws]
    if drawing != sorted(drawing):
        raise _Native("random numbers would be drawn in another order")


class _Flow:
    """Where gradients go.

    Args:
        calls, kinds: A path.
        needed: The values that the user has, or native calls.
        without: Of what else it is known that it gets none.

    Attributes:
        kinds: Those of all values. What no gradient can come to has none.
    """

    def __init__(
        self, calls: list[Call], kinds: list[Kind], needed: set[int], without: set[_Read]
    ) -> None:
        self.kinds = kinds
        self._without = without
        reached = set(needed)
        for call in reversed(calls):
            if not reached.isdisjoint(self.differentiable(call)):
                reached.update(self.differentiated(call))
        unreached = {value for call in calls for value in call.results} - reached
        self.kinds = [
            kind.without_gradient if number in unreached else kind
            for number, kind in enumerate(kinds)
        ]

    def differentiable(self, call: Call) -> set[int]:
        """The results of a call that have gradients."""
        return {value for value in call.results if not self.kinds[value].stop_gradient}

    def differentiated(self, call: Call) -> set[int]:
        """What a call gives gradients to."""
        if not self.differentiable(call):
            return set()
        reads = {_Read(call.results[0], v) for v in call.reads if not self.kinds[v].stop_gradient}
        return {read.value for read in reads - self._without}


def _without_gradient(calls: Sequence[Call], kinds: Sequence[Kind]) -> set[_Read]:
    """What calls are given that might get gradients, and gets none of theirs.

    Only programs show it: what ``expand_as`` goes by, labels of losses. So each call is asked in a
    program of its own, but those that differ in nothing together.
    """
    made: set[int] = set()
    known: dict[str, set[int]] = {}  # by their places among what is read
    without: set[_Read] = set()
    for call in calls:
        reads = [value for value in dict.fromkeys(call.reads) if not kinds[value].stop_gradient]
        # What has a gradient has it of something.
        if len(reads) > 1 and not made.isdisjoint(reads) and call.has_gradient:
            places = {value: (at, kinds[value]) for at, value in enumerate(call.reads)}
            arguments = _replaced(call.arguments, places)
            asked = repr((call.name, call.is_method, arguments, call.keywords))
            if asked not in known:
                known[asked] = _places_without_gradient(call, kinds, reads)
            without.update(_Read(call.results[0], reads[at]) for at in known[asked])
        made.update(call.results)
    return without


def _places_without_gradient(call: Call, kinds: Sequence[Kind], reads: list[int]) -> set[int]:
    """The places of these values that a call gives no gradient to; none, if no program can say."""
    main = paddle.static.Program()
    with suppress(Exception), paddle.static.program_guard(main, paddle.static.Program()):
        values = {}
        for number in dict.fromkeys(call.reads):
            values[number] = _data(number, kinds[number])
            set_stop_gradient(values[number], number not in reads)
        _bind(call.result, call.apply(in_programs(call.name, call.is_method), values), values)
        results = [values[number] for number in call.results if not kinds[number].stop_gradient]
        found = paddle.static.gradients(results, [values[number] for number in reads])
        return {at for at, gradient in enumerate(found) if gradient is None}
    return set()


def _data(number: int, kind: Kind) -> Any:
    return paddle.static.data(f"captured_{number}", kind.shape, kind.dtype)


def _stages_of_level(
    calls: list[Call], flow: _Flow, outputs: set[int], given: set[int]
) -> list[Stage]:
    """Stages in which all results have gradients whenever one has, in their order.

    Args:
        outputs: What others read.
        given: What others give gradients to.
    """
    kinds, used = flow.kinds, _used(calls, outputs)
    if all(kinds[value].stop_gradient for value in outputs):
        is_used = outputs or any(call.has_effect for call in calls)
        return [Stage(used, kinds, outputs, given)] if is_used else []
    reach = _reach(used, flow, outputs, given)
    groups: dict[_Place, list[Call]] = {}
    for call, place in zip(used, _places(used, reach)):
        groups.setdefault(place, []).append(call)
    # What is reached from a group is reached from those before it.
    parts = [groups[each] for each in sorted(groups, key=lambda each: (each[0], -len(each[1])))]
    parts.sort(key=lambda part: part[-1].first_value)
    return _in_order(parts, flow, outputs, given)


def _places(calls: list[Call], reach: list[frozenset[int]]) -> list[_Place]:
    """The stage of each call."""
    places: list[_Place] = []
    of_value: dict[int, _Place] = {}
    for call, own in zip(calls, reach):
        # Who reads what has fewer gradients is behind it, wherever else that is read.
        made = [of_value[value] for value in call.reads if value in of_value]
        level = max((at + (not others >= own) for at, others in made), default=0)
        places.append((level, own))
        of_value.update(dict.fromkeys(call.results, places[-1]))
    # What only a later one with the same gradients reads is no stage of its own.
    readers: dict[int, set[_Place]] = {}
    for at in reversed(range(len(calls))):
        reading = set().union(*(readers.get(value, set()) for value in calls[at].results))
        if len(reading) == 1 and not calls[at].has_effect:
            (place,) = reading
            places[at] = place if place[1] == reach[at] else places[at]
        for value in calls[at].reads:
            readers.setdefault(value, set()).add(places[at])
    return places


def _reach(
    calls: list[Call], flow: _Flow, outputs: set[int], given: set[int]
) -> list[frozenset[int]]:
    """For each call the results whose gradients come to it; without any, those of its readers."""
    gradients: dict[int, frozenset[int]] = {v: frozenset({v}) for v in outputs & given}
    readers: dict[int, frozenset[int]] = dict.fromkeys(outputs, _NO_GRADIENT)
    reach = []
    for call in reversed(calls):
        own = _NONE.union(*(gradients.get(v, _NONE) for v in flow.differentiable(call)))
        for value in flow.differentiated(call):
            gradients[value] = gradients.get(value, _NONE) | own
        own = own or _NONE.union(*(readers.get(v, _NONE) for v in call.results))
        for value in call.reads:
            readers[value] = readers.get(value, _NONE) | own
        reach.append(own)
    return reach[::-1]


def _in_order(
    parts: list[list[Call]], flow: _Flow, outputs: set[int], given: set[int]
) -> list[Stage]:
    stages: list[Stage] = []
    made: set[int] = set()
    of_all = {value for part in parts for call in part for value in call.results}
    drawing = [call for part in parts for call in part if call.draws]
    while parts:
        for part in parts:
            own = {value for call in part for value in call.results}
            read = {value for call in part for value in call.reads}
            # Random numbers are drawn in the order of the calls.
            drawn = max((call.first_value for call in part if call.draws), default=0)
            read.update(*(call.results for call in drawing if call.first_value < drawn))
            if (read - own) & of_all <= made:
                break
        else:
            raise _Native("its stages depend on each other, or draw random numbers in turn")
        parts.remove(part)
        made |= own
        later = [call for other in parts for call in other]
        read_later = outputs.union(*(call.reads for call in later))
        given_later = given.union(*map(flow.differentiated, later))
        stages.append(Stage(part, flow.kinds, read_later & own, given_later))
    return stages


def _natively_called(maker: dict[int, Call], wanted: list[int]) -> tuple[list[Call], set[int]]:
    """The calls that make views for the user, and all values that are needed then."""
    native: list[Call] = []
    needed = set(wanted)
    open_ = list(wanted)
    while open_:
        value = open_.pop()
        call = maker.get(value)
        if call is None or value not in call.views or call in native:
            continue
        if call.writes:
            raise _Native(f"what {call.name} writes is looked at")
        native.append(call)
        new = set(call.reads) | set(call.results)
        open_ += new - needed
        needed |= new
    native.sort(key=lambda call: call.first_value)
    return native, needed


def _levels(calls: list[Call], kinds: list[Kind], needed: set[int]) -> list[int]:
    """The number of the stage of each call."""
    of_value: dict[int, int] = {}
    made: set[int] = set()
    levels = []
    drawn = 0  # random numbers are drawn in the order of the calls
    for call in calls:
        level = drawn if call.draws else 0
        for value in call.reads:
            is_seen = value in made and value in needed and not kinds[value].stop_gradient
            level = max(level, of_value.get(value, 0) + is_seen)
        for value in call.results:
            of_value[value] = level
            made.add(value)
        drawn = level if call.draws else drawn
        levels.append(level)
    _join_readers(levels, calls, needed)
    return levels


def _join_readers(levels: list[int], calls: list[Call], needed: set[int]) -> None:
    """Moves what reads no tensor of the user to its first reader.

    That is a bias in another shape, or random numbers that decide which path of a network counts.
    """
    first_read: dict[int, int] = {}
    drawn = max(levels, default=0)  # the level of the numbers that are drawn next
    for at in reversed(range(len(calls))):
        call = calls[at]
        readers = [first_read[value] for value in call.results if value in first_read]
        if readers and not call.writes and needed.isdisjoint(call.results):
            levels[at] = min(*readers, drawn) if call.draws else min(readers)
        if call.draws:
            drawn = levels[at]
        for value in call.reads:
            first_read[value] = min(first_read.get(value, levels[at]), levels[at])


def _used(calls: list[Call], outputs: Iterable[int]) -> list[Call]:
    """The calls that outputs depend on, and those that write, in their order."""
    read = set(outputs)
    used = []
    for call in reversed(calls):
        if call.has_effect or not read.isdisjoint(call.results):
            used.append(call)
            read.update(call.reads)
    return used[::-1]


class _Layer(PartialProgramLayer):  # type: ignore[misc]
    """What runs a program on whatever parameters it is given: several layers may share it."""

    @property
    def _params(self) -> list[Any]:
        return list(_weights.value)

    @_params.setter
    def _params(self, weights: Sequence[Any]) -> None:
        """Paddle sets those that it is made with, which are those of this thread."""


class Stage:
    """A program of captured operators.

    Args:
        calls: Its operators.
        kinds: Of all values of the path.
        outputs: The values that it has to make.
        given: What others give gradients to.
    """

    def __init__(
        self, calls: list[Call], kinds: list[Kind], outputs: set[int], given: set[int]
    ) -> None:
        self.calls = calls
        self._kinds = kinds
        self._outputs = sorted(outputs)
        self._given = {v for v in outputs & given if not kinds[v].stop_gradient}
        made = {value for call in calls for value in call.results}
        self._read = {value for call in calls for value in call.reads}
        self._inputs = sorted(self._read - made)
        self.trains = bool(self._given)
        self._others = [v for v in self._inputs if self.trains or not kinds[v].is_parameter]
        # A function of parameters alone would be a constant, another one for each of them.
        self._others = self._others or self._inputs
        self._weights = [value for value in self._inputs if value not in self._others]
        self._differentiated = self._differentiated_inputs()
        self._program: _Program | None = None
        self.report: Report | None = None
        self.examples: list[list[list[int]]] = []

    def run(self, program: _Program, values: dict[int, Any]) -> None:
        """Adds its outputs to the values."""
        with paddle.set_grad_enabled(self.trains):  # as where the operators were called
            inputs = [self._input(values, number) for number in self._others]
            with _weights.set_to(self._weights_among(values)):
                results = program.layer.sot_call(inputs)
        if program.gradients is not None and (scope := run_scopes.latest()) is not None:
            program.scopes[scope.raw_address()] = scope
            program.gradients.attach(inputs, results, scope)
        values.update(zip(self._outputs, results))

    def _input(self, values: dict[int, Any], number: int) -> Any:
        tensor = values[number]
        if not self._kinds[number].is_contiguous:
            tensor = operators.assign(tensor)  # contiguous() would part the user's from its base
        return tensor if number in self._differentiated else tensor.detach()

    def _weights_among(self, values: dict[int, Any]) -> list[Any]:
        return [values[number] for number in self._weights]

    def program_for(self, values: dict[int, Any]) -> _Program | None:
        """What runs it, made with the first values that it is given; ``None``: Paddle's operators.

        Raises:
            _Busy: It is too soon to make it.
        """
        if self._program is None:
            may_build = _may_build.value
            if may_build is not None and not may_build(len(self.calls)):
                raise _Busy
            with _making_programs(), paddle.set_grad_enabled(self.trains):
                if self._program is None:  # another thread may have made it meanwhile
                    with _weights.set_to(self._weights_among(values)):
                        self._program = self._build()
        return self._program

    def _build(self) -> _Program | None:
        if self.trains and next(_training) > _MOST_TRAINING:
            raise NgraphError(
                f"{_MOST_TRAINING} graphs train already or wait for backward passes, of which "
                "Paddle keeps threads: give it batches of fewer shapes, or call backward() earlier"
            )
        layer = _in_static_mode(self._layer)
        set_training(layer, self.trains)
        report = to_static_hook.explain_programs(layer, in_sot_mode=True)
        self.report = report
        if not report.changes:
            return None
        given = [*self._others, *self._weights]
        to_static_hook.expect(layer, [[shapes[at] for at in given] for shapes in self.examples])
        if not self.trains:
            return _Program(layer, None)
        # Python's operators leave these without one: what expand_as goes by, labels of losses.
        self._differentiated -= {self._others[at] for at in gradients.inputs_without(layer)}
        return _Program(layer, self._gradients(layer))

    def _gradients(self, layer: Any) -> gradients.Gradients:
        positions = self._positions_in_brackets()
        read = [at for at, number in enumerate(self._others) if number in positions]
        made = [at for at, number in enumerate(self._outputs) if number in positions]
        return gradients.Gradients(layer, read, made)

    def _positions_in_brackets(self) -> set[int]:
        """Python's gradient of ``x[at]`` reads them again, whatever a program keeps instead."""
        calls = [call for call in self.calls if call.name == "_getitem_dygraph"]
        return {value for call in calls for value in _values_in(call.arguments[1:])}

    def _layer(self) -> Any:
        main = paddle.static.Program()
        with paddle.static.program_guard(main, paddle.static.Program()):
            values = {number: self._data(number) for number in self._inputs}
            for call in self.calls:
                self._append(call, values)
            outputs = [self._output(values[number], number) for number in self._outputs]
        inputs = [values[number] for number in self._others]
        parameters = list(_weights.value), [values[number] for number in self._weights]
        return _Layer(main, inputs, [outputs], parameters)

    def _data(self, number: int) -> Any:
        kind = self._kinds[number]
        value = _data(number, kind)
        set_stop_gradient(value, number not in self._differentiated)
        if number in self._weights:
            make_parameter(value)
        return value

    def _output(self, value: Any, number: int) -> Any:
        """A result. Where others give it no gradient, Paddle would take zeros for one."""
        is_as_it_is = number in self._given or self._kinds[number].stop_gradient
        return value if is_as_it_is else in_programs("detach", is_method=True)(value)

    def _append(self, call: Call, values: dict[int, Any]) -> None:
        """Adds an operator to the program that is being made."""
        _bind(call.result, call.apply(in_programs(call.name, call.is_method), values), values)
        for number in call.results:
            made, kind = values[number], self._kinds[number]
            is_same = _has_shape(made, kind.shape) and _dtype_name(made.dtype) == kind.dtype
            if not is_same and (number in self._read or number in self._outputs):
                raise NgraphError(f"{call.name} is another operator in programs")
            set_stop_gradient(made, kind.stop_gradient)

    def _differentiated_inputs(self) -> set[int]:
        """The inputs that have gradients: some output depends on them, and says so."""
        wanting = set(self._given)
        for call in reversed(self.calls):
            if not wanting.isdisjoint(call.results):
                wanting.update(v for v in call.reads if not self._kinds[v].stop_gradient)
        return wanting & set(self._inputs)


def _has_shape(value: Any, shape: list[int]) -> bool:
    """Whether a value of a program has this shape, as far as the program knows sizes."""
    declared = list(value.shape)
    return len(declared) == len(shape) and all(
        size in (-1, known) for size, known in zip(declared, shape)
    )


def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


@in_static_mode
def _in_static_mode(make: Callable[..., Any], *args: Any) -> Any:
    return make(*args)


@dataclass(frozen=True)
class _Program:
    """What runs a stage.

    Attributes:
        layer: The ``PartialProgramLayer``.
        gradients: What its backward pass has to say, if there is one.
        scopes: Those that it has trained in, by address.
    """

    layer: Any
    gradients: gradients.Gradients | None
    scopes: dict[int, Scope] = field(default_factory=dict)

    def may_run(self) -> bool:
        """Whether there is a scope for it, or may be another one."""
        if not self.scopes or any(map(run_scopes.is_free, self.scopes.values())):
            return True
        if len(self.scopes) < _FEW_OF_PROGRAM:
            return next(_training) <= _MOST_TRAINING
        return len(self.scopes) < _MOST_OF_PROGRAM and next(_of_loops) <= _MOST_OF_LOOPS
