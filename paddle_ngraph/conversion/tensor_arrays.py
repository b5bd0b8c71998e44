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
from typing import Any

from openvino import Output, opset15

from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, TensorSpec

APPEND, LENGTH = "pd_op.array_write_", "pd_op.array_length"


@dataclass
class TensorArray:
    """A TensorArray.

    Attributes:
        chunks: Tensors with elements along axis 0.
        before: The number of further elements before those: elements that earlier iterations of a
            loop have appended, and elements from before the loop; none of them has a reader.
        is_read: Whether the array is one of a surrounding block, and only read in this one.
    """

    chunks: list[Output] = field(default_factory=list)
    before: Number = 0
    is_read: bool = False


class TensorArrays:
    """The TensorArrays of one block.

    Args:
        sizes: The sizes of the block.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._arrays: dict[int, TensorArray] = {}  # for each tensor id, the TensorArray

    def __contains__(self, spec: TensorSpec) -> bool:
        return spec.id in self._arrays

    def __getitem__(self, spec: TensorSpec) -> TensorArray:
        return self._arrays[spec.id]

    def __setitem__(self, spec: TensorSpec, array: TensorArray) -> None:
        self._arrays[spec.id] = array

    def append(self, array: TensorArray, elements: Any) -> None:
        """Appends elements to a TensorArray.

        Args:
            array: The TensorArray.
            elements: A tensor with the elements along axis 0.

        Raises:
            NgraphError: The shape of the elements differs from that of other elements.
        """
        if array.is_read:
            raise NgraphError("a TensorArray of an outer block is written to")
        added = as_output(elements)
        for chunk in array.chunks[:1]:
            if not is_same_shape(self._sizes.of(chunk)[1:], self._sizes.of(added)[1:]):
                raise NgraphError("a TensorArray has elements of several shapes")
        array.chunks.append(added)

    def length(self, array: TensorArray) -> Number:
        """The length of a TensorArray, during the build: an integer or a symbolic size."""
        return array.before + sum(self._sizes.of(chunk)[0] for chunk in array.chunks)

    def elements(self, array: TensorArray) -> Output:
        """The elements of a TensorArray, along axis 0.

        Raises:
            NgraphError: There are none, or some are unknown.
        """
        if not is_same_shape([array.before], [0]):
            raise NgraphError("a loop reads a TensorArray that starts without elements")
        if not array.chunks:
            raise NgraphError("a TensorArray without elements is read")
        if len(array.chunks) > 1:
            array.chunks = [opset15.concat(array.chunks, 0).output(0)]
        return array.chunks[0]


def appended_by(block: Graph) -> Counter[int]:
    """For each TensorArray, how many elements operators of the block append, without sub-blocks."""
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
    """Whether an operator of a block reads elements of a TensorArray, not only its length."""
    readers = (op for op in block.ops if any(spec.id == array.id for spec in op.input_specs()))
    return any(op.type not in (APPEND, LENGTH) for op in readers)
