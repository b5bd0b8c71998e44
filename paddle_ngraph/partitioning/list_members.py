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
    for block in blocks_outermost_first(program):
        slices: dict[str, tuple[Value, list[Operation]]] = {}
        for op in block.ops:
            if op.name() == _SLICE:
                value = op.operand_source(0)
                slices.setdefault(str(value.id), (value, []))[1].append(op)
        for value, ops in slices.values():
            for op, member in zip(ops, _members(value, ops)):
                if op.result(0).persistable:
                    make_persistable(member)
                op.result(0).replace_all_uses_with(member)
                block.remove_op(op)


def _members(value: Value, slices: list[Operation]) -> list[Value]:
    """The members of ``value`` that ``slices`` take; the first of these is the place of a split."""
    producer = value.get_defining_op()
    if producer is not None and producer.name() == "builtin.combine":
        members = producer.operands_source()
    else:
        members = _core.insert_split(slices[0], value)
    return [members[int(op.attrs()["index"])] for op in slices]
