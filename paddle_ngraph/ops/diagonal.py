"""Diagonals and triangles: extracted, filled, embedded into matrices.

Indices follow from the shapes, so every operator is a Gather or a Select with constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Node, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.registry import ANY, BOOL, FLOAT, INT32, Limit, Role, converter
from paddle_ngraph.conversion.symbolic_sizes import Number, is_symbolic
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import (
    axis_of,
    broadcast_to,
    index_range,
    known_int,
    reshaped,
    transposed,
)

_MOVED_DTYPES = FLOAT | INT32 | BOOL


@converter(
    "pd_op.eye", dtypes=ANY, inputs={"num_rows": Role.CONSTANT, "num_columns": Role.CONSTANT}
)
def eye(bridge: NgraphBridge, op: Op) -> None:
    """1 on the main diagonal of a matrix, 0 elsewhere (Paddle ``eye``)."""
    rows, columns = (known_int(bridge, op, name) for name in ("num_rows", "num_columns"))
    dtype = element_type(op.output("out").dtype)
    columns = rows if columns == -1 else columns
    bridge.set_output_node(
        op, "out", opset15.constant(np.eye(rows, columns, dtype=dtype.to_dtype()))
    )


@converter("pd_op.tril_indices", dtypes=ANY, small_integers=True)
def tril_indices(bridge: NgraphBridge, op: Op) -> None:
    """Rows and columns on and below a diagonal (Paddle ``tril_indices``)."""
    indices = np.tril_indices(op.attr("rows"), op.attr("offset"), op.attr("cols"))
    _set_indices(bridge, op, indices)


@converter("pd_op.triu_indices", dtypes=ANY, small_integers=True)
def triu_indices(bridge: NgraphBridge, op: Op) -> None:
    """The row and column indices of elements on and above a diagonal (Paddle ``triu_indices``)."""
    indices = np.triu_indices(op.attr("row"), op.attr("offset"), op.attr("col"))
    _set_indices(bridge, op, indices)


def _set_indices(bridge: NgraphBridge, op: Op, indices: Sequence[np.ndarray]) -> None:
    dtype = element_type(op.output("out").dtype)
    bridge.set_output_node(op, "out", opset15.constant(np.stack(indices).astype(dtype.to_dtype())))


# -- a vector and a matrix -------------------------------------------------------------------------


@converter("pd_op.diag", dtypes=FLOAT | INT32)
def diag(bridge: NgraphBridge, op: Op) -> None:
    """The matrix with the vector ``x`` on a diagonal, or the diagonal of a matrix (``diag``)."""
    x = bridge.get_input_node(op, "x")
    dims, offset = bridge.shape(x), op.attr("offset")
    if len(dims) == 2:
        bridge.set_output_node(op, "out", _diagonal_values(bridge, x, 0, 1, offset))
        return
    line = reshaped(bridge, x, [math.prod(dims)])
    bridge.set_output_node(
        op, "out", _embedded(bridge, line, offset, op.attr("padding_value"), 0, 1)
    )


@converter("pd_op.diag_grad", inputs={"x": Role.SHAPE_ONLY})
def diag_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` on the diagonal that ``x`` is or has, 0 elsewhere (Paddle ``diag_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out_grad, offset = bridge.get_input_node(op, "out_grad"), op.attr("offset")
    if len(dims) == 2:
        node = _on_diagonal(bridge, bridge.full(0.0, "float32", dims), out_grad, 0, 1, offset)
    else:
        node = reshaped(bridge, _diagonal_values(bridge, out_grad, 0, 1, offset), dims)
    bridge.set_output_node(op, "x_grad", node)


@converter("pd_op.diag_embed", dtypes=_MOVED_DTYPES)
def diag_embed(bridge: NgraphBridge, op: Op) -> None:
    """The last axis of ``input`` on the diagonals of matrices of ``dim1``, ``dim2``."""
    x = bridge.get_input_node(op, "input")
    rank = len(bridge.shape(x)) + 1
    first, second = axis_of(op.attr("dim1"), rank), axis_of(op.attr("dim2"), rank)
    bridge.set_output_node(op, "out", _embedded(bridge, x, op.attr("offset"), 0, first, second))


def _embedded(
    bridge: NgraphBridge, x: NodeInput, offset: int, padding: float, axis1: int, axis2: int
) -> Any:
    """The last axis of ``x`` on a diagonal, ``padding`` elsewhere."""
    *batch, length = bridge.shape(x)
    size = length + abs(offset)
    matrices = bridge.full(padding, x.get_element_type(), [*batch, size, size])
    rank = len(batch) + 2
    node = _on_diagonal(bridge, matrices, x, rank - 2, rank - 1, offset)
    order = [i for i in range(rank) if i not in (axis1, axis2)]
    return transposed(bridge, node, [*order, axis1, axis2], back=True)


# -- diagonals of two axes of a tensor -------------------------------------------------------------


@converter("pd_op.diagonal", dtypes=ANY, moves=True)
def diagonal(bridge: NgraphBridge, op: Op) -> None:
    """A diagonal of ``axis1`` and ``axis2``, as the last axis (Paddle ``diagonal``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _diagonal_values(bridge, x, *_axes(bridge, op, x)))


