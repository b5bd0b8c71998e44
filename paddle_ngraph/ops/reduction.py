"""Reductions along axes, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from openvino import Node, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.registry import (
    BOOL,
    FLOAT,
    INT32,
    INTEGER,
    MAX_AXIS_SIZE,
    Limit,
    Range,
    Role,
    converter,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import (
    keep_nan,
    known_int,
    known_ints,
    positions_along_axis,
    reduce_to,
    require_declared,
    reshaped,
    select_number,
    transposed,
)

Reduce = Callable[[NgraphBridge, Any, "list[int]", bool], Any]

# The largest count up to which float32 represents all integers.
_MAX_EXACT_COUNT = 2**24
# The value with which Paddle begins the search for a minimum; negated, for a maximum.
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_AXIS = {"axis": Role.CONSTANT}


def _is_summed(op: Op) -> bool:
    dtype, result = op.input("x").dtype, op.output("out").dtype
    return dtype == "bool" or result == ("float32" if dtype == "float32" else "int64")


_SUMMED = Limit(
    "its output neither has the dtype Paddle gives its sum nor counts booleans", _is_summed
)


def reduced_axes(bridge: NgraphBridge, op: Op, rank: int) -> list[int]:
    """The axes that ``op`` reduces, counted from 0 and in order; all axes if it specifies none."""
    if op.attr("reduce_all", False):
        return list(range(rank))
    if op.has_input("axis"):
        axes: Sequence[int] = known_ints(bridge, op, "axis")
    else:
        named = op.attr("axis", [])
        axes = named if isinstance(named, list) else [named]
    axes = [int(axis) for axis in axes if rank]
    # Axes that are known only in a build can be out of range; Paddle rejects them, too.
    if not all(-rank <= axis < rank for axis in axes):
        raise NgraphError(f"a reduction along axes {axes} of a tensor of rank {rank}")
    return sorted({axis % rank for axis in axes}) or list(range(rank))


def _keeps_dims(op: Op) -> bool:
    return bool(op.attr("keepdim", op.attr("keepdims", False)))


def _register(name: str, reduce: Reduce, by_attribute: bool = False, **options: Any) -> None:
    """Registers a forward reduction; its axes are input ``axis`` or, else, attribute ``axis``."""

    def convert(bridge: NgraphBridge, op: Op) -> None:
        x = bridge.get_input_node(op, "x")
        axes = reduced_axes(bridge, op, len(bridge.shape(x)))
        bridge.set_output_node(op, "out", reduce(bridge, x, axes, _keeps_dims(op)) if axes else x)

    converter(f"pd_op.{name}", inputs={} if by_attribute else _AXIS, **options)(convert)


def spread(bridge: NgraphBridge, op: Op, name: str) -> Any:
    """Input ``name``, of the shape of the reduced output, with its reduced axes restored as 1."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    for axis in reduced_axes(bridge, op, len(shape)):
        shape[axis] = 1
    return reshaped(bridge, bridge.get_input_node(op, name), shape)


def _full_size(bridge: NgraphBridge, op: Op, node: NodeInput) -> Any:
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    return node if bridge.shape(node) == shape else opset15.broadcast(node, bridge.ints(shape))


# -- sum and mean --------------------------------------------------------------------------------


