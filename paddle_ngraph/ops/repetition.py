"""Elements repeated: expand, broadcast, meshgrid, tile, repeat_interleave.

A gradient sums over copies; of the forward input it needs only the shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import ANY, Role, converter
from paddle_ngraph.conversion.size_rules import broadcast_shapes, is_same_shape
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import (
    axis_first,
    axis_of,
    broadcast_to,
    known_ints,
    reduce_to,
    reshaped,
    transposed,
)


@converter("pd_op.expand", dtypes=ANY, inputs={"shape": Role.CONSTANT}, moves=True)
def expand(bridge: NgraphBridge, op: Op) -> None:
    """``x`` broadcast to ``shape``; -1 keeps a dimension (Paddle ``expand``)."""
    x = bridge.get_input_node(op, "x")
    shape = known_ints(bridge, op, "shape")
    dims = bridge.shape(x)
    dims = [1] * (len(shape) - len(dims)) + dims
    target = [own if dim == -1 else dim for own, dim in zip(dims, shape)]
    bridge.set_output_node(op, "out", broadcast_to(bridge, x, target))


@converter("pd_op.expand_as", dtypes=ANY, inputs={"y": Role.SHAPE_ONLY}, moves=True)
def expand_as(bridge: NgraphBridge, op: Op) -> None:
    """``x`` broadcast to the shape of ``y`` (Paddle ``expand_as``)."""
    x = bridge.get_input_node(op, "x")
    if op.has_input("y"):
        target = bridge.shape(bridge.get_input_node(op, "y"))
    else:
        target = op.attr("target_shape")
    bridge.set_output_node(op, "out", broadcast_to(bridge, x, target))


@converter("pd_op.expand_grad", inputs={"x": Role.SHAPE_ONLY, "shape": Role.SHAPE_ONLY})
@converter("pd_op.expand_as_grad", inputs={"x": Role.SHAPE_ONLY})
def expand_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` summed over broadcast axes (Paddle ``expand_grad``, ``expand_as_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", reduce_to(bridge, out_grad, dims))


@converter("pd_op.broadcast_tensors", dtypes=ANY, moves=True)
def broadcast_tensors(bridge: NgraphBridge, op: Op) -> None:
    """All tensors broadcast to a common shape (Paddle ``broadcast_tensors``)."""
    nodes = bridge.get_input_nodes(op, "input")
    target = broadcast_shapes(*map(bridge.shape, nodes))
    for position, node in enumerate(nodes):
        bridge.set_output_node(op, "out", broadcast_to(bridge, node, target), position)


@converter("pd_op.broadcast_tensors_grad", inputs={"input": Role.SHAPE_ONLY})
def broadcast_tensors_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient is summed over the axes of its broadcast (``broadcast_tensors_grad``)."""
    gradients = bridge.get_input_nodes(op, "out_grad")
    for position, node in enumerate(bridge.get_input_nodes(op, "input")):
        summed = reduce_to(bridge, gradients[position], bridge.shape(node))
        bridge.set_output_node(op, "input_grad", summed, position)


@converter("pd_op.meshgrid", dtypes=ANY, moves=True)
def meshgrid(bridge: NgraphBridge, op: Op) -> None:
    """Vector ``i`` of ``inputs`` repeated along every axis but ``i`` (Paddle ``meshgrid``)."""
    nodes = bridge.get_input_nodes(op, "inputs")
    target = [math.prod(bridge.shape(node)) for node in nodes]
    for position, node in enumerate(nodes):
        line = reshaped(bridge, node, _line_shape(target, position))
        bridge.set_output_node(op, "out", broadcast_to(bridge, line, target), position)


