"""Functions of one tensor, element by element: forward and gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping

from openvino import Node, Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import FLOAT, INTEGER, Limit, Range, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.activation import Backward, Forward, register
from paddle_ngraph.ops.higher_gradients import register_slopes
from paddle_ngraph.ops.nodes import (
    always,
    constant,
    in_32_bits,
    keep_nan,
    select_number,
    set_reduced,
)

_WHOLE = Limit("attribute 'decimals' is not 0", lambda op: op.attr("decimals", 0) == 0)


def _exp(op: Op, x: NodeInput) -> Node:
    """exp: ``exp(x)``, with NaN for NaN: the engine's own kernel returns infinity."""
    return keep_nan(x, opset15.exp(x))


def _exp_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of exp: ``out_grad * out``."""
    return opset15.multiply(grad, out)


def _log_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of log: ``out_grad / x``."""
    return opset15.divide(grad, x)


def _log_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of log: ``-factor / x ** 2``."""
    return opset15.divide(opset15.negative(factor), opset15.multiply(x, x))


def _expm1(op: Op, x: NodeInput) -> Node:
    """expm1: ``exp(x) - 1`` as ``(exp(x) + 1) * tanh(x / 2)``, which is also accurate near 0."""
    power = opset15.add(opset15.exp(x), constant(1.0))
    return opset15.multiply(power, opset15.tanh(opset15.multiply(x, constant(0.5))))


def _expm1_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of expm1: ``out_grad * out + out_grad``."""
    return opset15.add(opset15.multiply(grad, out), grad)


def _log1p(op: Op, x: NodeInput) -> Node:
    """``log(1 + x)`` as ``x * (log(t) / (t - 1))`` with ``t = 1 + x``, or ``x`` where ``t`` is 1.

    The quotient compensates for the rounding of the sum.
    """
    total = opset15.add(x, constant(1.0))
    rest = opset15.subtract(total, constant(1.0))
    precise = opset15.multiply(x, opset15.divide(opset15.log(total), rest))
    unmoved = opset15.equal(total, constant(1.0))
    infinite = opset15.equal(total, constant(math.inf))
    return opset15.select(opset15.logical_or(unmoved, infinite), x, precise)


def _log1p_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of log1p: ``out_grad / (x + 1)``."""
    return opset15.divide(grad, opset15.add(x, constant(1.0)))


def _logarithm(base: float) -> tuple[Forward, Backward]:
    """``log(x) / log(base)``, and its gradient ``out_grad / (x * log(base))``."""

    def forward(op: Op, x: NodeInput) -> Node:
        return opset15.divide(opset15.log(x), constant(math.log(base)))

    def backward(op: Op, x: NodeInput, grad: NodeInput) -> Node:
        return opset15.divide(grad, opset15.multiply(x, constant(math.log(base))))

    return forward, backward


def _logit(op: Op, x: NodeInput) -> Node:
    """``log(t / (1 - t))``, ``t`` being ``x`` limited to ``[eps, 1 - eps]``.

    NaN outside ``[0, 1]`` if the attribute ``eps`` is 0.
    """
    eps = op.attr("eps")
    limited = opset15.maximum(opset15.minimum(x, constant(1.0 - eps)), constant(eps))
    odds = opset15.divide(limited, opset15.subtract(constant(1.0), limited))
    out = opset15.log(odds)
    if eps:
        return keep_nan(x, out)
    inside = opset15.logical_and(
        opset15.greater_equal(x, constant(0.0)), opset15.less_equal(x, constant(1.0))
    )
    return opset15.select(inside, out, constant(math.nan))


def _logit_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of ``logit``: ``out_grad / (x * (1 - x))`` in ``[eps, 1 - eps]``.

    Elsewhere 0, or NaN if ``eps`` is 0.
    """
    eps = op.attr("eps")
    slope = opset15.multiply(x, opset15.subtract(constant(1.0), x))
    outside = opset15.logical_or(
        opset15.less(x, constant(eps)), opset15.greater(x, constant(1.0 - eps))
    )
    beyond = constant(0.0 if eps else math.nan)
    return opset15.select(outside, beyond, opset15.divide(grad, slope))


