"""Branches of ProgramDesc programs, as one PIR operator each.

In a ProgramDesc program, a branch is two ``conditional_block``s, of which a run executes one, and a
``select_input`` for each result. Paddle translates each ``conditional_block`` to an ``if`` of its
own, with a second block that returns placeholders. Here, they become the two blocks of one ``if``,
as in a program that was built as PIR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    blocks_outermost_first,
    ordering_effects,
    overwritten,
    value_id,
)

_SELECT = "pd_op.select_input"
_IF = "pd_op.if"
# The attribute of an ``if`` whose second block returns placeholders.
_PLACEHOLDER = "fake_false_branch"


class _Side(NamedTuple):
    """The values that one side of a branch returns.

    Attributes:
        branch: The ``if`` that computes some of the values; ``None`` if all are known outside.
        values: The value of each result: a result of ``branch``, or a value of the surrounding
            block.
    """

    branch: Operation | None
    values: list[Value]


def merge_branches(program: Program) -> None:
    """Merges, in place, the operators of each branch of a translated program.

    Branches stay as they are if their results have other readers than ``select_input``, or if
    operators between their blocks and the ``select_input`` may depend on the order.
    """
    for block in reversed(list(blocks_outermost_first(program))):
        for condition, selects in _groups(block):
            _merge(block, condition, selects)


def _groups(block: Block) -> Iterator[tuple[Value, list[Operation]]]:
    """Yields (condition, selecting operators) for each branch of a block.

    Several branches may have the same condition. A selecting operator that reads values of the
    surrounding block alone is a branch of its own.
    """
    last: dict[str, tuple[set[int], list[Operation]]] = {}
    groups: list[tuple[Value, list[Operation]]] = []
    for op in block.ops:
        if op.name() != _SELECT or (condition := _condition(op)) is None:
            continue
        producers = [op.operand_source(operand).get_defining_op() for operand in (1, 2)]
        ids = {each.id() for each in producers if each is not None and _returns_placeholders(each)}
        known, selects = last.get(value_id(condition), (set(), []))
        if known.isdisjoint(ids):
            known, selects = set(), []
            groups.append((condition, selects))
        selects.append(op)
        if ids:
            last[value_id(condition)] = known | ids, selects
    yield from groups


def _condition(select: Operation) -> Value | None:
    """The boolean of which the index that ``select`` reads is a cast; ``None`` if it is none."""
    cast = select.operand_source(0).get_defining_op()
    if cast is None or cast.name() != "pd_op.cast" or select.num_operands() != 3:
        return None
    source = cast.operand_source(0)
    is_boolean = str(source.dtype).rpartition(".")[2].lower() == "bool"
    return source if is_boolean else None


def _merge(block: Block, condition: Value, selects: list[Operation]) -> None:
    """Replaces a branch by one ``if`` in the place of its first ``select_input``."""
    sides = [_side(selects, operand) for operand in (2, 1)]
    branches = [side.branch for side in sides if side is not None and side.branch is not None]
    if (
        None in sides
        or len({branch.id() for branch in branches}) < len(branches)
        or not all(_runs_if(is_true, branch, condition) for is_true, branch in _branches(sides))
        or not _can_be_late(block, branches, selects)
    ):
        return
    first, second, results = _core.append_if(
        block, condition, [_core.result_types(op)[0] for op in selects]
    )
    merged = block.ops[-1]
    for inner, side in zip((first, second), sides):
        assert side is not None
        _core.append_yield(inner, [_yielded(side, value, inner) for value in side.values])
        for op in _body(side.branch) if side.branch is not None else ():
            op.move_before(inner.ops[-1])
    for op in _late_operands(block, selects):
        op.move_before(selects[0])
    merged.move_before(selects[0])
    for op, result in zip(selects, results):
        op.result(0).replace_all_uses_with(result)
    for op in (*selects, *branches):
        block.remove_op(op)


def _side(selects: Sequence[Operation], operand: int) -> _Side | None:
    """The branch that computes this operand of the selecting ones; ``None``: several do.

    Results of a branch may have no other readers: their contents are undefined if it does not run.
    """
    values = [op.operand_source(operand) for op in selects]
    producers = [value.get_defining_op() for value in values]
    branches = [op for op in producers if op is not None and _returns_placeholders(op)]
    if not branches:
        return _Side(None, values)
    branch = branches[0]
    readers = {user.id() for result in branch.results() for user in result.all_used_ops()}
    is_alone = readers <= {op.id() for op in selects}
    return _Side(branch, values) if is_alone and len({b.id() for b in branches}) == 1 else None


def _returns_placeholders(op: Operation) -> bool:
    return op.name() == _IF and bool(op.attrs().get(_PLACEHOLDER, False))


def _branches(sides: Sequence[_Side | None]) -> Iterator[tuple[bool, Operation]]:
    """Yields (whether the condition is to be true, branch) for the sides with a branch."""
    for is_true, side in zip((True, False), sides):
        if side is not None and side.branch is not None:
            yield is_true, side.branch


def _runs_if(is_true: bool, branch: Operation, condition: Value) -> bool:
    """Whether ``branch`` runs exactly where ``condition`` is true, or false."""
    own = branch.operand_source(0)
    if is_true:
        return own.is_same(condition)
    negation = own.get_defining_op()
    return (
        negation is not None
        and negation.name() == "pd_op.logical_not"
        and negation.operand_source(0).is_same(condition)
    )


def _can_be_late(block: Block, branches: list[Operation], selects: list[Operation]) -> bool:
    """Whether the blocks of ``branches`` may run in the place of the first of ``selects``."""
    places = {op.id(): place for place, op in enumerate(block.ops)}
    target = places[selects[0].id()]
    first = min((places[branch.id()] for branch in branches), default=target)
    between = block.ops[first + 1 : target]
    others = [op for op in between if op.id() not in {branch.id() for branch in branches}]
    inner = [op for branch in branches for op in _body(branch)]
    return (
        not any(_writes(op) for op in (*others, *inner))
        and not (any(map(_has_effects, others)) and any(map(_has_effects, inner)))
        and all(
            op.name() in CONSTANTS or op.num_operands() == 0
            for op in _late_operands(block, selects)
        )
    )


def _late_operands(block: Block, selects: Sequence[Operation]) -> list[Operation]:
    """The producers of what is selected that follow the first selecting operator."""
    places = {op.id(): place for place, op in enumerate(block.ops)}
    first = places[selects[0].id()]
    producers = [
        producer
        for op in selects
        for operand in (1, 2)
        if (producer := op.operand_source(operand).get_defining_op()) is not None
    ]
    return [op for op in producers if places.get(op.id(), -1) > first]


def _body(branch: Operation) -> list[Operation]:
    """The operators of a branch's first block, without its terminator."""
    return list(next(iter(branch.blocks())).ops[:-1])


def _yielded(side: _Side, value: Value, inner: Block) -> Value:
    """Returns the value that the block ``inner`` of the merged branch yields for ``value``.

    A value of the surrounding block is copied, so that the result has memory of its own.
    """
    if side.branch is not None:
        (first, _) = side.branch.blocks()
        for result, yielded in zip(side.branch.results(), first.ops[-1].operands_source()):
            if result.is_same(value):
                return yielded
    copy: Value
    (copy,) = _core.append_operator(inner, "pd_op.assign", [value], None, [])
    return copy


def _writes(op: Operation) -> bool:
    """Whether an operator, or one in its blocks, overwrites a variable."""
    inner = op.blocks() if op.num_regions() > 0 else ()
    return next(overwritten(op), None) is not None or any(
        _writes(each) for block in inner for each in block.ops
    )


def _has_effects(op: Operation) -> bool:
    """Whether an operator, or one in its blocks, has to stay in order with others."""
    inner = op.blocks() if op.num_regions() > 0 else ()
    return bool(ordering_effects(op)) or any(
        _has_effects(each) for block in inner for each in block.ops
    )
