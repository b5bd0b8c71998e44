"""Quantization as Paddle's CPU kernels simulate it, in float32.

A tensor of scale ``s`` is represented by integers ``q``: ``x`` is about ``q * s / qmax``, with a
``qmax`` of 127 for eight bits. Results equal Paddle's bit by bit. If convolutions or matmuls
consume the results, ``int8.py`` recognizes the nodes and selects int8 kernels.

``dequantize_linear`` has no converter: ``partitioning/dequantization.py`` replaces it by operators
of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Output, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import constant, keep_nan, reshaped

# The value of Paddle's attribute round_type for rounding half to even, with qmax + 1 negative
# levels. Other values: rounding half away from zero, with qmax negative levels.
_ROUND_TO_EVEN = 0
# Paddle treats scales up to this one as zero and divides by a slightly larger value.
_MIN_SCALE = 1e-30
_EPSILON = 1e-6

_IS_INFERENCE = Limit("it updates its scale: in training", lambda op: bool(op.attr("is_test")))
_IS_INTEGER = Limit("its values are float8", lambda op: op.attr("qmax") not in (448, 57344))


def _largest(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _broadcast_scale(bridge: NgraphBridge, scale: Output, x: Output, axis: int) -> Output:
    """One scale for each channel of ``x`` along ``axis``; a scalar for a negative ``axis``."""
    if axis < 0:
        return reshaped(bridge, scale, [])
    rank = len(bridge.shape(x))
    return reshaped(bridge, scale, [-1 if i == axis else 1 for i in range(rank)])


def _inverse(scale: Output) -> Any:
    padded = opset15.add(scale, constant(_EPSILON))
    is_zero = opset15.less_equal(scale, constant(_MIN_SCALE))
    return opset15.divide(constant(1.0), opset15.select(is_zero, padded, scale))


def _quantized(x: Output, scale: Output, qmax: int, round_type: int) -> Any:
    """``x`` quantized: float32 tensor of integers; NaN remains NaN."""
    factor = opset15.multiply(constant(qmax), _inverse(scale))
    low, mode, inside = -qmax - 1, "half_to_even", x
    if round_type != _ROUND_TO_EVEN:
        low, mode = -qmax, "half_away_from_zero"
        above = opset15.maximum(x, opset15.negative(scale))
        inside = opset15.minimum(above, scale)
    whole = opset15.round(opset15.multiply(inside, factor), mode)
    # The clamp shows passes the number of quantization levels. The result stays the same, since x
    # has been clipped to the range.
    return keep_nan(x, opset15.clamp(whole, float(low), float(qmax)))


def _dequantized(q: Any, scale: Output, qmax: float) -> Any:
    return opset15.divide(opset15.multiply(q, scale), constant(qmax))


def _largest_magnitude(bridge: NgraphBridge, x: Output, axis: int = -1) -> Any:
    """The largest ``|x|``: of the whole tensor [1], or per channel along ``axis`` [channels]."""
    rank = len(bridge.shape(x))
    others = [i for i in range(rank) if i != axis]
    found = opset15.reduce_max(opset15.abs(x), bridge.ints(others)) if others else opset15.abs(x)
    return reshaped(bridge, found, [1] if axis < 0 else [-1])


@converter(
    "pd_op.quantize_linear",
    inputs={name: Role.UNUSED for name in ("zero_point", "in_accum", "in_state")},
    outputs={name: Role.OMITTED for name in ("out_state", "out_accum", "out_scale")},
    limits=[_IS_INFERENCE, _IS_INTEGER],
)
def quantize_linear(bridge: NgraphBridge, op: Op) -> None:
    """``y = clip(round(x * qmax / scale))``, in float32 (Paddle ``quantize_linear``).

    One scale, or one for each channel of ``quant_axis``. Paddle reads neither ``zero_point`` nor
    ``qmin``; with ``only_observer`` y is x.
    """
    x = bridge.get_input_node(op, "x")
    if op.attr("only_observer"):
        bridge.set_output_node(op, "y", x)
        return
    scale = _broadcast_scale(bridge, bridge.get_input_node(op, "scale"), x, op.attr("quant_axis"))
    found = _quantized(x, scale, op.attr("qmax"), op.attr("round_type"))
    bridge.set_output_node(op, "y", found)


@converter(
    "pd_op.fake_quantize_range_abs_max",
    inputs={"iter": Role.UNUSED},
    outputs={name: Role.OMITTED for name in ("out_scale", "out_scales")},
    limits=[_IS_INFERENCE],
)
def fake_quantize_range_abs_max(bridge: NgraphBridge, op: Op) -> None:
    """``out = round(clip(x, -scale, scale) * qmax / scale)``; see :func:`_quantized`."""
    x = bridge.get_input_node(op, "x")
    scale = reshaped(bridge, bridge.get_input_node(op, "in_scale"), [])
    qmax = _largest(op.attr("bit_length"))
    bridge.set_output_node(op, "out", _quantized(x, scale, qmax, op.attr("round_type")))


@converter(
    "pd_op.fake_quantize_dequantize_moving_average_abs_max",
    "pd_op.fake_quantize_moving_average_abs_max",
)
def fake_quantize_moving_average_abs_max(bridge: NgraphBridge, op: Op) -> None:
    """x quantized, and dequantized again if the operator's name contains ``dequantize``.

    In training the scale is ``accum / state`` after ``state = rate * state + 1`` and ``accum = rate
    * accum + max(|x|)``; otherwise it is ``in_scale`` (Paddle
    ``fake_quantize_dequantize_moving_average_abs_max``).
    """
    x, scale = (bridge.get_input_node(op, name) for name in ("x", "in_scale"))
    # In evaluation, Paddle does not write `out_state` and `out_accum`: any value will do, such as
    # the scale.
    state = accum = scale
    if not op.attr("is_test"):
        rate = constant(op.attr("moving_rate"))
        state = opset15.multiply(rate, bridge.get_input_node(op, "in_state"))
        state = opset15.add(state, constant(1.0))
        accum = opset15.multiply(rate, bridge.get_input_node(op, "in_accum"))
        accum = opset15.add(accum, _largest_magnitude(bridge, x))
        scale = opset15.divide(accum, state)
    for name, node in (("out_state", state), ("out_accum", accum), ("out_scale", scale)):
        bridge.set_output_node(op, name, node)
    _set_simulated(bridge, op, x, reshaped(bridge, scale, []))


def _set_simulated(bridge: NgraphBridge, op: Op, x: Output, scale: Output) -> None:
    """Sets ``out`` to ``x`` quantized, and dequantized again if the operator's name says so."""
    qmax = _largest(op.attr("bit_length"))
    found = _quantized(x, scale, qmax, op.attr("round_type"))
    if "dequantize" in op.type:
        found = _dequantized(found, scale, qmax)
    bridge.set_output_node(op, "out", found)