def _sqrt_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of sqrt: ``out_grad / 2 / out``."""
    return opset15.divide(opset15.multiply(grad, constant(0.5)), out)


def _sqrt_second(op: Op, out: NodeInput, factor: NodeInput) -> Node:
    """``-factor / out``: the factor contains ``x_grad``, which contains the slope."""
    return opset15.divide(opset15.negative(factor), out)


def _rsqrt(op: Op, x: NodeInput) -> Node:
    """rsqrt: ``1 / sqrt(x)``."""
    return opset15.divide(constant(1.0), opset15.sqrt(x))


def _rsqrt_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of rsqrt: ``-out_grad / 2 * out ** 3``."""
    slope = opset15.multiply(opset15.multiply(out, out), out)
    return opset15.multiply(opset15.multiply(grad, constant(-0.5)), slope)


def _rsqrt_second(op: Op, out: NodeInput, factor: NodeInput) -> Node:
    """``3 / out * factor``: the factor contains ``x_grad``, which contains the slope."""
    return opset15.multiply(opset15.divide(constant(3.0), out), factor)


def _square(op: Op, x: NodeInput) -> Node:
    """square: ``x ** 2``."""
    return opset15.multiply(x, x)


def _square_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of square: ``out_grad * 2 * x``."""
    return opset15.multiply(opset15.multiply(grad, constant(2.0)), x)


def _square_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of square: ``2 * factor``."""
    return opset15.multiply(factor, constant(2.0))


def _abs_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of abs: ``out_grad * x / abs(x)``, 0 at 0."""
    sign = opset15.divide(x, opset15.abs(x))
    at_zero = opset15.equal(x, constant(0.0))
    return opset15.select(at_zero, constant(0.0), opset15.multiply(grad, sign))


def _reciprocal(op: Op, x: NodeInput) -> Node:
    """reciprocal: ``1 / x``."""
    return opset15.divide(constant(1.0), x)


def _reciprocal_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of reciprocal: ``-out_grad * out ** 2``."""
    return opset15.multiply(opset15.multiply(opset15.negative(grad), out), out)


def _sign(op: Op, x: NodeInput) -> Node:
    """-1, 0 or 1; NaN stays. The engine's own kernel is not vectorized."""
    below = opset15.select(opset15.less(x, constant(0.0)), constant(-1.0), constant(0.0))
    sign = opset15.select(opset15.greater(x, constant(0.0)), constant(1.0), below)
    return keep_nan(x, sign)


def _erf_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of erf: ``out_grad * 2 / sqrt(pi) * exp(-x ** 2)``."""
    bell = opset15.exp(opset15.negative(opset15.multiply(x, x)))
    scaled = opset15.multiply(grad, constant(2.0 / math.sqrt(math.pi)))
    return opset15.multiply(scaled, keep_nan(x, bell))


register("exp", _exp, _exp_grad, reads="out")
register("log", lambda op, x: opset15.log(x), _log_grad)
register("expm1", _expm1, _expm1_grad, reads="out")
register("log1p", _log1p, _log1p_grad)
register("log2", *_logarithm(2.0))
register("log10", *_logarithm(10.0))
register("logit", _logit, _logit_grad)
register("sqrt", lambda op, x: opset15.sqrt(x), _sqrt_grad, reads="out")
register("rsqrt", _rsqrt, _rsqrt_grad, reads="out")
register("square", _square, _square_grad)
register("reciprocal", _reciprocal, _reciprocal_grad, reads="out")
register("sign", _sign, None, in_place=False)
register("erf", lambda op, x: opset15.erf(x), _erf_grad)
register("floor", lambda op, x: opset15.floor(x), None)
register("ceil", lambda op, x: opset15.ceiling(x), None)
register_slopes("log", _log_grad, _log_second)
register_slopes("sqrt", _sqrt_grad, _sqrt_second)
register_slopes("rsqrt", _rsqrt_grad, _rsqrt_second)
register_slopes("square", _square_grad, _square_second)
register_slopes("abs", _abs_grad, in_place=1)


def _distances_from_0(op: Op, ranges: Mapping[str, Range]) -> Range:
    low, high = ranges["x"]
    return max(0, low, -high), max(-low, high)


@converter(
    "pd_op.abs", "pd_op.abs_", dtypes=FLOAT | INTEGER, integers=_distances_from_0, checks=always
)
def abs(bridge: NgraphBridge, op: Op) -> None:
    """``abs(x)`` (Paddle ``abs``); the lowest int32 stays."""
    x = bridge.get_input_node(op, "x")
    dtype = x.get_element_type()
    if dtype == Type.f32:
        return bridge.set_output_node(op, "out", opset15.abs(x))
    opposite = in_32_bits(bridge, op, opset15.subtract, bridge.full(0, dtype), x)
    bridge.set_output_node(op, "out", opset15.maximum(x, opposite))


@converter("pd_op.abs_grad")
def abs_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * x / abs(x)``, 0 at 0 (Paddle ``abs_grad``)."""
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _abs_grad(op, x, grad))


