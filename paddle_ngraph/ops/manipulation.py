"""Shapes: reshape, transpose, concat, stack, split and similar operators.

Shapes are concrete while a function is built, so most gradients need only the shape of the forward
input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Output, Type, opset15

from paddle_ngraph.conversion.analysis.axis_order import axis_order, names_each_axis_once
from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.passes.blocked_layout import put_in_blocks, taken_from_blocks
from paddle_ngraph.conversion.registry import ANY, KNOWN, Limit, Role, converter
from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import axis_of, known_int, known_ints, reshaped, transposed

# -- the same elements in another shape ------------------------------------------------------------


@converter(
    "pd_op.reshape", "pd_op.reshape_", dtypes=ANY, inputs={"shape": Role.CONSTANT}, moves=True
)
def reshape(bridge: NgraphBridge, op: Op) -> None:
    """``x`` in ``shape``; 0 keeps a dimension, -1 is inferred (Paddle ``reshape``)."""
    dims = bridge.operand_shape(op.input("x"))
    shape = known_ints(bridge, op, "shape")
    shape = [dims[i] if dim == 0 else dim for i, dim in enumerate(shape)]
    inferred = [i for i, dim in enumerate(shape) if dim == -1]
    if len(inferred) > 1:
        raise NgraphError(f"a reshape infers {len(inferred)} dimensions; Paddle infers one at most")
    for i in inferred:
        rest = math.prod(dim for dim in shape if dim != -1)
        shape[i] = math.prod(dims) // max(rest, 1)
    found = taken_from_blocks(bridge, bridge.operand(op.input("x")), shape)
    if found is not None:
        bridge.set_output_node(op, "out", found)
    else:
        _set_view(bridge, op, shape)


@converter("pd_op.flatten", "pd_op.flatten_", dtypes=ANY, moves=True)
def flatten(bridge: NgraphBridge, op: Op) -> None:
    """Axes ``start_axis`` to ``stop_axis`` joined into one (Paddle ``flatten``)."""
    dims = bridge.operand_shape(op.input("x"))
    start = axis_of(op.attr("start_axis"), len(dims))
    stop = axis_of(op.attr("stop_axis"), len(dims))
    joined = math.prod(dims[start : stop + 1])
    _set_view(bridge, op, [*dims[:start], joined, *dims[stop + 1 :]])


@converter(
    "pd_op.squeeze", "pd_op.squeeze_", dtypes=ANY, inputs={"axis": Role.CONSTANT}, moves=True
)
def squeeze(bridge: NgraphBridge, op: Op) -> None:
    """``x`` without those axes in ``axis`` that have size 1; without ``axis``, all such axes."""
    dims = bridge.operand_shape(op.input("x"))
    axes = {axis_of(axis, len(dims)) for axis in known_ints(bridge, op, "axis")}
    axes = axes or set(range(len(dims)))
    kept = [dim for i, dim in enumerate(dims) if i not in axes or dim != 1]
    _set_view(bridge, op, kept)


@converter(
    "pd_op.unsqueeze", "pd_op.unsqueeze_", dtypes=ANY, inputs={"axis": Role.CONSTANT}, moves=True
)
def unsqueeze(bridge: NgraphBridge, op: Op) -> None:
    """``x`` with a dimension 1 inserted at every ``axis``, in order (Paddle ``unsqueeze``)."""
    dims = bridge.operand_shape(op.input("x"))
    for axis in known_ints(bridge, op, "axis"):
        dims.insert(axis_of(axis, len(dims) + 1), 1)
    _set_view(bridge, op, dims)


def _set_view(
    bridge: NgraphBridge, op: Op, shape: Sequence[Number], source: str = "x", output: str = "out"
) -> None:
    """Sets ``output`` to the input ``source`` in ``shape``, which excludes the axis of bytes."""
    x = bridge.operand(op.input(source))
    of_element = bridge.shape(x)[len(bridge.operand_shape(op.input(source))) :]
    bridge.set_output_node(op, output, reshaped(bridge, x, [*shape, *of_element]))


@converter(
    "pd_op.reshape_grad",
    "pd_op.reshape_grad_",
    "pd_op.flatten_grad",
    "pd_op.flatten_grad_",
    inputs={"x": Role.SHAPE_ONLY},
)
def reshape_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` in the shape of ``x`` (Paddle ``reshape_grad``, ``flatten_grad``)."""
    _reshape_as(bridge, op, "out_grad", "x", "x_grad")


