"""TensorArrays during a build: lists of tensors.

In a function no element of a TensorArray is ever replaced, and all elements have one shape. So a
TensorArray is a list of tensors, joined along axis 0; a loop that appends to it adds a tensor with
as many elements as there are iterations. In a graph a TensorArray is one tensor of its own dtype,
regardless of writes to it.
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
        chunks: Tensors with elements along axis 0.
        before: The number of further elements before those: elements that earlier iterations of a
            loop have appended, and elements from before the loop; none of them has a reader.
        is_read: Whether it belongs to a surrounding block, and is only read in this one.
    """

    chunks: list[Output] = field(default_factory=list)
    before: Number = 0
    is_read: bool = False


def appended_by(block: Graph) -> Counter[int]:
    """Number of elements that the block's own operators append to each TensorArray."""
    return Counter(op.input("array").id for op in block.ops if op.type == APPEND)


def carry_read_arrays(
    block: Graph, args: int, sources: Sequence[Output | TensorArray]
) -> tuple[Graph, list[int]]:
    """The block of a loop, with the TensorArrays that it reads and appends to as carried values.

    TensorArrays without initial elements are left out: of these, an iteration can read elements
    that it has appended itself.

    Args:
        block: The block of the loop.
        args: The number of loop-carried inputs, which come first.
        sources: The values of its inputs.

    Returns:
        The block, with these TensorArrays after its loop-carried inputs and after its results; and
        for each of its inputs the index of that input in ``block``.
    """
    written, rest = appended_by(block), range(args, len(block.inputs))
    filled = [n for n in rest if isinstance(each := sources[n], TensorArray) and each.chunks]
    carried = [n for n in filled if written[block.inputs[n].id] and _reads(block, block.inputs[n])]
    order = [*range(args), *carried, *(n for n in rest if n not in carried)]
    arrays = [block.inputs[index] for index in carried]
    inputs = [block.inputs[index] for index in order]
    return replace(block, inputs=inputs, outputs=[*block.outputs, *arrays]), order


def _reads(block: Graph, array: TensorSpec) -> bool:
    """Whether a block reads elements of a TensorArray."""
    readers = (op for op in block.ops if any(spec.id == array.id for spec in op.input_specs()))
    return any(op.type not in (APPEND, LENGTH) for op in readers)
