"""Sorting, largest elements and their gradients, and the accuracy of predictions."""

from __future__ import annotations

from openvino import Type, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import (
    known_int,
    positions_along_axis,
    require_declared,
    reshaped,
    select_number,
    transposed,
)


def _set_sorted(bridge: NgraphBridge, op: Op, count: int, **order: bool) -> None:
    """Sets ``out`` and ``indices`` to the first ``count`` elements along axis in order."""
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    if not shape:
        bridge.set_output_node(op, "out", x)
        bridge.set_output_node(op, "indices", bridge.full(0, "int64"))
        return
    axis, last = op.attr("axis") % len(shape), len(shape) - 1
    require_declared(bridge, op, [axis])
    exchanged = [last if i == axis else axis if i == last else i for i in range(len(shape))]
    rows = bridge.extension("Sort", [transposed(bridge, x, exchanged)], k=count, **order)
    out, indices = (transposed(bridge, found, exchanged) for found in rows.outputs())
    bridge.set_output_node(op, "out", out)
    bridge.set_output_node(op, "indices", opset15.convert(indices, Type.i64))


@converter(
    "pd_op.argsort",
    small_integers=True,
    integers=positions_along_axis,
    kept_for="the range of the indices, with which programs compute",
)
def argsort(bridge: NgraphBridge, op: Op) -> None:
    """``x`` sorted along axis, and the source indices (Paddle ``argsort``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    count = shape[op.attr("axis")] if shape else 1
    order = {"descending": op.attr("descending"), "stable": op.attr("stable")}
    _set_sorted(bridge, op, count, search=False, **order)


@converter(
    "pd_op.topk",
    inputs={"k": Role.CONSTANT},
    small_integers=True,
    integers=positions_along_axis,
)
def topk(bridge: NgraphBridge, op: Op) -> None:
    """The ``k`` largest or smallest elements along axis (Paddle ``topk``)."""
    order = {"descending": op.attr("largest"), "sorted": op.attr("sorted")}
    _set_sorted(bridge, op, known_int(bridge, op, "k"), search=True, **order)


@converter("pd_op.argsort_grad", inputs={"indices": Role.INDEX, "x": Role.SHAPE_ONLY})
@converter(
    "pd_op.topk_grad", inputs={"indices": Role.INDEX, "x": Role.SHAPE_ONLY, "k": Role.SHAPE_ONLY}
)
def scattered_grad(bridge: NgraphBridge, op: Op) -> None:
    """The gradient of a sort: ``out_grad`` at the source indices of the results, else 0."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    grad = bridge.get_input_node(op, "out_grad")
    if not shape:
        bridge.set_output_node(op, "x_grad", grad)
        return
    indices = opset15.convert(bridge.get_input_node(op, "indices"), Type.i32)
    axis = bridge.full(op.attr("axis") % len(shape), "int64")
    nothing = bridge.full(0.0, "float32", shape)
    bridge.set_output_node(
        op, "x_grad", opset15.scatter_elements_update(nothing, indices, grad, axis)
    )


@converter(
    "pd_op.accuracy",
    inputs={"indices": Role.INDEX, "label": Role.INDEX, "x": Role.SHAPE_ONLY},
    outputs={"correct": Role.OMITTED, "total": Role.OMITTED},
)
def accuracy(bridge: NgraphBridge, op: Op) -> None:
    """The share of rows whose label is among the predicted ``indices`` (Paddle ``accuracy``)."""
    bridge.integers.require_range(op, "label", 0, 2**31)
    indices, label = bridge.get_input_node(op, "indices"), bridge.get_input_node(op, "label")
    rows = bridge.shape(indices)[0]
    label = opset15.slice(
        reshaped(bridge, label, [-1, 1]),
        bridge.ints([0]),
        bridge.ints([rows]),
        bridge.ints([1]),
        bridge.ints([0]),
    )
    distance = opset15.bitwise_xor(
        opset15.convert(indices, Type.i32), opset15.convert(label, Type.i32)
    )
    hit = opset15.equal(distance, bridge.full(0, "int32"))
    right = opset15.reduce_logical_or(hit, bridge.ints([1]), False)
    total = opset15.reduce_sum(select_number(right), bridge.ints([0]), False)
    bridge.set_output_node(op, "accuracy", opset15.divide(total, bridge.full(rows, "float32")))
