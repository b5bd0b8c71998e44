"""TensorArrays while a function is built: tensors that hold their elements.

In a function nothing is ever replaced in a TensorArray, and its elements have one shape. So it is a
list of tensors, one behind the other; a loop that appends to it adds one with as many elements as
there are turns. In a graph it is one tensor of a dtype of its own, whatever is written to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from openvino import Output

from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.ir.graph import Graph, TensorSpec

APPEND, LENGTH = "pd_op.array_write_", "pd_op.array_length"


@dataclass
class TensorArray:
    """A TensorArray.

    Attributes:
        chunks: Tensors of which axis 0 counts elements.
        before: How many elements there are besides, in front of those: what earlier turns of a loop
            have appended, and what was there before. Nobody can read them.
        is_read: Whether it belongs to a block around this one, which only reads it.
    """

    chunks: list[Output] = field(default_factory=list)
    before: Number = 0
    is_read: bool = False


def appended_by(block: Graph) -> Counter[int]:
    """How many elements operators of a block itself append to each TensorArray."""
    return Counter(op.input("array").id for op in block.ops if op.type == APPEND)


def carry_read_arrays(
    block: Graph, args: int, sources: Sequence[Output | TensorArray]
) -> tuple[Graph, list[int]]:
    """The block of a loop that also hands on the TensorArrays that it reads and appends to.

    Not those that start without elements: of these a turn can read what it has appended itself.

    Args:
        block: What is inside.
        args: How many of its inputs, the first ones, are others in each turn.
        sources: What its inputs are given.

    Returns:
        The block, with these TensorArrays behind its args and results; and for each of its inputs,
        which one of ``block`` it was.
    """
    written, rest = appended_by(block), range(args, len(block.inputs))
    filled = [n for n in rest if isinstance(each := sources[n], TensorArray) and each.chunks]
    moved = [n for n in filled if written[block.inputs[n].id] and _reads(block, block.inputs[n])]
    order = [*range(args), *moved, *(n for n in rest if n not in moved)]
    arrays = [block.inputs[number] for number in moved]
    inputs = [block.inputs[number] for number in order]
    return replace(block, inputs=inputs, outputs=[*block.outputs, *arrays]), order


def _reads(block: Graph, array: TensorSpec) -> bool:
    """Whether a block reads elements of a TensorArray."""
    readers = (op for op in block.ops if any(spec.id == array.id for spec in op.input_specs()))
    return any(op.type not in (APPEND, LENGTH) for op in readers)