@converter("pd_op.round", "pd_op.round_", limits=[_WHOLE])
def round(bridge: NgraphBridge, op: Op) -> None:
    """The nearest integer, ties to even (Paddle ``round``)."""
    x: Output = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", opset15.round(x, "half_to_even"))


@converter("pd_op.trunc", "pd_op.trunc_")
def trunc(bridge: NgraphBridge, op: Op) -> None:
    """The number without its fraction, rounded towards 0 (Paddle ``trunc``)."""
    x = bridge.get_input_node(op, "input")
    below = opset15.less(x, constant(0.0))
    bridge.set_output_node(op, "out", opset15.select(below, opset15.ceiling(x), opset15.floor(x)))


@converter("pd_op.trunc_grad", inputs={"out_grad": Role.SHAPE_ONLY})
def trunc_grad(bridge: NgraphBridge, op: Op) -> None:
    """The gradient of ``trunc``, which is 0 (Paddle ``trunc_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "out_grad"))
    bridge.set_output_node(op, "input_grad", bridge.full(0.0, "float32", shape))


@converter("pd_op.floor_grad", "pd_op.ceil_grad", "pd_op.round_grad")
def zero_grad(bridge: NgraphBridge, op: Op) -> None:
    """``0 * out_grad``: a step function has no slope (Paddle ``floor_grad`` and so on)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", opset15.multiply(out_grad, constant(0.0)))


# -- functions of several tensors ----------------------------------------------------------------


@converter("pd_op.lerp", "pd_op.lerp_")
def lerp(bridge: NgraphBridge, op: Op) -> None:
    """``x + weight * (y - x)`` (Paddle ``lerp``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    step = opset15.multiply(bridge.get_input_node(op, "weight"), opset15.subtract(y, x))
    bridge.set_output_node(op, "out", opset15.add(x, step))


@converter("pd_op.lerp_grad", inputs={"out": Role.SHAPE_ONLY})
def lerp_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * (1 - weight)``, ``y_grad = out_grad * weight``."""
    weight, grad = bridge.get_input_node(op, "weight"), bridge.get_input_node(op, "out_grad")
    rest = opset15.subtract(constant(1.0), weight)
    set_reduced(bridge, op, "x", lambda: opset15.multiply(grad, rest))
    set_reduced(bridge, op, "y", lambda: opset15.multiply(grad, weight))


@converter("pd_op.heaviside")
def heaviside(bridge: NgraphBridge, op: Op) -> None:
    """0 below 0, ``y`` at 0, 1 above (Paddle ``heaviside``); 0 for NaN."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    step = opset15.select(opset15.greater(x, constant(0.0)), constant(1.0), constant(0.0))
    bridge.set_output_node(op, "out", opset15.select(opset15.equal(x, constant(0.0)), y, step))


@converter("pd_op.heaviside_grad", inputs={"y": Role.SHAPE_ONLY})
def heaviside_grad(bridge: NgraphBridge, op: Op) -> None:
    """``y_grad = out_grad`` where ``x`` is 0, else 0; ``x_grad = 0``."""
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out_grad")
    at_zero = opset15.equal(x, constant(0.0))
    set_reduced(bridge, op, "x", lambda: opset15.multiply(grad, constant(0.0)))
    set_reduced(bridge, op, "y", lambda: opset15.multiply(grad, select_number(at_zero)))
