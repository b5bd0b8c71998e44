"""Assigns the updates of a training program to the stages of a pipeline.

An update belongs to the stage of the parameter. Operators that read gradients of several stages,
such as the norm of all gradients, run in every stage, on scalars that each stage sends to all.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.partitioning.analysis.block_view import SINKS, OpNode, value_id
from paddle_ngraph.transpiler.staging import Staging


class StageUpdates:
    """The operators of a training program after its backward pass.

    Args:
        staging: The stages of the operators before.

    Attributes:
        sent: The stage that computes each variable that is sent to all stages.

    Raises:
        NgraphError: An update depends on more of another stage than a scalar.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._gradients = {value_id(each.value): each for each in staging.gradients}
        self._roots = [node for node in staging.view.nodes if self._is_root(node)]
        found = self._with_producers(self._roots, ())
        self._nodes = [node for node in staging.view.nodes if node in found]
        # For each operator after the backward pass, the stage that runs it; ``None``: all stages.
        self._stage: dict[OpNode, int | None] = {}
        self._variable_stages = dict(staging.variable_stages)
        self.sent: dict[str, int] = {}
        while self._propagate():
            pass
        self._reject_chains()

    def of_stage(self, stage: int) -> set[OpNode]:
        """The operators that update the parameters of a stage."""
        roots = (node for node in self._roots if self._stage[node] in (None, stage))
        return self._with_producers(roots, self.sent)

    def before(self, stage: int) -> tuple[set[OpNode], list[str]]:
        """The operators that compute what a stage sends before its update, and the values' ids."""
        found = sorted(vid for vid, sender in self.sent.items() if sender == stage)
        producers = (
            producer for vid in found if (producer := self._staging.producer(vid)) is not None
        )
        return self._with_producers(producers, ()), found

    def _is_root(self, node: OpNode) -> bool:
        """Whether an operator after the backward pass writes a variable that outlives a run."""
        if node.is_source or node in self._staging.stage:
            return False
        if node.type in SINKS:
            producers = [self._staging.producer(vid) for vid in node.reads]
            is_fetch = not node.may_write_variables
            return not is_fetch and not any(
                producer in self._staging.stage for producer in producers
            )
        return bool(node.overwrites or node.outer_writes)

    def _with_producers(self, nodes: Iterable[OpNode], given: Iterable[str]) -> set[OpNode]:
        """``nodes`` and all operators that they need, up to gradients and ``given`` values."""
        ends = {*self._gradients, *given}
        pending, found = list(nodes), set()
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                read = [vid for vid in [*node.reads, *self._staging.reads(node)] if vid not in ends]
                producers = (self._staging.producer(vid) for vid in read)
                pending += [producer for producer in producers if producer is not None]
        return found

    def _propagate(self) -> bool:
        """Assigns each operator to a pipeline stage, given the known stages of variables.

        Returns whether stages of more variables were found, so that another pass is needed.
        """
        self._stage, self.sent = {}, {}
        for node in self._nodes:
            stages = {
                vid: stage
                for vid in self._staging.reads(node)
                if (stage := self._stage_of(vid)) is not None
            }
            several = len(set(stages.values())) > 1
            self._stage[node] = None if several or not stages else next(iter(stages.values()))
            if several and node.type != "builtin.combine":
                for vid in stages:
                    self._require_scalar(node, vid)
                self.sent.update(stages)
        return self._find_variable_stages()

    def _stage_of(self, vid: str) -> int | None:
        if vid in self._gradients:
            return self._variable_stages[self._gradients[vid].parameter]
        producer = self._staging.producer(vid)
        if producer is not None and producer in self._stage:
            return self._stage[producer]
        name = self._staging.variable(vid)
        return None if name is None else self._variable_stages.get(name)

    def _find_variable_stages(self) -> bool:
        """Assigns each variable that updates write, such as an optimizer state, to a stage.

        Returns whether a variable was assigned.
        """
        before = len(self._variable_stages)
        for node in self._nodes:
            stage = self._stage[node]
            for name in self._staging.variables(node):
                if stage is None or name not in self._staging.written:
                    continue
                if self._variable_stages.setdefault(name, stage) != stage:
                    raise NgraphError(
                        f"the updates of the stages {self._variable_stages[name]} and {stage} "
                        "need the "
                        f"variable {name!r}, and one of them writes it: such a program cannot be "
                        "cut there"
                    )
        return len(self._variable_stages) > before

    def _require_scalar(self, node: OpNode, vid: str) -> None:
        if prod(self._staging.view.values[vid].shape) != 1:
            raise NgraphError(
                f"{node.type} (operator {node.index}) needs tensors of several stages for an "
                "update, of which only scalars are sent: such a program cannot be cut there"
            )

    def _reject_chains(self) -> None:
        for vid in self.sent:
            producer = self._staging.producer(vid)
            for node in self._with_producers([producer] if producer is not None else [], ()):
                if any(read in self.sent for read in self._staging.reads(node)):
                    raise NgraphError(
                        f"{node.type} (operator {node.index}) needs scalars of all stages that "
                        "depend on each other, more than one round of messages: such a program "
                        "cannot "
                        "be cut there"
                    )
