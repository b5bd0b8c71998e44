"""Trigonometric and hyperbolic functions, forward and gradient.

The engine computes the functions themselves with those of the C library, as Paddle does.
"""

from __future__ import annotations

import math

from openvino import Node, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.activation import register
from paddle_ngraph.ops.higher_gradients import register_slopes
from paddle_ngraph.ops.nodes import constant, set_reduced


def _sin_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of sin: ``out_grad * cos(x)``."""
    return opset15.multiply(grad, opset15.cos(x))


def _cos_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of cos: ``-out_grad * sin(x)``."""
    return opset15.multiply(opset15.negative(grad), opset15.sin(x))


def _sin_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of sin: ``-factor * sin(x)``."""
    return opset15.multiply(opset15.negative(factor), opset15.sin(x))


def _cos_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of cos: ``-factor * cos(x)``."""
    return opset15.multiply(opset15.negative(factor), opset15.cos(x))


def _cos_third(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Second derivative of the slope of cos: ``factor * sin(x)``."""
    return opset15.multiply(factor, opset15.sin(x))


def _tan_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of tan: ``out_grad / cos(x) ** 2``."""
    cosine = opset15.cos(x)
    return opset15.divide(grad, opset15.multiply(cosine, cosine))


def _asin_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of asin: ``out_grad / sqrt(1 - x ** 2)``."""
    rest = opset15.subtract(constant(1.0), opset15.multiply(x, x))
    return opset15.divide(grad, opset15.sqrt(rest))


def _acos_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of acos: ``-out_grad / sqrt(1 - x ** 2)``."""
    return _asin_grad(op, x, opset15.negative(grad))


def _atan_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of atan: ``out_grad / (1 + x ** 2)``."""
    return opset15.divide(grad, opset15.add(opset15.multiply(x, x), constant(1.0)))


def _sinh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of sinh: ``out_grad * cosh(x)``."""
    return opset15.multiply(grad, opset15.cosh(x))


def _cosh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of cosh: ``out_grad * sinh(x)``."""
    return opset15.multiply(grad, opset15.sinh(x))


def _asinh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of asinh: ``out_grad / sqrt(x ** 2 + 1)``."""
    total = opset15.add(opset15.multiply(x, x), constant(1.0))
    return opset15.divide(grad, opset15.sqrt(total))


def _acosh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of acosh: ``out_grad / sqrt(x ** 2 - 1)``."""
    rest = opset15.subtract(opset15.multiply(x, x), constant(1.0))
    return opset15.divide(grad, opset15.sqrt(rest))


def _atanh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of atanh: ``out_grad / (1 - x ** 2)``."""
    return opset15.divide(grad, opset15.subtract(constant(1.0), opset15.multiply(x, x)))


register("sin", lambda op, x: opset15.sin(x), _sin_grad)
register("cos", lambda op, x: opset15.cos(x), _cos_grad)
register("tan", lambda op, x: opset15.tan(x), _tan_grad)
register("asin", lambda op, x: opset15.asin(x), _asin_grad)
register("acos", lambda op, x: opset15.acos(x), _acos_grad)
register("atan", lambda op, x: opset15.atan(x), _atan_grad)
register("sinh", lambda op, x: opset15.sinh(x), _sinh_grad)
register("cosh", lambda op, x: opset15.cosh(x), _cosh_grad)
register("asinh", lambda op, x: opset15.asinh(x), _asinh_grad)
register("acosh", lambda op, x: opset15.acosh(x), _acosh_grad)
register("atanh", lambda op, x: opset15.atanh(x), _atanh_grad)
register_slopes("sin", _sin_grad, _sin_second, _cos_second)
register_slopes("cos", _cos_grad, _cos_second, _cos_third)


# -- the angle of a point ------------------------------------------------------------------------


@converter("pd_op.atan2")
def atan2(bridge: NgraphBridge, op: Op) -> None:
    """The angle of the point ``(y, x)``, from -pi to pi (Paddle ``atan2``).

    ``atan(abs(x) / abs(y))``, mirrored where ``y`` is negative, with the sign of ``x``; zeros are
    signed.
    """
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    zero = constant(0.0)
    height, width = opset15.abs(x), opset15.abs(y)
    ratio = opset15.divide(height, width)
    alike = opset15.equal(height, width)
    ratio = opset15.select(alike, constant(1.0), ratio)
    origin = opset15.logical_and(alike, opset15.equal(height, zero))
    angle = opset15.atan(opset15.select(origin, zero, ratio))
    mirrored = opset15.subtract(constant(math.pi), angle)
    angle = opset15.select(_is_negative(y), mirrored, angle)
    bridge.set_output_node(
        op, "out", opset15.select(_is_negative(x), opset15.negative(angle), angle)
    )


def _is_negative(x: NodeInput) -> Node:
    """Whether ``x`` is negative or -0, which ``1 / x`` distinguishes from 0."""
    zero = constant(0.0)
    below = opset15.less(opset15.divide(constant(1.0), x), zero)
    return opset15.logical_or(opset15.less(x, zero), below)


@converter("pd_op.atan2_grad")
def atan2_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * y / (x ** 2 + y ** 2)``, ``y_grad = -out_grad * x / (...)``."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    grad = bridge.get_input_node(op, "out_grad")
    square = opset15.add(opset15.multiply(x, x), opset15.multiply(y, y))
    set_reduced(bridge, op, "x", lambda: opset15.divide(opset15.multiply(grad, y), square))
    set_reduced(
        bridge,
        op,
        "y",
        lambda: opset15.divide(opset15.multiply(opset15.negative(grad), x), square),
    )
