"""Look-ups by index: embedding, gather and similar operators.

The forward operators read rows; the gradients add rows, repeated indices in order. Indices out of
range are rejected before a run, as in Paddle. Negative indices count from the end, in Paddle as in
the engine's nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Node, Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import ANY, INTEGER, Limit, Role, converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import axis_first, axis_of, known_int, reshaped, transposed
from paddle_ngraph.paddle_private import releases

_NO_PADDING = -1
# The largest integer up to which indices are compared exactly: the engine compares integers as
# float32.
_MAX_EXACT_FLOAT32_INTEGER = 2**24

# -- rows of a table -------------------------------------------------------------------------------


_ROWS_EXACT_IN_FLOAT32 = Limit(
    "with padding_idx the table must have at most 2^24 rows",
    lambda op: _padding(op) is None or op.input("weight").shape[0] <= _MAX_EXACT_FLOAT32_INTEGER,
)


@converter("pd_op.embedding", inputs={"x": Role.INDEX}, limits=[_ROWS_EXACT_IN_FLOAT32])
def embedding(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = weight[x[...]]``; 0 where ``x`` is ``padding_idx`` (Paddle ``embedding``)."""
    weight = bridge.get_input_node(op, "weight")
    rows = bridge.shape(weight)[0]
    padding = _padding(op)
    bridge.integers.require_range(op, "x", 0, rows, ignored=padding)
    ids = bridge.get_input_node(op, "x")
    out = gathered_slices(bridge, weight, ids, 0)
    if padding is not None:
        # A Select sets the zeros of padding, and not an index for which Gather returns zeros,
        # because the engine moves the consumers of a Gather before it.
        is_padding = opset15.equal(ids, bridge.full(padding, ids.get_element_type()))
        is_padding = opset15.unsqueeze(is_padding, bridge.ints([-1]))
        out = opset15.select(is_padding, bridge.full(0.0, "float32"), out)
    bridge.set_output_node(op, "out", out)


@converter("pd_op.embedding_grad", inputs={"x": Role.INDEX, "weight": Role.SHAPE_ONLY})
def embedding_grad(bridge: NgraphBridge, op: Op) -> None:
    """``weight_grad[x[...]] += out_grad[...]``; row ``padding_idx`` is 0 (``embedding_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "weight"))
    bridge.integers.require_range(op, "x", 0, shape[0], ignored=_padding(op))
    ids = reshaped(bridge, bridge.get_input_node(op, "x"), [-1])
    out_grad = bridge.get_input_node(op, "out_grad")
    rows = reshaped(bridge, out_grad, [-1, shape[1]])
    node = bridge.extension(
        "EmbeddingGrad", [ids, rows], rows=shape[0], padding_idx=op.attr("padding_idx")
    )
    bridge.set_output_node(op, "weight_grad", node)


def _padding(op: Op) -> int | None:
    padding = op.attr("padding_idx")
    return None if padding == _NO_PADDING else int(padding)


# -- slices along an axis --------------------------------------------------------------------------


@converter(
    "pd_op.gather", dtypes=ANY, inputs={"index": Role.INDEX, "axis": Role.CONSTANT}, moves=True
)
def gather(bridge: NgraphBridge, op: Op) -> None:
    """The slices of ``x`` at ``index`` along ``axis`` (Paddle ``gather``)."""
    _gathered(bridge, op, known_int(bridge, op, "axis"))


@converter("pd_op.index_select", dtypes=ANY, inputs={"index": Role.INDEX}, moves=True)
def index_select(bridge: NgraphBridge, op: Op) -> None:
    """The slices of ``x`` at ``index`` along ``axis`` (Paddle ``index_select``)."""
    _gathered(bridge, op, op.attr("axis"))


def _gathered(bridge: NgraphBridge, op: Op, axis: int) -> None:
    x = bridge.get_input_node(op, "x")
    size = bridge.shape(x)[axis]
    bridge.integers.require_range(op, "index", -size, size)
    index = _flat_index(bridge, bridge.get_input_node(op, "index"))
    bridge.set_output_node(op, "out", gathered_slices(bridge, x, index, axis))


def gathered_slices(bridge: NgraphBridge, x: NodeInput, index: NodeInput, axis: int) -> Node:
    """The slices of ``x`` at ``index`` along ``axis``, by a Gather that the plugin retains.

    The plugin eliminates a Gather from an axis of size 1, and with it the check of the index,
    unless the rank of the indices differs.
    """
    only = is_same_shape([bridge.shape(x)[axis], *bridge.shape(index)], [1, 1])
    indices = opset15.unsqueeze(index, bridge.ints([0])) if only else index
    out = opset15.gather(x, indices, bridge.full(axis, "int64"))
    return opset15.reshape(out, bridge.ints(bridge.shape(x)), False) if only else out


_SCALAR_INDEX_AXIS = Limit(
    "with a 0-D index the axis must be 0: Paddle's gradient differs for others",
    lambda op: bool(op.input("index").shape) or op.constants.get("axis") == [0],
)


@converter(
    "pd_op.gather_grad",
    inputs={"index": Role.INDEX, "axis": Role.CONSTANT, "x": Role.SHAPE_ONLY},
    limits=[_SCALAR_INDEX_AXIS],
)
def gather_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad`` at ``index`` is the sum of the slices taken there (Paddle ``gather_grad``)."""
    _set_gathered_gradient(bridge, op, known_int(bridge, op, "axis"))


