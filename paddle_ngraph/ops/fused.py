"""Fused operators, from Paddle's fusion passes and from its incubate functions."""

from __future__ import annotations

import math
from typing import Any

from openvino import opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.loss import Softmax, softmax_gradient
from paddle_ngraph.ops.nodes import reshaped
from paddle_ngraph.ops.normalization import rows_of
from paddle_ngraph.paddle_private import releases

# -- attention -----------------------------------------------------------------------------------


@converter("pd_op.fused_softmax_mask")
def fused_softmax_mask(bridge: NgraphBridge, op: Op) -> None:
    """Softmax of ``x + mask`` along the last axis; x [N, H, Q, K], mask [N, 1, Q, K].

    Paddle ``fused_softmax_mask``.
    """
    x, mask = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "mask")
    shape = bridge.shape(x)
    if bridge.shape(mask) != [shape[0], 1, *shape[2:]]:
        raise NgraphError(f"x is {shape}, its mask must not be {bridge.shape(mask)}")
    terms = Softmax(bridge, opset15.add(x, mask), -1)
    bridge.set_output_node(op, "out", terms.probabilities())


@converter("pd_op.fused_softmax_mask_grad")
def fused_softmax_mask_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = (out_grad - sum(out * out_grad)) * out`` (Paddle ``fused_softmax_mask_grad``)."""
    bridge.set_output_node(op, "x_grad", softmax_gradient(bridge, op, -1))


# -- fully connected layers ------------------------------------------------------------------------

_RELU = Limit(
    "attribute 'activation_type' is neither relu nor none",
    lambda op: op.attr("activation_type") in ("", "relu"),
)
# The number of rows and columns that Paddle adds to padded weights, to avoid cache conflicts.
_FC_PADDING = 4


@converter("pd_op.fc", limits=[_RELU])
def fc(bridge: NgraphBridge, op: Op) -> None:
    """``out = relu(input w + bias)``; relu and bias are optional (Paddle ``fc``).

    The first ``in_num_col_dims`` axes of input are rows, the others columns.
    """
    x, w = bridge.get_input_node(op, "input"), bridge.get_input_node(op, "w")
    shape, rows = bridge.shape(x), op.attr("in_num_col_dims")
    if op.attr("padding_weights"):
        ends = [size - _FC_PADDING for size in bridge.shape(w)]
        w = opset15.slice(w, bridge.ints([0, 0]), bridge.ints(ends), bridge.ints([1, 1]))
    x = reshaped(bridge, x, [-1, math.prod(shape[rows:])])
    bias = bridge.get_input_node(op, "bias") if op.has_input("bias") else None
    out = _layer(x, w, bias, op.attr("activation_type") == "relu")
    sizes = [*shape[:rows], bridge.shape(w)[1]]
    bridge.set_output_node(op, "out", reshaped(bridge, out, sizes))


@converter("pd_op.fusion_repeated_fc_relu", outputs={"relu_out": Role.OMITTED})
def fusion_repeated_fc_relu(bridge: NgraphBridge, op: Op) -> None:
    """``x = relu(x w + bias)`` for every w and bias (Paddle ``fusion_repeated_fc_relu``)."""
    x = bridge.get_input_node(op, "x")
    weights, biases = bridge.get_input_nodes(op, "w"), bridge.get_input_nodes(op, "bias")
    for w, bias in zip(weights, biases):
        x = _layer(x, w, reshaped(bridge, bias, [-1]), True)
    bridge.set_output_node(op, "out", x)


def _layer(x: NodeInput, w: NodeInput, bias: NodeInput | None, is_relu: bool) -> Any:
    out = opset15.matmul(x, w, False, False)
    if bias is not None:
        out = opset15.add(out, bias)
    return opset15.relu(out) if is_relu else out


@converter("pd_op.fusion_squared_mat_sub")
def fusion_squared_mat_sub(bridge: NgraphBridge, op: Op) -> None:
    """``out = scalar ((x y)^2 - x^2 y^2)``, x^2 by element (Paddle ``fusion_squared_mat_sub``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    squared_x, squared_y = opset15.multiply(x, x), opset15.multiply(y, y)
    product = opset15.matmul(x, y, False, False)
    squared_xy = opset15.multiply(product, product)
    difference = opset15.subtract(squared_xy, opset15.matmul(squared_x, squared_y, False, False))
    bridge.set_output_node(op, "squared_x", squared_x)
    bridge.set_output_node(op, "squared_y", squared_y)
    bridge.set_output_node(op, "squared_xy", squared_xy)
    scalar = bridge.full(op.attr("scalar"), "float32")
    bridge.set_output_node(op, "out", opset15.multiply(difference, scalar))


# -- normalization of a sum ------------------------------------------------------------------------

_NOT_QUANTIZED = Limit("it quantizes its result", lambda op: op.attr("quant_scale") <= 0)
_BIAS_OF_RESIDUAL = Limit(
    "it has a bias without a residual, which Paddle ignores on the CPU",
    lambda op: op.has_input("residual") or not op.has_input("bias"),
)


# Output "residual_out" has no reader if there is no residual: Paddle leaves it empty then.
@converter(
    "pd_op.fused_bias_residual_layernorm",
    outputs={"mean": Role.OMITTED, "variance": Role.OMITTED},
    limits=[_NOT_QUANTIZED, _BIAS_OF_RESIDUAL],
)
def fused_bias_residual_layernorm(bridge: NgraphBridge, op: Op) -> None:
    """``out = layer_norm(x + residual_alpha residual + bias)``, and that sum.

    Without weight and bias of the normalization, ``out`` is the sum (Paddle
    ``fused_bias_residual_layernorm``).
    """
    rows = _residual_sum(bridge, op, op.attr("residual_alpha"))
    if op.has_input("norm_weight") or op.has_input("norm_bias"):
        rows = opset15.mvn(rows, bridge.ints([1]), True, op.attr("epsilon"), "inside_sqrt")
    _set_rows(bridge, op, "out", _affine(bridge, op, rows))


@converter(
    releases.CURRENT.fused_rms_norm,
    outputs={"inv_var": Role.OMITTED},
    limits=[_NOT_QUANTIZED, _BIAS_OF_RESIDUAL],
)
def fused_rms_norm_quant(bridge: NgraphBridge, op: Op) -> None:
    """``out = s / sqrt(mean(s^2) + epsilon) norm_weight``, ``s = x + residual + bias``.

    Paddle ``fused_rms_norm_quant``.
    """
    rows = _residual_sum(bridge, op, 1.0)
    square = opset15.reduce_mean(opset15.multiply(rows, rows), bridge.ints([1]), keep_dims=True)
    root = opset15.sqrt(opset15.add(square, bridge.full(op.attr("epsilon"), "float32")))
    normal = opset15.multiply(rows, opset15.divide(bridge.full(1.0, "float32"), root))
    _set_rows(bridge, op, "out", _affine(bridge, op, normal))


def _residual_sum(bridge: NgraphBridge, op: Op, alpha: float) -> Any:
    """``x + alpha residual + bias``, one row for each slice to be normalized."""
    total = rows_of(bridge, op, "x")
    if op.has_input("residual"):
        residual = rows_of(bridge, op, "residual")
        if alpha != 1:
            residual = opset15.multiply(residual, bridge.full(alpha, "float32"))
        total = opset15.add(total, residual)
    if op.has_input("bias"):
        total = opset15.add(total, rows_of(bridge, op, "bias"))
    _set_rows(bridge, op, "residual_out", total)
    return total


def _affine(bridge: NgraphBridge, op: Op, rows: NodeInput) -> Any:
    if op.has_input("norm_weight"):
        rows = opset15.multiply(rows, rows_of(bridge, op, "norm_weight"))
    if op.has_input("norm_bias"):
        rows = opset15.add(rows, rows_of(bridge, op, "norm_bias"))
    return rows


def _set_rows(bridge: NgraphBridge, op: Op, name: str, rows: NodeInput) -> None:
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, name, reshaped(bridge, rows, shape))
