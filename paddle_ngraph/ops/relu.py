"""Piecewise activations with parameters or thresholds, and their gradients."""

from __future__ import annotations

from openvino import Node, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.activation import between, register
from paddle_ngraph.ops.higher_gradients import register_slopes
from paddle_ngraph.ops.nodes import (
    constant,
    keep_nan,
    masked,
    reduce_to,
    reshaped,
    select_number,
)

# -- exponential units ---------------------------------------------------------------------------


def _celu(op: Op, x: NodeInput) -> Node:
    """celu: ``max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)``."""
    alpha = op.attr("alpha")
    power = opset15.exp(opset15.divide(x, constant(alpha)))
    bent = opset15.multiply(opset15.subtract(power, constant(1.0)), constant(alpha))
    out = opset15.add(opset15.maximum(x, constant(0.0)), opset15.minimum(bent, constant(0.0)))
    return keep_nan(x, out)


def _celu_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad``, or ``out_grad * exp(x / alpha)`` where ``x <= 0``.

    Since Paddle adds both pieces, each times its mask, the gradient is NaN where ``out_grad`` is
    infinite or the power overflows.
    """
    power = opset15.exp(opset15.divide(x, constant(op.attr("alpha"))))
    above = select_number(opset15.greater(x, constant(0.0)))
    below = select_number(opset15.less_equal(x, constant(0.0)))
    bent = opset15.multiply(opset15.multiply(grad, power), below)
    return keep_nan(x, opset15.add(opset15.multiply(grad, above), bent))


def _celu_slope(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """``factor * ((x > 0) + exp(x / alpha) * (x <= 0))`` (Paddle ``celu_double_grad``)."""
    above = select_number(opset15.greater(x, constant(0.0)))
    return opset15.multiply(factor, opset15.add(above, _celu_bend(op, x)))


def _celu_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of celu: ``factor / alpha * exp(x / alpha)`` where ``x <= 0``."""
    scaled = opset15.divide(factor, constant(op.attr("alpha")))
    return opset15.multiply(scaled, _celu_bend(op, x))


def _celu_bend(op: Op, x: NodeInput) -> Node:
    power = opset15.exp(opset15.divide(x, constant(op.attr("alpha"))))
    below = select_number(opset15.less_equal(x, constant(0.0)))
    return opset15.multiply(keep_nan(x, power), below)


def _selu(op: Op, x: NodeInput) -> Node:
    """selu: ``scale * x``, or ``scale * alpha * (exp(x) - 1)`` where ``x <= 0``."""
    alpha = constant(op.attr("alpha"))
    bent = opset15.subtract(opset15.multiply(opset15.exp(x), alpha), alpha)
    out = opset15.select(opset15.greater(x, constant(0.0)), x, bent)
    return keep_nan(x, opset15.multiply(out, constant(op.attr("scale"))))


def _selu_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * scale``, or ``out_grad * (out + scale * alpha)`` where ``out <= 0``."""
    scale = op.attr("scale")
    bent = opset15.add(out, constant(scale * op.attr("alpha")))
    slope = opset15.select(opset15.less_equal(out, constant(0.0)), bent, constant(scale))
    return opset15.multiply(grad, slope)


register("celu", _celu, _celu_grad, in_place=False)
register_slopes("celu", _celu_slope, _celu_second)
register("selu", _selu, _selu_grad, reads="out", in_place=False)


# -- thresholds ----------------------------------------------------------------------------------


def _at_or_beyond(op: Op, x: NodeInput) -> Node:
    """Whether ``abs(x) >= threshold``."""
    return opset15.greater_equal(opset15.abs(x), constant(op.attr("threshold")))


def _beyond(op: Op, x: NodeInput) -> Node:
    """Whether ``abs(x) > threshold``."""
    return opset15.greater(opset15.abs(x), constant(op.attr("threshold")))


def _hardshrink(op: Op, x: NodeInput) -> Node:
    """hardshrink: ``x`` where ``abs(x) >= threshold``, else 0."""
    return opset15.multiply(x, select_number(_at_or_beyond(op, x)))


def _hardshrink_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of hardshrink: ``out_grad`` where ``abs(x) >= threshold``, else 0."""
    return opset15.multiply(grad, select_number(_at_or_beyond(op, x)))


def _softshrink(op: Op, x: NodeInput) -> Node:
    """softshrink: ``x`` moved towards 0 by the threshold; 0 where ``abs(x) <= threshold``."""
    # Paddle multiplies both branches by masks of 0 and 1, which turns an infinite x into NaN.
    threshold = op.attr("threshold")
    above = select_number(opset15.greater(x, constant(threshold)))
    below = select_number(opset15.less(x, constant(-threshold)))
    upper = opset15.multiply(above, opset15.subtract(x, constant(threshold)))
    lower = opset15.multiply(below, opset15.add(x, constant(threshold)))
    return opset15.add(upper, lower)


