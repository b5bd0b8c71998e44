"""What types of nodes have in common."""

from __future__ import annotations

# Types that compute every element from the elements at its place.
_NAMES = """
    Abs Add Ceiling Clamp Convert Divide Elu Equal Erf Exp Floor Gelu Greater GreaterEqual
    HSigmoid HSwish IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mish Multiply Negative NotEqual Power Relu Select Selu Sigmoid Sign SoftPlus
    Sqrt SquaredDifference Subtract Swish Tanh
"""
ELEMENTWISE = frozenset(_NAMES.split())