@converter("pd_op.diagonal_grad", inputs={"x": Role.SHAPE_ONLY})
def diagonal_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` on the diagonal, 0 elsewhere (Paddle ``diagonal_grad``)."""
    x = bridge.get_input_node(op, "x")
    zeros = bridge.full(0.0, "float32", bridge.shape(x))
    out_grad = bridge.get_input_node(op, "out_grad")
    node = _on_diagonal(bridge, zeros, out_grad, *_axes(bridge, op, x))
    bridge.set_output_node(op, "x_grad", node)


@converter("pd_op.trace")
def trace(bridge: NgraphBridge, op: Op) -> None:
    """The sum of a diagonal of ``axis1`` and ``axis2`` (Paddle ``trace``)."""
    x = bridge.get_input_node(op, "x")
    taken = _diagonal_values(bridge, x, *_axes(bridge, op, x))
    bridge.set_output_node(op, "out", opset15.reduce_sum(taken, bridge.ints([-1]), False))


@converter("pd_op.trace_grad", inputs={"x": Role.SHAPE_ONLY})
def trace_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` everywhere on the diagonal, 0 elsewhere (Paddle ``trace_grad``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis1, axis2, offset = _axes(bridge, op, x)
    batch = [dim for i, dim in enumerate(dims) if i not in (axis1, axis2)]
    length = len(_diagonal_positions(dims[axis1], dims[axis2], offset))
    cells = reshaped(bridge, bridge.get_input_node(op, "out_grad"), [*batch, 1])
    line = broadcast_to(bridge, cells, [*batch, length])
    zeros = bridge.full(0.0, "float32", dims)
    bridge.set_output_node(op, "x_grad", _on_diagonal(bridge, zeros, line, axis1, axis2, offset))


def _axes(bridge: NgraphBridge, op: Op, x: NodeInput) -> tuple[int, int, int]:
    rank = len(bridge.shape(x))
    return axis_of(op.attr("axis1"), rank), axis_of(op.attr("axis2"), rank), op.attr("offset")


# -- filled ----------------------------------------------------------------------------------------


@converter("pd_op.fill_diagonal", "pd_op.fill_diagonal_", dtypes=_MOVED_DTYPES)
def fill_diagonal(bridge: NgraphBridge, op: Op) -> None:
    """``x``, but ``value`` where all indices are equal (Paddle ``fill_diagonal``).

    In a matrix, the diagonal begins ``offset`` to the right and may wrap to rows further down.
    """
    _fill_diagonal(bridge, op, "x", "out", op.attr("value"))


@converter("pd_op.fill_diagonal_grad")
def fill_diagonal_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad``, but 0 where the value was filled (Paddle ``fill_diagonal_grad``)."""
    _fill_diagonal(bridge, op, "out_grad", "x_grad", 0)


def _fill_diagonal(bridge: NgraphBridge, op: Op, name_in: str, name_out: str, value: float) -> None:
    x = bridge.get_input_node(op, name_in)
    dims, offset = bridge.shape(x), op.attr("offset")
    step = sum(math.prod(dims[i + 1 :]) for i in range(len(dims)))
    size = math.prod(dims)
    starts = np.arange(0, size if op.attr("wrap") else min(size, dims[1] ** 2), step)
    columns = starts % dims[1] + offset
    mask = np.zeros(size, dtype=bool)
    mask[starts[(columns >= 0) & (columns < dims[1])] + offset] = True
    filled = bridge.full(value, x.get_element_type())
    bridge.set_output_node(
        op, name_out, opset15.select(opset15.constant(mask.reshape(dims)), filled, x)
    )


_ORDERED_AXES = Limit(
    "dim1 must come before dim2",
    lambda op: op.attr("dim1") % _rank(op) < op.attr("dim2") % _rank(op),
)


def _rank(op: Op) -> int:
    return len(next(iter(op.input_specs())).shape)


@converter(
    "pd_op.fill_diagonal_tensor",
    "pd_op.fill_diagonal_tensor_",
    dtypes=_MOVED_DTYPES,
    limits=[_ORDERED_AXES],
)
def fill_diagonal_tensor(bridge: NgraphBridge, op: Op) -> None:
    """``x``, but ``y`` on a diagonal of ``dim1`` and ``dim2`` (Paddle ``fill_diagonal_tensor``)."""
    x = bridge.get_input_node(op, "x")
    axis1, axis2, offset, shape = _diagonal_of(bridge, op, x)
    y = reshaped(bridge, bridge.get_input_node(op, "y"), shape)
    bridge.set_output_node(op, "out", _on_diagonal(bridge, x, y, axis1, axis2, offset))


@converter("pd_op.fill_diagonal_tensor_grad", limits=[_ORDERED_AXES])
def fill_diagonal_tensor_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad``, but 0 on the diagonal (Paddle ``fill_diagonal_tensor_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    axis1, axis2, offset, shape = _diagonal_of(bridge, op, out_grad)
    zeros = bridge.full(0.0, "float32", shape)
    node = _on_diagonal(bridge, out_grad, zeros, axis1, axis2, offset)
    bridge.set_output_node(op, "x_grad", node)


def _diagonal_of(bridge: NgraphBridge, op: Op, x: NodeInput) -> tuple[int, int, int, list[int]]:
    """The two axes, the offset, and the shape of the diagonal as a last axis."""
    dims, offset = bridge.shape(x), op.attr("offset")
    axis1, axis2 = axis_of(op.attr("dim1"), len(dims)), axis_of(op.attr("dim2"), len(dims))
    batch = [dim for i, dim in enumerate(dims) if i not in (axis1, axis2)]
    return (
        axis1,
        axis2,
        offset,
        [*batch, len(_diagonal_positions(dims[axis1], dims[axis2], offset))],
    )


# -- triangles -------------------------------------------------------------------------------------


def _triangle(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    """Keeps one side of the diagonal at offset ``diagonal`` of the last two axes; 0 elsewhere."""
    x = bridge.get_input_node(op, name_in)
    kept = _side(bridge, op, *bridge.shape(x)[-2:])
    bridge.set_output_node(
        op, name_out, opset15.select(kept, x, bridge.full(0, x.get_element_type()))
    )


def _side(bridge: NgraphBridge, op: Op, rows: Number, columns: Number) -> Any:
    """Boolean mask of the elements of a matrix on one side of a diagonal."""
    if is_symbolic((rows, columns)):
        below = opset15.unsqueeze(index_range(bridge, rows, Type.f32), bridge.ints([1]))
        border = opset15.add(below, bridge.full(op.attr("diagonal"), "float32"))
        keep = opset15.less_equal if "tril" in op.type else opset15.greater_equal
        return keep(index_range(bridge, columns, Type.f32), border)
    mask = np.ones((rows, columns), dtype=bool)
    side = np.tril if "tril" in op.type else np.triu
    return opset15.constant(side(mask, op.attr("diagonal")))


@converter("pd_op.tril", "pd_op.tril_", "pd_op.triu", "pd_op.triu_", dtypes=_MOVED_DTYPES)
def triangle(bridge: NgraphBridge, op: Op) -> None:
    """``x`` on and below (``tril``) or above (``triu``) a diagonal, 0 elsewhere."""
    _triangle(bridge, op, "x", "out")


@converter("pd_op.tril_grad", "pd_op.triu_grad")
def triangle_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where ``x`` was kept, 0 elsewhere."""
    _triangle(bridge, op, "out_grad", "x_grad")


# -- helpers ---------------------------------------------------------------------------------------


def _diagonal_positions(rows: int, columns: int, offset: int) -> np.ndarray:
    """The flat (row-major) indices of a diagonal in a matrix."""
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    steps = np.arange(length)
    return (steps + max(0, -offset)) * columns + steps + max(0, offset)


def _order(rank: int, axis1: int, axis2: int) -> list[int]:
    return [*(i for i in range(rank) if i not in (axis1, axis2)), axis1, axis2]


def _diagonal_values(
    bridge: NgraphBridge, x: NodeInput, axis1: int, axis2: int, offset: int
) -> Node:
    """A diagonal of the axes ``axis1`` and ``axis2`` as the last axis."""
    node = transposed(bridge, x, _order(len(bridge.shape(x)), axis1, axis2))
    *batch, rows, columns = bridge.shape(node)
    lines = reshaped(bridge, node, [*batch, rows * columns])
    indices = bridge.ints(_diagonal_positions(rows, columns, offset).tolist())
    return opset15.gather(lines, indices, bridge.ints([len(batch)]))


def _on_diagonal(
    bridge: NgraphBridge, x: NodeInput, values: Any, axis1: int, axis2: int, offset: int
) -> Any:
    """``x``, but ``values`` on a diagonal of two axes, along the last axis of ``values``."""
    order = _order(len(bridge.shape(x)), axis1, axis2)
    node = transposed(bridge, x, order)
    *_, rows, columns = bridge.shape(node)
    indices = _diagonal_positions(rows, columns, offset)
    if not len(indices):
        return x
    mask = np.zeros(rows * columns, dtype=bool)
    mask[indices] = True
    number = np.zeros(rows * columns, dtype=np.int32)
    number[indices] = np.arange(len(indices))
    spread = opset15.gather(
        values, opset15.constant(number.reshape(rows, columns), Type.i32), bridge.full(-1, "int64")
    )
    filled = opset15.select(opset15.constant(mask.reshape(rows, columns)), spread, node)
    return transposed(bridge, filled, order, back=True)