def _softshrink_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of softshrink: ``out_grad`` where ``abs(x) > threshold``, else 0."""
    return opset15.multiply(grad, select_number(_beyond(op, x)))


def _thresholded_relu(op: Op, x: NodeInput) -> Node:
    """thresholded_relu: ``x`` where it is above the threshold, else the attribute ``value``."""
    above = opset15.greater(x, constant(op.attr("threshold")))
    # Paddle multiplies by a mask of 0 and 1, which turns minus infinity into NaN.
    kept = opset15.multiply(x, select_number(above))
    others = opset15.less_equal(x, constant(op.attr("threshold")))
    return opset15.add(kept, masked(others, op.attr("value")))


def _thresholded_relu_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of thresholded_relu: ``out_grad`` where ``x`` is above the threshold, else 0."""
    above = opset15.greater(x, constant(op.attr("threshold")))
    return opset15.multiply(grad, select_number(above))


def _hardtanh(op: Op, x: NodeInput) -> Node:
    """hardtanh: ``min(max(x, t_min), t_max)``; a NaN remains NaN."""
    return keep_nan(x, opset15.clamp(x, op.attr("t_min"), op.attr("t_max")))


def _hardtanh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of hardtanh: ``out_grad`` where ``t_min < x < t_max``, else 0."""
    return opset15.multiply(grad, select_number(between(x, op.attr("t_min"), op.attr("t_max"))))


register("hardshrink", _hardshrink, _hardshrink_grad, in_place=False)
register("softshrink", _softshrink, _softshrink_grad, in_place=False)
register("thresholded_relu", _thresholded_relu, _thresholded_relu_grad)
register("hardtanh", _hardtanh, _hardtanh_grad)


# -- slopes below zero ---------------------------------------------------------------------------


@converter("pd_op.prelu")
def prelu(bridge: NgraphBridge, op: Op) -> None:
    """``x``, or ``alpha * x`` where ``x <= 0`` (Paddle ``prelu``)."""
    x = bridge.get_input_node(op, "x")
    scaled = opset15.multiply(x, _slopes(bridge, op))
    positive = opset15.greater(x, constant(0.0))
    bridge.set_output_node(op, "out", opset15.select(positive, x, scaled))


@converter("pd_op.prelu_grad")
def prelu_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * (1 or alpha)``; ``alpha_grad`` sums ``out_grad * x`` where ``x <= 0``.

    (Paddle ``prelu_grad``.)
    """
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out_grad")
    slopes = _slopes(bridge, op)
    positive = opset15.greater(x, constant(0.0))
    if op.has_output("x_grad"):
        slope = opset15.select(positive, constant(1.0), slopes)
        bridge.set_output_node(op, "x_grad", opset15.multiply(grad, slope))
    if op.has_output("alpha_grad"):
        share = opset15.select(positive, constant(0.0), opset15.multiply(grad, x))
        total = reduce_to(bridge, share, bridge.shape(slopes))
        shape = bridge.shape(bridge.get_input_node(op, "alpha"))
        bridge.set_output_node(op, "alpha_grad", reshaped(bridge, total, shape))


def _slopes(bridge: NgraphBridge, op: Op) -> Node:
    """Reshapes ``alpha`` so that it broadcasts to the shape of ``x``."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    shape = [1] * len(dims)
    if op.attr("mode") == "channel":
        shape[1 if op.attr("data_format") == "NCHW" else -1] = -1
    elif op.attr("mode") == "element":
        shape = [1, *dims[1:]]
    return reshaped(bridge, bridge.get_input_node(op, "alpha"), shape)


@converter("pd_op.rrelu", limits=[Limit("it samples random slopes", lambda op: op.attr("is_test"))])
def rrelu(bridge: NgraphBridge, op: Op) -> None:
    """``noise * x``; without training ``noise`` is the mean slope where ``x < 0``, else 1."""
    x = bridge.get_input_node(op, "x")
    slope = constant((op.attr("lower") + op.attr("upper")) / 2.0)
    noise = opset15.select(opset15.less(x, constant(0.0)), slope, constant(1.0))
    bridge.set_output_node(op, "noise", noise)
    bridge.set_output_node(op, "out", opset15.multiply(x, noise))


@converter("pd_op.rrelu_grad", inputs={"x": Role.SHAPE_ONLY})
def rrelu_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * noise`` (Paddle ``rrelu_grad``)."""
    noise, grad = bridge.get_input_node(op, "noise"), bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", opset15.multiply(grad, noise))
