"""How a path of captured operators is parted into stages: along the gradients of its results.

There is one stage, if nothing is to be differentiated. Else autograd has to find each tensor that
the user has: what depends on one of these is another stage, so that gradients pass through the
tensor.

Views are Python's: where the user gets a result that has the memory of another tensor, that
operator is called natively, so that whoever writes to one of the two writes to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import paddle

from paddle_ngraph.frontends.dynamic.lazy.calls import Call, Kind, bind, data, replaced, values_in
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import in_programs
from paddle_ngraph.paddle_private.names import set_stop_gradient

_NONE: frozenset[int] = frozenset()
_NO_GRADIENT = frozenset({-1})  # stands for all results that have none

# How many stages at least are before the one of a call, and the results whose gradients come to it.
_Place = tuple[int, frozenset[int]]


class Read(NamedTuple):
    """A value that a call is given, which is known by the first of its results."""

    result: int
    value: int


class Part(NamedTuple):
    """Calls that become one program.

    Attributes:
        calls: In their order.
        kinds: Of all values of the path.
        outputs: The values that it has to make.
        given: What others give gradients to.
    """

    calls: list[Call]
    kinds: list[Kind]
    outputs: set[int]
    given: set[int]


class Native(Exception):
    """A path is left to its operators; the message says why."""


def stages_of(
    calls: list[Call], kinds: list[Kind], wanted: list[int], without: set[Read]
) -> list[Part | Call]:
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
    stages: list[Part | Call] = []
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
        raise Native("it only makes views")
    return stages


def check_open(calls: list[Call]) -> None:
    """Sizes are open in what computes results and nothing else, so that it may be done again."""
    for call in calls:
        if call.has_effect or call.has_gradient:
            raise Native(f"{call.name} does more than to compute results")


def _check_writes(calls: list[Call]) -> None:
    """Statistics that are written are no concern of another operator: their order would count."""
    for call in calls:
        written = set(call.views.values()) | set(call.views) if call.writes else set()
        if any(not written.isdisjoint(other.reads) for other in calls if other is not call):
            raise Native(f"what {call.name} writes is used by another operator")


def _check_flags(calls: list[Call], native: list[Call], level: list[int]) -> None:
    """What has read a tensor before its gradient was switched off runs before that."""
    for call, switched in zip(calls, level):
        if call.name != "stop_gradient" or call not in native:
            continue
        (value,) = call.reads
        if any(value in other.reads and at > switched for other, at in zip(calls, level)):
            raise Native("a tensor is read whose gradient was switched off")


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
            raise Native(f"some parameters of {call.name} are frozen, and some are not")


def _is_frozen(argument: Any, kinds: list[Kind]) -> bool:
    return all(kinds[value].stop_gradient for value in values_in(argument))


def _check_order_of_draws(stages: list[Part | Call]) -> None:
    calls = [call for stage in stages if isinstance(stage, Part) for call in stage.calls]
    drawing = [call.first_value for call in calls if call.draws]
    if drawing != sorted(drawing):
        raise Native("random numbers would be drawn in another order")


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
        self, calls: list[Call], kinds: list[Kind], needed: set[int], without: set[Read]
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
        reads = {Read(call.results[0], v) for v in call.reads if not self.kinds[v].stop_gradient}
        return {read.value for read in reads - self._without}


def reads_without_gradient(calls: Sequence[Call], kinds: Sequence[Kind]) -> set[Read]:
    """What calls are given that might get gradients, and gets none of theirs.

    Only programs show it: what ``expand_as`` goes by, labels of losses. So each call is asked in a
    program of its own, but those that differ in nothing together.
    """
    made: set[int] = set()
    known: dict[str, set[int]] = {}  # by their places among what is read
    without: set[Read] = set()
    for call in calls:
        reads = [value for value in dict.fromkeys(call.reads) if not kinds[value].stop_gradient]
        # What has a gradient has it of something.
        if len(reads) > 1 and not made.isdisjoint(reads) and call.has_gradient:
            places = {value: (at, kinds[value]) for at, value in enumerate(call.reads)}
            arguments = replaced(call.arguments, places)
            asked = repr((call.name, call.is_method, arguments, call.keywords))
            if asked not in known:
                known[asked] = _places_without_gradient(call, kinds, reads)
            without.update(Read(call.results[0], reads[at]) for at in known[asked])
        made.update(call.results)
    return without


def _places_without_gradient(call: Call, kinds: Sequence[Kind], reads: list[int]) -> set[int]:
    """The places of these values that a call gives no gradient to; none, if no program can say."""
    main = paddle.static.Program()
    with suppress(Exception), paddle.static.program_guard(main, paddle.static.Program()):
        values = {}
        for number in dict.fromkeys(call.reads):
            values[number] = data(number, kinds[number])
            set_stop_gradient(values[number], number not in reads)
        bind(call.result, call.apply(in_programs(call.name, call.is_method), values), values)
        results = [values[number] for number in call.results if not kinds[number].stop_gradient]
        found = paddle.static.gradients(results, [values[number] for number in reads])
        return {at for at, gradient in enumerate(found) if gradient is None}
    return set()


def _stages_of_level(
    calls: list[Call], flow: _Flow, outputs: set[int], given: set[int]
) -> list[Part]:
    """Stages in which all results have gradients whenever one has, in their order.

    Args:
        outputs: What others read.
        given: What others give gradients to.
    """
    kinds, used = flow.kinds, _used(calls, outputs)
    if all(kinds[value].stop_gradient for value in outputs):
        is_used = outputs or any(call.has_effect for call in calls)
        return [Part(used, kinds, outputs, given)] if is_used else []
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
) -> list[Part]:
    stages: list[Part] = []
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
            raise Native("its stages depend on each other, or draw random numbers in turn")
        parts.remove(part)
        made |= own
        later = [call for other in parts for call in other]
        read_later = outputs.union(*(call.reads for call in later))
        given_later = given.union(*map(flow.differentiated, later))
        stages.append(Part(part, flow.kinds, read_later & own, given_later))
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
            raise Native(f"what {call.name} writes is looked at")
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
