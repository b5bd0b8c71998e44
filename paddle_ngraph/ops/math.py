"""Functions of one tensor, element by element: forward and gradient."""

from __future__ import annotations

import math
from typing import Any

from openvino import Node, Output, opset15

from paddle_ngraph.bridge import NgraphBridge
from paddle_ngraph.graph import Op
from paddle_ngraph.ops.activation import constant, register
from paddle_ngraph.ops.elementwise import keep_nan
from paddle_ngraph.registry import Limit, converter

_WHOLE = Limit("attribute 'decimals' is not 0", lambda op: op.attr("decimals", 0) == 0)


def _exp(op: Op, x: Any) -> Node:
    """``exp(x)``; the engine's kernel turns NaN into infinity."""
    return keep_nan(x, opset15.exp(x))


def _exp_grad(op: Op, out: Any, grad: Any) -> Node:
    """``out_grad * out``."""
    return opset15.multiply(grad, out)


def _log_grad(op: Op, x: Any, grad: Any) -> Node:
    """``out_grad / x``."""
    return opset15.divide(grad, x)


def _sqrt_grad(op: Op, out: Any, grad: Any) -> Node:
    """``out_grad / 2 / out``."""
    return opset15.divide(opset15.multiply(grad, constant(0.5)), out)


def _rsqrt(op: Op, x: Any) -> Node:
    """``1 / sqrt(x)``."""
    return opset15.divide(constant(1.0), opset15.sqrt(x))


def _rsqrt_grad(op: Op, out: Any, grad: Any) -> Node:
    """``-out_grad / 2 * out ** 3``."""
    slope = opset15.multiply(opset15.multiply(out, out), out)
    return opset15.multiply(opset15.multiply(grad, constant(-0.5)), slope)


def _square(op: Op, x: Any) -> Node:
    """``x ** 2``."""
    return opset15.multiply(x, x)


def _square_grad(op: Op, x: Any, grad: Any) -> Node:
    """``out_grad * 2 * x``."""
    return opset15.multiply(opset15.multiply(grad, constant(2.0)), x)


def _abs_grad(op: Op, x: Any, grad: Any) -> Node:
    """``out_grad * x / abs(x)``, 0 at 0."""
    sign = opset15.divide(x, opset15.abs(x))
    at_zero = opset15.equal(x, constant(0.0))
    return opset15.select(at_zero, constant(0.0), opset15.multiply(grad, sign))


def _reciprocal(op: Op, x: Any) -> Node:
    """``1 / x``."""
    return opset15.divide(constant(1.0), x)


def _reciprocal_grad(op: Op, out: Any, grad: Any) -> Node:
    """``-out_grad * out ** 2``."""
    return opset15.multiply(opset15.multiply(opset15.negative(grad), out), out)


def _sign(op: Op, x: Any) -> Node:
    """-1, 0 or 1; NaN stays. The engine's own kernel is not vectorized."""
    below = opset15.select(opset15.less(x, constant(0.0)), constant(-1.0), constant(0.0))
    sign = opset15.select(opset15.greater(x, constant(0.0)), constant(1.0), below)
    return keep_nan(x, sign)


def _erf_grad(op: Op, x: Any, grad: Any) -> Node:
    """``out_grad * 2 / sqrt(pi) * exp(-x ** 2)``."""
    bell = opset15.exp(opset15.negative(opset15.multiply(x, x)))
    scaled = opset15.multiply(grad, constant(2.0 / math.sqrt(math.pi)))
    return opset15.multiply(scaled, keep_nan(x, bell))


register("exp", _exp, _exp_grad, reads="out")
register("log", lambda op, x: opset15.log(x), _log_grad)
register("sqrt", lambda op, x: opset15.sqrt(x), _sqrt_grad, reads="out")
register("rsqrt", _rsqrt, _rsqrt_grad, reads="out")
register("square", _square, _square_grad)
register("abs", lambda op, x: opset15.abs(x), _abs_grad)
register("reciprocal", _reciprocal, _reciprocal_grad, reads="out")
register("sign", _sign, None)
register("erf", lambda op, x: opset15.erf(x), _erf_grad)
register("floor", lambda op, x: opset15.floor(x), None)
register("ceil", lambda op, x: opset15.ceiling(x), None)


@converter("pd_op.round", limits=[_WHOLE])
@converter("pd_op.round_", limits=[_WHOLE])
def round(bridge: NgraphBridge, op: Op) -> None:
    """The nearest whole number, the even one of two (Paddle ``round``)."""
    x: Output = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", opset15.round(x, "half_to_even"))


@converter("pd_op.floor_grad", unread=("out_grad",))
@converter("pd_op.ceil_grad", unread=("out_grad",))
@converter("pd_op.round_grad", unread=("out_grad",))
def zero_grad(bridge: NgraphBridge, op: Op) -> None:
    """Zeros: a step function has no slope (Paddle ``floor_grad`` and so on)."""
    shape = bridge.shape(bridge.get_input_node(op, "out_grad"))
    bridge.set_output_node(op, "x_grad", bridge.full(0.0, "float32", shape))
