"""TensorArrays while a function is built: tensors that hold their elements.

In a function nothing is ever replaced in a TensorArray, and its elements have one shape. So it is a
list of tensors, one behind the other; a loop that appends to it adds one with as many elements as
there are turns. In a graph it is one tensor of a dtype of its own, whatever is written to it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from openvino import Output

from paddle_ngraph.graph import Graph
from paddle_ngraph.function.sizes import Number

APPEND = "pd_op.array_write_"


@dataclass
class TensorArray:
    """A TensorArray.

    Attributes:
        parts: Tensors of which axis 0 counts elements.
        before: How many elements there are besides, in front of those: what earlier turns of a loop
            have appended, and what was there before. Nobody can read them.
        is_read: Whether it belongs to a block around this one, which only reads it.
    """

    parts: list[Output] = field(default_factory=list)
    before: Number = 0
    is_read: bool = False


def appended_by(block: Graph) -> Counter[int]:
    """How many elements a block appends to each TensorArray, whatever is inside of its operators."""
    return Counter(op.input("array").id for op in block.ops if op.type == APPEND)
