"""Activation functions, forward and gradient.

Gradients read ``out`` rather than ``x`` where Paddle's gradient kernel does. Formulas keep the
structure of Paddle's where an equivalent one would differ for infinite or huge inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from openvino import Node, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion import processor
from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import register_slopes
from paddle_ngraph.ops.nodes import constant, keep_nan, masked, select_number

# Builders of out = f(x), and of x_grad = f(x or out, out_grad); the first argument is the operator,
# for its attributes.
Forward = Callable[[Op, Any], Node]
Backward = Callable[[Op, Any, Any], Node]

# From this x on, softplus(x) rounds to x, and its slope to 1, in float32.
_SOFTPLUS_LINEAR_FROM = 17.0


def register(
    name: str,
    forward: Forward,
    backward: Backward | None,
    reads: str = "x",
    in_place: bool = True,
) -> None:
    """Registers converters of ``name``, its in-place variant and its gradient.

    ``reads`` is the input of the gradient: ``x``, or the result ``out``.
    """

    # The registry lists the operator under the module in which ``forward`` is defined.
    @wraps(forward)
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x = bridge.get_input_node(op, "x")
        bridge.set_output_node(op, "out", forward(op, x))

    converter(f"pd_op.{name}")(convert)
    if in_place:
        converter(f"pd_op.{name}_")(convert)
    if backward is None:
        return

    @wraps(backward)
    def convert_gradient(bridge: NgraphBridge, op: Op) -> None:
        source = bridge.get_input_node(op, reads)
        grad = bridge.get_input_node(op, "out_grad")
        bridge.set_output_node(op, "x_grad", backward(op, source, grad))

    converter(f"pd_op.{name}_grad")(convert_gradient)


def between(x: NodeInput, low: float, high: float) -> Node:
    """Whether ``low < x < high``."""
    return opset15.logical_and(opset15.greater(x, constant(low)), opset15.less(x, constant(high)))


# -- ReLU and its variants -----------------------------------------------------------------------


def _relu_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of relu: ``out_grad * (out > 0)``."""
    return opset15.multiply(grad, select_number(opset15.greater(out, constant(0.0))))


def _relu6(op: Op, x: NodeInput) -> Node:
    """relu6: ``min(max(x, 0), 6)``; NaN stays."""
    return keep_nan(x, opset15.clamp(x, 0.0, 6.0))


def _relu6_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of relu6: ``out_grad * (0 < out < 6)``."""
    return opset15.multiply(grad, select_number(between(out, 0.0, 6.0)))


def _leaky_relu(op: Op, x: NodeInput) -> Node:
    """Leaky ReLU: ``max(x, slope * x)``; for slopes of at least 1, ``min(x, slope * x)``."""
    slope = op.attr("negative_slope")
    if 0.0 < slope < 1.0:
        return opset15.prelu(x, constant(slope))
    scaled = opset15.multiply(x, constant(slope))
    if not math.isfinite(slope):  # Paddle's maximum and minimum return x beside a NaN
        is_less = (x, scaled) if slope < 1.0 else (scaled, x)
        return opset15.select(opset15.less(*is_less), scaled, x)
    return opset15.maximum(x, scaled) if slope < 1.0 else opset15.minimum(x, scaled)


def _leaky_relu_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of leaky_relu: ``out_grad * (slope * (x < 0) + (x >= 0))``."""
    below = masked(opset15.less(x, constant(0.0)), op.attr("negative_slope"))
    above = select_number(opset15.greater_equal(x, constant(0.0)))
    return opset15.multiply(grad, opset15.add(below, above))


