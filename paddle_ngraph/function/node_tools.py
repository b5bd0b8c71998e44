"""Helpers for passes and layouts: which types are elementwise, and the key of an output."""

from __future__ import annotations

from openvino import Output

# Identifies an output among those of one build: the bindings make a new object at each access.
Key = tuple[str, int]

# Types that compute every element from the elements at the same position.
_NAMES = """
    Abs Add Ceiling Clamp Convert Divide Elu Equal Erf Exp Floor Gelu Greater GreaterEqual
    HSigmoid HSwish IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mish Multiply Negative NotEqual Power Relu Round Select Selu Sigmoid Sign
    SoftPlus Sqrt SquaredDifference Subtract Swish Tanh
"""
ELEMENTWISE = frozenset(_NAMES.split())


def key_of(output: Output) -> Key:
    """The key that identifies an output."""
    return output.get_node().get_name(), output.get_index()
