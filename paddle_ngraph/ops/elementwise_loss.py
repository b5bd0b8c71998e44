"""Losses of one prediction against one label each, forward and gradient."""

from __future__ import annotations

import math

import numpy as np
from openvino import Node, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import constant, keep_nan, reshaped, select_number


@converter("pd_op.bce_loss_grad")
def bce_loss_grad(bridge: NgraphBridge, op: Op) -> None:
    """``input_grad = out_grad * (input - label) / max((1 - input) * input, 1e-12)``.

    (Paddle ``bce_loss_grad``.)
    """
    x = bridge.get_input_node(op, "input")
    spread = opset15.multiply(opset15.subtract(constant(1.0), x), x)
    difference = opset15.subtract(x, bridge.get_input_node(op, "label"))
    ratio = opset15.divide(difference, opset15.maximum(spread, constant(1e-12)))
    gradient = opset15.multiply(bridge.get_input_node(op, "out_grad"), ratio)
    bridge.set_output_node(op, "input_grad", gradient)


@converter("pd_op.log_loss")
def log_loss(bridge: NgraphBridge, op: Op) -> None:
    """``-label * log(input + epsilon) - (1 - label) * log(1 - input + epsilon)``."""
    label = bridge.get_input_node(op, "label")
    likely, unlikely = _odds(bridge, op)
    present = opset15.multiply(opset15.negative(label), opset15.log(likely))
    absent = opset15.multiply(opset15.subtract(constant(1.0), label), opset15.log(unlikely))
    bridge.set_output_node(op, "out", opset15.subtract(present, absent))


