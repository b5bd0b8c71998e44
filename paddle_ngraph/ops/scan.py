"""Running sums, products and extremes along an axis: forward and gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import Node, Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.registry import (
    FLOAT,
    INTEGER,
    MAX_AXIS_SIZE,
    Limit,
    Range,
    Role,
    converter,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import known_int, require_declared, reshaped

# The maximum length of the axis of a running product, which takes one node for each index.
_MAX_PRODUCT_AXIS = 64


def _has_short_axis(op: Op) -> bool:
    shape = op.input("x").shape
    return not shape or 0 < shape[op.attr("dim")] <= _MAX_PRODUCT_AXIS


_SHORT_AXIS = Limit(
    f"its axis is dynamic or longer than {_MAX_PRODUCT_AXIS}",
    _has_short_axis,
)
_NOT_EXCLUSIVE = Limit(
    "it is exclusive or reversed", lambda op: not (op.attr("exclusive") or op.attr("reverse"))
)


# -- sums ----------------------------------------------------------------------------------------


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
    """The running sum of ``out_grad`` from the other end (Paddle ``cumsum_grad``)."""
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
        # The sums need 64 bits; the engine's own operator has 32.
        sums = opset15.constant(known)
    else:
        sums = opset15.cum_sum(x, bridge.full(axis, "int64"), exclusive=exclusive, reverse=reverse)
    if shape or bridge.shape(sums) == list(op.outputs_used()[0].shape):
        return sums
    return reshaped(bridge, sums, shape)


def _known_sums(
    x: NodeInput, axis: int, exclusive: bool, reverse: bool
) -> NDArray[np.int64] | None:
    """The cumulative sums of a constant int64 tensor; ``None`` if ``x`` is no such constant."""
    source = x.get_node() if isinstance(x, Output) else x
    if x.get_element_type() != Type.i64 or source.get_type_name() != "Constant":
        return None
    values = np.flip(source.get_data(), axis) if reverse else source.get_data()
    sums = np.cumsum(values, axis) - (values if exclusive else 0)
    return np.ascontiguousarray(np.flip(sums, axis) if reverse else sums)


# -- products ------------------------------------------------------------------------------------


@converter("pd_op.cumprod", limits=[_SHORT_AXIS, _NOT_EXCLUSIVE])
@converter("pd_op.cumprod_", limits=[_SHORT_AXIS, _NOT_EXCLUSIVE])
def cumprod(bridge: NgraphBridge, op: Op) -> None:
    """``out[i] = x[0] * ... * x[i]`` along attribute ``dim`` (Paddle ``cumprod``)."""
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    if not shape or shape[op.attr("dim")] == 1:
        bridge.set_output_node(op, "out", x)
        return
    axis = op.attr("dim") % len(shape)
    pieces = opset15.split(x, bridge.full(axis, "int64"), shape[axis]).outputs()
    products = [pieces[0]]
    for piece in pieces[1:]:
        products.append(opset15.multiply(products[-1], piece).output(0))
    bridge.set_output_node(op, "out", opset15.concat(products, axis))


@converter("pd_op.cumprod_grad", limits=[_SHORT_AXIS, _NOT_EXCLUSIVE])
def cumprod_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad[i] = out[i - 1] s[i]`` with ``s[i] = out_grad[i] + x[i + 1] s[i + 1]``.

    (Paddle ``cumprod_grad``, written as a recurrence.)
    """
    x, out = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out")
    grad = bridge.get_input_node(op, "out_grad")
    shape = bridge.shape(x)
    if not shape or shape[op.attr("dim")] == 1:
        bridge.set_output_node(op, "x_grad", grad)
        return
    axis = op.attr("dim") % len(shape)
    along = bridge.full(axis, "int64")
    factors, products, grads = (
        opset15.split(node, along, shape[axis]).outputs() for node in (x, out, grad)
    )
    sums = [grads[-1]]
    for factor, piece in zip(reversed(factors[1:]), reversed(grads[:-1])):
        sums.append(opset15.add(piece, opset15.multiply(factor, sums[-1])).output(0))
    first, *rest = reversed(sums)
    pieces = [opset15.multiply(before, s) for before, s in zip(products, rest)]
    bridge.set_output_node(op, "x_grad", opset15.concat([first, *pieces], axis))


# -- extremes ------------------------------------------------------------------------------------


def _register_extreme(name: str, not_worse: Callable[[Any, Any], Node]) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x = bridge.get_input_node(op, "x")
        shape, dtype = bridge.shape(x), element_type(op.attr("dtype"))
        if not shape:
            bridge.set_output_node(op, "out", x)
            bridge.set_output_node(op, "indices", bridge.full(0, dtype))
            return
        axis = op.attr("axis") % len(shape)
        best, position = _running_best(bridge, x, axis, not_worse)
        bridge.set_output_node(op, "out", best)
        bridge.set_output_node(op, "indices", opset15.convert(position, dtype))

    def gradient(bridge: NgraphBridge, op: Op) -> None:
        grad = bridge.get_input_node(op, "out_grad")
        shape = bridge.shape(grad)
        if not shape:
            bridge.set_output_node(op, "x_grad", grad)
            return
        position = opset15.convert(bridge.get_input_node(op, "indices"), "i32")
        nothing = bridge.full(0.0, "float32", shape)
        axis = bridge.full(op.attr("axis") % len(shape), "int64")
        found = opset15.scatter_elements_update(nothing, position, grad, axis, reduction="sum")
        bridge.set_output_node(op, "x_grad", found)

    converter(f"pd_op.{name}", small_integers=True)(convert)
    converter(f"pd_op.{name}_grad", inputs={"indices": Role.INDEX, "x": Role.SHAPE_ONLY})(gradient)


def _running_best(
    bridge: NgraphBridge, x: NodeInput, axis: int, not_worse: Callable[[Any, Any], Node]
) -> tuple[Any, Any]:
    """The best element up to each index along ``axis``, and its index: the last of several.

    A NaN is better than any value. Each step covers twice the range of the previous one.
    """
    shape = bridge.shape(x)
    length, along = shape[axis], bridge.ints([axis])
    positions = [length if i == axis else 1 for i in range(len(shape))]
    best_index: Any = opset15.constant(np.arange(length, dtype=np.float32))
    best_index = reshaped(bridge, best_index, positions)
    best_index = opset15.broadcast(best_index, bridge.ints(shape))
    best, step = x, 1

    def part(node: NodeInput, start: int, stop: int) -> Node:
        return opset15.slice(
            node, bridge.ints([start]), bridge.ints([stop]), bridge.ints([1]), along
        )

    while step < length:
        before, here = part(best, 0, length - step), part(best, step, length)
        number_before = opset15.equal(before, before)
        wins = opset15.logical_and(number_before, not_worse(here, before))
        wins = opset15.logical_or(wins, opset15.not_equal(here, here))
        index_here = opset15.select(
            wins, part(best_index, step, length), part(best_index, 0, length - step)
        )
        here = opset15.select(wins, here, before)
        best = opset15.concat([part(best, 0, step), here], axis)
        best_index = opset15.concat([part(best_index, 0, step), index_here], axis)
        step *= 2
    return best, best_index


_register_extreme("cummax", opset15.greater_equal)
_register_extreme("cummin", opset15.less_equal)
