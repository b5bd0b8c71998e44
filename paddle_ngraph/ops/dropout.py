"""Dropout and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import FLOAT, Limit, Role, converter
from paddle_ngraph.ir.graph import Op

_MASK_DTYPES = frozenset({"uint8"})
_CONSTANT_PROBABILITY = Limit(
    "the probability or the seed is known only at run time",
    lambda op: all(name in op.constants for name in ("p", "seed_tensor") if op.has_input(name)),
)


def _is_stochastic(op: Op) -> bool:
    return not op.attr("is_test")


@converter(
    "pd_op.dropout",
    "pd_op.dropout_",
    dtypes=FLOAT | _MASK_DTYPES,
    inputs={"p": Role.CONSTANT, "seed_tensor": Role.CONSTANT},
    limits=[_CONSTANT_PROBABILITY],
    draws=_is_stochastic,
)
def dropout(bridge: NgraphBridge, op: Op) -> None:
    """``out = mask ? x / (1 - p) : 0``, with a new mask for each run (Paddle ``dropout``).

    Mode ``downgrade_in_infer`` omits the division; inference multiplies by ``1 - p`` instead.
    """
    x = bridge.get_input_node(op, "x")
    p = _probability(bridge, op)
    mask = _mask(bridge, op, p)
    bridge.set_output_node(op, "mask", mask)
    if op.attr("is_test"):
        out = x if _upscales(op) else opset15.multiply(x, _keep_probability(bridge, op, "out", p))
    else:
        kept = (
            opset15.divide(x, _keep_probability(bridge, op, "out", p))
            if _upscales(op) and p < 1
            else x
        )
        out = opset15.select(opset15.convert(mask, "boolean"), kept, bridge.full(0.0, "float32"))
    bridge.set_output_node(op, "out", out)


@converter(
    "pd_op.dropout_grad",
    dtypes=FLOAT | _MASK_DTYPES,
    inputs={"p": Role.CONSTANT},
    limits=[_CONSTANT_PROBABILITY],
)
def dropout_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad mask / (1 - p)`` with the forward mask (Paddle ``dropout_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    p = _probability(bridge, op)
    if op.attr("is_test"):
        x_grad = (
            out_grad
            if _upscales(op)
            else opset15.multiply(out_grad, _keep_probability(bridge, op, "x_grad", p))
        )
    else:
        mask = opset15.convert(bridge.get_input_node(op, "mask"), "f32")
        x_grad = opset15.multiply(out_grad, mask)
        if _upscales(op) and p < 1:
            x_grad = opset15.divide(x_grad, _keep_probability(bridge, op, "x_grad", p))
    bridge.set_output_node(op, "x_grad", x_grad)


def _mask(bridge: NgraphBridge, op: Op, p: np.float32) -> Any:
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    # Nothing is sampled for the mask in these cases, as in Paddle.
    if op.attr("is_test") or p == 1:
        return bridge.full(0, "uint8", shape)
    if op.has_input("seed_tensor"):
        seed = bridge.constant(op, "seed_tensor").item()
    else:
        seed = op.attr("seed") if op.attr("fix_seed") else 0
    return bridge.draw("keep", float(p), 0, seed, shape)


def _probability(bridge: NgraphBridge, op: Op) -> np.float32:
    return np.float32(bridge.constant(op, "p").item())


def _keep_probability(bridge: NgraphBridge, op: Op, result: str, p: np.float32) -> Any:
    """``1 - p``, the probability to keep an element, in the dtype of output ``result``."""
    return bridge.rounded(op, result, bridge.full(np.float32(1) - p, "float32"))


def _upscales(op: Op) -> bool:
    return bool(op.attr("mode") == "upscale_in_train")
