"""Helpers for passes and layouts: which types are elementwise, and the key of an output."""

from __future__ import annotations

from openvino import Node, Output

# Identifies an output among those of one build: the bindings make a new object at each access.
Key = tuple[str, int]

# Types that compute every element from the elements at the same position.
_NAMES = """
    Abs Add Ceiling Clamp Convert Divide Elu Equal Erf Exp Floor Gelu Greater GreaterEqual
    HSigmoid HSwish IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mish Multiply Negative NotEqual Power Relu Select Selu Sigmoid Sign SoftPlus
    Sqrt SquaredDifference Subtract Swish Tanh
"""
ELEMENTWISE = frozenset(_NAMES.split())


def key_of(output: Output) -> Key:
    """The key that identifies an output."""
    return output.get_node().get_name(), output.get_index()


def meets_nothing(node: Node) -> bool:
    """Whether a node reads or makes an empty tensor, with which nGraph does not compute.

    The folding of some nodes (softmax along an axis of 1) writes beyond an empty result. A list of
    no numbers, as of no axes, is none of these; nor is a constant that nobody computes with.
    """
    if node.get_type_name() == "Constant":
        return False
    return any(map(_is_nothing, (*node.input_values(), *node.outputs())))


def _is_nothing(output: Output) -> bool:
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or not any(
        size.is_static and size.get_length() == 0 for size in shape
    ):
        return False
    return len(shape) != 1 or output.get_element_type().is_real()
