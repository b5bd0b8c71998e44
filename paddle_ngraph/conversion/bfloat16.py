"""bfloat16 tensors inside a function: float32 nodes that contain bfloat16 values.

Paddle's kernels compute bfloat16 in float32 and round their results. So converters see float32
(:meth:`Op.in_float32`), and the bridge rounds each output that Paddle declares bfloat16. Only
subgraph inputs and outputs are bfloat16 tensors. Matmuls and convolutions of bfloat16 values then
get operands of that type (mixed_precision.py), with equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from openvino import Node, Output, Type

from paddle_ngraph.conversion.node_tools import Key, key_of

WIDENING, ROUNDING, NARROWING = "FromBfloat16", "RoundToBfloat16", "ToBfloat16"

# Types whose outputs contain only elements of their inputs, perhaps with another sign, and zeros:
# from bfloat16 values they compute bfloat16 values.
_NAMES = """
    Abs BlockedReorder Broadcast Concat Gather GatherElements GatherND MaxPool Maximum Minimum
    Negative PaddleMaxPool ReduceMax ReduceMin Relu Reshape Reverse Select Slice Split Squeeze
    StridedSlice Tile Transpose Unsqueeze VariadicSplit
"""
_VALUE_PRESERVING = frozenset(_NAMES.split())
# The longest chain of value-preserving nodes that is searched for the source of an output.
_MAX_SEARCH_DEPTH = 32
# The largest constant, in elements, whose elements are all checked for being bfloat16 values.
_MAX_CONSTANT_ELEMENTS = 1 << 10


class Bfloat16Values:
    """The nodes of a model that contain bfloat16 values.

    Args:
        extension: Creates a node of an operator of this package (``NgraphBridge.extension``).
    """

    def __init__(self, extension: Callable[..., Node]) -> None:
        self._extension = extension
        self._found: dict[Key, bool] = {}

    def widened(self, node: Any) -> Output:
        """A bfloat16 tensor, converted to float32."""
        return self._extension(WIDENING, [node]).output(0)

    def rounded(self, output: Output) -> Output:
        """A float32 tensor, rounded to the nearest bfloat16 values."""
        return output if self.holds(output) else self._extension(ROUNDING, [output]).output(0)

    def narrowed(self, output: Output) -> Output:
        """A float32 tensor, converted to bfloat16, with rounding if necessary."""
        return self._extension(NARROWING, [before_rounding(output)]).output(0)

    def holds(self, output: Output) -> bool:
        """Whether every element of ``output`` is certainly a bfloat16 value."""
        return self._holds(output, _MAX_SEARCH_DEPTH)

    def _holds(self, output: Output, depth: int) -> bool:
        key = key_of(output)
        if key not in self._found:
            self._found[key] = self._analyzed(output, depth)
        return self._found[key]

    def _analyzed(self, output: Output, depth: int) -> bool:
        node = output.get_node()
        type_name = node.get_type_name()
        if type_name in (WIDENING, ROUNDING):
            return True
        if output.get_element_type() != Type.f32 or depth == 0:
            return False
        if type_name == "Constant":
            data = node.get_data()
            return data.size <= _MAX_CONSTANT_ELEMENTS and not (data.view(np.uint32) & 0xFFFF).any()
        floats = [v for v in node.input_values() if v.get_element_type() == Type.f32]
        return type_name in _VALUE_PRESERVING and all(
            self._holds(value, depth - 1) for value in floats
        )


def before_rounding(output: Output) -> Output:
    """The unrounded value if ``output`` is a rounding to bfloat16, else ``output`` itself."""
    node = output.get_node()
    return node.input_value(0) if node.get_type_name() == ROUNDING else output
