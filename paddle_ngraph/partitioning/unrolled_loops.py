"""Loops that a program has unrolled, whose steps compute what earlier steps have computed.

A decoder without a cache, unrolled, computes all words again in each step, and reads one of them.
Where operators share weights, as the steps of such a loop do,

- operators that are equal, with all that depends on them, are computed once (common subexpression
  elimination): the keys of a picture;
- positions that are read are computed alone, and once (read_positions.py).

Nothing follows from samples, or from declared sizes of feeds: see analysis/value_facts.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode
from paddle_ngraph.partitioning.analysis.operator_kinds import (
    SINKS,
    blocks_outermost_first,
    is_known,
    operands_of,
    overwritten,
    value_id,
)
from paddle_ngraph.partitioning.analysis.placement import device_of
from paddle_ngraph.partitioning.analysis.value_facts import ValueFacts, is_pure
from paddle_ngraph.partitioning.read_positions import (
    SLOW,
    compute_read_positions,
    remove_unread,
)


def compute_steps_once(program: Program | Block) -> None:
    """Rewrites, in place, the operators of a program's global block."""
    block = next(iter(blocks_outermost_first(program)))
    if not _shares_weights(block) or not _has_values_only(block):
        return
    facts = ValueFacts(BlockView(block))
    if _share_equal(facts):
        facts = ValueFacts(BlockView(block))
    compute_read_positions(facts)


def _shares_weights(block: Block) -> bool:
    """Whether several slow operators read one weight."""
    weights = Counter(
        value_id(weight)
        for op in block.ops
        if op.name() in SLOW
        for weight in {value_id(value): value for value in _tensors(op)}.values()
        if (producer := weight.get_defining_op()) is not None
        and producer.name() == "builtin.parameter"
    )
    return any(count > 1 for count in weights.values())


def _tensors(op: Operation) -> Iterator[Value]:
    """The tensors that an operator reads, members of lists included."""
    for value in operands_of(op):
        producer = value.get_defining_op()
        if producer is not None and producer.name() == "builtin.combine":
            yield from operands_of(producer)
        else:
            yield value


def _has_values_only(block: Block) -> bool:
    """Whether operators of a program write nothing but their results, all on one device."""
    return not any(
        not is_known(op.name())
        or device_of(op)
        or op.name() == "builtin.set_parameter"
        or next(overwritten(op), None) is not None
        for each in blocks_outermost_first(block)
        for op in each.ops
    )


# -- equal operators -------------------------------------------------------------------------------


def _share_equal(facts: ValueFacts) -> bool:
    """Replaces slow operators by equal ones before them, and operators that depend on them.

    Returns:
        Whether there are any.
    """
    first: dict[tuple[int, ...], OpNode] = {}
    shared: set[str] = set()
    removed = []
    for node in facts.view.nodes:
        if not is_pure(node, facts.op(node)) or not _may_be_replaced(facts.view, node):
            continue
        numbers = tuple(map(facts.number, node.writes))
        earlier = first.setdefault(numbers, node)
        is_due = node.type in SLOW or any(vid in shared for vid in _read(facts.view, node))
        if earlier is not node and is_due and _have_equal_types(facts.view, earlier, node):
            for old, new in zip(node.writes, earlier.writes):
                facts.view.values[old].replace_all_uses_with(facts.view.values[new])
            shared.update(node.writes)
            removed.append(node)
    remove_unread(facts, removed)
    return bool(removed)


def _read(view: BlockView, node: OpNode) -> list[str]:
    return [vid for read in node.reads for vid in view.members(read)]


def _may_be_replaced(view: BlockView, node: OpNode) -> bool:
    """Whether nothing names a result of an operator, and its results are tensors."""
    return not any(
        view.values[vid].persistable
        or not view.is_tensor(vid)
        or any(reader.type in SINKS for reader in view.readers.get(vid, ()))
        for vid in node.writes
    ) and not view.is_result(node)


def _have_equal_types(view: BlockView, one: OpNode, other: OpNode) -> bool:
    pairs = zip(one.writes, other.writes)
    return all(view.spec(a, 0) == view.spec(b, 0) for a, b in pairs)