def _leaky_relu_slope(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """``factor``, times the slope where ``x <= 0`` (Paddle ``leaky_relu_double_grad``).

    At 0 Paddle's gradient has slope 1 instead.
    """
    above = select_number(opset15.greater(x, constant(0.0)))
    below = masked(opset15.less_equal(x, constant(0.0)), op.attr("negative_slope"))
    return opset15.multiply(factor, opset15.add(below, above))


def _elu(op: Op, x: NodeInput) -> Node:
    """ELU: ``x`` from 0 on, and ``alpha * (exp(x) - 1)`` for negative ``x``."""
    return opset15.elu(x, op.attr("alpha"))


@converter("pd_op.elu_grad")
def elu_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * (out + alpha)`` where ``out <= 0`` (Paddle ``elu_grad``).

    For a negative alpha the sign of ``out`` does not determine that of ``x``:
    ``out_grad * alpha * exp(x)`` where ``x <= 0``.
    """
    x, out = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out")
    grad = bridge.get_input_node(op, "out_grad")
    alpha = op.attr("alpha")
    if alpha >= 0:
        linear = opset15.greater(out, constant(0.0))
        slope = opset15.add(out, constant(alpha))
    else:
        linear = opset15.greater(x, constant(0.0))
        slope = opset15.multiply(keep_nan(x, opset15.exp(x)), constant(alpha))
    bridge.set_output_node(
        op, "x_grad", opset15.select(linear, grad, opset15.multiply(grad, slope))
    )


def _elu_slope(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """``factor * ((x > 0) + alpha * exp(x) * (x <= 0))`` (Paddle ``elu_double_grad``).

    Paddle multiplies by masks: NaN where ``exp(x)`` overflows.
    """
    above = select_number(opset15.greater(x, constant(0.0)))
    return opset15.multiply(factor, opset15.add(above, _elu_bend(op, x)))


def _elu_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of elu: ``factor * alpha * exp(x)`` where ``x <= 0``."""
    return opset15.multiply(factor, _elu_bend(op, x))


def _elu_bend(op: Op, x: NodeInput) -> Node:
    below = select_number(opset15.less_equal(x, constant(0.0)))
    power = opset15.multiply(keep_nan(x, opset15.exp(x)), constant(op.attr("alpha")))
    return opset15.multiply(power, below)


register("relu", lambda op, x: opset15.relu(x), _relu_grad, reads="out")
register("relu6", _relu6, _relu6_grad, reads="out", in_place=False)
register("leaky_relu", _leaky_relu, _leaky_relu_grad)
register("elu", _elu, None)
register_slopes("relu", _relu_grad)
register_slopes("leaky_relu", _leaky_relu_slope)
register_slopes("elu", _elu_slope, _elu_second)


# -- sigmoid, tanh and functions built from them -------------------------------------------------


def _tanh_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of tanh: ``out_grad * (1 - out ** 2)``."""
    return opset15.multiply(grad, opset15.subtract(constant(1.0), opset15.multiply(out, out)))


def _tanh_second(op: Op, out: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of tanh by ``out``: ``-2 * factor * out``."""
    return opset15.multiply(opset15.multiply(factor, constant(-2.0)), out)


def _minus_2(op: Op, out: NodeInput, factor: NodeInput) -> Node:
    """Second derivative of the slopes of tanh and sigmoid by ``out``: ``-2 * factor``."""
    return opset15.multiply(factor, constant(-2.0))


def _sigmoid_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of sigmoid: ``out_grad * out * (1 - out)``."""
    rest = opset15.subtract(constant(1.0), out)
    return opset15.multiply(opset15.multiply(grad, out), rest)


def _sigmoid_second(op: Op, out: NodeInput, factor: NodeInput) -> Node:
    """Derivative of the slope of sigmoid by ``out``: ``factor * (1 - 2 * out)``."""
    rest = opset15.subtract(constant(1.0), opset15.multiply(out, constant(2.0)))
    return opset15.multiply(factor, rest)


def _silu_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * (1 + x * e / (1 + e)) / (1 + e)`` with ``e = exp(-x)``.

    NaN where ``e`` overflows, like Paddle's.
    """
    decay = opset15.exp(opset15.negative(x))
    total = opset15.add(constant(1.0), decay)
    weighted = opset15.divide(opset15.multiply(x, decay), total)
    slope = opset15.divide(opset15.add(constant(1.0), weighted), total)
    return opset15.multiply(grad, slope)


def _swish_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * (out + s * (1 - out))`` with ``s = sigmoid(x)`` and ``out = x * s``."""
    gate = opset15.sigmoid(x)
    out = opset15.multiply(x, gate)
    rest = opset15.multiply(gate, opset15.subtract(constant(1.0), out))
    return opset15.multiply(grad, opset15.add(out, rest))


def _hardsigmoid(op: Op, x: NodeInput) -> Node:
    """hardsigmoid: ``min(max(slope * x + offset, 0), 1)``; NaN stays."""
    line = opset15.multiply(x, constant(op.attr("slope")))
    line = opset15.add(line, constant(op.attr("offset")))
    return keep_nan(x, opset15.clamp(line, 0.0, 1.0))


def _hardsigmoid_grad(op: Op, out: NodeInput, grad: NodeInput) -> Node:
    """Gradient of hardsigmoid: ``out_grad * slope * (0 < out < 1)``."""
    return opset15.multiply(grad, select_number(between(out, 0.0, 1.0), op.attr("slope")))


def _hardswish_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * (2 * x + 3) / 6`` where ``-3 < x < 3``, ``out_grad`` above, 0 below."""
    shifted = opset15.add(x, constant(3.0))
    bent = opset15.less(shifted, constant(6.0))
    line = opset15.add(opset15.multiply(x, constant(2.0)), constant(3.0))
    line = opset15.multiply(select_number(opset15.greater(shifted, constant(0.0))), line)
    line = opset15.divide(line, constant(6.0))
    # Multiplies by masks, as Paddle does, instead of selecting by them: an infinite x gives NaN.
    slope = opset15.add(opset15.multiply(line, select_number(bent)), select_number(bent, 0.0, 1.0))
    return opset15.multiply(grad, slope)


def _tanh_shrink(op: Op, x: NodeInput) -> Node:
    """tanh_shrink: ``x - tanh(x)``."""
    return opset15.subtract(x, opset15.tanh(x))


def _tanh_shrink_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of tanh_shrink: ``out_grad * tanh(x) ** 2``."""
    bend = opset15.tanh(x)
    return opset15.multiply(grad, opset15.multiply(bend, bend))


def _stanh(op: Op, x: NodeInput) -> Node:
    """stanh: ``b * tanh(a * x)`` for the attributes ``scale_a`` and ``scale_b``."""
    bend = opset15.tanh(opset15.multiply(x, constant(op.attr("scale_a"))))
    return opset15.multiply(bend, constant(op.attr("scale_b")))


def _stanh_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of stanh: ``out_grad * a * b * (1 - tanh(a * x) ** 2)``."""
    a, b = op.attr("scale_a"), op.attr("scale_b")
    bend = opset15.tanh(opset15.multiply(x, constant(a)))
    rest = opset15.subtract(constant(1.0), opset15.multiply(bend, bend))
    return opset15.multiply(opset15.multiply(grad, constant(a * b)), rest)


def _softsign(op: Op, x: NodeInput) -> Node:
    """softsign: ``x / (1 + abs(x))``."""
    return opset15.divide(x, opset15.add(opset15.abs(x), constant(1.0)))


def _softsign_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """Gradient of softsign: ``out_grad / (1 + abs(x)) ** 2``."""
    total = opset15.add(opset15.abs(x), constant(1.0))
    return opset15.divide(grad, opset15.multiply(total, total))


register("tanh_shrink", _tanh_shrink, _tanh_shrink_grad, in_place=False)
register("stanh", _stanh, _stanh_grad, in_place=False)
register("softsign", _softsign, _softsign_grad, in_place=False)
register("tanh", lambda op, x: opset15.tanh(x), _tanh_grad, reads="out")
register("sigmoid", lambda op, x: opset15.sigmoid(x), _sigmoid_grad, reads="out")
register("silu", lambda op, x: opset15.swish(x), _silu_grad)
register("swish", lambda op, x: opset15.swish(x), _swish_grad, in_place=False)
register("hardsigmoid", _hardsigmoid, _hardsigmoid_grad, reads="out", in_place=False)
register("hardswish", lambda op, x: opset15.hswish(x), _hardswish_grad, in_place=False)
register_slopes("tanh", _tanh_grad, _tanh_second, _minus_2)
register_slopes("sigmoid", _sigmoid_grad, _sigmoid_second, _minus_2)


# -- softplus and functions built from it --------------------------------------------------------


def softplus(x: NodeInput) -> Node:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + d)`` with ``d = exp(-abs(x))``.

    The engine's SoftPlus is off by 2e-6 and may be negative, and its Log is not vectorized. With
    ``z = d / (2 + d)``, at most 1/3, ``log(1 + d)`` is ``2 * (z + z ** 3 / 3 + z ** 5 / 5 ...)``.
    """
    decay = opset15.exp(opset15.negative(opset15.abs(x)))
    ratio = opset15.divide(decay, opset15.add(decay, constant(2.0)))
    square = opset15.multiply(ratio, ratio)
    series = constant(2.0 / _LOG1P_SERIES[-1])
    for power in reversed(_LOG1P_SERIES[:-1]):
        series = opset15.add(opset15.multiply(series, square), constant(2.0 / power))
    return opset15.add(opset15.maximum(x, constant(0.0)), opset15.multiply(series, ratio))


_LOG1P_SERIES = (1, 3, 5, 7, 9, 11, 13)


def _softplus(op: Op, x: NodeInput) -> Node:
    """softplus: ``log(1 + exp(beta * x)) / beta``, or ``x`` where ``beta * x > threshold``."""
    beta, threshold = op.attr("beta"), op.attr("threshold")
    scaled = x if beta == 1.0 else opset15.multiply(x, constant(beta))
    out = softplus(scaled)
    if beta != 1.0:
        out = opset15.divide(out, constant(beta))
    if threshold >= _SOFTPLUS_LINEAR_FROM:
        return out
    return opset15.select(opset15.greater(scaled, constant(threshold)), x, out)


def _softplus_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * sigmoid(beta * x)``, or ``out_grad`` where ``beta * x > threshold``."""
    beta, threshold = op.attr("beta"), op.attr("threshold")
    scaled = x if beta == 1.0 else opset15.multiply(x, constant(beta))
    out = opset15.multiply(grad, opset15.sigmoid(scaled))
    if threshold >= _SOFTPLUS_LINEAR_FROM:
        return out
    return opset15.select(opset15.greater(scaled, constant(threshold)), grad, out)


