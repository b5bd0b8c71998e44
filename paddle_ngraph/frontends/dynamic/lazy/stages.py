"""Partitioning of a trace into stages, each of which becomes one program.

There is one stage if no result gets a gradient. Otherwise autograd has to reach each tensor that
the user holds: operators that depend on such a tensor are in a later stage, so that gradients pass
through the tensor.

Views remain views: an operator whose result the user gets, and which shares memory with another
tensor, is called in dynamic mode, so that writes to one of the two tensors reach the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import paddle

from paddle_ngraph.frontends.dynamic.lazy.calls import (
    TensorMeta,
    TracedCall,
    bind,
    placeholder,
    substituted,
    values_in,
)
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import program_function
from paddle_ngraph.paddle_private.names import set_stop_gradient
from paddle_ngraph.utils import signals

_NO_RESULTS: frozenset[int] = frozenset()
# Operators whose results are views for some sizes, and copies for others.
_RESHAPING = frozenset({"reshape", "flatten"})
# In a set of reached results, this member stands for all results without a gradient.
_NO_GRADIENT = frozenset({-1})

# The key by which the calls of a trace are grouped into stages: the minimum number of stages before
# that of the call, and the ids of the results whose gradients reach the call.
_StageKey = tuple[int, frozenset[int]]


class Read(NamedTuple):
    """A value that a call reads. The call is identified by the id of its first result."""

    result: int
    value: int


class StageSpec(NamedTuple):
    """Calls that become one program.

    Attributes:
        calls: The calls, in order of the trace.
        metas: Metadata of all values of the trace, by id.
        outputs: Ids of the values that the program has to compute.
        gradient_outputs: Ids of the values that get gradients from outside the program.
    """

    calls: list[TracedCall]
    metas: list[TensorMeta]
    outputs: set[int]
    gradient_outputs: set[int]


class StayEager(Exception):
    """Raised if a trace cannot be compiled, so that its operators run one by one.

    The message is the reason.
    """


def partition_stages(
    calls: list[TracedCall],
    metas: list[TensorMeta],
    requested: list[int],
    non_differentiable: set[Read],
) -> list[StageSpec | TracedCall]:
    """Partitions a trace into stages, and calls that remain in dynamic mode, in execution order.

    Args:
        requested: Ids of the values that the user holds.
        non_differentiable: Reads that are known to get no gradient.

    Raises:
        StayEager: The trace has to run operator by operator.
    """
    producer = {value: call for call in calls for value in call.results}
    _check_writes(calls)
    _check_parameters(calls, metas)
    eager, needed = _eager_views(producer, requested)
    flow = _GradientFlow(calls, metas, needed, non_differentiable)
    level = _levels(calls, metas, needed)
    _check_flags(calls, eager, level)
    stages: list[StageSpec | TracedCall] = []
    for current in range(max(level, default=0) + 1):
        here = [call for call, at in zip(calls, level) if at == current]
        later = [call for call, at in zip(calls, level) if at > current]
        read_later = {value for call in [*later, *eager] for value in call.reads}
        computed = {value for call in here for value in call.results}
        computed.difference_update(value for call in eager for value in call.results)
        gradient_outputs = needed.union(*map(flow.differentiable_reads, later))
        stages += _stages_of_level(here, flow, computed & (needed | read_later), gradient_outputs)
        stages += [call for call, at in zip(calls, level) if at == current and call in eager]
    _check_sampling_order(stages)
    if all(isinstance(stage, TracedCall) for stage in stages):
        raise StayEager("it only makes views")
    return stages


def with_possible_views(calls: list[TracedCall]) -> list[TracedCall]:
    """Notes views that Paddle makes for some sizes only, in the calls of an open trace.

    A reshaped tensor that is not in row-major order is a copy, unless its axes can be joined: for
    example, where one of them has the size 1. In dynamic mode, Paddle decides by the sizes.
    """
    return [
        call.with_views(dict.fromkeys(call.results, call.reads[0]) | call.views)
        if call.name in _RESHAPING
        else call
        for call in calls
    ]


def _check_writes(calls: list[TracedCall]) -> None:
    """Checks that no other operator reads or computes what is written: its order would matter."""
    writers = {
        value: call
        for call in calls
        if call.writes
        for value in (*call.views, *call.views.values())
    }
    for call in calls:
        if call.writes and len(set(call.views.values())) < len(call.views):
            raise StayEager(f"{call.name} writes one variable twice")
        used = (*call.reads, *call.results)
        for writer in (writers[value] for value in used if value in writers):
            if writer is not call:
                raise StayEager(
                    f"the variable that {writer.name} writes is used by another operator"
                )


def _check_flags(calls: list[TracedCall], eager: list[TracedCall], level: list[int]) -> None:
    """Checks that readers of a tensor run before a call that stops its gradient."""
    for call, switched in zip(calls, level):
        if call.name != "stop_gradient" or call not in eager:
            continue
        (value,) = call.reads
        if any(value in other.reads and at > switched for other, at in zip(calls, level)):
            raise StayEager("a tensor is read whose gradient was switched off")


# For each normalization operator, the indices of the arguments that are parameters, and of those
# that are statistics.
_NORMALIZATION_ARGUMENTS = {"batch_norm": ((3, 4), (1, 2)), "instance_norm": ((1, 2), ())}


def _check_parameters(calls: list[TracedCall], metas: list[TensorMeta]) -> None:
    """Checks that all parameters of a normalization get gradients, or none does.

    If one of the two is frozen, the operator of dynamic mode leaves the other one without a
    gradient, but a program computes zeros, which an optimizer takes for a gradient. Statistics that
    are not frozen have the same problem.
    """
    for call in calls:
        if call.name not in _NORMALIZATION_ARGUMENTS or not call.has_gradient:
            continue
        parameters, statistics = (
            {_is_frozen(call.arguments[at], metas) for at in positions}
            for positions in _NORMALIZATION_ARGUMENTS[call.name]
        )
        if len(parameters) > 1 or False in statistics:
            raise StayEager(f"some parameters of {call.name} are frozen, and some are not")


def _is_frozen(argument: Any, metas: list[TensorMeta]) -> bool:
    return all(metas[value].stop_gradient for value in values_in(argument))


def _check_sampling_order(stages: list[StageSpec | TracedCall]) -> None:
    calls = [call for stage in stages if isinstance(stage, StageSpec) for call in stage.calls]
    stochastic = [call.first_value for call in calls if call.is_stochastic]
    if stochastic != sorted(stochastic):
        raise StayEager("random numbers would be sampled in another order")


class _GradientFlow:
    """Gradient flow of a trace: the reads and results of its calls that may have gradients.

    Args:
        calls, metas: The trace.
        needed: Ids of the values that the user, or a call in dynamic mode, reads.
        non_differentiable: Reads that are known to get no gradient.

    Attributes:
        metas: Metadata of all values, with stopped gradient where no gradient can reach.
    """

    def __init__(
        self,
        calls: list[TracedCall],
        metas: list[TensorMeta],
        needed: set[int],
        non_differentiable: set[Read],
    ) -> None:
        self.metas = metas
        self._non_differentiable = non_differentiable
        reached = set(needed)
        for call in reversed(calls):
            if not reached.isdisjoint(self.differentiable_results(call)):
                reached.update(self.differentiable_reads(call))
        unreached = {value for call in calls for value in call.results} - reached
        self.metas = [
            meta.detached if value in unreached else meta for value, meta in enumerate(metas)
        ]

    def differentiable_results(self, call: TracedCall) -> set[int]:
        """Returns the ids of the results of a call that may have a gradient."""
        return {value for value in call.results if not self.metas[value].stop_gradient}

    def differentiable_reads(self, call: TracedCall) -> set[int]:
        """Returns the ids of the arguments of a call that get a gradient from it."""
        if not self.differentiable_results(call):
            return set()
        reads = {Read(call.results[0], v) for v in call.reads if not self.metas[v].stop_gradient}
        return {read.value for read in reads - self._non_differentiable}


def non_differentiable_reads(calls: Sequence[TracedCall], metas: Sequence[TensorMeta]) -> set[Read]:
    """Returns the reads of differentiable values that get no gradient from their call.

    Examples are the target of ``expand_as`` and the labels of losses. Only Paddle's differentiation
    of a program shows it, so that each call is differentiated in a separate program, equal calls
    once.
    """
    computed: set[int] = set()
    known: dict[str, set[int]] = {}  # call as text -> indices of its reads that get no gradient
    non_differentiable: set[Read] = set()
    for call in calls:
        reads = [value for value in dict.fromkeys(call.reads) if not metas[value].stop_gradient]
        # A call with a single differentiable read needs no test: that read gets the gradient.
        if len(reads) > 1 and not computed.isdisjoint(reads) and call.has_gradient:
            positions = {value: (at, metas[value]) for at, value in enumerate(call.reads)}
            arguments = substituted(call.arguments, positions)
            key = repr((call.name, call.is_method, arguments, call.keywords))
            if key not in known:
                known[key] = _positions_without_gradient(call, metas, reads)
            non_differentiable.update(Read(call.results[0], reads[at]) for at in known[key])
        computed.update(call.results)
    return non_differentiable


def _positions_without_gradient(
    call: TracedCall, metas: Sequence[TensorMeta], reads: list[int]
) -> set[int]:
    """Returns the indices of the reads to which the gradient of a call gives no gradient.

    Empty if no program with the call can be built.
    """
    main = paddle.static.Program()
    with (
        signals.own_errors(),
        suppress(Exception),
        paddle.static.program_guard(main, paddle.static.Program()),
    ):
        values = {}
        for value in dict.fromkeys(call.reads):
            values[value] = placeholder(value, metas[value])
            set_stop_gradient(values[value], value not in reads)
        bind(call.result, call.apply(program_function(call.name, call.is_method), values), values)
        results = [values[value] for value in call.results if not metas[value].stop_gradient]
        found = paddle.static.gradients(results, [values[value] for value in reads])
        return {at for at, gradient in enumerate(found) if gradient is None}
    return set()


def _stages_of_level(
    calls: list[TracedCall], flow: _GradientFlow, outputs: set[int], gradient_outputs: set[int]
) -> list[StageSpec]:
    """Splits the calls of a level into stages, in execution order.

    In a stage, all results get gradients whenever one does.

    Args:
        outputs: Values with readers outside the level.
        gradient_outputs: Values that get gradients from outside the level.
    """
    metas, used = flow.metas, _live_calls(calls, outputs)
    if all(metas[value].stop_gradient for value in outputs):
        is_used = outputs or any(call.has_effect for call in calls)
        return [StageSpec(used, metas, outputs, gradient_outputs)] if is_used else []
    reach = _reached_results(used, flow, outputs, gradient_outputs)
    groups: dict[_StageKey, list[TracedCall]] = {}
    for call, key in zip(used, _stage_keys(used, reach)):
        groups.setdefault(key, []).append(call)
    # Sorts the stages so that producers precede readers: the results that a reader's gradients
    # reach are also reached by those of its producers, of which the set is larger.
    call_groups = [
        groups[each] for each in sorted(groups, key=lambda each: (each[0], -len(each[1])))
    ]
    call_groups.sort(key=lambda group: group[-1].first_value)
    return _topological_order(call_groups, flow, outputs, gradient_outputs)


def _stage_keys(calls: list[TracedCall], reach: list[frozenset[int]]) -> list[_StageKey]:
    """Returns the keys of all calls, in order; calls with equal keys form one stage of a trace."""
    keys: list[_StageKey] = []
    of_value: dict[int, _StageKey] = {}
    for call, own in zip(calls, reach):
        # A reader of a value is in a later stage unless its gradients all reach the value, too.
        producers = [of_value[value] for value in call.reads if value in of_value]
        level = max((at + (not others >= own) for at, others in producers), default=0)
        keys.append((level, own))
        of_value.update(dict.fromkeys(call.results, keys[-1]))
    # A call without effect moves to a later stage if all its readers are in that stage, and the
    # gradients of both reach the same results.
    readers: dict[int, set[_StageKey]] = {}
    for at in reversed(range(len(calls))):
        reading = set().union(*(readers.get(value, set()) for value in calls[at].results))
        if len(reading) == 1 and not calls[at].has_effect:
            (key,) = reading
            keys[at] = key if key[1] == reach[at] else keys[at]
        for value in calls[at].reads:
            readers.setdefault(value, set()).add(keys[at])
    return keys


def _reached_results(
    calls: list[TracedCall], flow: _GradientFlow, outputs: set[int], gradient_outputs: set[int]
) -> list[frozenset[int]]:
    """Returns the results whose gradients reach each call.

    For a call that no gradient reaches: the results whose gradients reach its readers.
    """
    gradients: dict[int, frozenset[int]] = {v: frozenset({v}) for v in outputs & gradient_outputs}
    readers: dict[int, frozenset[int]] = dict.fromkeys(outputs, _NO_GRADIENT)
    reach = []
    for call in reversed(calls):
        own = _NO_RESULTS.union(
            *(gradients.get(v, _NO_RESULTS) for v in flow.differentiable_results(call))
        )
        for value in flow.differentiable_reads(call):
            gradients[value] = gradients.get(value, _NO_RESULTS) | own
        own = own or _NO_RESULTS.union(*(readers.get(v, _NO_RESULTS) for v in call.results))
        for value in call.reads:
            readers[value] = readers.get(value, _NO_RESULTS) | own
        reach.append(own)
    return reach[::-1]


def _topological_order(
    call_groups: list[list[TracedCall]],
    flow: _GradientFlow,
    outputs: set[int],
    gradient_outputs: set[int],
) -> list[StageSpec]:
    stages: list[StageSpec] = []
    computed: set[int] = set()
    of_all = {value for group in call_groups for call in group for value in call.results}
    stochastic = [call for group in call_groups for call in group if call.is_stochastic]
    while call_groups:
        for group in call_groups:
            own = {value for call in group for value in call.results}
            read = {value for call in group for value in call.reads}
            # The samples of earlier stochastic calls must come first, as in the original order of
            # calls.
            last_sample = max((call.first_value for call in group if call.is_stochastic), default=0)
            read.update(*(call.results for call in stochastic if call.first_value < last_sample))
            if (read - own) & of_all <= computed:
                break
        else:
            raise StayEager("its stages depend on each other, or sample random numbers alternately")
        call_groups.remove(group)
        computed |= own
        later = [call for other in call_groups for call in other]
        read_later = outputs.union(*(call.reads for call in later))
        later_gradient_outputs = gradient_outputs.union(*map(flow.differentiable_reads, later))
        stages.append(StageSpec(group, flow.metas, read_later & own, later_gradient_outputs))
    return stages


def _eager_views(
    producer: dict[int, TracedCall], requested: list[int]
) -> tuple[list[TracedCall], set[int]]:
    """Returns the calls that create requested views, and the values that no stage keeps to itself.

    The calls run one by one. The values are the requested ones, and those that these calls read or
    compute.
    """
    eager: list[TracedCall] = []
    needed = set(requested)
    pending = list(requested)
    while pending:
        value = pending.pop()
        call = producer.get(value)
        if call is None or value not in call.views or call in eager:
            continue
        if call.writes:
            raise StayEager(f"the variable that {call.name} writes is read")
        eager.append(call)
        new = set(call.reads) | set(call.results)
        pending += new - needed
        needed |= new
    eager.sort(key=lambda call: call.first_value)
    return eager, needed


def _levels(calls: list[TracedCall], metas: list[TensorMeta], needed: set[int]) -> list[int]:
    """Returns the level of each call: the most needed, differentiable values on any path to it."""
    of_value: dict[int, int] = {}
    computed: set[int] = set()
    levels = []
    last_sample = 0  # level of the latest stochastic call so far: later samples must not precede it
    for call in calls:
        level = last_sample if call.is_stochastic else 0
        for value in call.reads:
            is_seen = value in computed and value in needed and not metas[value].stop_gradient
            level = max(level, of_value.get(value, 0) + is_seen)
        for value in call.results:
            of_value[value] = level
            computed.add(value)
        last_sample = level if call.is_stochastic else last_sample
        levels.append(level)
    _join_readers(levels, calls, needed)
    return levels


def _join_readers(levels: list[int], calls: list[TracedCall], needed: set[int]) -> None:
    """Sets the level of each call without requested results to that of its first reader.

    Then the call is in the reader's stage, and its result need not be passed between stages.

    Examples are a reshaped bias, and random numbers that select a branch of a network.
    """
    first_read: dict[int, int] = {}
    # Level of the next stochastic call, which later samples must not precede.
    last_sample = max(levels, default=0)
    for at in reversed(range(len(calls))):
        call = calls[at]
        readers = [first_read[value] for value in call.results if value in first_read]
        if readers and not call.writes and needed.isdisjoint(call.results):
            levels[at] = min(*readers, last_sample) if call.is_stochastic else min(readers)
        if call.is_stochastic:
            last_sample = levels[at]
        for value in call.reads:
            first_read[value] = min(first_read.get(value, levels[at]), levels[at])


def _live_calls(calls: list[TracedCall], outputs: Iterable[int]) -> list[TracedCall]:
    """Returns the calls on which ``outputs`` depend, and calls with effects, in their order."""
    read = set(outputs)
    used = []
    for call in reversed(calls):
        if call.has_effect or not read.isdisjoint(call.results):
            used.append(call)
            read.update(call.reads)
    return used[::-1]