@converter("pd_op.fake_quantize_abs_max", "pd_op.fake_quantize_dequantize_abs_max")
def fake_quantize_abs_max(bridge: NgraphBridge, op: Op) -> None:
    """x, quantized by the scale ``max(|x|)`` (Paddle ``fake_quantize_abs_max``)."""
    x = bridge.get_input_node(op, "x")
    scale = _largest_magnitude(bridge, x)
    bridge.set_output_node(op, "out_scale", scale)
    _set_simulated(bridge, op, x, reshaped(bridge, scale, []))


@converter("pd_op.fake_channel_wise_quantize_dequantize_abs_max")
def fake_channel_wise_quantize_dequantize_abs_max(bridge: NgraphBridge, op: Op) -> None:
    """x quantized and dequantized by channel of ``quant_axis``: weights in PaddleSlim's QAT."""
    x, axis = bridge.get_input_node(op, "x"), op.attr("quant_axis")
    scale = _largest_magnitude(bridge, x, axis)
    bridge.set_output_node(op, "out_scale", scale)
    _set_simulated(bridge, op, x, _broadcast_scale(bridge, scale, x, axis))


@converter(
    "pd_op.fake_channel_wise_quantize_dequantize_abs_max_grad",
    "pd_op.fake_quantize_dequantize_abs_max_grad",
    "pd_op.fake_quantize_dequantize_moving_average_abs_max_grad",
)
def fake_quantize_dequantize_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad``: a straight-through estimator."""
    bridge.set_output_node(op, "x_grad", bridge.get_input_node(op, "out_grad"))


@converter("pd_op.fake_dequantize_max_abs")
def fake_dequantize_max_abs(bridge: NgraphBridge, op: Op) -> None:
    """``out = x * scale / max_range`` (Paddle ``fake_dequantize_max_abs``)."""
    x = bridge.get_input_node(op, "x")
    scale = reshaped(bridge, bridge.get_input_node(op, "scale"), [])
    bridge.set_output_node(op, "out", _dequantized(x, scale, op.attr("max_range")))


@converter("pd_op.fake_channel_wise_dequantize_max_abs")
def fake_channel_wise_dequantize_max_abs(bridge: NgraphBridge, op: Op) -> None:
    """``out = x * s / qmax``, with one ``s`` for each channel of ``quant_axis``.

    With two scales, x is a matmul of quantized weights and a quantized activation: its channels
    are along ``x_num_col_dims``, the second scale is that of the activation, and ``qmax`` the
    product of both (Paddle ``fake_channel_wise_dequantize_max_abs``).
    """
    x = bridge.get_input_node(op, "x")
    first, *others = bridge.get_input_nodes(op, "scales")
    bits: Sequence[int] = op.attr("quant_bits")
    if not others:
        scale = _broadcast_scale(bridge, first, x, op.attr("quant_axis"))
        bridge.set_output_node(op, "out", _dequantized(x, scale, _largest(bits[0])))
        return
    channels = _broadcast_scale(bridge, first, x, op.attr("x_num_col_dims"))
    scale = opset15.multiply(channels, reshaped(bridge, others[0], []))
    qmax = float(np.float32(_largest(bits[0])) * np.float32(_largest(bits[1])))
    bridge.set_output_node(op, "out", _dequantized(x, scale, qmax))