@converter(
    "pd_op.reshape_double_grad",
    "pd_op.reshape_double_grad_",
    inputs={"grad_out": Role.SHAPE_ONLY},
)
def reshape_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """``grad_x_grad`` in the shape of ``grad_out`` (Paddle ``reshape_double_grad``)."""
    _reshape_as(bridge, op, "grad_x_grad", "grad_out", "grad_out_grad")


def _reshape_as(bridge: NgraphBridge, op: Op, source: str, like: str, output: str) -> None:
    """Sets ``output`` to the input ``source`` in the shape of the input ``like``."""
    dims = bridge.operand_shape(op.input(like))
    _set_view(bridge, op, dims, source, output)


def _not_one(shape: Sequence[int]) -> list[int]:
    return [i for i, dim in enumerate(shape) if dim != 1]


def _has_static_unit_dimensions(op: Op) -> bool:
    shapes = op.input("out_grad").shape, op.output("x_grad").shape
    return len({len(_not_one(shape)) for shape in shapes}) == 1


_STATIC_UNIT_DIMENSIONS = Limit(
    "a dimension that it adds or removes is dynamic", _has_static_unit_dimensions
)


# The input ``x`` is unused: a ProgramDesc program passes one without data and, in part, without a
# shape.
@converter(
    "pd_op.squeeze_grad",
    "pd_op.squeeze_grad_",
    "pd_op.unsqueeze_grad",
    "pd_op.unsqueeze_grad_",
    inputs={"x": Role.UNUSED, "axis": Role.SHAPE_ONLY},
    limits=[_STATIC_UNIT_DIMENSIONS],
)
def squeeze_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` with axes of size 1 added or removed (``squeeze_grad``, ``unsqueeze_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    dims = [1] * len(op.output("x_grad").shape)
    sources = _not_one(op.input("out_grad").shape)
    for target, source in zip(_not_one(op.output("x_grad").shape), sources):
        dims[target] = bridge.shape(out_grad)[source]
    bridge.set_output_node(op, "x_grad", reshaped(bridge, out_grad, dims))


_PERMUTATION = Limit("`perm` names an axis behind those that it orders", names_each_axis_once)


@converter("pd_op.transpose", "pd_op.transpose_", dtypes=ANY, limits=[_PERMUTATION], moves=True)
def transpose(bridge: NgraphBridge, op: Op) -> None:
    """Axis ``i`` of ``out`` is axis ``perm[i]`` of ``x`` (Paddle ``transpose``)."""
    x, order = bridge.get_input_node(op, "x"), axis_order(op)
    found = put_in_blocks(bridge, x, order)
    bridge.set_output_node(op, "out", found or transposed(bridge, x, order))


@converter("pd_op.transpose_grad", limits=[_PERMUTATION])
def transpose_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` with its axes in the order of ``x`` (Paddle ``transpose_grad``)."""
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", transposed(bridge, out_grad, axis_order(op), back=True))


# -- many tensors and one --------------------------------------------------------------------------


@converter("pd_op.concat", dtypes=ANY, inputs={"axis": Role.CONSTANT}, moves=True)
def concat(bridge: NgraphBridge, op: Op) -> None:
    """The tensors of ``x`` one after the other along ``axis`` (Paddle ``concat``)."""
    nodes = bridge.get_input_nodes(op, "x")
    axis = axis_of(known_int(bridge, op, "axis"), len(bridge.shape(nodes[0])))
    bridge.set_output_node(op, "out", opset15.concat(nodes, axis))


@converter("pd_op.concat_grad", inputs={"axis": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def concat_grad(bridge: NgraphBridge, op: Op) -> None:
    """Splits ``out_grad`` along ``axis``: a slice for each tensor in ``x`` (``concat_grad``)."""
    shapes = [bridge.shape(node) for node in bridge.get_input_nodes(op, "x")]
    axis = axis_of(known_int(bridge, op, "axis"), len(shapes[0]))
    out_grad = bridge.get_input_node(op, "out_grad")
    _set_slices(bridge, op, "x_grad", out_grad, axis, [shape[axis] for shape in shapes])


@converter("pd_op.stack", dtypes=ANY, moves=True)
def stack(bridge: NgraphBridge, op: Op) -> None:
    """The tensors of ``x`` one after the other along a new ``axis`` (Paddle ``stack``)."""
    _stack(bridge, op, "x", "out")


@converter("pd_op.unstack_grad")
def unstack_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: the gradients of the outputs, stacked (Paddle ``unstack_grad``)."""
    _stack(bridge, op, "out_grad", "x_grad")