@converter("pd_op.index_select_grad", inputs={"index": Role.INDEX, "x": Role.SHAPE_ONLY})
def index_select_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: each slice of ``out_grad`` is added at its ``index`` (``index_select_grad``)."""
    _set_gathered_gradient(bridge, op, op.attr("axis"))


def _set_gathered_gradient(bridge: NgraphBridge, op: Op, axis: int) -> None:
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    axis = axis_of(axis, len(shape))
    bridge.integers.require_range(op, "index", -shape[axis], shape[axis])
    index = _flat_index(bridge, bridge.get_input_node(op, "index"))
    out_grad = bridge.get_input_node(op, "out_grad")
    order = axis_first(axis, len(shape))
    if bridge.shape(index):
        out_grad = transposed(bridge, out_grad, order)
    rows = _added_rows(bridge, [shape[i] for i in order], index, out_grad)
    bridge.set_output_node(op, "x_grad", transposed(bridge, rows, order, back=True))


def _flat_index(bridge: NgraphBridge, index: Output) -> Node | Output:
    """Reshapes ``index`` from [n, 1] to [n]."""
    return index if len(bridge.shape(index)) < 2 else reshaped(bridge, index, [-1])


def _added_rows(bridge: NgraphBridge, shape: Sequence[int], ids: Any, rows: NodeInput) -> Node:
    """Zeros of ``shape`` with ``rows`` added at the indices ``ids`` of axis 0."""
    positions = reshaped(bridge, ids, [-1, 1])
    count = bridge.shape(positions)[0]
    rows = reshaped(bridge, rows, [count, *shape[1:]])
    zeros = bridge.full(0, Type.f32, shape)
    return opset15.scatter_nd_update(zeros, positions, rows, "sum")


# -- single elements -------------------------------------------------------------------------------

_HAS_POSITIONS = Limit(
    "index must have at least one value for each element",
    lambda op: op.input("index").shape[-1] != 0,
)


@converter(
    "pd_op.gather_nd", dtypes=ANY, inputs={"index": Role.INDEX}, limits=[_HAS_POSITIONS], moves=True
)
def gather_nd(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = x[index[..., 0], index[..., 1], ...]`` (Paddle ``gather_nd``)."""
    x = bridge.get_input_node(op, "x")
    index = nd_positions(bridge, op, bridge.shape(x))
    bridge.set_output_node(op, "out", opset15.gather_nd(x, index))


