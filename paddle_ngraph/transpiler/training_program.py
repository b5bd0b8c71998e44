"""Analysis of a training program for distribution: gradients, updates, statistics.

Data, and all values that depend on data, differ from rank to rank. These differences have to end
at the gradients of the parameters: once gradients are averaged, clipping, decay and updates
compute equal results on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    DRAW,
    SCOPE_NAMES,
    SHADOW_OUTPUT,
    SINKS,
    BlockView,
    OpNode,
    blocks_outermost_first,
    scope_name,
    value_id,
)

# Types of operators that process gradients between the backward pass and the update: clipping and
# weight decay.
_GRADIENT_POSTPROCESSING = frozenset(
    {
        "pd_op.add",
        "pd_op.add_n",
        "pd_op.assign",
        "pd_op.clip",
        "pd_op.clip_by_norm",
        "pd_op.divide",
        "pd_op.multiply",
        "pd_op.scale",
        "pd_op.subtract",
    }
)
# Operators of clipping that scale a gradient: the first operand is the gradient, the other one a
# factor.
_SCALING = frozenset({"pd_op.multiply", "pd_op.divide"})
# Linear operators, in which a backward pass may end: the average over ranks may be computed before
# or after them.
_LINEAR_OPERATORS = frozenset(
    {
        "builtin.combine",
        "builtin.split",
        "pd_op.add",
        "pd_op.add_n",
        "pd_op.assign",
        "pd_op.cast",
        "pd_op.concat",
        "pd_op.reshape",
        "pd_op.scale",
        "pd_op.slice",
        "pd_op.split",
        "pd_op.squeeze",
        "pd_op.subtract",
        "pd_op.sum",
        "pd_op.transpose",
        "pd_op.unsqueeze",
    }
)
_BATCH_NORM = "pd_op.batch_norm_"


@dataclass(frozen=True)
class ParameterGradient:
    """The gradient of one parameter at the end of the backward pass.

    Attributes:
        parameter: The name of the parameter.
        value: The gradient.
        index: The index of the operator that computes it.
        readers: The operators that clip it, or update the parameter with it, and the index of the
            operand.
        first_reader: The index of the first of these operators.
        update: The operator that updates the parameter.
    """

    parameter: str
    value: Value
    index: int
    readers: list[tuple[Operation, int]]
    first_reader: int
    update: Operation


class TrainingProgram:
    """The outermost block of a training program.

    Args:
        program: A PIR program.

    Raises:
        NgraphError: The program updates no parameters, or cannot be distributed.
    """

    def __init__(self, program: Program) -> None:
        _reject_inner_updates(program)
        self._view = BlockView(program.global_block())
        self._local = self._rank_dependent(())
        updates = [node for node in self._view.nodes if is_update(node.op)]
        if any(node.is_engine for node in self._view.nodes):
            raise NgraphError(
                "the program has engine operators already: distribute it first, and transpile "
                "the result"
            )
        if not updates:
            raise NgraphError(
                "the program updates no parameters: distribute a program after an optimizer's "
                "minimize()"
            )
        self.gradients = [found for node in updates if (found := self._gradient(node))]
        self._reject_other_differences(updates)

    @property
    def view(self) -> BlockView:
        """The BlockView of the program's outermost block."""
        return self._view

    @property
    def operators(self) -> list[Operation]:
        """The operators of the outermost block, in order."""
        return [node.op for node in self._view.nodes]

    def running_statistics(self) -> list[Value]:
        """The running means and variances that batch normalizations update."""
        normalizing = [n for n in self._view.nodes if n.type == _BATCH_NORM and n.overwrites]
        roots = [self._view.root(kept) for node in normalizing for kept, _ in node.overwrites]
        return [self._view.values[root] for root in dict.fromkeys(roots)]

    # -- gradients -------------------------------------------------------------------------------

    def _gradient(self, node: OpNode) -> ParameterGradient | None:
        """The gradient that ranks average for an update; ``None`` if it is equal on all ranks."""
        operands = dict(zip(node.op.get_input_names(), node.op.operands_source()))
        name = self._variable(operands["param"])
        vid = value_id(operands["grad"])
        if vid not in self._local:
            return None
        end = self._ends_of_backward[vid]
        while (earlier := self._unclipped(vid, end)) is not None:
            vid = earlier
        self._reject_after_clipping(name, vid, end)
        value = self._view.values[vid]
        readers = [reader for reader in self._view.readers[vid] if reader.index > end]
        return ParameterGradient(
            parameter=name,
            value=value,
            index=self._view.producer[vid].index,
            readers=[use for reader in dict.fromkeys(readers) for use in _uses(reader, value)],
            first_reader=min(reader.index for reader in readers),
            update=node.op,
        )

    def _unclipped(self, vid: str, end: int) -> str | None:
        """The gradient from which clipping or weight decay has computed ``vid``; else ``None``."""
        node = self._view.producer[vid]
        if node.index <= end or node.type.removesuffix("_") not in _GRADIENT_POSTPROCESSING:
            return None
        members = [member for read in node.reads for member in self._view.members(read)]
        # Numbers of elements are compared instead of shapes: a gradient may have shape [], and the
        # result of its clipping shape [1].
        size = self._size(vid)
        alike = [m for m in members if m in self._local and self._size(m) == size]
        if node.type.removesuffix("_") in _SCALING:
            return alike[0] if alike else None
        return alike[0] if len(set(alike)) == 1 else None

    def _size(self, vid: str) -> int:
        value = self._view.values[vid]
        return prod(value.shape) if value.is_dense_tensor_type() else -1

    @cached_property
    def _ends_of_backward(self) -> dict[str, int]:
        """For each value the index of the last operator of a backward pass on which it depends."""
        ends: dict[str, int] = {}
        for node in self._view.nodes:
            members = (member for read in node.reads for member in self._view.members(read))
            end = max((ends.get(member, -1) for member in members), default=-1)
            ends.update(dict.fromkeys(node.writes, node.index if is_backward(node.op) else end))
        return ends

    def _reject_after_clipping(self, parameter: str, vid: str, end: int) -> None:
        """Rejects a gradient if other operators than known clipping or decay change it."""
        pending, seen = [vid], set()
        while pending:
            vid = pending.pop()
            node = self._view.producer.get(vid)
            if vid in seen or vid not in self._local or node is None or node.index <= end:
                continue
            seen.add(vid)
            if node.type.removesuffix("_") not in _LINEAR_OPERATORS:
                raise NgraphError(
                    f"{node.type} (operator {node.index}) is neither the backward pass of "
                    f"{parameter!r} nor a known clipping: such a program cannot be "
                    "distributed"
                )
            pending += node.reads

    # -- differences between ranks ---------------------------------------------------------------

    def _rank_dependent(self, averaged: Iterable[Value]) -> frozenset[str]:
        """Variables that may differ between ranks whose parameters and ``averaged`` are equal."""
        clean = frozenset(map(value_id, averaged))
        names: set[str] = set()
        while True:
            tainted = set(self._propagate(clean, names))
            kept = {self._name_of(vid) for vid in tainted} - {None}
            if kept <= names:
                return frozenset(tainted)
            names |= {name for name in kept if name is not None}

    def _propagate(self, clean: frozenset[str], names: set[str]) -> Iterator[str]:
        """Propagates differences between ranks through one run; yields variables that may differ.

        ``names``: variables of the scope that differ at the beginning of the run.
        """
        tainted: set[str] = set()
        for node in self._view.nodes:
            if node.is_source:
                differs = _is_fed(node.op) or self._name_of(node.writes[0]) in names
            else:
                members = (m for read in node.reads for m in self._view.members(read))
                differs = DRAW in node.effects or any(member in tainted for member in members)
            if not differs or is_update(node.op):
                continue
            changed = [
                *node.writes,
                *(operand for operand, _ in node.overwrites),
                *node.outer_writes,
            ]
            tainted.update(vid for vid in changed if vid not in clean)
        yield from tainted

    def _name_of(self, vid: str) -> str | None:
        """The name of the variable of the scope that contains a value after the run."""
        producer = self._view.producer.get(self._view.root(vid))
        if producer is not None and producer.is_source and not _is_fed(producer.op):
            return scope_name(producer.op) if producer.type in SCOPE_NAMES else None
        setters = [n for n in self._view.readers.get(vid, ()) if n.type in SINKS]
        names = [scope_name(n.op) for n in setters if n.type in (SHADOW_OUTPUT, _SET_PARAMETER)]
        return names[0] if names else None

    def _reject_other_differences(self, updates: list[OpNode]) -> None:
        """Raises NgraphError if an operand of an update may differ between ranks."""
        tainted = self._rank_dependent(gradient.value for gradient in self.gradients)
        for node in updates:
            names = node.op.get_input_names()
            for name, value in zip(names, node.op.operands_source()):
                if value.initialized() and value_id(value) in tainted:
                    raise NgraphError(
                        f"{node.type} (operator {node.index}) updates "
                        f"{self._variable(node.op.operand_source(names.index('param')))!r} with a "
                        f"{name!r} that depends on the data other than by the gradient: such a "
                        "program cannot be distributed"
                    )

    def _variable(self, value: Value) -> str:
        name = self._name_of(value_id(value))
        return "a value without a name" if name is None else name