def _stack(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    nodes = bridge.get_input_nodes(op, name_in)
    dims = bridge.shape(nodes[0])
    axis = axis_of(op.attr("axis"), len(dims) + 1)
    shape = [*dims[:axis], 1, *dims[axis:]]
    rows = [reshaped(bridge, node, shape) for node in nodes]
    bridge.set_output_node(op, name_out, opset15.concat(rows, axis))


@converter("pd_op.stack_grad", inputs={"x": Role.SHAPE_ONLY})
def stack_grad(bridge: NgraphBridge, op: Op) -> None:
    """Splits ``out_grad`` along ``axis``: one slice for each stacked tensor (``stack_grad``)."""
    _unbind(bridge, op, "out_grad", "x_grad")


@converter("pd_op.unstack", dtypes=ANY, moves=True)
def unstack(bridge: NgraphBridge, op: Op) -> None:
    """Splits ``x`` into one tensor for each index along ``axis`` (Paddle ``unstack``)."""
    _unbind(bridge, op, "x", "out")


@converter("pd_op.unbind", dtypes=ANY, moves=True)
def unbind(bridge: NgraphBridge, op: Op) -> None:
    """Splits ``x`` into one tensor for each index along ``axis`` (Paddle ``unbind``)."""
    _unbind(bridge, op, "input", "out")


def _unbind(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    x = bridge.get_input_node(op, name_in)
    dims = bridge.shape(x)
    axis = axis_of(op.attr("axis"), len(dims))
    shape = [*dims[:axis], *dims[axis + 1 :]]
    _set_slices(bridge, op, name_out, x, axis, [1] * dims[axis], shape)


@converter(
    "pd_op.split", dtypes=ANY, inputs={"sections": Role.CONSTANT, "axis": Role.CONSTANT}, moves=True
)
def split(bridge: NgraphBridge, op: Op) -> None:
    """Splits ``x`` along ``axis`` into ``sections``; -1 is inferred (Paddle ``split``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis = axis_of(known_int(bridge, op, "axis"), len(dims))
    lengths = known_ints(bridge, op, "sections")
    if -1 in lengths:
        rest = dims[axis] - sum(length for length in lengths if length != -1)
        lengths[lengths.index(-1)] = rest
    _set_slices(bridge, op, "out", x, axis, lengths)


@converter("pd_op.split_with_num", dtypes=ANY, inputs={"axis": Role.CONSTANT}, moves=True)
def split_with_num(bridge: NgraphBridge, op: Op) -> None:
    """Splits ``x`` along ``axis`` into ``num`` equal slices (Paddle ``split_with_num``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    axis = axis_of(known_int(bridge, op, "axis"), len(dims))
    num = op.attr("num")
    _set_slices(bridge, op, "out", x, axis, [dims[axis] // num] * num)


def _set_slices(
    bridge: NgraphBridge,
    op: Op,
    name: str,
    node: Output,
    axis: int,
    lengths: Sequence[Number],
    shape: Sequence[Number] | None = None,
) -> None:
    """Sets the output list ``name``: slices of ``node`` along ``axis``, each in ``shape``."""
    slices = opset15.variadic_split(node, axis, bridge.ints(lengths)).outputs()
    for position, taken in enumerate(slices):
        value = taken if shape is None else reshaped(bridge, taken, shape)
        bridge.set_output_node(op, name, value, position)


# -- the shape itself ------------------------------------------------------------------------------


_HAS_AXES = Limit("the shape of a 0-D tensor is empty", lambda op: bool(op.input("input").shape))


@converter(
    "pd_op.shape",
    "pd_op.shape64",
    inputs={"input": Role.SHAPE_ONLY},
    limits=[_HAS_AXES],
    small_integers=True,
)
def shape(bridge: NgraphBridge, op: Op) -> None:
    """The dimensions of ``input`` as a 1-D tensor (Paddle ``shape``, ``shape64``)."""
    dims = bridge.shape(bridge.get_input_node(op, "input"))
    bridge.set_output_node(op, "out", _vector(bridge, dims, op.output("out").dtype))


def _vector(bridge: NgraphBridge, numbers: Sequence[Number], dtype: str) -> Any:
    node, target = bridge.ints(numbers), element_type(dtype)
    return node if target == Type.i64 else opset15.convert(node, target)


@converter("pd_op.is_empty", dtypes=KNOWN, inputs={"x": Role.SHAPE_ONLY})
def is_empty(bridge: NgraphBridge, op: Op) -> None:
    """Whether ``x`` has no elements (Paddle ``is_empty``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, "out", opset15.constant(np.array(0 in dims)))


@converter("pd_op.numel", inputs={"x": Role.SHAPE_ONLY}, small_integers=True)
def numel(bridge: NgraphBridge, op: Op) -> None:
    """The number of elements of ``x`` (Paddle ``numel``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, "size", bridge.full(math.prod(dims), op.output("size").dtype))
