"""Shapes and positions: reshape, transpose, concat, slice, expand, pad and their kin.

Shapes are concrete while a function is built, so most gradients only need the shape of the forward
input, never its contents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Node, Output, opset15

from paddle_ngraph.bridge import NgraphBridge
from paddle_ngraph.graph import Op
from paddle_ngraph.ops.nodes import (
    axis_first,
    axis_of,
    broadcast_to,
    known_int,
    known_ints,
    reduce_to,
    reshaped,
    transposed,
)
from paddle_ngraph.ops.spatial import AxisMap
from paddle_ngraph.registry import ANY, BOOL, FLOAT, INT32, KNOWN, Limit, converter

_MOVED = FLOAT | INT32 | BOOL

# -- the same elements in another shape ------------------------------------------------------------


@converter("pd_op.reshape", dtypes=ANY, constant=("shape",), moves=True)
@converter("pd_op.reshape_", dtypes=ANY, constant=("shape",), moves=True)
def reshape(bridge: NgraphBridge, op: Op) -> None:
    """``x`` in ``shape``; 0 keeps a dimension, -1 is what remains (Paddle ``reshape``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    shape = known_ints(bridge, op, "shape")
    shape = [dims[i] if dim == 0 else dim for i, dim in enumerate(shape)]
    if -1 in shape:
        rest = int(np.prod([dim for dim in shape if dim != -1], dtype=np.int64))
        shape[shape.index(-1)] = int(np.prod(dims, dtype=np.int64)) // max(rest, 1)
    bridge.set_output_node(op, "out", reshaped(bridge, x, shape))


@converter("pd_op.flatten", dtypes=ANY, moves=True)
@converter("pd_op.flatten_", dtypes=ANY, moves=True)
def flatten(bridge: NgraphBridge, op: Op) -> None:
    """Axes ``start_axis`` to ``stop_axis`` joined into one (Paddle ``flatten``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    start = axis_of(op.attr("start_axis"), len(dims))
    stop = axis_of(op.attr("stop_axis"), len(dims))
    joined = int(np.prod(dims[start : stop + 1], dtype=np.int64))
    bridge.set_output_node(
        op, "out", reshaped(bridge, x, [*dims[:start], joined, *dims[stop + 1 :]])
    )


@converter("pd_op.squeeze", dtypes=ANY, constant=("axis",), moves=True)
@converter("pd_op.squeeze_", dtypes=ANY, constant=("axis",), moves=True)
def squeeze(bridge: NgraphBridge, op: Op) -> None:
    """Without those dimensions of ``axis`` that are 1, or without any that is 1 (``squeeze``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axes = {axis_of(axis, len(dims)) for axis in known_ints(bridge, op, "axis")}
    axes = axes or set(range(len(dims)))
    kept = [dim for i, dim in enumerate(dims) if i not in axes or dim != 1]
    bridge.set_output_node(op, "out", reshaped(bridge, x, kept))


@converter("pd_op.unsqueeze", dtypes=ANY, constant=("axis",), moves=True)
@converter("pd_op.unsqueeze_", dtypes=ANY, constant=("axis",), moves=True)
def unsqueeze(bridge: NgraphBridge, op: Op) -> None:
    """With a dimension 1 put in at every ``axis``, one after the other (Paddle ``unsqueeze``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    for axis in known_ints(bridge, op, "axis"):
        dims.insert(axis_of(axis, len(dims) + 1), 1)
    bridge.set_output_node(op, "out", reshaped(bridge, x, dims))


def _reshape_like_x(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad`` in the shape of ``x``."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", reshaped(bridge, out_grad, dims))


for _type in ("reshape", "flatten"):
    for _suffix in ("_grad", "_grad_"):
        converter(f"pd_op.{_type}{_suffix}", unread=("x", "axis"))(_reshape_like_x)


def _not_one(shape: Sequence[int]) -> list[int]:
    return [i for i, dim in enumerate(shape) if dim != 1]


def _without_open_ones(op: Op) -> bool:
    shapes = op.input("out_grad").shape, op.output("x_grad").shape
    return len({len(_not_one(shape)) for shape in shapes}) == 1


_CLOSED = Limit("a dimension that it adds or removes is open", _without_open_ones)


# An old-style program hands on an ``x`` without contents and, in part, without a shape.
@converter("pd_op.squeeze_grad", ignored=("x", "axis"), limits=[_CLOSED])
@converter("pd_op.squeeze_grad_", ignored=("x", "axis"), limits=[_CLOSED])
@converter("pd_op.unsqueeze_grad", ignored=("x", "axis"), limits=[_CLOSED])
@converter("pd_op.unsqueeze_grad_", ignored=("x", "axis"), limits=[_CLOSED])
def squeeze_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad`` with dimensions 1 elsewhere (``squeeze_grad``, ``unsqueeze_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    dims = [1] * len(op.output("x_grad").shape)
    sources = _not_one(op.input("out_grad").shape)
    for target, source in zip(_not_one(op.output("x_grad").shape), sources):
        dims[target] = bridge.shape(out_grad)[source]
    bridge.set_output_node(op, "x_grad", reshaped(bridge, out_grad, dims))


@converter("pd_op.transpose", dtypes=ANY, moves=True)
@converter("pd_op.transpose_", dtypes=ANY, moves=True)
def transpose(bridge: NgraphBridge, op: Op) -> None:
    """Axis ``i`` of ``out`` is axis ``perm[i]`` of ``x`` (Paddle ``transpose``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", transposed(bridge, x, _order(op)))


@converter("pd_op.transpose_grad")
def transpose_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` with the axes put back (Paddle ``transpose_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", transposed(bridge, out_grad, _order(op), back=True))


def _order(op: Op) -> list[int]:
    perm = op.attr("perm")
    return [axis_of(axis, len(perm)) for axis in perm]


# -- many tensors and one --------------------------------------------------------------------------


@converter("pd_op.concat", dtypes=ANY, constant=("axis",), moves=True)
def concat(bridge: NgraphBridge, op: Op) -> None:
    """The tensors of ``x`` one after the other along ``axis`` (Paddle ``concat``)."""
    nodes = bridge.get_input_nodes(op, "x")
    axis = axis_of(known_int(bridge, op, "axis"), len(bridge.shape(nodes[0])))
    bridge.set_output_node(op, "out", opset15.concat(nodes, axis))


@converter("pd_op.concat_grad", constant=("axis",), unread=("x",))
def concat_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient is the part of ``out_grad`` that its tensor became (``concat_grad``)."""
    shapes = [bridge.shape(node) for node in bridge.get_input_nodes(op, "x")]
    axis = axis_of(known_int(bridge, op, "axis"), len(shapes[0]))
    out_grad = bridge.get_input_node(op, "out_grad")
    _set_parts(bridge, op, "x_grad", out_grad, axis, [shape[axis] for shape in shapes])


@converter("pd_op.stack", dtypes=ANY, moves=True)
def stack(bridge: NgraphBridge, op: Op) -> None:
    """The tensors of ``x`` one after the other along a new ``axis`` (Paddle ``stack``)."""
    _stack(bridge, op, "x", "out")


@converter("pd_op.unstack_grad")
def unstack_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad`` is the gradients of the parts, stacked (Paddle ``unstack_grad``)."""
    _stack(bridge, op, "out_grad", "x_grad")


def _stack(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    nodes = bridge.get_input_nodes(op, name_in)
    dims = bridge.shape(nodes[0])
    axis = axis_of(op.attr("axis"), len(dims) + 1)
    shape = [*dims[:axis], 1, *dims[axis:]]
    rows = [reshaped(bridge, node, shape) for node in nodes]
    bridge.set_output_node(op, name_out, opset15.concat(rows, axis))


@converter("pd_op.stack_grad", unread=("x",))
def stack_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient is one slice of ``out_grad`` along ``axis`` (Paddle ``stack_grad``)."""
    _unbind(bridge, op, "out_grad", "x_grad")


@converter("pd_op.unstack", dtypes=ANY, moves=True)
def unstack(bridge: NgraphBridge, op: Op) -> None:
    """One tensor for every position along ``axis`` (Paddle ``unstack``)."""
    _unbind(bridge, op, "x", "out")


@converter("pd_op.unbind", dtypes=ANY, moves=True)
def unbind(bridge: NgraphBridge, op: Op) -> None:
    """One tensor for every position along ``axis`` (Paddle ``unbind``)."""
    _unbind(bridge, op, "input", "out")


def _unbind(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    x = bridge.get_input_node(op, name_in)
    dims = bridge.shape(x)
    axis = axis_of(op.attr("axis"), len(dims))
    shape = [*dims[:axis], *dims[axis + 1 :]]
    _set_parts(bridge, op, name_out, x, axis, [1] * dims[axis], shape)


@converter("pd_op.split", dtypes=ANY, constant=("sections", "axis"), moves=True)
def split(bridge: NgraphBridge, op: Op) -> None:
    """Parts of the lengths ``sections`` along ``axis``; -1 is what remains (Paddle ``split``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis = axis_of(known_int(bridge, op, "axis"), len(dims))
    lengths = known_ints(bridge, op, "sections")
    if -1 in lengths:
        rest = dims[axis] - sum(length for length in lengths if length != -1)
        lengths[lengths.index(-1)] = rest
    _set_parts(bridge, op, "out", x, axis, lengths)


@converter("pd_op.split_with_num", dtypes=ANY, constant=("axis",), moves=True)
def split_with_num(bridge: NgraphBridge, op: Op) -> None:
    """``num`` equal parts along ``axis`` (Paddle ``split_with_num``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis = axis_of(known_int(bridge, op, "axis"), len(dims))
    num = op.attr("num")
    _set_parts(bridge, op, "out", x, axis, [dims[axis] // num] * num)


def _set_parts(
    bridge: NgraphBridge,
    op: Op,
    name: str,
    node: Output,
    axis: int,
    lengths: Sequence[int],
    shape: Sequence[int] | None = None,
) -> None:
    """Sets the output list ``name``: parts of ``node`` along ``axis``, each in ``shape``."""
    parts = opset15.variadic_split(node, axis, bridge.ints(lengths)).outputs()
    for position, part in enumerate(parts):
        value = part if shape is None else reshaped(bridge, part, shape)
        bridge.set_output_node(op, name, value, position)


# -- some of the elements --------------------------------------------------------------------------


@converter("pd_op.slice", dtypes=ANY, constant=("starts", "ends"), moves=True)
def slice_(bridge: NgraphBridge, op: Op) -> None:
    """``input[starts:ends]`` along ``axes``, without ``decrease_axis`` (Paddle ``slice``)."""
    x = bridge.get_input_node(op, "input")
    dims = bridge.shape(x)
    ranges = slice_ranges(bridge, op, dims)
    node = sliced(bridge, x, ranges)
    decrease = {axis_of(axis, len(dims)) for axis in op.attr("decrease_axis")}
    if decrease:
        kept = [len(taken) for axis, taken in enumerate(ranges) if axis not in decrease]
        node = reshaped(bridge, node, kept)
    bridge.set_output_node(op, "out", node)


@converter("pd_op.slice_grad", constant=("starts", "ends"), unread=("input",))
def slice_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where ``slice`` took its elements, 0 elsewhere (Paddle ``slice_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "input"))
    ranges = slice_ranges(bridge, op, dims)
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "input_grad", _put_back(bridge, out_grad, ranges, dims))


@converter("pd_op.strided_slice", dtypes=ANY, constant=("starts", "ends", "strides"), moves=True)
def strided_slice(bridge: NgraphBridge, op: Op) -> None:
    """``x[starts:ends:strides]`` along ``axes`` (Paddle ``strided_slice``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", sliced(bridge, x, slice_ranges(bridge, op, bridge.shape(x))))


@converter("pd_op.strided_slice_grad", constant=("starts", "ends", "strides"), unread=("x",))
def strided_slice_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where its elements came from, 0 elsewhere (Paddle ``strided_slice_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    ranges = slice_ranges(bridge, op, dims)
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _put_back(bridge, out_grad, ranges, dims))


@converter("pd_op.flip", dtypes=ANY, moves=True)
def flip(bridge: NgraphBridge, op: Op) -> None:
    """``x`` backwards along every axis of ``axis`` (Paddle ``flip``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    ranges = [range(dim) for dim in dims]
    for axis in op.attr("axis"):
        ranges[axis_of(axis, len(dims))] = range(dims[axis])[::-1]
    bridge.set_output_node(op, "out", sliced(bridge, x, ranges))


def slice_ranges(bridge: NgraphBridge, op: Op, dims: Sequence[int]) -> list[range]:
    """The positions taken along every axis."""
    ranges = [range(dim) for dim in dims]
    starts, ends = (known_ints(bridge, op, name) for name in ("starts", "ends"))
    name = next((name for name in ("strides", "steps") if op.has_input(name)), None)
    strides = known_ints(bridge, op, name) if name else [1] * len(starts)
    for axis, start, end, stride in zip(op.attr("axes"), starts, ends, strides):
        axis = axis_of(axis, len(dims))
        ranges[axis] = range(dims[axis])[start:end:stride]
    return ranges


def sliced(bridge: NgraphBridge, x: Any, ranges: Sequence[range]) -> Node | Output:
    """``x`` at the positions ``ranges``, one range for each axis."""
    dims = bridge.shape(x)
    last = len(dims) - 1
    axes = [axis for axis, dim in enumerate(dims) if ranges[axis] != range(dim)]
    by_gather = last in axes and ranges[last].step != 1
    if by_gather:  # Slice goes through single elements one by one
        axes.remove(last)
    if axes:
        # A range that runs down to position 0 stops at -1, which would mean the last position.
        ends = [ranges[a].stop if ranges[a].stop >= 0 else -dims[a] - 1 for a in axes]
        x = opset15.slice(
            x,
            bridge.ints([ranges[axis].start for axis in axes]),
            bridge.ints(ends),
            bridge.ints([ranges[axis].step for axis in axes]),
            bridge.ints(axes),
        )
    return opset15.gather(x, bridge.ints(ranges[last]), bridge.ints([last])) if by_gather else x


def _put_back(
    bridge: NgraphBridge, part: Any, ranges: Sequence[range], dims: Sequence[int]
) -> Node | Output:
    """A tensor of shape ``dims`` that is ``part`` at the positions ``ranges`` and 0 elsewhere."""
    counts = [len(taken) for taken in ranges]
    node = reshaped(bridge, part, counts)
    backwards = [axis for axis, taken in enumerate(ranges) if taken.step < 0]
    if backwards:
        turned = [range(n)[::-1] if a in backwards else range(n) for a, n in enumerate(counts)]
        node = sliced(bridge, node, turned)
    upwards = [taken[::-1] if taken.step < 0 else taken for taken in ranges]
    for axis, taken in enumerate(upwards):
        if taken.step > 1 and len(taken) > 1:
            node = _spread(bridge, node, axis, taken.step)
    before = [taken.start for taken in upwards]
    now = bridge.shape(node)
    after = [dim - first - n for dim, first, n in zip(dims, before, now)]
    return _padded(bridge, node, before, after, 0)


def _spread(bridge: NgraphBridge, node: Any, axis: int, step: int) -> Node | Output:
    """``step - 1`` zeros between the elements along ``axis``."""
    dims = bridge.shape(node)
    rank = len(dims)
    cells = reshaped(bridge, node, [*dims[: axis + 1], 1, *dims[axis + 1 :]])
    after = [0] * (rank + 1)
    after[axis + 1] = step - 1
    cells = _padded(bridge, cells, [0] * (rank + 1), after, 0)
    line = reshaped(bridge, cells, [*dims[:axis], dims[axis] * step, *dims[axis + 1 :]])
    ranges = [range(dim) for dim in dims]
    ranges[axis] = range((dims[axis] - 1) * step + 1)
    return sliced(bridge, line, ranges)


@converter("pd_op.crop", dtypes=ANY, constant=("shape", "offsets"), moves=True)
def crop(bridge: NgraphBridge, op: Op) -> None:
    """``shape`` elements of ``x`` from ``offsets`` on; -1 takes all that follow (``crop``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    counts = known_ints(bridge, op, "shape")
    offsets = known_ints(bridge, op, "offsets")
    ends = [dim if n == -1 else first + n for dim, n, first in zip(dims, counts, offsets)]
    bridge.set_output_node(
        op, "out", sliced(bridge, x, [range(first, end) for first, end in zip(offsets, ends)])
    )


@converter("pd_op.crop_grad", constant=("offsets",), unread=("x",))
def crop_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where ``crop`` took its elements, 0 elsewhere (Paddle ``crop_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out_grad = bridge.get_input_node(op, "out_grad")
    counts = bridge.shape(out_grad)
    offsets = known_ints(bridge, op, "offsets")
    ranges = [range(first, first + count) for first, count in zip(offsets, counts)]
    bridge.set_output_node(op, "x_grad", _put_back(bridge, out_grad, ranges, dims))


# -- elements repeated -----------------------------------------------------------------------------


@converter("pd_op.expand", dtypes=ANY, constant=("shape",), moves=True)
def expand(bridge: NgraphBridge, op: Op) -> None:
    """``x`` broadcast to ``shape``; -1 keeps a dimension (Paddle ``expand``)."""
    x = bridge.get_input_node(op, "x")
    shape = known_ints(bridge, op, "shape")
    dims = bridge.shape(x)
    dims = [1] * (len(shape) - len(dims)) + dims
    target = [own if dim == -1 else dim for own, dim in zip(dims, shape)]
    bridge.set_output_node(op, "out", broadcast_to(bridge, x, target))


@converter("pd_op.expand_as", dtypes=ANY, unread=("y",), moves=True)
def expand_as(bridge: NgraphBridge, op: Op) -> None:
    """``x`` broadcast to the shape of ``y`` (Paddle ``expand_as``)."""
    x = bridge.get_input_node(op, "x")
    if op.has_input("y"):
        target = bridge.shape(bridge.get_input_node(op, "y"))
    else:
        target = op.attr("target_shape")
    bridge.set_output_node(op, "out", broadcast_to(bridge, x, target))


def _expand_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad`` is ``out_grad`` summed over what was repeated."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", reduce_to(bridge, out_grad, dims))


converter("pd_op.expand_grad", unread=("x", "shape"))(_expand_grad)
converter("pd_op.expand_as_grad", unread=("x",))(_expand_grad)


@converter("pd_op.broadcast_tensors", dtypes=ANY, moves=True)
def broadcast_tensors(bridge: NgraphBridge, op: Op) -> None:
    """Every tensor broadcast to the shape of them all (Paddle ``broadcast_tensors``)."""
    nodes = bridge.get_input_nodes(op, "input")
    target = list(np.broadcast_shapes(*(tuple(bridge.shape(node)) for node in nodes)))
    for position, node in enumerate(nodes):
        bridge.set_output_node(op, "out", broadcast_to(bridge, node, target), position)


@converter("pd_op.broadcast_tensors_grad", unread=("input",))
def broadcast_tensors_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient summed over what was repeated (Paddle ``broadcast_tensors_grad``)."""
    gradients = bridge.get_input_nodes(op, "out_grad")
    for position, node in enumerate(bridge.get_input_nodes(op, "input")):
        summed = reduce_to(bridge, gradients[position], bridge.shape(node))
        bridge.set_output_node(op, "input_grad", summed, position)


@converter("pd_op.meshgrid", dtypes=ANY, moves=True)
def meshgrid(bridge: NgraphBridge, op: Op) -> None:
    """Line ``i`` of ``inputs`` repeated along every axis but ``i`` (Paddle ``meshgrid``)."""
    nodes = bridge.get_input_nodes(op, "inputs")
    target = [math.prod(bridge.shape(node)) for node in nodes]
    for position, node in enumerate(nodes):
        line = reshaped(bridge, node, _line_shape(target, position))
        bridge.set_output_node(op, "out", broadcast_to(bridge, line, target), position)


@converter("pd_op.meshgrid_grad", unread=("inputs",))
def meshgrid_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient summed over what was repeated (Paddle ``meshgrid_grad``)."""
    gradients = bridge.get_input_nodes(op, "outputs_grad")
    target = bridge.shape(gradients[0])
    for position, node in enumerate(bridge.get_input_nodes(op, "inputs")):
        summed = reduce_to(bridge, gradients[position], _line_shape(target, position))
        line = reshaped(bridge, summed, bridge.shape(node))
        bridge.set_output_node(op, "inputs_grad", line, position)


def _line_shape(target: Sequence[int], axis: int) -> list[int]:
    return [dim if i == axis else 1 for i, dim in enumerate(target)]


@converter("pd_op.tile", dtypes=ANY, constant=("repeat_times",), moves=True)
def tile(bridge: NgraphBridge, op: Op) -> None:
    """``x`` repeated ``repeat_times[i]`` times along axis ``i`` (Paddle ``tile``)."""
    x = bridge.get_input_node(op, "x")
    dims, repeats = _tile_factors(bridge, op, bridge.shape(x))
    node = reshaped(bridge, x, dims)
    if any(repeat != 1 for repeat in repeats):
        node = opset15.tile(node, bridge.ints(repeats))
    bridge.set_output_node(op, "out", node)


@converter("pd_op.tile_grad", constant=("repeat_times",), unread=("x",))
def tile_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad`` is the sum of the copies in ``out_grad`` (Paddle ``tile_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    dims, repeats = _tile_factors(bridge, op, shape)
    node: Any = bridge.get_input_node(op, "out_grad")
    for axis, (dim, repeat) in enumerate(zip(dims, repeats)):
        if repeat != 1:
            now = bridge.shape(node)
            node = reshaped(bridge, node, [*now[:axis], repeat, dim, *now[axis + 1 :]])
            node = opset15.reduce_sum(node, bridge.ints([axis]), False)
    bridge.set_output_node(op, "x_grad", reshaped(bridge, node, shape))


def _tile_factors(bridge: NgraphBridge, op: Op, dims: Sequence[int]) -> tuple[list[int], list[int]]:
    """The shape of ``x`` and the repeats, both of the rank of ``out``."""
    repeats = known_ints(bridge, op, "repeat_times")
    rank = max(len(dims), len(repeats))
    return [1] * (rank - len(dims)) + list(dims), [1] * (rank - len(repeats)) + repeats


@converter("pd_op.repeat_interleave", dtypes=ANY, moves=True)
def repeat_interleave(bridge: NgraphBridge, op: Op) -> None:
    """Every element along ``axis`` ``repeats`` times (Paddle ``repeat_interleave``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis, repeats = axis_of(op.attr("axis"), len(dims)), op.attr("repeats")
    before, after = dims[: axis + 1], dims[axis + 1 :]
    cells = reshaped(bridge, x, [*before, 1, *after])
    cells = broadcast_to(bridge, cells, [*before, repeats, *after])
    target = [*dims[:axis], dims[axis] * repeats, *after]
    bridge.set_output_node(op, "out", reshaped(bridge, cells, target))


@converter("pd_op.repeat_interleave_grad", unread=("x",))
def repeat_interleave_grad(bridge: NgraphBridge, op: Op) -> None:
    """The sum over the copies of each element (Paddle ``repeat_interleave_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    axis, repeats = axis_of(op.attr("axis"), len(dims)), op.attr("repeats")
    out_grad = bridge.get_input_node(op, "out_grad")
    cells = reshaped(bridge, out_grad, [*dims[: axis + 1], repeats, *dims[axis + 1 :]])
    bridge.set_output_node(op, "x_grad", opset15.reduce_sum(cells, bridge.ints([axis + 1]), False))


@converter(
    "pd_op.repeat_interleave_with_tensor_index", dtypes=ANY, constant=("repeats",), moves=True
)
def repeat_interleave_with_tensor_index(bridge: NgraphBridge, op: Op) -> None:
    """Element ``i`` along ``axis`` ``repeats[i]`` times, an input tensor."""
    x = bridge.get_input_node(op, "x")
    axis = axis_of(op.attr("axis"), len(bridge.shape(x)))
    rows = _repeated(bridge, op, bridge.shape(x)[axis])
    node = opset15.gather(x, bridge.ints(rows), bridge.ints([axis]))
    bridge.set_output_node(op, "out", node)


@converter("pd_op.repeat_interleave_with_tensor_index_grad", constant=("repeats",), unread=("x",))
def repeat_interleave_with_tensor_index_grad(bridge: NgraphBridge, op: Op) -> None:
    """The sum over the copies of each element (``repeat_interleave_with_tensor_index_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    axis = axis_of(op.attr("axis"), len(dims))
    order = axis_first(axis, len(dims))
    copies = transposed(bridge, bridge.get_input_node(op, "out_grad"), order)
    rows = bridge.ints(_repeated(bridge, op, dims[axis]))
    zeros = bridge.full(0.0, "float32", [dims[i] for i in order])
    places = reshaped(bridge, rows, [-1, 1])
    total = opset15.scatter_nd_update(zeros, places, copies, "sum")
    bridge.set_output_node(op, "x_grad", transposed(bridge, total, order, back=True))


def _repeated(bridge: NgraphBridge, op: Op, count: int) -> list[int]:
    """Which element every copy is of."""
    repeats = known_ints(bridge, op, "repeats")
    return [int(i) for i in np.repeat(np.arange(count), repeats)]


# -- elements moved, dropped, added ----------------------------------------------------------------


@converter("pd_op.roll", dtypes=ANY, constant=("shifts",), moves=True)
def roll(bridge: NgraphBridge, op: Op) -> None:
    """``x`` shifted round along ``axis``, or as one line without one (Paddle ``roll``)."""
    shifts = known_ints(bridge, op, "shifts")
    bridge.set_output_node(op, "out", _rolled(bridge, op, bridge.get_input_node(op, "x"), shifts))


@converter("pd_op.roll_grad", constant=("shifts",), unread=("x",))
def roll_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` shifted back (Paddle ``roll_grad``)."""
    shifts = [-shift for shift in known_ints(bridge, op, "shifts")]
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _rolled(bridge, op, out_grad, shifts))


def _rolled(bridge: NgraphBridge, op: Op, x: Output, shifts: Sequence[int]) -> Node | Output:
    dims = bridge.shape(x)
    if op.attr("axis"):
        axes = [axis_of(axis, len(dims)) for axis in op.attr("axis")]
        return opset15.roll(x, bridge.ints(shifts), bridge.ints(axes))
    line = opset15.roll(reshaped(bridge, x, [-1]), bridge.ints(shifts), bridge.ints([0]))
    return reshaped(bridge, line, dims)


@converter("pd_op.pad", dtypes=_MOVED, constant=("pad_value",))
def pad(bridge: NgraphBridge, op: Op) -> None:
    """``x`` framed by ``pad_value``: ``paddings`` are before, after of each axis (``pad``)."""
    paddings = op.attr("paddings")
    value = bridge.constant(op, "pad_value").item()
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _padded(bridge, x, paddings[::2], paddings[1::2], value))


@converter("pd_op.pad_grad", constant=("pad_value",), unread=("x",))
def pad_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` without the frame (Paddle ``pad_grad``)."""
    paddings = op.attr("paddings")
    _set_cropped(bridge, op, paddings[::2])


_PAD3D_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


@converter("pd_op.pad3d", dtypes=_MOVED, constant=("paddings",))
def pad3d(bridge: NgraphBridge, op: Op) -> None:
    """The last three axes framed (Paddle ``pad3d``).

    ``paddings`` are left, right, top, bottom, front, back; reflect leaves the border element out,
    circular goes on at the other end.
    """
    before, after = _pad3d_frame(bridge, op)
    node: Any = bridge.get_input_node(op, "x")
    if op.attr("mode") == "circular":
        for axis, dim in enumerate(bridge.shape(node)):
            if before[axis] or after[axis]:
                node = _frame_map("circular", dim, before[axis], after[axis]).apply(
                    bridge, node, axis
                )
    else:
        mode = _PAD3D_MODES[op.attr("mode")]
        node = _padded(bridge, node, before, after, op.attr("pad_value"), mode)
    bridge.set_output_node(op, "out", node)


@converter("pd_op.pad3d_grad", constant=("paddings",), unread=("x",))
def pad3d_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` without the frame, whose parts go to where they came from (``pad3d_grad``)."""
    before, after = _pad3d_frame(bridge, op)
    node: Any = bridge.get_input_node(op, "out_grad")
    if op.attr("mode") == "constant":
        if min(before + after) >= 0:
            _set_cropped(bridge, op, before)
        else:  # a negative frame cuts off, and what was cut off has no gradient
            back = [-width for width in before], [-width for width in after]
            bridge.set_output_node(op, "x_grad", _padded(bridge, node, *back, 0))
        return
    for axis, dim in enumerate(bridge.shape(bridge.get_input_node(op, "x"))):
        if before[axis] or after[axis]:
            frame = _frame_map(op.attr("mode"), dim, before[axis], after[axis])
            node = frame.apply_transposed(bridge, node, axis, dim)
    bridge.set_output_node(op, "x_grad", node)


def _frame_map(mode: str, size: int, before: int, after: int) -> AxisMap:
    """Where the elements along a framed axis come from."""
    at = np.arange(-before, size + after)
    if mode == "circular":
        at = at % size
    elif mode == "replicate":
        at = np.clip(at, 0, size - 1)
    else:
        at = np.minimum(np.abs(at), 2 * size - 2 - at)
    return AxisMap(at[:, None])


def _pad3d_frame(bridge: NgraphBridge, op: Op) -> tuple[list[int], list[int]]:
    """What is put before and after each of the five axes."""
    paddings = known_ints(bridge, op, "paddings")
    sides = list(zip(paddings[::2], paddings[1::2]))[::-1]
    channels_last = op.attr("data_format") == "NDHWC"
    frame = [(0, 0), *sides, (0, 0)] if channels_last else [(0, 0), (0, 0), *sides]
    return [before for before, _ in frame], [after for _, after in frame]


def _set_cropped(bridge: NgraphBridge, op: Op, before: Sequence[int]) -> None:
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    ranges = [range(first, first + dim) for first, dim in zip(before, dims)]
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", sliced(bridge, out_grad, ranges))


def _padded(
    bridge: NgraphBridge,
    x: Any,
    before: Sequence[int],
    after: Sequence[int],
    value: float,
    mode: str = "constant",
) -> Node | Output:
    if not any(before) and not any(after):
        return x
    kind = x.get_element_type()
    fill = bridge.full(value, kind) if mode == "constant" else None
    return opset15.pad(x, bridge.ints(before), bridge.ints(after), mode, fill)


def _triangle(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    """Keeps one side of diagonal number ``diagonal`` of the last two axes, 0 on the other."""
    x = bridge.get_input_node(op, name_in)
    mask = np.ones(bridge.shape(x)[-2:], dtype=bool)
    keep = np.tril if "tril" in op.type else np.triu
    kept = opset15.constant(keep(mask, op.attr("diagonal")))
    bridge.set_output_node(
        op, name_out, opset15.select(kept, x, bridge.full(0, x.get_element_type()))
    )


def _triangle_of_x(bridge: NgraphBridge, op: Op) -> None:
    """``x`` on and below (``tril``) or above (``triu``) a diagonal, 0 elsewhere."""
    _triangle(bridge, op, "x", "out")


def _triangle_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where ``x`` was kept, 0 elsewhere."""
    _triangle(bridge, op, "out_grad", "x_grad")


for _type in ("tril", "triu"):
    converter(f"pd_op.{_type}", dtypes=_MOVED)(_triangle_of_x)
    converter(f"pd_op.{_type}_", dtypes=_MOVED)(_triangle_of_x)
    converter(f"pd_op.{_type}_grad")(_triangle_grad)


# -- the shape itself ------------------------------------------------------------------------------


_HAS_AXES = Limit("the shape of a 0-D tensor is empty", lambda op: bool(op.input("input").shape))


@converter("pd_op.shape", unread=("input",), limits=[_HAS_AXES], small_integers=True)
@converter("pd_op.shape64", unread=("input",), limits=[_HAS_AXES], small_integers=True)
def shape(bridge: NgraphBridge, op: Op) -> None:
    """The dimensions of ``input``, 1-D (Paddle ``shape``, ``shape64``)."""
    dims = bridge.shape(bridge.get_input_node(op, "input"))
    values = np.array(dims, dtype=op.output("out").dtype)
    bridge.set_output_node(op, "out", opset15.constant(values))


@converter("pd_op.is_empty", dtypes=KNOWN, unread=("x",))
def is_empty(bridge: NgraphBridge, op: Op) -> None:
    """Whether ``x`` has no elements (Paddle ``is_empty``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, "out", opset15.constant(np.array(0 in dims)))


@converter("pd_op.numel", unread=("x",), small_integers=True)
def numel(bridge: NgraphBridge, op: Op) -> None:
    """How many elements ``x`` has (Paddle ``numel``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    size = np.prod(dims, dtype=np.int64)
    bridge.set_output_node(op, "size", bridge.full(int(size), op.output("size").dtype))


# -- helpers ---------------------------------------------------------------------------------------