_SET_PARAMETER = "builtin.set_parameter"


def is_update(op: Operation) -> bool:
    """Whether an operator is an optimizer update: it reads a gradient and writes a parameter."""
    if not op.name().startswith("pd_op.") or not op.name().endswith("_"):
        return False
    return {"param", "grad"} <= set(op.get_input_names())


def _uses(node: OpNode, value: Value) -> list[tuple[Operation, int]]:
    """(operator, index of the operand) for each operand of ``node`` that is ``value``."""
    operands = enumerate(node.op.operands_source())
    return [(node.op, n) for n, each in operands if each.initialized() and each.id == value.id]


def variables(program: Program) -> dict[str, Value]:
    """The variables that outlive runs of a program, by name."""
    sources = [op for op in program.global_block().ops if op.name() in _NAMED]
    return {scope_name(op): op.result(0) for op in sources if not _is_fed(op)}


_NAMED = frozenset({"pd_op.data", "builtin.parameter"})


def _is_fed(op: Operation) -> bool:
    """Whether an operator is a feed, not a persistable variable."""
    if op.name() == "pd_op.feed":
        return True
    return op.name() == "pd_op.data" and not op.result(0).persistable


def is_backward(op: Operation) -> bool:
    """Whether an operator computes gradients, or is a loop or branch with such an operator."""
    if op.name().removesuffix("_").endswith("_grad"):
        return True
    blocks = op.blocks() if op.num_regions() > 0 else ()
    return any(is_backward(inner) for block in blocks for inner in block.ops)


def _reject_inner_updates(program: Program) -> None:
    _, *inner = blocks_outermost_first(program)
    for block in inner:
        for op in block.ops:
            if is_update(op):
                raise NgraphError(
                    f"{op.name()} updates parameters inside a branch or loop: such a program "
                    "cannot be distributed; update them in the outermost block"
                )
