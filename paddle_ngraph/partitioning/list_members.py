"""Lists of tensors, each taken apart by one operator.

Programs built as PIR take all members of a list by ``builtin.split``, those that Paddle translates
from ProgramDesc each member by ``builtin.slice``. The program pass knows the members of the former.
"""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import make_persistable
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first

_SLICE = "builtin.slice"


def split_lists(program: Program | Block) -> None:
    """Replaces, in place, all ``builtin.slice`` of a list by one ``builtin.split``."""
    lists: dict[str, tuple[Value, list[Operation]]] = {}
    for block in blocks_outermost_first(program):
        for op in block.ops:
            if op.name() == _SLICE:
                value = op.operand_source(0)
                lists.setdefault(str(value.id), (value, []))[1].append(op)
    for value, slices in lists.values():
        members = _members(value)
        for op in slices:
            member = members[int(op.attrs()["index"])]
            if op.result(0).persistable:
                make_persistable(member)
            op.result(0).replace_all_uses_with(member)
            op.get_parent_block().remove_op(op)


def _members(value: Value) -> list[Value]:
    """The members of ``value``, of which a new ``builtin.split`` follows the producer.

    There, loops and branches around the slices capture tensors: they cannot capture a list.
    """
    producer = value.get_defining_op()
    assert producer is not None  # no block has a list among its arguments
    if producer.name() == "builtin.combine":
        return producer.operands_source()
    following = iter(producer.get_parent_block().ops)
    next(op for op in following if op.id() == producer.id())
    # A slice of the list, or an operator around one, follows the producer in its block.
    return _core.insert_split(next(following), value)
