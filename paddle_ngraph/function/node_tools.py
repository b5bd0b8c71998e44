"""Helpers for passes and layouts: elementwise types, the key of an output, constants."""

from __future__ import annotations

import numpy as np
from openvino import Node, Output, Tensor, Type, opset15

# Identifies an output among those of one build: the bindings make a new object at each access.
Key = tuple[str, int]

# Types that compute every element from the elements at the same position.
_NAMES = """
    Abs Add Ceiling Clamp Convert Divide Elu Equal Erf Exp Floor Gelu Greater GreaterEqual
    HSigmoid HSwish IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mish Multiply Negative NotEqual Power Relu Round RoundToBfloat16 Select Selu
    Sigmoid Sign SoftPlus Sqrt SquaredDifference Subtract Swish Tanh
"""
ELEMENTWISE = frozenset(_NAMES.split())


def key_of(output: Output) -> Key:
    """The key that identifies an output."""
    return output.get_node().get_name(), output.get_index()


def constant_of(array: np.ndarray, kind: Type) -> Node:
    """A constant of this element type; NumPy has the bits of bfloat16 as those of float16."""
    if kind != Type.bf16:
        return opset15.constant(array, kind)
    tensor = Tensor(Type.bf16, array.shape)  # not of the array, which it would not keep alive
    tensor.data[...] = array
    return opset15.constant(tensor)
