"""Conversion of programs to single-assignment form, for variables without aliases.

An operator that overwrites a variable creates the next version of the variable instead, and later
readers read that version. The reason: Paddle merges equal operators of a predictor, and folds
constants into parameters, whose contents would carry writes of one run into the next. Paddle
excludes variables that an operator overwrites in place, but not states of an engine operator,
which are members of a list. A program without internal states has nothing to merge wrongly: two
``zeros`` that are written are two variables. Their contents are known when a function is built.

Paddle treats a variable that the body of a loop overwrites (``paddle.increment(i)``, ``b[i] = x``)
as loop-invariant: the variable is neither an initial value nor a result of the loop, and the body
writes over a variable of the enclosing block. Here, such a variable becomes a loop-carried value:
an initial value, an argument of the body, a yielded value and a result.

A variable keeps its memory if the memory has other users: feeds, parameters and variables of the
scope, and variables that share memory. A variable captured by an enclosing loop or branch also
keeps its memory, unless all of that loop or branch has converters: Paddle would copy the variable
in each iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paddle_ngraph import _core
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.paddle_private.names import operators
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.aliases import SHARING, Aliases, may_share
from paddle_ngraph.partitioning.analysis.block_view import (
    COMMUNICATE,
    CONSTANTS,
    LISTS,
    REGIONS,
    SINKS,
    SOURCES,
    WHILE,
    blocks_outermost_first,
    ordering_effects,
    overwritten,
    value_id,
)
from paddle_ngraph.partitioning.analysis.operator_kinds import YIELD, pairs_in_place

# In-place operators whose out-of-place variant has another name or fewer operands: (name, number of
# operands).
_OUT_OF_PLACE_FORMS = {
    "pd_op.assign_out_": ("pd_op.assign", 1),
    "pd_op.assign_value_": ("pd_op.assign_value", 0),
    "pd_op.full_": ("pd_op.full", 0),
}


def to_single_assignment(program: Program) -> None:
    """Replaces in-place operators of a PIR program with operators that create a new version."""
    outermost = next(iter(blocks_outermost_first(program)))
    if not any(op.num_regions() > 0 or pairs_in_place(op) for op in outermost.ops):
        return
    while found := list(_Survey(program).replaceable_variables()):
        local = [each for each in found if each.is_local]
        # If a variable is not local, only one is replaced per survey: a new loop-carried value
        # replaces the loop operator, which the survey refers to.
        chosen = local or found[:1]
        for each in chosen:
            for write in each.writes:
                write.result.replace_all_uses_with(each.variable)
        versions = {value_id(each.variable): each.variable for each in chosen}
        if local:
            _use_versions(outermost, versions)
        else:
            _use_versions(found[0].home, versions, found[0].variable)


class _Write(NamedTuple):
    """An operator that overwrites a variable.

    Attributes:
        op: The operator.
        operand: The variable, or an alias of it.
        result: The result, another alias.
        enclosing: (operator, block index) of the enclosing operators, outermost first.
    """

    op: Operation
    operand: Value
    result: Value
    enclosing: tuple[tuple[Operation, int], ...]


class _OverwrittenVariable(NamedTuple):
    """A variable that need not be overwritten.

    Attributes:
        variable: The variable.
        home: The block that defines it.
        writes: The operators that overwrite it.
        is_local: Whether all writes are in the block that defines it.
    """

    variable: Value
    home: Block
    writes: list[_Write]
    is_local: bool


class _Survey:
    """Finds the in-place writes of a program, and the blocks that define its variables."""

    def __init__(self, program: Program | Block) -> None:
        self._homes: dict[str, tuple[Block, tuple[tuple[Operation, int], ...]]] = {}
        self._variables: dict[str, Value] = {}  # id of an alias -> the variable whose memory it has
        self._writes: dict[str, list[_Write]] = {}
        outermost = next(iter(blocks_outermost_first(program)))
        self._aliases = Aliases(outermost)
        self._look_at(outermost, ())

    def _look_at(self, block: Block, enclosing: tuple[tuple[Operation, int], ...]) -> None:
        for arg in block.args():
            self._homes[value_id(arg)] = block, enclosing
        for op in block.ops:
            for result in op.results():
                if result.initialized():
                    self._homes[value_id(result)] = block, enclosing
            for operand, result in overwritten(op):
                variable = self._variables.get(value_id(operand), operand)
                self._variables[value_id(result)] = variable
                write = _Write(op, operand, result, enclosing)
                self._writes.setdefault(value_id(variable), []).append(write)
                self._variables[value_id(variable)] = variable
            for index, inner in enumerate(op.blocks() if op.num_regions() > 0 else ()):
                self._look_at(inner, (*enclosing, (op, index)))

    def replaceable_variables(self) -> Iterator[_OverwrittenVariable]:
        """The variables whose in-place writes can be replaced by new values."""
        for vid, writes in self._writes.items():
            variable = self._variables[vid]
            if vid not in self._homes or not variable.is_dense_tensor_type():
                continue
            block, enclosing = self._homes[vid]
            if self._is_replaceable(variable, writes):
                is_local = all(write.enclosing == enclosing for write in writes)
                yield _OverwrittenVariable(variable, block, writes, is_local)

    def _is_replaceable(self, variable: Value, writes: list[_Write]) -> bool:
        _, enclosing = self._homes[value_id(variable)]
        passed = [
            write.enclosing[len(enclosing)][0]
            for write in writes
            if len(write.enclosing) > len(enclosing)
        ]
        names = [variable, *(write.result for write in writes)]
        return (
            not variable.persistable
            and not self._aliases.is_observed(value_id(variable))
            and all(map(_has_out_of_place_form, writes))
            and all(map(_has_converters, passed))
            and self._has_own_memory(variable)
            and all(
                self._reads_only_contents(reader, variable)
                for v in names
                for reader in v.all_used_ops()
            )
        )

    def _has_own_memory(self, value: Value) -> bool:
        """Whether the operator that defines a variable gives it memory of its own."""
        producer = value.get_defining_op()
        _, enclosing = self._homes[value_id(value)]
        if producer is None:
            if not enclosing or enclosing[-1][0].name() != WHILE:
                return False
            loop = enclosing[-1][0]
            (index,) = (
                n for n, arg in enumerate(next(iter(loop.blocks())).args()) if arg.is_same(value)
            )
            initial = loop.operand_source(index + 1)
            return value_id(self._variables.get(value_id(initial), initial)) == value_id(
                initial
            ) and self._is_yielded_once(loop, 0, index + 1, value)
        if producer.name() in REGIONS:
            (index,) = (n for n, result in enumerate(producer.results()) if result.is_same(value))
            first = 1 if producer.name() == WHILE else 0
            return all(
                self._is_yielded_once(producer, block, index + first, None)
                for block in range(producer.num_regions())
            )
        return producer.name() not in SOURCES | LISTS and not may_share(producer)

    def _is_yielded_once(
        self, op: Operation, block: int, index: int, variable: Value | None
    ) -> bool:
        """Whether a block yields, at ``index``, memory of its own that it yields nowhere else.

        The memory has to be that of a value that the block defines, or of ``variable``.
        """
        end = tuple(op.blocks())[block].ops[-1]
        value = end.operand_source(index)
        root = self._variables.get(value_id(value), value)
        if variable is not None and root.is_same(variable):
            return True
        if sum(value.is_same(other) for other in end.operands_source()) > 1:
            return False
        producer = value.get_defining_op()
        _, enclosing = self._homes.get(value_id(value), (None, ()))
        return (
            producer is not None
            and root.is_same(value)
            and enclosing[-1:] == ((op, block),)
            and producer.name() not in SOURCES | LISTS
            and self._has_own_memory(value)
        )

    def _reads_only_contents(self, reader: Operation, variable: Value) -> bool:
        """Whether ``reader`` uses only the contents of ``variable``, and not its memory."""
        if reader.name() in LISTS:
            return _is_used_before_writes(reader)
        if reader.name() == YIELD:
            return self._is_yielded_in_place(reader, variable)
        if reader.name() == "builtin.set_parameter":
            return False
        if reader.name() in SINKS:
            return all(op.name() in SINKS | SOURCES for op in _after(reader))
        return True

    def _is_yielded_in_place(self, end: Operation, variable: Value) -> bool:
        """Whether ``end``, a block's terminator, yields ``variable`` only where that is harmless.

        An argument of the block has to be the condition, or be yielded at its own index. A variable
        that the block defines may be yielded at any index.
        """
        home, _ = self._homes[value_id(variable)]
        if variable.get_defining_op() is not None and home.ops[-1].id() == end.id():
            return True
        args = end.get_parent_block().args()
        yielded_at = [
            index
            for index, value in enumerate(end.operands_source())
            if self._variables.get(value_id(value), value).is_same(variable)
        ]
        return bool(args) and all(i == 0 or args[i - 1].is_same(variable) for i in yielded_at)


def _after(op: Operation) -> list[Operation]:
    """The operators that follow ``op`` in its block."""
    ops = op.get_parent_block().ops
    (index,) = (n for n, other in enumerate(ops) if other.id() == op.id())
    return ops[index + 1 :]


def _is_used_before_writes(op: Operation) -> bool:
    """Whether no write happens between a list operator and the last reader of its results."""
    users = {user.id() for result in op.results() for user in result.all_used_ops()}
    for other in _after(op):
        users.discard(other.id())
        if not users:
            return True
        if other.num_regions() > 0 or next(overwritten(other), None) is not None:
            return False
    return not users


def _has_out_of_place_form(write: _Write) -> bool:
    """Whether an out-of-place operator can replace the one that overwrites its operand.

    The new operator's result has to have the dtype and shape of the overwritten variable.
    """
    same = write.operand.dtype == write.result.dtype and write.operand.shape == write.result.shape
    is_only = len(list(overwritten(write.op))) == 1 == len(write.op.results())
    name, effects = _out_of_place_form(write.op), ordering_effects(write.op)
    if not same or not is_only or COMMUNICATE in effects:
        return False
    return find_converter(name) is not None or (not effects and _is_operator(name))


def _is_operator(name: str) -> bool:
    """Whether Paddle has an operator of this name whose result has its own memory."""
    short = name.removeprefix("pd_op.")
    return hasattr(operators, short) and name not in SHARING


def _out_of_place_form(op: Operation) -> str:
    return _out_of_place_call(op)[0]


def _out_of_place_call(op: Operation) -> tuple[str, list[Value]]:
    """The type and operands of the operator that computes the same as ``op``, not in place."""
    operands = list(op.operands_source())
    name, count = _OUT_OF_PLACE_FORMS.get(op.name(), (op.name().removesuffix("_"), len(operands)))
    return name, operands[:count]


def _has_converters(op: Operation) -> bool:
    """Whether every operator inside a loop or branch has a converter."""
    return op.name() in REGIONS and all(
        inner.name() in LISTS | CONSTANTS | {YIELD}
        or (_has_converters(inner) if inner.num_regions() > 0 else _has_converter(inner))
        for block in op.blocks()
        for inner in block.ops
    )


def _has_converter(op: Operation) -> bool:
    is_gradient = op.name().rstrip("_").endswith("_grad")
    return not is_gradient and find_converter(op.name()) is not None


def _use_versions(block: Block, versions: dict[str, Value], carried: Value | None = None) -> None:
    """Rewrites operators to read the current version of a variable, or to create the next one.

    Args:
        block: The block of the operators; bodies of loops and branches in it are included.
        versions: The first version of each variable by its id; updated to the last one.
        carried: The variable, if loops and branches overwrite it.
    """
    for op in block.ops:
        written = [vid for operand, _ in overwritten(op) if (vid := value_id(operand)) in versions]
        for index, value in enumerate(op.operands_source()):
            if value.initialized() and (version := versions.get(value_id(value))) is not None:
                op.operand(index).set_source(version)
        if carried is not None and _overwrites_inside(op, carried):
            vid = value_id(carried)
            versions[vid] = _carry_through(op, carried, versions[vid])
            continue
        for inner in op.blocks() if op.num_regions() > 0 else ():
            _use_versions(inner, versions, carried)
        for vid in written:
            versions[vid] = _core.replace_operator(op, *_out_of_place_call(op)).result(0)


def _carry_through(op: Operation, variable: Value, version: Value) -> Value:
    """Makes an overwritten variable a carried value of a loop or branch; returns the result."""
    extended = _core.add_carried_value(op, version)
    for block in extended.blocks():
        versions = {value_id(variable): block.args()[-1] if extended.name() == WHILE else version}
        _use_versions(block, versions, variable)
        end = block.ops[-1]
        end.operand(end.num_operands() - 1).set_source(versions[value_id(variable)])
    result: Value = extended.results()[-1]
    return result


def _overwrites_inside(op: Operation, variable: Value) -> bool:
    """Whether an operator inside ``op`` overwrites ``variable``."""
    return any(
        _overwrites_inside(inner, variable)
        or any(operand.is_same(variable) for operand, _ in overwritten(inner))
        for block in (op.blocks() if op.num_regions() > 0 else ())
        for inner in block.ops
    )
