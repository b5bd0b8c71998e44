"""Tensors made of constants, and copies."""

from __future__ import annotations

import numpy as np
from openvino import Node, opset15

from paddle_ngraph.bridge import NgraphBridge, element_type
from paddle_ngraph.graph import Op
from paddle_ngraph.ops.elementwise import scalar_input
from paddle_ngraph.registry import ANY, Limit, converter

_SMALL = Limit(
    "a value of attribute 'values' needs 64 bits",
    lambda op: op.attr("dtype") != "int64" or all(abs(v) < 2**31 for v in op.attr("values")),
)


@converter("pd_op.full", dtypes=ANY, small_integers=True)
def full(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of attribute ``shape`` (Paddle ``full``)."""
    bridge.set_output_node(
        op, "out", bridge.full(op.attr("value"), op.attr("dtype"), op.attr("shape"))
    )


@converter("pd_op.full_int_array", dtypes=ANY, small_integers=True)
def full_int_array(bridge: NgraphBridge, op: Op) -> None:
    """A 1-D tensor that holds attribute ``value`` (Paddle ``full_int_array``)."""
    kind = element_type(op.attr("dtype"))
    values = np.array(op.attr("value"), dtype=kind.to_dtype())
    bridge.set_output_node(op, "out", opset15.constant(values, kind))


@converter("pd_op.full_", dtypes=ANY, unread=("output",))
def full_(bridge: NgraphBridge, op: Op) -> None:
    """``output[...] = value``, of attribute ``shape`` (Paddle ``full_``)."""
    full(bridge, op)


@converter("pd_op.full_like", dtypes=ANY, unread=("x",))
def full_like(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of the shape of ``x`` (Paddle ``full_like``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, "out", _filled(bridge, op, shape))


@converter("pd_op.full_with_tensor", dtypes=ANY, constant=("shape",))
def full_with_tensor(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of the shape in input ``shape`` (Paddle ``full_with_tensor``)."""
    bridge.set_output_node(
        op, "out", _filled(bridge, op, bridge.constant(op, "shape").reshape(-1).tolist())
    )


@converter("pd_op.full_batch_size_like", dtypes=ANY, unread=("input",))
def full_batch_size_like(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``; one dimension is taken from ``input`` (``full_batch_size_like``)."""
    shape = list(op.attr("shape"))
    dims = bridge.shape(bridge.get_input_node(op, "input"))
    shape[op.attr("output_dim_idx")] = dims[op.attr("input_dim_idx")]
    bridge.set_output_node(op, "out", bridge.full(op.attr("value"), op.attr("dtype"), shape))


def _filled(bridge: NgraphBridge, op: Op, shape: list[int]) -> Node:
    kind = element_type(op.output("out").dtype)
    value = scalar_input(bridge, op, "value", kind)
    return opset15.broadcast(value, bridge.ints(shape)) if shape else value


@converter("pd_op.assign_value", dtypes=ANY, limits=[_SMALL], small_integers=True)
@converter(
    "pd_op.assign_value_", dtypes=ANY, unread=("output",), limits=[_SMALL], small_integers=True
)
def assign_value(bridge: NgraphBridge, op: Op) -> None:
    """Attribute ``values`` in the shape of attribute ``shape`` (Paddle ``assign_value``)."""
    kind = element_type(op.attr("dtype"))
    values = np.array(op.attr("values")).astype(kind.to_dtype()).reshape(op.attr("shape"))
    bridge.set_output_node(op, "out", opset15.constant(values, kind))


@converter("pd_op.arange", dtypes=ANY, constant=("start", "end", "step"))
def arange(bridge: NgraphBridge, op: Op) -> None:
    """``start, start + step, ...`` up to, but not including, ``end`` (Paddle ``arange``)."""
    kind = element_type(op.output("out").dtype)
    start, end, step = (bridge.constant(op, name).item() for name in ("start", "end", "step"))
    values = start + step * np.arange(np.ceil((end - start) / step))
    bridge.set_output_node(op, "out", opset15.constant(values.astype(kind.to_dtype()), kind))


@converter("pd_op.assign", dtypes=ANY, moves=True)
@converter("pd_op.assign_", dtypes=ANY, moves=True)
@converter("pd_op.assign_out_", dtypes=ANY, moves=True, unread=("output",))
def assign(bridge: NgraphBridge, op: Op) -> None:
    """``out = x`` (Paddle ``assign``)."""
    bridge.set_output_node(op, "out", bridge.get_input_node(op, "x"))