@converter(
    "pd_op.gather_nd_grad",
    inputs={"index": Role.INDEX, "x": Role.SHAPE_ONLY},
    limits=[_HAS_POSITIONS],
)
def gather_nd_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: each element of ``out_grad`` is added at its ``index`` (``gather_nd_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    index = nd_positions(bridge, op, shape)
    zeros = bridge.full(0, Type.f32, shape)
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", opset15.scatter_nd_update(zeros, index, out_grad, "sum"))


def nd_positions(bridge: NgraphBridge, op: Op, shape: Sequence[int]) -> Output:
    """Input ``index``, whose last axis indexes the first axes of ``shape``, with a range check."""
    depth = bridge.shape(bridge.get_input_node(op, "index"))[-1]
    sizes = list(shape[:depth])
    bridge.integers.require_range(op, "index", [-size for size in sizes], sizes)
    return bridge.get_input_node(op, "index")


def _has_sizes_of_arr(op: Op) -> bool:
    """Whether ``indices`` certainly have the sizes of ``arr`` along all other axes."""
    sizes = list(zip(op.input("arr").shape, op.input("indices").shape))
    del sizes[op.attr("axis")]
    return all(full == size >= 0 for full, size in sizes)


_SHORT_INDICES = Limit(
    "indices are not certainly as large as arr along all other axes, where Paddle's kernel takes "
    "other elements",
    _has_sizes_of_arr,
)
_TAKE_LIMITS = [] if releases.CURRENT.short_indices else [_SHORT_INDICES]


@converter(
    "pd_op.take_along_axis",
    dtypes=ANY,
    inputs={"indices": Role.INDEX},
    limits=_TAKE_LIMITS,
    moves=True,
)
def take_along_axis(bridge: NgraphBridge, op: Op) -> None:
    """``out[i, j] = arr[i, indices[i, j]]`` for axis 1, and so on (``take_along_axis``)."""
    arr = bridge.get_input_node(op, "arr")
    shape = bridge.shape(arr)
    axis = op.attr("axis") % len(shape)
    bridge.integers.require_range(op, "indices", -shape[axis], shape[axis])
    index = bridge.get_input_node(op, "indices")
    bridge.set_output_node(op, "out", _elements(bridge, arr, index, axis))


@converter(
    "pd_op.take_along_axis_grad",
    inputs={"indices": Role.INDEX, "arr": Role.SHAPE_ONLY},
    limits=_TAKE_LIMITS,
)
def take_along_axis_grad(bridge: NgraphBridge, op: Op) -> None:
    """``arr_grad``: adds each element of ``out_grad`` at its index (``take_along_axis_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "arr"))
    axis = op.attr("axis") % len(shape)
    bridge.integers.require_range(op, "indices", -shape[axis], shape[axis])
    index = bridge.get_input_node(op, "indices")
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "arr_grad", _added_elements(bridge, shape, index, out_grad, axis))


@converter("pd_op.index_sample", dtypes=ANY, inputs={"index": Role.INDEX}, moves=True)
def index_sample(bridge: NgraphBridge, op: Op) -> None:
    """``out[i, j] = x[i, index[i, j]]`` (Paddle ``index_sample``)."""
    x = bridge.get_input_node(op, "x")
    bridge.integers.require_range(op, "index", 0, bridge.shape(x)[1])
    index = bridge.get_input_node(op, "index")
    bridge.set_output_node(op, "out", opset15.gather_elements(x, index, 1))


@converter("pd_op.index_sample_grad", inputs={"index": Role.INDEX, "x": Role.SHAPE_ONLY})
def index_sample_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad[i, index[i, j]] += out_grad[i, j]`` (Paddle ``index_sample_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.integers.require_range(op, "index", 0, shape[1])
    index = bridge.get_input_node(op, "index")
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _added_elements(bridge, shape, index, out_grad, 1))


def _elements(bridge: NgraphBridge, x: Output, index: NodeInput, axis: int) -> Node:
    """GatherElements of ``x`` along ``axis``; ``x`` may be longer than ``index`` along others."""
    dims = bridge.shape(index)
    ends = [full if i == axis else dim for i, (full, dim) in enumerate(zip(bridge.shape(x), dims))]
    begin, step = bridge.ints([0] * len(dims)), bridge.ints([1] * len(dims))
    as_given = [0] * len(dims)
    # StridedSlice instead of Slice: the engine drops a Slice before GatherElements, and then
    # rejects the shapes.
    part = opset15.strided_slice(x, begin, bridge.ints(ends), step, as_given, as_given)
    return opset15.gather_elements(part, index, axis)


def _added_elements(
    bridge: NgraphBridge, shape: Sequence[int], index: NodeInput, values: Any, axis: int
) -> Node:
    """A tensor of zeros to which ``values`` are added at ``index`` along ``axis``."""
    return opset15.scatter_elements_update(
        bridge.full(0, Type.f32, shape), index, values, axis, "sum"
    )


@converter("pd_op.multiplex", dtypes=ANY, inputs={"index": Role.INDEX}, moves=True)
def multiplex(bridge: NgraphBridge, op: Op) -> None:
    """Row ``i`` is row ``i`` of ``inputs[index[i]]`` (Paddle ``multiplex``)."""
    nodes = bridge.get_input_nodes(op, "inputs")
    rows = bridge.shape(nodes[0])[0]
    bridge.integers.require_range(op, "index", 0, len(nodes))
    index = reshaped(bridge, bridge.get_input_node(op, "index"), [rows, 1])
    numbers = opset15.constant(np.arange(rows).reshape(rows, 1), index.get_element_type())
    indices = opset15.concat([index, numbers], 1)
    tables = [opset15.unsqueeze(node, bridge.ints([0])) for node in nodes]
    bridge.set_output_node(op, "out", opset15.gather_nd(opset15.concat(tables, 0), indices))


@converter("pd_op.multiplex_grad", inputs={"index": Role.INDEX, "inputs": Role.SHAPE_ONLY})
def multiplex_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each tensor gets the rows of ``out_grad`` that were taken from it (``multiplex_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    dims = bridge.shape(out_grad)
    count = len(op.inputs["inputs"])
    bridge.integers.require_range(op, "index", 0, count)
    column = [dims[0], *[1] * (len(dims) - 1)]
    index = reshaped(bridge, bridge.get_input_node(op, "index"), column)
    zero = bridge.full(0.0, Type.f32)
    for position in range(count):
        is_taken = opset15.equal(index, bridge.full(position, index.get_element_type()))
        taken = opset15.select(is_taken, out_grad, zero)
        bridge.set_output_node(op, "inputs_grad", taken, position)


# -- classes ---------------------------------------------------------------------------------------


@converter(
    "pd_op.one_hot",
    dtypes=INTEGER,
    inputs={"x": Role.INDEX, "num_classes": Role.CONSTANT},
    kept_for="class ids that the build knows",
)
def one_hot(bridge: NgraphBridge, op: Op) -> None:
    """1 at index ``x[...]`` of a new last axis, 0 elsewhere (Paddle ``one_hot``)."""
    classes = known_int(bridge, op, "num_classes")
    bridge.integers.require_range(op, "x", 0, classes)
    ids = bridge.get_input_node(op, "x")
    one, zero = bridge.full(1.0, Type.f32), bridge.full(0.0, Type.f32)
    node = opset15.one_hot(ids, bridge.full(classes, "int64"), one, zero, -1)
    bridge.set_output_node(op, "out", node)
