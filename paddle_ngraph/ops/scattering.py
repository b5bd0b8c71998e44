"""Values written at indices: scatter, put_along_axis, index_add, index_put, slice assignment.

For a duplicate index the last value wins in Paddle; the engine writes in any order, so the winning
values are determined first. Indices out of range are rejected before a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from openvino import Node, Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.node_tools import select
from paddle_ngraph.conversion.registry import (
    ANY,
    BOOL,
    FLOAT,
    INT32,
    Limit,
    Range,
    Role,
    converter,
    range_of,
)
from paddle_ngraph.conversion.size_rules import broadcast_shapes
from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.indexing import nd_positions
from paddle_ngraph.ops.nodes import (
    axis_first,
    axis_of,
    broadcast_to,
    reduce_to,
    reshaped,
    transposed,
)
from paddle_ngraph.ops.slicing import Positions, slice_ranges, sliced

# -- rows ------------------------------------------------------------------------------------------


@converter("pd_op.scatter", "pd_op.scatter_", dtypes=FLOAT | INT32, inputs={"index": Role.INDEX})
def scatter(bridge: NgraphBridge, op: Op) -> None:
    """``out = x`` with rows ``index`` replaced by ``updates`` (Paddle ``scatter``).

    Without ``overwrite`` the rows become the sums of their updates.
    """
    x = bridge.get_input_node(op, "x")
    indices = _rows(bridge, op, "index", bridge.shape(x)[0])
    updates = _updates(bridge, indices, bridge.get_input_node(op, "updates"), bridge.shape(x))
    if op.attr("overwrite"):
        node = _assigned(bridge, x, indices, updates)
    else:
        cleared = _cleared(bridge, x, indices, bridge.shape(updates))
        node = opset15.scatter_nd_update(cleared, indices, updates, "sum")
    bridge.set_output_node(op, "out", node)


@converter("pd_op.scatter_grad", inputs={"index": Role.INDEX, "updates": Role.SHAPE_ONLY})
def scatter_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: ``out_grad`` with 0 in rows ``index``; ``updates_grad``: these rows."""
    out_grad = bridge.get_input_node(op, "out_grad")
    indices = _rows(bridge, op, "index", bridge.shape(out_grad)[0])
    taken = opset15.gather_nd(out_grad, indices)
    if op.has_output("x_grad"):
        cleared = _cleared(bridge, out_grad, indices, bridge.shape(taken))
        bridge.set_output_node(op, "x_grad", cleared)
    shape = bridge.shape(bridge.get_input_node(op, "updates"))
    bridge.set_output_node(op, "updates_grad", reshaped(bridge, taken, shape))


@converter("pd_op.scatter_nd_add", dtypes=FLOAT | INT32, inputs={"index": Role.INDEX})
def scatter_nd_add(bridge: NgraphBridge, op: Op) -> None:
    """``x`` with ``updates`` added at ``index`` (Paddle ``scatter_nd_add``)."""
    x = bridge.get_input_node(op, "x")
    indices = nd_positions(bridge, op, bridge.shape(x))
    updates = bridge.get_input_node(op, "updates")
    bridge.set_output_node(op, "out", opset15.scatter_nd_update(x, indices, updates, "sum"))