@converter("pd_op.log_loss_grad")
def log_loss_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * ((1 - label) / (1 - input + epsilon) - label / (input + epsilon))``."""
    label = bridge.get_input_node(op, "label")
    likely, unlikely = _odds(bridge, op)
    absent = opset15.divide(opset15.subtract(constant(1.0), label), unlikely)
    slope = opset15.subtract(absent, opset15.divide(label, likely))
    gradient = opset15.multiply(bridge.get_input_node(op, "out_grad"), slope)
    bridge.set_output_node(op, "input_grad", gradient)


def _odds(bridge: NgraphBridge, op: Op) -> tuple[Node, Node]:
    """The arguments of both logarithms: ``input + epsilon``, and ``1 - input + epsilon``."""
    x, epsilon = bridge.get_input_node(op, "input"), constant(op.attr("epsilon"))
    rest = opset15.subtract(constant(1.0), x)
    return opset15.add(x, epsilon), opset15.add(rest, epsilon)


# -- hinge loss ----------------------------------------------------------------------------------


def _sign_of_label(bridge: NgraphBridge, op: Op) -> Node:
    """``2 * labels - 1``: -1 for label 0, and 1 for label 1."""
    label = bridge.get_input_node(op, "labels")
    return opset15.subtract(opset15.multiply(label, constant(2.0)), constant(1.0))


@converter("pd_op.hinge_loss")
def hinge_loss(bridge: NgraphBridge, op: Op) -> None:
    """``max(1 - logits * (2 * labels - 1), 0)`` (Paddle ``hinge_loss``)."""
    product = opset15.multiply(bridge.get_input_node(op, "logits"), _sign_of_label(bridge, op))
    margin = opset15.subtract(constant(1.0), product)
    bridge.set_output_node(op, "loss", opset15.relu(margin))


@converter("pd_op.hinge_loss_grad")
def hinge_loss_grad(bridge: NgraphBridge, op: Op) -> None:
    """``-loss_grad * (2 * labels - 1)`` where the loss is not 0 (Paddle ``hinge_loss_grad``)."""
    side = _sign_of_label(bridge, op)
    product = opset15.multiply(bridge.get_input_node(op, "logits"), side)
    counts = select_number(opset15.less(product, constant(1.0)))
    slope = opset15.multiply(opset15.negative(side), counts)
    gradient = opset15.multiply(bridge.get_input_node(op, "loss_grad"), slope)
    bridge.set_output_node(op, "logits_grad", gradient)


# -- divergence ----------------------------------------------------------------------------------


@converter("pd_op.kldiv_loss")
def kldiv_loss(bridge: NgraphBridge, op: Op) -> None:
    """``label * (log(label) - x)``, 0 where ``label <= 0``; reduced by the attribute.

    With ``log_target``: ``exp(label) * (label - x)`` (Paddle ``kldiv_loss``).
    """
    x, label = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "label")
    if op.attr("log_target"):
        loss = opset15.multiply(_exp(label), opset15.subtract(label, x))
    else:
        loss = opset15.multiply(label, opset15.subtract(opset15.log(label), x))
        nothing = opset15.less_equal(label, constant(0.0))
        loss = opset15.select(nothing, constant(0.0), loss)
    if op.attr("reduction") != "none":
        total = opset15.reduce_sum(loss, bridge.ints(range(len(bridge.shape(x)))), False)
        loss = opset15.divide(total, constant(_divisor(bridge, op)))
    bridge.set_output_node(op, "out", loss)


@converter("pd_op.kldiv_loss_grad", inputs={"x": Role.SHAPE_ONLY})
def kldiv_loss_grad(bridge: NgraphBridge, op: Op) -> None:
    """``-label * out_grad``, 0 where ``label <= 0``, or ``-exp(label) * out_grad``.

    Divided as the reduction was (Paddle ``kldiv_loss_grad``).
    """
    label, grad = bridge.get_input_node(op, "label"), bridge.get_input_node(op, "out_grad")
    weight = _exp(label) if op.attr("log_target") else label
    gradient = opset15.multiply(opset15.negative(weight), grad)
    if not op.attr("log_target"):
        nothing = opset15.less_equal(label, constant(0.0))
        gradient = opset15.select(nothing, constant(0.0), gradient)
    divisor = _divisor(bridge, op)
    if divisor != 1.0:
        gradient = opset15.divide(gradient, constant(divisor))
    bridge.set_output_node(op, "x_grad", gradient)


def _exp(x: NodeInput) -> Node:
    return keep_nan(x, opset15.exp(x))


def _divisor(bridge: NgraphBridge, op: Op) -> float:
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    if op.attr("reduction") == "mean":
        return float(math.prod(shape))
    return float(shape[0]) if op.attr("reduction") == "batchmean" else 1.0


# -- labels --------------------------------------------------------------------------------------


@converter("pd_op.label_smooth")
def label_smooth(bridge: NgraphBridge, op: Op) -> None:
    """``(1 - epsilon) * label + epsilon * prior``; the prior is ``prior_dist`` or uniform.

    (Paddle ``label_smooth``.)
    """
    label, epsilon = bridge.get_input_node(op, "label"), np.float32(op.attr("epsilon"))
    if op.has_input("prior_dist"):
        prior = opset15.multiply(bridge.get_input_node(op, "prior_dist"), constant(epsilon))
        if len(bridge.shape(label)) < 2:
            prior = reshaped(bridge, prior, bridge.shape(label))
    else:
        prior = constant(epsilon / np.float32(bridge.shape(label)[-1]))
    kept = opset15.multiply(label, constant(np.float32(1.0) - epsilon))
    bridge.set_output_node(op, "out", opset15.add(kept, prior))


@converter("pd_op.label_smooth_grad")
def label_smooth_grad(bridge: NgraphBridge, op: Op) -> None:
    """``(1 - epsilon) * out_grad`` (Paddle ``label_smooth_grad``)."""
    kept = constant(np.float32(1.0) - np.float32(op.attr("epsilon")))
    gradient = opset15.multiply(bridge.get_input_node(op, "out_grad"), kept)
    bridge.set_output_node(op, "label_grad", gradient)
