"""Helpers for passes and layouts: elementwise types, the key of an output, constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from openvino import Node, Output, Tensor, Type, opset15
from openvino.utils.types import NodeInput

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


def as_output(node: Any) -> Output:
    """A node's only output; an output as it is."""
    return node.output(0) if isinstance(node, Node) else node


def fusion_barrier(value: Output) -> Output:
    """``value`` where the plugin sees no further: it stops before a PRelu of slope 1.

    That changes no number. Measured, it takes no time where it is fused, as behind products.
    """
    return opset15.prelu(value, opset15.constant(np.float32(1.0))).output(0)


# They have models inside, which may read nothing of what they are given.
_WITH_MODELS = frozenset({"If", "Loop", "TensorIterator"})


def read_by(results: Iterable[Output]) -> set[str]:
    """The names of the nodes whose contents, not only their shapes, certainly decide ``results``.

    Of parameters: those that a node with models inside is given may be left out.
    """
    found: set[str] = set()
    pending = [output.get_node() for output in results]
    while pending:
        node = pending.pop()
        kind, name = node.get_type_name(), node.get_name()
        if name in found or kind == "ShapeOf":
            continue
        found.add(name)
        sources = [value.get_node() for value in node.input_values()]
        if kind in _WITH_MODELS:
            sources = [source for source in sources if source.get_type_name() != "Parameter"]
        pending += sources
    return found


# Those that make something else of every number.
_ARITHMETIC_TYPES = frozenset(
    {"Abs", "Convolution", "Erf", "Exp", "GroupConvolution", "Log", "LogicalNot", "MatMul"}
    | {"Negative", "Relu", "Sigmoid", "SoftPlus", "Sqrt", "Tanh"}
)


def forwarded_parameters(result: Output, through_joined: bool = True) -> set[str]:
    """The names of the parameters that ``result`` may be, or be a view of, once nodes are left out.

    Nodes that change nothing (a sum with 0, a slice of everything) are left out.

    Args:
        result: It.
        through_joined: Whether it may be one of those that were joined to one.
    """
    found: set[str] = set()
    met: set[str] = set()
    pending = [result.get_node()]
    while pending:
        node = pending.pop()
        kind, name = node.get_type_name(), node.get_name()
        is_joined = kind == "Concat" and len(node.input_values()) > 1
        if name in met or kind in _ARITHMETIC_TYPES or (is_joined and not through_joined):
            continue
        met.add(name)
        if kind == "Parameter":
            found.add(name)
        sources = [value.get_node() for value in node.input_values()]
        varying = [source for source in sources if source.get_type_name() != "Constant"]
        if kind not in ELEMENTWISE or len(varying) == 1:
            pending += varying
    return found


def key_of(output: Output) -> Key:
    """The key that identifies an output."""
    return output.get_node().get_name(), output.get_index()


def select(condition: NodeInput, x: NodeInput, y: NodeInput) -> Node:
    """``x`` where ``condition`` holds, else ``y``, exact for whole numbers too.

    The engine may select them in float32; bits it can only leave unchanged.
    """
    kind = x.get_element_type()
    if kind not in (Type.i32, Type.i64):
        return opset15.select(condition, x, y)
    ones = opset15.negative(opset15.convert(condition, kind))
    return opset15.bitwise_xor(y, opset15.bitwise_and(opset15.bitwise_xor(x, y), ones))


def constant_of(array: np.ndarray, kind: Type) -> Node:
    """A constant of this element type; NumPy has the bits of bfloat16 as those of float16."""
    if kind != Type.bf16:
        return opset15.constant(array, kind)
    tensor = Tensor(Type.bf16, array.shape)  # not of the array, which it would not keep alive
    tensor.data[...] = array
    return opset15.constant(tensor)