def _softplus_second(op: Op, x: NodeInput, factor: NodeInput) -> Node:
    """``factor * beta * s * (1 - s)`` with ``s = sigmoid(beta * x)``; 0 above the threshold."""
    scaled = opset15.multiply(x, constant(op.attr("beta")))
    slope = opset15.multiply(opset15.sigmoid(scaled), opset15.sigmoid(opset15.negative(scaled)))
    out = opset15.multiply(opset15.multiply(factor, constant(op.attr("beta"))), slope)
    above = opset15.greater(scaled, constant(op.attr("threshold")))
    return opset15.select(above, constant(0.0), out)


def _mish(op: Op, x: NodeInput) -> Node:
    """mish: ``x * tanh(softplus(x))``, in which softplus is ``x`` above a threshold."""
    if op.attr("lambda") >= _SOFTPLUS_LINEAR_FROM:
        return opset15.mish(x)
    return opset15.multiply(x, opset15.tanh(_softplus_below(op.attr("lambda"), x)))


def _softplus_below(threshold: float, x: NodeInput) -> Node:
    return opset15.select(opset15.greater(x, constant(threshold)), x, softplus(x))


def _mish_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * (t + x * (1 - t ** 2) * sigmoid(x))`` with ``t = tanh(softplus(x))``.

    With ``w = exp(x)`` and ``n = w * (w + 2)``, ``t`` is ``n / (n + 2)`` and the sigmoid
    ``w / (w + 1)``; from 20 on both are 1. Paddle computes the sigmoid as
    ``1 - exp(-softplus(x))``, with the softplus of the threshold.
    """
    if op.attr("lambda") < _SOFTPLUS_LINEAR_FROM:
        rise = _softplus_below(op.attr("lambda"), x)
        bend = opset15.tanh(rise)
        gate = opset15.subtract(constant(1.0), opset15.exp(opset15.negative(rise)))
        rest = opset15.subtract(constant(1.0), opset15.multiply(bend, bend))
        return opset15.multiply(
            grad, opset15.add(bend, opset15.multiply(opset15.multiply(x, rest), gate))
        )
    growth = opset15.exp(opset15.minimum(x, constant(20.0)))
    square = opset15.multiply(growth, opset15.add(growth, constant(2.0)))
    bend = opset15.divide(square, opset15.add(square, constant(2.0)))
    gate = opset15.divide(growth, opset15.add(growth, constant(1.0)))
    rest = opset15.subtract(constant(1.0), opset15.multiply(bend, bend))
    slope = opset15.multiply(opset15.multiply(x, rest), gate)
    return opset15.multiply(grad, opset15.add(bend, slope))


def _logsigmoid(op: Op, x: NodeInput) -> Node:
    """logsigmoid: ``-log(1 + exp(-x))``, NaN for minus infinity as in Paddle."""
    return opset15.subtract(_nan_at_minus_infinity(x), softplus(opset15.negative(x)))


def _logsigmoid_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """``out_grad * sigmoid(-x)``, NaN for minus infinity as in Paddle."""
    slope = opset15.sigmoid(opset15.negative(x))
    return opset15.multiply(grad, opset15.add(slope, _nan_at_minus_infinity(x)))


def _nan_at_minus_infinity(x: NodeInput) -> Node:
    negative = opset15.minimum(x, constant(0.0))
    return opset15.subtract(negative, negative)


register("softplus", _softplus, _softplus_grad, in_place=False)
register_slopes("softplus", _softplus_grad, _softplus_second)
register("mish", _mish, _mish_grad, in_place=False)
register("logsigmoid", _logsigmoid, _logsigmoid_grad, in_place=False)


# -- gelu ----------------------------------------------------------------------------------------


def _gelu(op: Op, x: NodeInput) -> Node:
    """gelu: ``x * (1 + erf(x / sqrt(2))) / 2``, or its approximation by tanh."""
    if op.attr("approximate"):
        return opset15.gelu(x, "TANH")
    if processor.has_avx512() or not processor.is_known():
        # Clamps x to finite values, since with AVX-512 the plugin's Gelu turns infinity into NaN.
        largest = constant(np.finfo(np.float32).max)
        x = opset15.select(opset15.greater(x, largest), largest, x)
    return opset15.gelu(x, "ERF")


def _gelu_grad(op: Op, x: NodeInput, grad: NodeInput) -> Node:
    """The gradient of GELU: ``out_grad`` times the derivative of the variant ``approximate``."""
    slope = _tanh_slope(x) if op.attr("approximate") else _erf_slope(x)
    return opset15.multiply(grad, slope)


def _erf_slope(x: NodeInput) -> Node:
    """Slope of ``gelu``: ``(1 + erf(x / sqrt(2))) / 2 + x * exp(-x ** 2 / 2) / sqrt(2 * pi)``."""
    erf = opset15.erf(opset15.multiply(x, constant(math.sqrt(0.5))))
    below = opset15.multiply(opset15.add(erf, constant(1.0)), constant(0.5))
    square = opset15.multiply(x, x)
    bell = opset15.exp(opset15.multiply(square, constant(-0.5)))
    bell = opset15.multiply(bell, constant(1.0 / math.sqrt(2.0 * math.pi)))
    return opset15.add(below, opset15.multiply(x, bell))


def _tanh_slope(x: NodeInput) -> Node:
    """Slope of ``gelu`` by tanh: ``(1 + t + x * (1 - t ** 2) * u') / 2``.

    ``t = tanh(u)``, ``u = a * (x + b * x ** 3)``.
    """
    a, b = math.sqrt(2.0 / math.pi), 0.044715
    square = opset15.multiply(x, x)
    cubic = opset15.multiply(x, opset15.add(constant(a), opset15.multiply(square, constant(a * b))))
    bend = opset15.tanh(cubic)
    rest = opset15.subtract(constant(1.0), opset15.multiply(bend, bend))
    steep = opset15.add(constant(a), opset15.multiply(square, constant(3.0 * a * b)))
    slope = opset15.multiply(opset15.multiply(x, rest), steep)
    total = opset15.add(opset15.add(bend, constant(1.0)), slope)
    return opset15.multiply(total, constant(0.5))


register("gelu", _gelu, _gelu_grad, in_place=False)


# -- swiglu --------------------------------------------------------------------------------------


@converter("pd_op.swiglu")
def swiglu(bridge: NgraphBridge, op: Op) -> None:
    """``x * sigmoid(x) * y``; without ``y``, x and y are the halves of ``x`` along its last axis.

    (Paddle ``swiglu``.)
    """
    x, y = _gate_and_value(bridge, op)
    bridge.set_output_node(op, "out", opset15.multiply(opset15.swish(x), y))


@converter("pd_op.swiglu_grad")
def swiglu_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * y * s * (1 + x * (1 - s))``, ``y_grad = out_grad * x * s``.

    ``s = sigmoid(x)`` (Paddle ``swiglu_grad``).
    """
    x, y = _gate_and_value(bridge, op)
    grad = bridge.get_input_node(op, "out_grad")
    gate = opset15.sigmoid(x)
    rest = opset15.multiply(x, opset15.subtract(constant(1.0), gate))
    slope = opset15.multiply(gate, opset15.add(rest, constant(1.0)))
    of_x = opset15.multiply(opset15.multiply(grad, y), slope)
    of_y = opset15.multiply(opset15.multiply(grad, x), gate)
    if op.has_input("y"):
        for name, gradient in (("x_grad", of_x), ("y_grad", of_y)):
            if op.has_output(name):
                bridge.set_output_node(op, name, gradient)
    else:
        bridge.set_output_node(op, "x_grad", opset15.concat([of_x, of_y], -1))


def _gate_and_value(bridge: NgraphBridge, op: Op) -> tuple[Any, Any]:
    x = bridge.get_input_node(op, "x")
    if op.has_input("y"):
        return x, bridge.get_input_node(op, "y")
    first, second = opset15.split(x, bridge.full(-1, "int64"), 2).outputs()
    return first, second