@converter("pd_op.meshgrid_grad", inputs={"inputs": Role.SHAPE_ONLY})
def meshgrid_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient is summed over all axes but one (Paddle ``meshgrid_grad``)."""
    gradients = bridge.get_input_nodes(op, "out_grad")
    target = bridge.shape(gradients[0])
    for position, node in enumerate(bridge.get_input_nodes(op, "inputs")):
        summed = reduce_to(bridge, gradients[position], _line_shape(target, position))
        line = reshaped(bridge, summed, bridge.shape(node))
        bridge.set_output_node(op, "inputs_grad", line, position)


def _line_shape(target: Sequence[int], axis: int) -> list[int]:
    return [dim if i == axis else 1 for i, dim in enumerate(target)]


@converter("pd_op.tile", dtypes=ANY, inputs={"repeat_times": Role.CONSTANT}, moves=True)
def tile(bridge: NgraphBridge, op: Op) -> None:
    """``x`` repeated ``repeat_times[i]`` times along axis ``i`` (Paddle ``tile``)."""
    x = bridge.get_input_node(op, "x")
    dims, repeats = _tile_factors(bridge, op, bridge.shape(x))
    node = reshaped(bridge, x, dims)
    if not is_same_shape(repeats, [1] * len(repeats)):
        node = opset15.tile(node, bridge.ints(repeats))
    bridge.set_output_node(op, "out", node)


@converter("pd_op.tile_grad", inputs={"repeat_times": Role.CONSTANT, "x": Role.SHAPE_ONLY})
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
    """The shape of ``x`` and the repeats of a tile, each with leading 1s to the rank of ``out``."""
    repeats = known_ints(bridge, op, "repeat_times")
    rank = max(len(dims), len(repeats))
    return [1] * (rank - len(dims)) + list(dims), [1] * (rank - len(repeats)) + repeats


@converter("pd_op.repeat_interleave", dtypes=ANY, moves=True)
def repeat_interleave(bridge: NgraphBridge, op: Op) -> None:
    """Repeats each slice of ``x`` along ``axis`` ``repeats`` times (``repeat_interleave``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis, repeats = axis_of(op.attr("axis"), len(dims)), op.attr("repeats")
    before, after = dims[: axis + 1], dims[axis + 1 :]
    cells = reshaped(bridge, x, [*before, 1, *after])
    cells = broadcast_to(bridge, cells, [*before, repeats, *after])
    target = [*dims[:axis], dims[axis] * repeats, *after]
    bridge.set_output_node(op, "out", reshaped(bridge, cells, target))


@converter("pd_op.repeat_interleave_grad", inputs={"x": Role.SHAPE_ONLY})
def repeat_interleave_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: ``out_grad`` summed over copies of each slice (``repeat_interleave_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    axis, repeats = axis_of(op.attr("axis"), len(dims)), op.attr("repeats")
    out_grad = bridge.get_input_node(op, "out_grad")
    cells = reshaped(bridge, out_grad, [*dims[: axis + 1], repeats, *dims[axis + 1 :]])
    bridge.set_output_node(op, "x_grad", opset15.reduce_sum(cells, bridge.ints([axis + 1]), False))


@converter(
    "pd_op.repeat_interleave_with_tensor_index",
    dtypes=ANY,
    inputs={"repeats": Role.CONSTANT},
    moves=True,
)
def repeat_interleave_with_tensor_index(bridge: NgraphBridge, op: Op) -> None:
    """Repeats slice ``i`` along ``axis`` ``repeats[i]`` times; ``repeats`` is an input tensor."""
    x = bridge.get_input_node(op, "x")
    axis = axis_of(op.attr("axis"), len(bridge.shape(x)))
    rows = _repeated(bridge, op, bridge.shape(x)[axis])
    node = opset15.gather(x, bridge.ints(rows), bridge.ints([axis]))
    bridge.set_output_node(op, "out", node)


@converter(
    "pd_op.repeat_interleave_with_tensor_index_grad",
    inputs={"repeats": Role.CONSTANT, "x": Role.SHAPE_ONLY},
)
def repeat_interleave_with_tensor_index_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: ``out_grad`` summed over the copies of each slice."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    axis = axis_of(op.attr("axis"), len(dims))
    order = axis_first(axis, len(dims))
    copies = transposed(bridge, bridge.get_input_node(op, "out_grad"), order)
    rows = bridge.ints(_repeated(bridge, op, dims[axis]))
    zeros = bridge.full(0.0, "float32", [dims[i] for i in order])
    indices = reshaped(bridge, rows, [-1, 1])
    total = opset15.scatter_nd_update(zeros, indices, copies, "sum")
    bridge.set_output_node(op, "x_grad", transposed(bridge, total, order, back=True))


def _repeated(bridge: NgraphBridge, op: Op, count: int) -> list[int]:
    """For each slice of the result, the index of the source slice along the axis."""
    repeats = known_ints(bridge, op, "repeats")
    return [int(i) for i in np.repeat(np.arange(count), repeats)]
