"""Converters for the custom operator of this demo: all that nGraph needs to run it."""

from __future__ import annotations

from openvino import opset15

from paddle_ngraph import NgraphBridge, Op, converter


@converter("custom_op.cubed_relu")
def cubed_relu(bridge: NgraphBridge, op: Op) -> None:
    """``y = max(x, 0)^3``, in the shape of x."""
    positive = opset15.relu(bridge.get_input_node(op, "X"))
    square = opset15.multiply(positive, positive)
    bridge.set_output_node(op, "Y", opset15.multiply(square, positive))


@converter("custom_op.cubed_relu_grad")
def cubed_relu_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = 3 max(x, 0)^2 y_grad``, in the shape of x."""
    positive = opset15.relu(bridge.get_input_node(op, "X"))
    slope = opset15.multiply(opset15.multiply(positive, positive), bridge.full(3.0, "float32"))
    gradient = bridge.get_input_node(op, "Y@GRAD")
    bridge.set_output_node(op, "X@GRAD", opset15.multiply(slope, gradient))