@converter("pd_op.scatter_nd_add_grad", inputs={"index": Role.INDEX, "updates": Role.SHAPE_ONLY})
def scatter_nd_add_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad``, ``updates_grad = out_grad[index]`` (``scatter_nd_add_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    indices = nd_positions(bridge, op, bridge.shape(out_grad))
    bridge.set_output_node(op, "x_grad", out_grad)
    bridge.set_output_node(op, "updates_grad", opset15.gather_nd(out_grad, indices))


@converter(
    "pd_op.index_add", "pd_op.index_add_", dtypes=FLOAT | INT32, inputs={"index": Role.INDEX}
)
def index_add(bridge: NgraphBridge, op: Op) -> None:
    """``x`` with ``add_value`` added at ``index`` along ``axis`` (Paddle ``index_add``)."""
    x = bridge.get_input_node(op, "x")
    rank = len(bridge.shape(x))
    axis = axis_of(op.attr("axis"), rank)
    indices = _rows(bridge, op, "index", bridge.shape(x)[axis])
    order = axis_first(axis, rank)
    rows = transposed(bridge, bridge.get_input_node(op, "add_value"), order)
    node = opset15.scatter_nd_update(transposed(bridge, x, order), indices, rows, "sum")
    bridge.set_output_node(op, "out", transposed(bridge, node, order, back=True))


@converter("pd_op.index_add_grad", inputs={"index": Role.INDEX, "add_value": Role.SHAPE_ONLY})
def index_add_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad``; ``add_value_grad``: its slices at ``index`` (``index_add_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    dims = bridge.shape(out_grad)
    axis = axis_of(op.attr("axis"), len(dims))
    bridge.integers.require_range(op, "index", -dims[axis], dims[axis])
    index = reshaped(bridge, bridge.get_input_node(op, "index"), [-1])
    bridge.set_output_node(op, "x_grad", out_grad)
    bridge.set_output_node(
        op, "add_value_grad", opset15.gather(out_grad, index, bridge.full(axis, "int64"))
    )


def _rows(bridge: NgraphBridge, op: Op, name: str, size: int) -> Any:
    """The input ``name``, indices of an axis of ``size``, reshaped to [n, 1] and range-checked."""
    bridge.integers.require_range(op, name, -size, size)
    return reshaped(bridge, bridge.get_input_node(op, name), [-1, 1])


def _updates(bridge: NgraphBridge, indices: Any, values: Any, shape: Sequence[int]) -> Any:
    """``values`` in the shape of updates at ``indices`` of a tensor of ``shape``."""
    count, depth = bridge.shape(indices)
    return reshaped(bridge, values, [count, *shape[depth:]])


def _cleared(bridge: NgraphBridge, x: NodeInput, indices: Any, shape: Sequence[int]) -> Node:
    """``x`` with 0 at ``indices``. ``shape`` is the shape of the elements at the indices."""
    zeros = bridge.full(0, x.get_element_type(), shape)
    return opset15.scatter_nd_update(x, indices, zeros)


def _assigned(bridge: NgraphBridge, x: NodeInput, indices: Any, updates: NodeInput) -> Node:
    """``x`` with ``updates[i]`` at ``indices[i]``; of equal indices the last update is written."""
    count, depth = bridge.shape(indices)
    if count > 1:
        # Each update is replaced by the last one with an equal index, so that the order in which
        # ScatterNDUpdate writes duplicate indices has no effect.
        last = opset15.gather_nd(_last_update(bridge, bridge.shape(x)[:depth], indices), indices)
        updates = opset15.gather(updates, last, bridge.full(0, "int64"))
    return opset15.scatter_nd_update(x, indices, updates)


def _last_update(bridge: NgraphBridge, shape: Sequence[int], indices: Any) -> Node:
    """For every index of ``shape``, the number of the last update of it; -1 where there is none."""
    count = bridge.shape(indices)[0]
    numbers = opset15.constant(np.arange(count, dtype=np.int32))
    return opset15.scatter_nd_update(bridge.full(-1, Type.i32, shape), indices, numbers, "max")


# -- single elements along an axis -----------------------------------------------------------------

_REDUCTIONS = {
    "add": "sum",
    "mean": "sum",
    "mul": "prod",
    "multiply": "prod",
    "amin": "min",
    "amax": "max",
}
_EXTREMES = ("amin", "amax")
# Without ``include_self``, Paddle's extremes have another rule for NaN: only that of the first
# value counts.
_KNOWN_REDUCTION = Limit(
    "reduce must be assign, add, multiply or mean, or amin or amax with include_self",
    lambda op: (
        op.attr("reduce") in {"assign", *_REDUCTIONS}
        and (op.attr("include_self") or op.attr("reduce") not in _EXTREMES)
    ),
)
_FLOAT_MEAN = Limit(
    "it takes the mean of integers",
    lambda op: op.attr("reduce") != "mean" or op.input("arr").dtype == "float32",
)
_KNOWN_GRADIENT = Limit(
    "reduce must be assign or add with include_self, or mean",
    lambda op: (
        op.attr("reduce") == "mean"
        or (op.attr("reduce") in ("assign", "add") and op.attr("include_self"))
    ),
)


@converter(
    "pd_op.put_along_axis",
    "pd_op.put_along_axis_",
    dtypes=FLOAT | INT32,
    inputs={"indices": Role.INDEX},
    limits=[_KNOWN_REDUCTION, _FLOAT_MEAN],
)
def put_along_axis(bridge: NgraphBridge, op: Op) -> None:
    """``out[i, indices[i, j]] = values[i, j]`` for axis 1, and so on (``put_along_axis``).

    With ``reduce`` add, multiply, mean, amin or amax, all values of an index are combined,
    and with ``include_self`` the existing value too. ``values`` may be larger than ``indices``; the
    excess is ignored.
    """
    arr = bridge.get_input_node(op, "arr")
    shape = bridge.shape(arr)
    indices = _flat_indices(bridge, op, shape)
    dims = bridge.shape(bridge.get_input_node(op, "indices"))
    values = _leading_elements(bridge, bridge.get_input_node(op, "values"), dims)
    values = reshaped(bridge, values, [-1])
    line: Any = reshaped(bridge, arr, [-1])
    if op.attr("reduce") == "assign":
        node = _assigned(bridge, line, indices, values)
    else:
        reduction = _REDUCTIONS[op.attr("reduce")]
        if not op.attr("include_self"):
            neutral = bridge.full(0 if reduction == "sum" else 1, line.get_element_type())
            start = broadcast_to(bridge, neutral, bridge.shape(values))
            line = opset15.scatter_nd_update(line, indices, start)
        node = opset15.scatter_nd_update(line, indices, values, reduction)
        if op.attr("reduce") == "mean":
            node = opset15.divide(node, _mean_counts(bridge, op, bridge.shape(line), indices))
    bridge.set_output_node(op, "out", reshaped(bridge, node, shape))


def _mean_counts(bridge: NgraphBridge, op: Op, shape: Sequence[int], indices: Any) -> Node:
    """The number of values that are averaged in each element; 1 in elements that do not change."""
    include_self = op.attr("include_self")
    start = bridge.full(1.0 if include_self else 0.0, Type.f32, shape)
    ones = bridge.full(1.0, Type.f32, [bridge.shape(indices)[0]])
    counts = opset15.scatter_nd_update(start, indices, ones, "sum")
    return counts if include_self else opset15.maximum(counts, bridge.full(1.0, Type.f32))


def _leading_elements(bridge: NgraphBridge, node: NodeInput, dims: Sequence[int]) -> Any:
    """The elements of ``node`` with index less than ``dims[i]`` along each axis ``i``."""
    if bridge.shape(node) == list(dims):
        return node
    axes = range(len(dims))
    start, step = bridge.ints([0] * len(dims)), bridge.ints([1] * len(dims))
    return opset15.slice(node, start, bridge.ints(dims), step, bridge.ints(axes))


@converter(
    "pd_op.put_along_axis_grad",
    inputs={
        "indices": Role.INDEX,
        "arr": Role.SHAPE_ONLY,
        "values": Role.SHAPE_ONLY,
        "out": Role.SHAPE_ONLY,
    },
    limits=[_KNOWN_GRADIENT],
)
def put_along_axis_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`put_along_axis` (Paddle ``put_along_axis_grad``).

    With assignment, each element of ``out_grad`` goes to the last value of that index, or to
    ``arr`` if there is none; with addition, to all of them; with a mean, in equal shares to the
    values of that index.
    """
    out_grad = bridge.get_input_node(op, "out_grad")
    shape = bridge.shape(out_grad)
    indices = _flat_indices(bridge, op, shape)
    line = reshaped(bridge, out_grad, [-1])
    count = bridge.shape(indices)[0]
    if op.attr("reduce") == "mean":
        line = opset15.divide(line, _mean_counts(bridge, op, bridge.shape(line), indices))
    taken: Any = opset15.gather_nd(line, indices)
    rest: Any = reshaped(bridge, line, shape)
    if op.attr("reduce") == "assign":
        last = opset15.gather_nd(_last_update(bridge, [math.prod(shape)], indices), indices)
        numbers = opset15.constant(np.arange(count, dtype=np.int32))
        # Compares the difference with 0, because the engine compares integers as float32; the
        # difference is exact.
        stays = opset15.equal(opset15.subtract(last, numbers), opset15.constant(0, Type.i32))
        taken = opset15.select(stays, taken, bridge.full(0.0, Type.f32))
    if op.attr("reduce") == "assign" or not op.attr("include_self"):
        rest = reshaped(bridge, _cleared(bridge, line, indices, [count]), shape)
    if op.has_output("arr_grad"):
        bridge.set_output_node(op, "arr_grad", rest)
    dims = bridge.shape(bridge.get_input_node(op, "indices"))
    bridge.set_output_node(op, "values_grad", reshaped(bridge, taken, dims))


def _flat_indices(bridge: NgraphBridge, op: Op, shape: Sequence[int]) -> Node:
    """Input ``indices``, along an axis, as flat indices into a tensor of ``shape``: [n, 1]."""
    axis = axis_of(op.attr("axis"), len(shape))
    bridge.integers.require_range(op, "indices", 0, shape[axis])
    return reshaped(
        bridge, line_positions(bridge, bridge.get_input_node(op, "indices"), shape, axis), [-1, 1]
    )


def line_positions(bridge: NgraphBridge, index: NodeInput, shape: Sequence[int], axis: int) -> Any:
    """Indices along ``axis`` as flat (row-major) indices into a tensor of ``shape``."""
    dims = bridge.shape(index)
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    grids = np.ogrid[tuple(slice(dim) for dim in dims)]
    others = [grid * step for i, (grid, step) in enumerate(zip(grids, steps)) if i != axis]
    start = np.broadcast_to(sum(others, np.zeros([1] * len(dims), np.int64)), dims)
    node = opset15.convert(index, Type.i32) if index.get_element_type() != Type.i32 else index
    if steps[axis] != 1:
        node = opset15.multiply(node, opset15.constant(steps[axis], Type.i32))
    return opset15.add(node, opset15.constant(start.astype(np.int32)))


# -- by one index tensor for each leading axis -----------------------------------------------------


def _range_of_both(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    """A range that contains the written values and the existing values."""
    if op.attr("accumulate"):
        return None
    written = op.attr("values")
    both = [*ranges.values(), *([range_of(written)] if written else [])]
    known = [found for found in both if found is not None]
    return range_of(chain(*known)) if len(known) == len(both) else None


def _is_mask(op: Op) -> bool:
    return op.inputs["indices"][0].dtype == "bool"


_ONE_MASK = Limit(
    "a mask must be the only index, and the written value a scalar",
    lambda op: (
        all(spec.dtype != "bool" for spec in op.inputs["indices"])
        or (len(op.inputs["indices"]) == 1 and set(op.input("value").shape) <= {1})
    ),
)


@converter(
    "pd_op.index_put",
    "pd_op.index_put_",
    dtypes=ANY,
    inputs={"indices": Role.INDEX},
    limits=[_ONE_MASK],
    integers=_range_of_both,
    unchecked=["indices"],
)
def index_put(bridge: NgraphBridge, op: Op) -> None:
    """``out = x``, but ``value`` at ``x[indices]``, or plus it (Paddle ``index_put``).

    ``indices`` are one mask, or index tensors for the leading axes that broadcast to one shape.
    """
    x, value = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "value")
    if _is_mask(op):
        # Checked in a build: the value may have another shape than the program declares.
        if any(size != 1 for size in bridge.shape(value)):
            raise NgraphError("a mask writes more than a scalar")
        put = opset15.add(x, value) if op.attr("accumulate") else value
        put = reshaped(bridge, put, []) if bridge.shape(put) == [1] else put
        bridge.set_output_node(op, "out", select(_mask(bridge, op, x), put, x))
        return
    shape = bridge.shape(x)
    indices, dims = _broadcast_indices(bridge, op, shape)
    depth = len(op.inputs["indices"])
    updates = broadcast_to(bridge, value, [*dims, *shape[depth:]])
    updates = _updates(bridge, indices, updates, shape)
    if op.attr("accumulate"):
        node = opset15.scatter_nd_update(x, indices, updates, "sum")
    else:
        node = _assigned(bridge, x, indices, updates)
    bridge.set_output_node(op, "out", node)


@converter(
    "pd_op.index_put_grad",
    dtypes=FLOAT | BOOL,
    inputs={"indices": Role.INDEX, "x": Role.SHAPE_ONLY, "value": Role.SHAPE_ONLY},
    limits=[_ONE_MASK],
    unchecked=["indices"],
)
def index_put_grad(bridge: NgraphBridge, op: Op) -> None:
    """``value_grad = out_grad[indices]``; ``x_grad``: 0 at ``indices`` (``index_put_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    shape = bridge.shape(out_grad)
    zero = bridge.full(0.0, Type.f32)
    if _is_mask(op):
        mask = _mask(bridge, op, out_grad)
        rest: Any = opset15.select(mask, zero, out_grad)
        taken: Any = opset15.select(mask, out_grad, zero)
    else:
        indices, dims = _broadcast_indices(bridge, op, shape)
        found = opset15.gather_nd(out_grad, indices)
        rest = _cleared(bridge, out_grad, indices, bridge.shape(found))
        taken = reshaped(bridge, found, [*dims, *shape[len(op.inputs["indices"]) :]])
    if op.has_output("x_grad"):
        bridge.set_output_node(op, "x_grad", out_grad if op.attr("accumulate") else rest)
    if op.has_output("value_grad"):
        target = bridge.shape(bridge.get_input_node(op, "value"))
        bridge.set_output_node(op, "value_grad", reduce_to(bridge, taken, target))


def _mask(bridge: NgraphBridge, op: Op, x: NodeInput) -> Any:
    mask = bridge.get_input_node(op, "indices")
    dims = bridge.shape(mask)
    return reshaped(bridge, mask, [*dims, *[1] * (len(bridge.shape(x)) - len(dims))])


def _broadcast_indices(
    bridge: NgraphBridge, op: Op, shape: Sequence[int]
) -> tuple[Node | Output, list[int]]:
    """The index tensors broadcast to one shape, as columns of a matrix; and that shape."""
    nodes: list[Any] = bridge.get_input_nodes(op, "indices")
    dims = broadcast_shapes(*map(bridge.shape, nodes))
    count = math.prod(dims)
    columns = []
    for position, size in enumerate(shape[: len(nodes)]):
        bridge.integers.require_range(op, "indices", -size, size, position=position)
        node = bridge.get_input_node(op, "indices", position)
        columns.append(reshaped(bridge, broadcast_to(bridge, node, dims), [count, 1]))
    return (opset15.concat(columns, 1) if len(columns) > 1 else columns[0]), dims


# -- slices ----------------------------------------------------------------------------------------


def _set_value(bridge: NgraphBridge, op: Op, value: NodeInput) -> None:
    x = bridge.get_input_node(op, "x")
    ranges = slice_ranges(bridge, op, bridge.shape(x))
    target = _assigned_shape(op, ranges)
    dims = bridge.shape(value)
    value = reshaped(bridge, value, dims[max(0, len(dims) - len(target)) :])
    value = broadcast_to(bridge, value, target)
    value = reshaped(bridge, value, [taken.count for taken in ranges])
    bridge.set_output_node(op, "out", _with_slice(bridge, x, ranges, value))


@converter(
    "pd_op.set_value",
    "pd_op.set_value_",
    dtypes=ANY,
    inputs={"starts": Role.CONSTANT, "ends": Role.CONSTANT, "steps": Role.CONSTANT},
    integers=_range_of_both,
    open_starts=True,
)
def set_value(bridge: NgraphBridge, op: Op) -> None:
    """``x[starts:ends:steps] = values``, which are an attribute (Paddle ``set_value``)."""
    dtype = bridge.get_input_node(op, "x").get_element_type()
    values = np.array(op.attr("values")).astype(dtype.to_dtype()).reshape(op.attr("shape"))
    _set_value(bridge, op, opset15.constant(values, dtype))


@converter(
    "pd_op.set_value_with_tensor",
    "pd_op.set_value_with_tensor_",
    dtypes=ANY,
    inputs={"starts": Role.CONSTANT, "ends": Role.CONSTANT, "steps": Role.CONSTANT},
    integers=_range_of_both,
    open_starts=True,
)
def set_value_with_tensor(bridge: NgraphBridge, op: Op) -> None:
    """``x[starts:ends:steps] = values``, a broadcast tensor (``set_value_with_tensor``)."""
    _set_value(bridge, op, bridge.get_input_node(op, "values"))


@converter("pd_op.set_value_grad")
def set_value_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad``, also inside the slice, as in Paddle (``set_value_grad``)."""
    bridge.set_output_node(op, "x_grad", bridge.get_input_node(op, "out_grad"))


_NO_NEW_AXES = Limit("the assigned slice has new axes", lambda op: not op.attr("none_axes"))


@converter(
    "pd_op.set_value_with_tensor_grad",
    inputs={
        "starts": Role.CONSTANT,
        "ends": Role.CONSTANT,
        "steps": Role.CONSTANT,
        "values": Role.SHAPE_ONLY,
    },
    limits=[_NO_NEW_AXES],
)
def set_value_with_tensor_grad(bridge: NgraphBridge, op: Op) -> None:
    """``values_grad``: the slice of ``out_grad``; ``x_grad``: ``out_grad`` with 0 in the slice."""
    out_grad = bridge.get_input_node(op, "out_grad")
    ranges = slice_ranges(bridge, op, bridge.shape(out_grad))
    if op.has_output("x_grad"):
        zeros = bridge.full(0.0, Type.f32, [taken.count for taken in ranges])
        bridge.set_output_node(op, "x_grad", _with_slice(bridge, out_grad, ranges, zeros))
    if op.has_output("values_grad"):
        target = _assigned_shape(op, ranges)
        taken = reshaped(bridge, sliced(bridge, out_grad, ranges), target)
        shape = bridge.shape(bridge.get_input_node(op, "values"))
        surplus = max(0, len(shape) - len(target))
        summed = reduce_to(bridge, taken, shape[surplus:])
        bridge.set_output_node(op, "values_grad", reshaped(bridge, summed, shape))


def _assigned_shape(op: Op, ranges: Sequence[Positions]) -> list[Number]:
    """The shape that ``x[starts:ends:steps]`` has in Python: without integers, with new axes."""
    new = list(op.attr("none_axes"))
    shape: list[Number] = []
    for axis, taken in enumerate(ranges):
        shape += [1] * sum(1 for new_axis in new if new_axis == axis)
        if axis not in op.attr("decrease_axes"):
            shape.append(taken.count)
    return shape + [1] * sum(1 for new_axis in new if new_axis >= len(ranges))


def _with_slice(
    bridge: NgraphBridge, x: NodeInput, ranges: Sequence[Positions], value: NodeInput
) -> Any:
    """``x`` with ``value`` written to the slice that ``ranges`` describes, one for each axis."""
    dims = bridge.shape(x)
    if any(taken.are_none() for taken in ranges):
        return x
    partial = [axis for axis, dim in enumerate(dims) if not ranges[axis].are_all(dim)]
    if not partial:
        return value
    axis = partial[0]
    taken = ranges[axis]
    if len(partial) > 1:
        alone = [taken if i == axis else Positions(0, dim) for i, dim in enumerate(dims)]
        inner = [Positions(0, taken.count) if i == axis else r for i, r in enumerate(ranges)]
        value = _with_slice(bridge, sliced(bridge, x, alone), inner, value)
    if taken.step != 1 and taken.count > 1:
        size, indices = int(dims[axis]), taken.fixed()
        order = np.arange(size)
        order[list(indices)] = size + np.arange(len(indices))
        both = opset15.concat([x, value], axis)
        return opset15.gather(both, bridge.ints(order.tolist()), bridge.full(axis, "int64"))
    if taken.has_dynamic_start():
        axis_node = bridge.full(axis, "int64")
        return opset15.scatter_update(x, taken.node(bridge), value, axis_node)
    first, last = taken.start, taken.start + taken.count
    parts = [value]
    if first:
        before = [Positions(0, first if i == axis else dim) for i, dim in enumerate(dims)]
        parts.insert(0, sliced(bridge, x, before))
    if last < dims[axis]:
        after = [
            Positions(last, dim - last) if i == axis else Positions(0, dim)
            for i, dim in enumerate(dims)
        ]
        parts.append(sliced(bridge, x, after))
    return opset15.concat(parts, axis)
