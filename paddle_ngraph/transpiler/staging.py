"""Assigns the operators of a training program to the stages of a pipeline.

Data flows through the stages in the forward pass, from the first to the last, and gradients flow
back. An operator of the backward pass belongs to the stage of the forward results that it reads.
Operators that are cheap and depend only on feeds and constants, such as masks, belong to no stage:
each stage computes those that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Operation
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    LISTS,
    SCOPE_NAMES,
    SINKS,
    BlockView,
    OpNode,
    is_fed,
    scope_name,
    value_id,
)
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.transpiler.cutting import last_of_backward
from paddle_ngraph.transpiler.training_program import (
    ParameterGradient,
    TrainingProgram,
    is_backward,
)

# Assumed latency of a message between stages, and number of elements sent per microsecond.
_US_PER_MESSAGE = 50.0
_SENT_ELEMENTS_PER_US = 200.0
# The time of a forward operator counts three times, since its gradient, which is on the same stage,
# takes twice as long.
_PASSES_PER_OPERATOR = 3
# The number of reads and writes by an update for each element of a parameter and of its states.
_ACCESSES_PER_UPDATE = 8
# Maximum share of the time of all stages that one stage may have; cuts with a larger one are
# rejected.
_MAX_STAGE_SHARE = 0.9

_COMBINE = "builtin.combine"


def best_ends(
    us: Sequence[float], sent: Sequence[float], stages: int, cut_points: Sequence[int]
) -> list[int] | None:
    """The partition of operators into stages that minimizes the longest stage.

    Args:
        us: The time of each operator, in microseconds.
        sent: The time to send the values that cross a cut before each operator, in microseconds.
        stages: The number of stages.
        cut_points: The indices of operators before which a cut is allowed.

    Returns:
        The index of the first operator of each stage but the first; ``None`` if there are too few
        places.
    """
    until, count = [0.0, *accumulate(us)], len(us)
    # The first stage receives nothing, and the last one sends nothing.
    sent = [0.0, *sent[1:count], 0.0]
    # For each number n, the best partition of the first n operators into the stages so far: time of
    # its longest stage, time of all messages, and ends of the stages.
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for number in range(stages):
        is_last = number == stages - 1
        found = {}
        for end in [count] if is_last else cut_points:
            partitions = [
                (
                    max(longest, until[end] - until[start] + sent[start] + sent[end]),
                    messages + sent[end],
                    [*ends, end],
                )
                for start, (longest, messages, ends) in best.items()
                if start < end
            ]
            found[end] = min(partitions, default=None)
        best = {end: each for end, each in found.items() if each is not None}
    return best[count][2][:-1] if count in best else None


def elements_between(view: BlockView, nodes: Sequence[OpNode]) -> list[int]:
    """For each operator, the number of elements of earlier results that it or a later one reads."""
    last: dict[str, int] = {}
    defined: dict[str, int] = {}
    for position, node in enumerate(nodes):
        read = (m for vid in node.reads for m in view.members(vid))
        last.update((vid, position) for vid in read if vid in defined)
        defined.update((vid, position) for vid in node.writes)
    changes = [0] * (len(nodes) + 1)
    for vid, end in last.items():
        changes[defined[vid] + 1] += cost_model.elements_of(view, vid)
        changes[end + 1] -= cost_model.elements_of(view, vid)
    return list(accumulate(changes))[:-1]


class Staging:
    """The stages of the operators of a training program.

    Args:
        training: The program.
        fetching: The fetch operators at its end.
        stages: The number of stages.
        cuts: For each stage but the last the ids of its final variables; ``None``: the stages are
            balanced.

    Attributes:
        stage: The stage of each operator of the forward and backward pass.
        backward: The operators of the backward pass.
        free: The operators that belong to no stage: each stage computes those that it reads.
        written: The names of the variables of the scope that the program writes.
        variable_stages: The stage of each written variable that the forward or backward pass
            reads, by name.

    Raises:
        NgraphError: The program cannot be cut there.
    """

    def __init__(
        self,
        training: TrainingProgram,
        fetching: Sequence[Operation],
        stages: int,
        cuts: Sequence[Sequence[str]] | None,
    ) -> None:
        self.view = training.view
        self.gradients = training.gradients
        self._stages = stages
        last = last_of_backward(training, fetching)
        self.written = self._written_variables()
        self.free = self._free_nodes()
        nodes = self._first_passes(last, fetching)
        self.backward = self._backward_nodes(nodes)
        self._forward = [node for node in nodes if node not in self.backward]
        self.stage = self._by_cuts(cuts) if cuts is not None else self._balanced()
        self._stage_backward([node for node in nodes if node in self.backward])
        self.variable_stages = self._find_variable_stages()
        for gradient in self.gradients:
            self._require_stage(gradient)

    # -- the block -------------------------------------------------------------------------------

    def reads(self, node: OpNode) -> list[str]:
        """The variables that an operator reads, also as members of lists."""
        return list(dict.fromkeys(m for vid in node.reads for m in self.view.members(vid)))

    def producer(self, vid: str) -> OpNode | None:
        """The operator of the program that computes the variable with id ``vid``.

        ``None`` for feeds and variables of the scope.
        """
        node = self.view.producer.get(vid)
        return None if node is None or node.is_source else node

    def variable(self, vid: str) -> str | None:
        """The name of the variable of the scope that shares memory with a value."""
        node = self.view.producer.get(self.view.root(vid))
        if node is None or not node.is_source or node.type not in SCOPE_NAMES or is_fed(node.op):
            return None
        return scope_name(node.op)

    def variables(self, node: OpNode) -> list[str]:
        """The names of the variables of the scope that an operator reads or writes."""
        touched = [*self.reads(node), *node.outer_writes]
        return [name for vid in touched if (name := self.variable(vid)) is not None]

    def _written_variables(self) -> set[str]:
        """The names of the scope's variables that the program writes.

        Every stage may have a copy of the other variables.
        """
        changed = (
            vid
            for node in self.view.nodes
            for vid in [*(operand for operand, _ in node.overwrites), *node.outer_writes]
        )
        names = (self.variable(m) for vid in changed for m in self.view.members(vid))
        return {name for name in names if name is not None}

    def _free_nodes(self) -> set[OpNode]:
        plain: set[str] = set()
        free = set()
        for node in self.view.nodes:
            if node.is_source:
                is_plain = is_fed(node.op) or node.type == "builtin.constant"
            else:
                is_plain = (
                    node.type not in SINKS
                    and not (node.effects or node.overwrites or node.outer_writes)
                    and node.op.num_regions() == 0
                    and not cost_model.is_matmul_or_convolution(node)
                    and all(vid in plain for vid in self.reads(node))
                )
                if is_plain or node.type in CONSTANTS or node.type == _COMBINE:
                    free.add(node)
            if is_plain and node.type != _COMBINE:
                plain.update(node.writes)
        return free

    def _first_passes(self, last: int, fetching: Sequence[Operation]) -> list[OpNode]:
        """The operators of the forward and the backward pass, without those of the update."""
        after = {op.id() for gradient in self.gradients for op, _ in gradient.readers}
        later: set[str] = set()
        for node in self.view.nodes:
            if node.op.id() in after or any(vid in later for vid in self.reads(node)):
                later.update(node.writes)
        wanted = self.with_producers(
            producer
            for op in fetching
            for value in op.operands_source()
            if (producer := self.producer(value_id(value))) is not None
        )
        return [
            node
            for node in self.view.nodes
            if (node.index <= last or node in wanted)
            and not (node.is_source or node.type in SINKS or node in self.free)
            and not any(vid in later for vid in node.writes)
        ]

    def with_producers(self, nodes: Iterable[OpNode]) -> set[OpNode]:
        """``nodes``, and all operators on which they depend."""
        pending, found = list(nodes), set()
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                producers = (self.producer(vid) for vid in [*node.reads, *self.reads(node)])
                pending += [producer for producer in producers if producer is not None]
        return found

    def _backward_nodes(self, nodes: Sequence[OpNode]) -> set[OpNode]:
        found: set[OpNode] = set()
        for node in nodes:
            producers = [self.producer(vid) for vid in self.reads(node)]
            if is_backward(node.op) or any(producer in found for producer in producers):
                found.add(node)
        return found

    # -- the forward pass ------------------------------------------------------------------------

    def _by_cuts(self, cuts: Sequence[Sequence[str]]) -> dict[OpNode, int]:
        """The stage of each forward operator; ``cuts``: by stage, the variables it ends with."""
        forward = set(self._forward)
        stage = dict.fromkeys(self._forward, self._stages - 1)
        taken: set[OpNode] = set()
        for number, ends in enumerate(cuts):
            producers = [self.producer(vid) for vid in ends]
            for producer in producers:
                if producer not in forward:
                    raise NgraphError(
                        f"cuts[{number}] is not computed from parameters by the forward pass: "
                        "give a variable that the next stage begins with, such as the result of a "
                        "layer"
                    )
            found = self.with_producers(producer for producer in producers if producer) & forward
            if found <= taken:
                raise NgraphError(
                    f"cuts[{number}] is computed by an earlier stage: give the variables in the "
                    "order in which the stages compute them"
                )
            stage.update(dict.fromkeys(found - taken, number))
            taken |= found
        if len(taken) == len(forward) and self._stages > 1:
            raise NgraphError(
                f"no operator of the forward pass comes after cuts[{len(cuts) - 1}]: the last "
                "stage "
                "would have no operators"
            )
        self._keep_lists_together(stage)
        return stage

    def _keep_lists_together(self, stage: dict[OpNode, int]) -> None:
        """Assigns operators that take a list apart to the stage of the list's producer."""
        for node in stage:
            producer = self.producer(node.reads[0]) if node.type in LISTS else None
            if producer in stage:
                stage[node] = stage[producer]

    def _balanced(self) -> dict[OpNode, int]:
        """Assigns operators to stages of about equal time, between which few elements are sent."""
        nodes, uses = self._forward, self._uses()
        ends = self._best_ends(self._cut_candidates(uses))
        free_ends = self._best_ends(self._cut_candidates({}))
        total = sum(map(self._us, nodes))
        if ends is None or (self._stages > 1 and self._longest(ends) > _MAX_STAGE_SHARE * total):
            tied = max(uses, key=lambda name: uses[name][1] - uses[name][0], default=None)
            if free_ends is None or tied is None:
                raise NgraphError(
                    f"the forward pass has {len(nodes)} operators: it cannot be cut into "
                    f"{self._stages} stages"
                )
            if ends is None or self._longest(free_ends) <= _MAX_STAGE_SHARE * total:
                raise NgraphError(
                    f"operators from the beginning to the end read the parameter {tied!r}, which "
                    f"belongs to one stage: the forward pass cannot be cut into {self._stages} "
                    "stages; take fewer stages, or a parameter for each of these operators"
                )
        slices = zip([0, *ends], [*ends, len(nodes)])
        stage = {n: s for s, (a, b) in enumerate(slices) for n in nodes[a:b]}
        self._keep_lists_together(stage)
        return stage

    def _uses(self) -> dict[str, tuple[int, int]]:
        """The indices of the first and last forward operator that use each variable in ``written``.

        No cut may lie between the two operators, because a variable that the program writes
        belongs to one stage.
        """
        found: dict[str, tuple[int, int]] = {}
        for position, node in enumerate(self._forward):
            for name in self.variables(node):
                if name in self.written:
                    found[name] = found.get(name, (position, position))[0], position
        return found

    def _cut_candidates(self, uses: dict[str, tuple[int, int]]) -> list[int]:
        """The indices of the forward operators before which the program may be cut."""
        blocked = {p for first, last in uses.values() for p in range(first + 1, last + 1)}
        unpacking = {p for p, node in enumerate(self._forward) if node.type in LISTS}
        return [p for p in range(1, len(self._forward)) if p not in blocked | unpacking]

    def _us(self, node: OpNode) -> float:
        """The estimated time of an operator with its gradient and update, in microseconds."""
        elements = sum(
            cost_model.elements_of(self.view, vid)
            for vid in self.reads(node)
            if self.variable(vid) in self.written
        )
        return (
            _PASSES_PER_OPERATOR * cost_model.us_of(self.view, node)
            + _ACCESSES_PER_UPDATE * elements / SETTINGS.accessed_elements_per_us
        )

    def _longest(self, ends: Sequence[int]) -> float:
        us = [self._us(node) for node in self._forward]
        return max(sum(us[a:b]) for a, b in zip([0, *ends], [*ends, len(us)]))

    def _best_ends(self, cut_points: Sequence[int]) -> list[int] | None:
        """The cuts among ``cut_points`` with the shortest longest stage; ``None`` if impossible."""
        us = list(map(self._us, self._forward))
        crossing = elements_between(self.view, self._forward)
        sent = [_US_PER_MESSAGE + 2 * each / _SENT_ELEMENTS_PER_US for each in crossing]
        return best_ends(us, sent, self._stages, cut_points)

    # -- the backward pass -----------------------------------------------------------------------

    def _stage_backward(self, nodes: Sequence[OpNode]) -> None:
        """Assigns backward operators to stages: gradients flow one way only, to the first stage."""
        stages = self._stage_of_variables(self._forward)
        # For each variable the highest stage of its readers: the lowest stage that may compute it.
        least: dict[str, int] = {}
        anchored = set()
        for node in reversed(nodes):
            given = [
                self.stage[m]
                for vid in self.reads(node)
                if (m := self.producer(vid)) in self.stage and m not in self.backward
            ]
            given += [stages[name] for name in self.variables(node) if name in stages]
            if given:
                anchored.add(node)
            self.stage[node] = max([*given, *(least.get(vid, 0) for vid in node.writes)])
            for vid in self.reads(node):
                least[vid] = max(least.get(vid, 0), self.stage[node])
        for node in nodes:
            producers = [self.producer(vid) for vid in self.reads(node)]
            before = [self.stage[producer] for producer in producers if producer in self.backward]
            if before and node not in anchored:
                # Moves the operator to the stage of the producers of its operands: of a sum of
                # gradients, the sum crosses stages, and not each operand.
                self.stage[node] = max(self.stage[node], min(before))
        self._keep_lists_together(self.stage)

    def _stage_of_variables(self, nodes: Sequence[OpNode]) -> dict[str, int]:
        """The stages of written variables; a variable read in several stages is rejected."""
        found: dict[str, int] = {}
        for node in nodes:
            for name in self.variables(node):
                if name not in self.written:
                    continue
                stage = found.setdefault(name, self.stage[node])
                if stage != self.stage[node]:
                    raise NgraphError(
                        f"the parameter {name!r} is read by operators of the stages {stage} and "
                        f"{self.stage[node]}, and belongs to one: cut the program elsewhere, or "
                        "take a parameter for each"
                    )
        return found

    def _find_variable_stages(self) -> dict[str, int]:
        return self._stage_of_variables(list(self.stage))

    def _require_stage(self, gradient: ParameterGradient) -> None:
        producer = self.producer(value_id(gradient.value))
        home = self.variable_stages.get(gradient.parameter)
        if (
            producer is None
            or home is None
            or producer not in self.stage
            or self.stage[producer] < home
        ):
            raise NgraphError(
                f"the gradient of the parameter {gradient.parameter!r} is computed by an "
                "earlier stage than the one with the parameter: such a program cannot be cut there"
            )
