"""Running sums along an axis: forward and gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import (
    FLOAT,
    INTEGER,
    MAX_AXIS_SIZE,
    Range,
    Role,
    converter,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import known_int, require_declared, reshaped


def _sum_range(op: Op, ranges: Mapping[str, Range]) -> Range:
    low, high = ranges["x"]
    shape = op.input("x").shape
    if not op.attr("flatten") and "axis" in op.constants and shape:
        shape = (shape[int(op.constants["axis"][0])],)
    count = math.prod(MAX_AXIS_SIZE if size < 0 else size for size in shape)
    return min(low * count, low, 0), max(high * count, high, 0)


@converter(
    "pd_op.cumsum", dtypes=FLOAT | INTEGER, inputs={"axis": Role.CONSTANT}, integers=_sum_range
)
@converter(
    "pd_op.cumsum_", dtypes=FLOAT | INTEGER, inputs={"axis": Role.CONSTANT}, integers=_sum_range
)
def cumsum(bridge: NgraphBridge, op: Op) -> None:
    """``out[i] = x[0] + ... + x[i]`` along axis, or of flattened ``x`` with ``flatten``.

    An exclusive sum omits ``x[i]``, a reversed one starts at the end (Paddle ``cumsum``).
    """
    x = bridge.get_input_node(op, "x")
    if x.get_element_type().is_integral():
        rank = len(bridge.shape(x))
        is_row = op.attr("flatten") or not rank
        require_declared(bridge, op, range(rank) if is_row else [known_int(bridge, op, "axis")])
    bridge.set_output_node(op, "out", _running_sum(bridge, op, x, op.attr("reverse")))


@converter("pd_op.cumsum_grad", inputs={"axis": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def cumsum_grad(bridge: NgraphBridge, op: Op) -> None:
    """The running sum of ``out_grad`` in the opposite direction (Paddle ``cumsum_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    grad = bridge.get_input_node(op, "out_grad")
    sums = _running_sum(bridge, op, grad, not op.attr("reverse"))
    bridge.set_output_node(op, "x_grad", reshaped(bridge, sums, shape))


def _running_sum(bridge: NgraphBridge, op: Op, x: NodeInput, reverse: bool) -> Any:
    shape = bridge.shape(x)
    axis = known_int(bridge, op, "axis") if shape else 0
    if op.attr("flatten"):
        axis = 0
    if op.attr("flatten") or not shape:
        x = reshaped(bridge, x, [-1])
    exclusive = op.attr("exclusive")
    if x.get_element_type() == Type.i64 and bridge.shape(x)[axis] > MAX_AXIS_SIZE:
        raise NgraphError("sums along such a long axis need 64 bits")
    known = _known_sums(x, axis, exclusive, reverse)
    if known is not None and known.size and np.abs(known).max() >= 2**31:
        # Some sums overflow int32, in which the engine's operator computes: they become a constant.
        sums = opset15.constant(known)
    else:
        sums = opset15.cum_sum(x, bridge.full(axis, "int64"), exclusive=exclusive, reverse=reverse)
    if shape or bridge.shape(sums) == list(op.outputs_used()[0].shape):
        return sums
    return reshaped(bridge, sums, shape)


def _known_sums(
    x: NodeInput, axis: int, exclusive: bool, reverse: bool
) -> NDArray[np.int64] | None:
    """The running sums of a constant int64 tensor; ``None`` for any other tensor."""
    source = x.get_node() if isinstance(x, Output) else x
    if x.get_element_type() != Type.i64 or source.get_type_name() != "Constant":
        return None
    values = np.flip(source.get_data(), axis) if reverse else source.get_data()
    sums = np.cumsum(values, axis) - (values if exclusive else 0)
    return np.ascontiguousarray(np.flip(sums, axis) if reverse else sums)