def _sum(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Node:
    return opset15.reduce_sum(x, bridge.ints(axes), keep)


def _sum_range(op: Op, ranges: Mapping[str, Range]) -> Range:
    shape, named = op.input("x").shape, op.constants.get("axis")
    reduced = [shape[int(axis)] for axis in named] if named and shape else shape
    # For the range of the sum, a dynamic dimension has the maximum size; a build checks that.
    count = MAX_AXIS_SIZE if -1 in reduced else math.prod(reduced)
    low, high = ranges["x"]
    return min(low * count, low, 0), max(high * count, high, 0)


@converter(
    "pd_op.sum",
    dtypes=FLOAT | BOOL | INTEGER,
    inputs={"axis": Role.CONSTANT},
    limits=[_SUMMED],
    integers=_sum_range,
)
def sum(bridge: NgraphBridge, op: Op) -> None:
    """The sum over ``axis`` (Paddle ``sum``); of bools, the number that are true.

    Integers only where the sum is known to be representable in int32.
    """
    x = bridge.get_input_node(op, "x")
    shape, dtype = bridge.shape(x), element_type(op.output("out").dtype)
    axes = reduced_axes(bridge, op, len(shape))
    if not x.get_element_type().is_real():
        require_declared(bridge, op, axes)
    if x.get_element_type() in (Type.i32, Type.i64):
        bridge.set_output_node(op, "out", _integer_sum(bridge, op, opset15.convert(x, dtype), axes))
        return
    if x.get_element_type() == Type.boolean:
        if math.prod(shape) > _MAX_EXACT_COUNT:
            raise NgraphError("it counts more elements than float32 can")
        x = select_number(x)
    out = _sum(bridge, x, axes, _keeps_dims(op)) if axes else x
    bridge.set_output_node(op, "out", out if dtype == Type.f32 else opset15.convert(out, dtype))


def _integer_sum(bridge: NgraphBridge, op: Op, x: NodeInput, axes: list[int]) -> Any:
    """A sum of integers by CumSum: the engine's ReduceSum of integers runs in float32."""
    shape = bridge.shape(x)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    count = math.prod(shape[axis] for axis in axes)
    if count > MAX_AXIS_SIZE:
        raise NgraphError("the sum of this many integers needs 64 bits")
    rows = transposed(bridge, x, [*others, *axes])
    rows = reshaped(bridge, rows, [math.prod(shape[axis] for axis in others), count])
    sums = opset15.cum_sum(rows, bridge.full(1, "int64"))
    out = opset15.gather(sums, bridge.full(count - 1, "int64"), bridge.full(1, "int64"))
    shape_after = [1 if axis in axes else size for axis, size in enumerate(shape)]
    return reshaped(
        bridge, out, shape_after if _keeps_dims(op) else [shape[axis] for axis in others]
    )


@converter("pd_op.reduce_as", inputs={"target": Role.SHAPE_ONLY})
def reduce_as(bridge: NgraphBridge, op: Op) -> None:
    """``x`` summed over axes until it has the shape of ``target`` (Paddle ``reduce_as``)."""
    shape = bridge.shape(bridge.get_input_node(op, "target"))
    bridge.set_output_node(op, "out", reduce_to(bridge, bridge.get_input_node(op, "x"), shape))


@converter("pd_op.reduce_as_grad", inputs={"x": Role.SHAPE_ONLY, "target": Role.SHAPE_ONLY})
def reduce_as_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` broadcast to the shape of ``x`` (Paddle ``reduce_as_grad``)."""
    bridge.set_output_node(
        op, "x_grad", _full_size(bridge, op, bridge.get_input_node(op, "out_grad"))
    )


def _mean(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Node:
    return opset15.reduce_mean(x, bridge.ints(axes), keep)


_register("mean", _mean)
_register("mean_all", _mean, by_attribute=True)


@converter("pd_op.sum_grad", inputs={"axis": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def sum_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` broadcast to the shape of ``x`` (Paddle ``sum_grad``)."""
    bridge.set_output_node(op, "x_grad", _full_size(bridge, op, spread(bridge, op, "out_grad")))


@converter("pd_op.mean_grad", inputs={"axis": Role.CONSTANT, "x": Role.SHAPE_ONLY})
@converter("pd_op.mean_all_grad", inputs={"x": Role.SHAPE_ONLY})
def mean_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad / n`` broadcast to the shape of ``x``; ``n`` elements per mean."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    count = math.prod(shape[axis] for axis in reduced_axes(bridge, op, len(shape)))
    share = opset15.divide(spread(bridge, op, "out_grad"), bridge.full(count, "float32"))
    bridge.set_output_node(op, "x_grad", _full_size(bridge, op, share))


# -- max and min ---------------------------------------------------------------------------------


def _extreme(mode: str) -> Reduce:
    def reduce(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Any:
        # The engine's ReduceMax starts at the smallest finite number, so its maximum of only
        # minus infinities is finite. TopK is as fast and exact. Both lose NaN; the sum of absolute
        # values does not.
        out = x
        for axis in axes:
            out = opset15.topk(out, bridge.full(1, "int64"), axis, mode, "none").output(0)
        if not keep:
            shape = [dim for i, dim in enumerate(bridge.shape(x)) if i not in axes]
            out = reshaped(bridge, out, shape)
        if x.get_element_type() != Type.f32:
            return out
        return keep_nan(opset15.reduce_l1(x, bridge.ints(axes), keep), out)

    return reduce


def _register_extreme(name: str, mode: str) -> None:
    def share_among_ties(bridge: NgraphBridge, op: Op) -> None:
        hits = _extreme_mask(bridge, op)
        shape = bridge.shape(hits)
        axes = reduced_axes(bridge, op, len(shape))
        grad = opset15.multiply(spread(bridge, op, "out_grad"), hits)
        # Paddle counts no ties along axes of size 1, which shows for NaN, as it equals no element.
        if math.prod(shape) == 1 or any(shape[axis] > 1 for axis in axes):
            count = opset15.reduce_sum(hits, bridge.ints(axes), True) if axes else hits
            grad = opset15.divide(grad, count)
        bridge.set_output_node(op, "x_grad", grad)

    for variant, by_attribute in ((name, False), (f"a{name}", True)):
        _register(variant, _extreme(mode), by_attribute, dtypes=FLOAT | INT32)
        inputs = {} if by_attribute else _AXIS
        converter(f"pd_op.{variant}_grad", inputs=inputs)(share_among_ties)


def _extreme_mask(bridge: NgraphBridge, op: Op) -> Node:
    """A float mask of the elements of ``x`` that equal the maximum or minimum ``out``."""
    hit = opset15.equal(bridge.get_input_node(op, "x"), spread(bridge, op, "out"))
    return select_number(hit)


_register_extreme("max", "max")
_register_extreme("min", "min")


def _first_index(bridge: NgraphBridge, x: NodeInput, axis: int, mode: str) -> Node:
    """The index of the largest or smallest element along ``axis``, the first one of several.

    As in Paddle a NaN is never the result, and -inf (for the smallest: inf) is treated as the
    lowest (largest) finite value, from which Paddle's search starts.
    """
    if bridge.on_cpu:
        return bridge.extension("ArgMax", [x if mode == "max" else opset15.negative(x)], axis=axis)
    start = bridge.full(-_FLOAT32_MAX if mode == "max" else _FLOAT32_MAX, "float32")
    better = opset15.maximum if mode == "max" else opset15.minimum
    x = opset15.select(opset15.equal(x, x), better(x, start), start)
    one = bridge.full(1, "int64")
    return opset15.topk(x, one, axis, mode, "value", Type.i32, stable=True).output(1)


def _register_index(name: str, mode: str) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x = bridge.get_input_node(op, "x")
        shape = bridge.shape(x)
        keep = _keeps_dims(op)
        if op.attr("flatten", False) or not shape:
            shape_after = [1] * len(shape) if keep else []
            require_declared(bridge, op, range(len(shape)))
            x, axis = reshaped(bridge, x, [-1]), 0
        else:
            axis = known_int(bridge, op, "axis") % len(shape)
            require_declared(bridge, op, [axis])
            shape_after = [
                1 if i == axis else dim for i, dim in enumerate(shape) if keep or i != axis
            ]
        found = _first_index(bridge, x, axis, mode)
        found = reshaped(bridge, found, shape_after)
        dtype = element_type(op.output("out").dtype)
        bridge.set_output_node(op, "out", opset15.convert(found, dtype))

    converter(
        f"pd_op.{name}",
        inputs={"axis": Role.CONSTANT},
        small_integers=True,
        integers=positions_along_axis,
        kept_for="the range of the indices, with which programs compute",
    )(convert)


_register_index("argmax", "max")
_register_index("argmin", "min")


# -- prod, logsumexp, all, any -------------------------------------------------------------------


def _prod(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Node:
    return opset15.reduce_prod(x, bridge.ints(axes), keep)


def _all(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Node:
    return opset15.reduce_logical_and(x, bridge.ints(axes), keep)


def _any(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Node:
    return opset15.reduce_logical_or(x, bridge.ints(axes), keep)


def _logsumexp(bridge: NgraphBridge, x: NodeInput, axes: list[int], keep: bool) -> Node:
    top = _extreme("max")(bridge, x, axes, True)
    shifted = opset15.subtract(x, top)
    total = opset15.reduce_sum(keep_nan(shifted, opset15.exp(shifted)), bridge.ints(axes), True)
    out = opset15.add(opset15.log(total), top)
    if keep:
        return out
    shape = [dim for i, dim in enumerate(bridge.shape(x)) if i not in axes]
    return reshaped(bridge, out, shape)


_register("prod", _prod)
# For dtypes other than bool, Paddle declares their dtype for the output, but writes bools.
_register("all", _all, by_attribute=True, dtypes=BOOL)
_register("any", _any, by_attribute=True, dtypes=BOOL)
_register("logsumexp", _logsumexp, by_attribute=True)


@converter("pd_op.prod_grad", inputs={"axis": Role.CONSTANT})
def prod_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * out / x`` (Paddle ``prod_grad``)."""
    product = opset15.multiply(spread(bridge, op, "out_grad"), spread(bridge, op, "out"))
    x = bridge.get_input_node(op, "x")
    inverse = opset15.divide(bridge.full(1.0, "float32"), x)
    bridge.set_output_node(op, "x_grad", opset15.multiply(product, inverse))


@converter("pd_op.logsumexp_grad")
def logsumexp_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * exp(x - out)`` (Paddle ``logsumexp_grad``)."""
    distance = opset15.subtract(bridge.get_input_node(op, "x"), spread(bridge, op, "out"))
    share = keep_nan(distance, opset15.exp(distance))
    grad = spread(bridge, op, "out_grad")
    bridge.set_output_node(op, "x_grad", opset15.multiply(grad, share))
