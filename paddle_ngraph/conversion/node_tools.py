"""Helpers for passes and layouts: elementwise types, the key of an output, constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from openvino import Node, Output, Tensor, Type, opset15
from openvino.utils.types import NodeInput

# The key of an output within a build: name of its node, and index. The outputs themselves are no
# keys, since the bindings create a new object at each access.
Key = tuple[str, int]

# Types of nodes that compute each element from the elements of the inputs at the same index.
_NAMES = """
    Abs Add Ceiling Clamp Convert Divide Elu Equal Erf Exp Floor Gelu Greater GreaterEqual
    HSigmoid HSwish IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mish Multiply Negative NotEqual Power Relu Round RoundToBfloat16 Select Selu
    Sigmoid Sign SoftPlus Sqrt SquaredDifference Subtract Swish Tanh
"""
ELEMENTWISE = frozenset(_NAMES.split())


def as_output(node: Any) -> Output:
    """The only output of ``node``; an Output is returned unchanged."""
    return node.output(0) if isinstance(node, Node) else node


def fusion_barrier(value: Output) -> Output:
    """``value`` behind a PRelu of slope 1, beyond which the plugin does not fuse.

    The PRelu changes no value. Where it is fused, as after matmuls, it takes no measurable time.
    """
    return opset15.prelu(value, opset15.constant(np.float32(1.0))).output(0)


# Types of nodes that contain models, which may ignore inputs of the node.
WITH_MODELS = frozenset({"If", "Loop", "TensorIterator"})


def read_by(results: Iterable[Output]) -> set[str]:
    """The names of the nodes whose contents, not only their shapes, certainly decide ``results``.

    Parameters that only nodes with bodies read directly may be left out.
    """
    found: set[str] = set()
    pending = [output.get_node() for output in results]
    while pending:
        node = pending.pop()
        type_name, name = node.get_type_name(), node.get_name()
        if name in found or type_name == "ShapeOf":
            continue
        found.add(name)
        sources = [value.get_node() for value in node.input_values()]
        if type_name in WITH_MODELS:
            sources = [source for source in sources if source.get_type_name() != "Parameter"]
        pending += sources
    return found


# Types of nodes whose results are always new values, never elements of their inputs.
_ARITHMETIC_TYPES = frozenset(
    {"Abs", "Convolution", "Erf", "Exp", "GroupConvolution", "Log", "LogicalNot", "MatMul"}
    | {"Negative", "Relu", "Sigmoid", "SoftPlus", "Sqrt", "Tanh"}
)


def forwarded_parameters(result: Output, through_joined: bool = True) -> set[str]:
    """The names of the parameters that ``result`` may be, or be a view of, after simplification.

    The plugin may eliminate nodes without effect (a sum with 0, a slice of everything).

    Args:
        result: The output.
        through_joined: Whether to search the operands of concatenations too.
    """
    found: set[str] = set()
    visited: set[str] = set()
    pending = [result.get_node()]
    while pending:
        node = pending.pop()
        type_name, name = node.get_type_name(), node.get_name()
        is_joined = type_name == "Concat" and len(node.input_values()) > 1
        if name in visited or type_name in _ARITHMETIC_TYPES or (is_joined and not through_joined):
            continue
        visited.add(name)
        if type_name == "Parameter":
            found.add(name)
        sources = [value.get_node() for value in node.input_values()]
        varying = [source for source in sources if source.get_type_name() != "Constant"]
        if type_name not in ELEMENTWISE or len(varying) == 1:
            pending += varying
    return found


def key_of(output: Output) -> Key:
    """The hashable key of an output: two objects may stand for one output."""
    return output.get_node().get_name(), output.get_index()


def select(condition: NodeInput, x: NodeInput, y: NodeInput) -> Node:
    """``x`` where ``condition`` holds, else ``y``, exact for integers too.

    The engine may compute a Select of integers in float32; bitwise operators keep all bits.
    """
    dtype = x.get_element_type()
    if dtype not in (Type.i32, Type.i64):
        return opset15.select(condition, x, y)
    ones = opset15.negative(opset15.convert(condition, dtype))
    return opset15.bitwise_xor(y, opset15.bitwise_and(opset15.bitwise_xor(x, y), ones))


def constant_of(array: np.ndarray, dtype: Type) -> Node:
    """A constant of this element type; NumPy arrays hold the bits of bfloat16 as float16."""
    if dtype != Type.bf16:
        return opset15.constant(array, dtype)
    # The tensor owns its memory: one on the memory of the array would not keep the array alive.
    tensor = Tensor(Type.bf16, array.shape)
    tensor.data[...] = array
    return opset15.constant(tensor)


def is_used(node: Node) -> bool:
    """Whether the first output of a node has a reader."""
    return bool(node.output(0).get_target_inputs())
