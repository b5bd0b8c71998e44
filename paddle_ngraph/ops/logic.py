"""Comparison, logic and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openvino import Node, Type, opset15

from paddle_ngraph.bridge import NgraphBridge
from paddle_ngraph.graph import Op
from paddle_ngraph.ops.elementwise import reduce_to, scalar_input, set_reduced
from paddle_ngraph.registry import BOOL, FLOAT, INT32, converter

Binary = Callable[[Any, Any], Node]
Unary = Callable[[Any], Node]


def _register_binary(name: str, function: Binary, dtypes: frozenset[str]) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
        bridge.set_output_node(op, "out", function(x, y))

    converter(f"pd_op.{name}", dtypes=dtypes)(convert)


def _register_unary(name: str, function: Unary, dtypes: frozenset[str]) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        bridge.set_output_node(op, "out", function(bridge.get_input_node(op, "x")))

    converter(f"pd_op.{name}", dtypes=dtypes)(convert)


# -- comparison: the engine compares int32 in float32, which is not exact ------------------------


def _equal(x: Any, y: Any) -> Node:
    """Whether ``x`` is ``y``; for floats, as in Paddle, up to a difference of 1e-15."""
    if x.get_element_type() == Type.i32:
        return opset15.equal(opset15.bitwise_xor(x, y), opset15.constant(0, Type.i32))
    same = opset15.equal(x, y)
    if x.get_element_type() != Type.f32:
        return same
    distance = opset15.abs(opset15.subtract(x, y))
    return opset15.logical_or(same, opset15.less(distance, opset15.constant(1e-15, Type.f32)))


def _not_equal(x: Any, y: Any) -> Node:
    return opset15.logical_not(_equal(x, y))


_register_binary("equal", _equal, FLOAT | INT32 | BOOL)
_register_binary("not_equal", _not_equal, FLOAT | INT32 | BOOL)
_register_binary("less_than", opset15.less, FLOAT)
_register_binary("less_equal", opset15.less_equal, FLOAT)
_register_binary("greater_than", opset15.greater, FLOAT)
_register_binary("greater_equal", opset15.greater_equal, FLOAT)

# -- logic ---------------------------------------------------------------------------------------

_register_binary("logical_and", opset15.logical_and, BOOL)
_register_binary("logical_or", opset15.logical_or, BOOL)
_register_binary("logical_xor", opset15.logical_xor, BOOL)
_register_unary("logical_not", opset15.logical_not, BOOL)
_register_unary("isnan", opset15.is_nan, FLOAT)
_register_unary("isinf", opset15.is_inf, FLOAT)
_register_unary("isfinite", opset15.is_finite, FLOAT)

# -- selection -----------------------------------------------------------------------------------


@converter("pd_op.where", dtypes=FLOAT | INT32 | BOOL)
def where(bridge: NgraphBridge, op: Op) -> None:
    """``x`` where ``condition`` holds, else ``y`` (Paddle ``where``)."""
    condition = bridge.get_input_node(op, "condition")
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    bridge.set_output_node(op, "out", opset15.select(condition, x, y))


@converter("pd_op.where_grad", dtypes=FLOAT | BOOL, unread=("x", "y"))
def where_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` goes to the input that was taken, 0 to the other (Paddle ``where_grad``)."""
    condition = bridge.get_input_node(op, "condition")
    grad = bridge.get_input_node(op, "out_grad")
    zero = bridge.full(0.0, "float32")
    set_reduced(bridge, op, "x", lambda: opset15.select(condition, grad, zero))
    set_reduced(bridge, op, "y", lambda: opset15.select(condition, zero, grad))


@converter("pd_op.masked_fill", dtypes=FLOAT | INT32 | BOOL)
def masked_fill(bridge: NgraphBridge, op: Op) -> None:
    """``value`` where ``mask`` holds, else ``x`` (Paddle ``masked_fill``)."""
    x, mask = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "mask")
    value = scalar_input(bridge, op, "value", x.get_element_type())
    bridge.set_output_node(op, "out", opset15.select(mask, value, x))


@converter("pd_op.masked_fill_grad", dtypes=FLOAT | BOOL, unread=("x", "value"))
def masked_fill_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` goes to ``value`` where ``mask`` holds, else to ``x``."""
    mask, grad = bridge.get_input_node(op, "mask"), bridge.get_input_node(op, "out_grad")
    zero = bridge.full(0.0, "float32")
    set_reduced(bridge, op, "x", lambda: opset15.select(mask, zero, grad))
    if op.has_output("value_grad"):
        shape = bridge.shape(bridge.get_input_node(op, "value"))
        total = reduce_to(bridge, opset15.select(mask, grad, zero), [])
        bridge.set_output_node(op, "value_grad", opset15.reshape(total, bridge.ints(shape), False))
