"""Converters of operators that create constants and ranges, or copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from openvino import Node, Type, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.registry import ANY, INTEGER, Limit, Range, Role, converter, range_of
from paddle_ngraph.conversion.symbolic_sizes import SymbolicSize, is_symbolic
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import known_int, known_ints, known_number, scalar_input
from paddle_ngraph.paddle_private import releases

_FITS_INT32 = Limit(
    "a value of attribute 'values' needs 64 bits",
    lambda op: op.attr("dtype") != "int64" or all(abs(v) < 2**31 for v in op.attr("values")),
)
_RANGE_FITS_INT32 = Limit(
    "its begin or end overflows int32",
    lambda op: (
        op.output("out").dtype != "int64"
        or all(abs(op.constants.get(name, [0])[0]) < 2**31 for name in ("start", "end"))
    ),
)

_VALUE_FITS_INT32 = Limit(
    "an int64 must be a constant of the program that is representable in int32",
    lambda op: (
        op.output("out").dtype != "int64"
        or all(abs(v) < 2**31 for v in op.constants.get("value", [2**31]))
    ),
)


@converter("pd_op.full", dtypes=ANY, small_integers=True)
def full(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of attribute ``shape`` (Paddle ``full``)."""
    bridge.set_output_node(
        op, "out", bridge.full(op.attr("value"), op.attr("dtype"), op.attr("shape"))
    )


@converter("pd_op.full_int_array", dtypes=ANY, small_integers=True)
def full_int_array(bridge: NgraphBridge, op: Op) -> None:
    """Attribute ``value`` as a 1-D tensor (Paddle ``full_int_array``)."""
    dtype = element_type(op.attr("dtype"))
    values = np.array(op.attr("value"), dtype=dtype.to_dtype())
    bridge.set_output_node(op, "out", opset15.constant(values, dtype))


@converter("pd_op.full_", dtypes=ANY, inputs={"output": Role.SHAPE_ONLY})
def full_(bridge: NgraphBridge, op: Op) -> None:
    """``output[...] = value``, of attribute ``shape`` (Paddle ``full_``)."""
    full(bridge, op)


def _value_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    return range_of(op.constants["value"]) if "value" in op.constants else None


@converter(
    "pd_op.full_like",
    dtypes=ANY,
    inputs={"x": Role.SHAPE_ONLY},
    limits=[_VALUE_FITS_INT32],
    integers=_value_range,
)
def full_like(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of the shape of ``x`` (Paddle ``full_like``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, "out", _filled(bridge, op, shape))


@converter(
    "pd_op.full_with_tensor", dtypes=ANY, inputs={"shape": Role.CONSTANT}, integers=_value_range
)
def full_with_tensor(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of the shape in input ``shape`` (Paddle ``full_with_tensor``)."""
    bridge.set_output_node(op, "out", _filled(bridge, op, known_ints(bridge, op, "shape")))


@converter("pd_op.full_batch_size_like", dtypes=ANY, inputs={"input": Role.SHAPE_ONLY})
def full_batch_size_like(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``; one dimension is taken from ``input`` (``full_batch_size_like``)."""
    shape = list(op.attr("shape"))
    dims = bridge.shape(bridge.get_input_node(op, "input"))
    shape[op.attr("output_dim_idx")] = dims[op.attr("input_dim_idx")]
    bridge.set_output_node(op, "out", bridge.full(op.attr("value"), op.attr("dtype"), shape))


def _filled(bridge: NgraphBridge, op: Op, shape: list[int]) -> Node:
    dtype = element_type(op.output("out").dtype)
    value = scalar_input(bridge, op, "value", dtype)
    return opset15.broadcast(value, bridge.ints(shape)) if shape else value


def _range_of_values(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    return range_of(op.attr("values"))


@converter(
    "pd_op.assign_value",
    dtypes=ANY,
    limits=[_FITS_INT32],
    integers=_range_of_values,
    kept_for="contents that are known in the build",
)
@converter(
    "pd_op.assign_value_",
    dtypes=ANY,
    inputs={"output": Role.SHAPE_ONLY},
    limits=[_FITS_INT32],
    integers=_range_of_values,
)
def assign_value(bridge: NgraphBridge, op: Op) -> None:
    """Attribute ``values`` in the shape of attribute ``shape`` (Paddle ``assign_value``)."""
    # A placeholder of a loop is declared as what an iteration assigns, and may name another dtype.
    dtype = element_type(op.output("out").dtype)
    values = np.array(op.attr("values")).astype(dtype.to_dtype()).reshape(op.attr("shape"))
    bridge.set_output_node(op, "out", opset15.constant(values, dtype))


def _counted_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    if not {"start", "end"} <= op.constants.keys():
        return None
    found = range_of([*op.constants["start"], *op.constants["end"]])
    # The range of start and end is widened by 1 on both sides: fractions are truncated towards 0.
    return found and (found[0] - 1, found[1] + 1)


@converter(
    "pd_op.arange",
    dtypes=ANY,
    inputs={"start": Role.CONSTANT, "end": Role.CONSTANT, "step": Role.CONSTANT},
    limits=[_RANGE_FITS_INT32],
    small_integers=True,
    integers=_counted_range,
)
def arange(bridge: NgraphBridge, op: Op) -> None:
    """``start, start + step, ...`` up to, but not including, ``end`` (Paddle ``arange``)."""
    dtype = element_type(op.output("out").dtype)
    start, end, step = (known_number(bridge, op, name) for name in ("start", "end", "step"))
    if dtype == Type.i64 and max(abs(start), abs(end)) >= 2**31:
        raise NgraphError("its begin or end overflows int32")
    if is_symbolic((start, end, step)) and _counts_exactly(dtype, start, end, step):
        numbers = (bridge.full(each, Type.i64) for each in (start, end, step))
        bridge.set_output_node(op, "out", opset15.range(*numbers, output_type=dtype))
        return
    start, end, step = (float(n) if isinstance(n, SymbolicSize) else n for n in (start, end, step))
    values = start + step * np.arange(np.ceil((end - start) / step))
    bridge.set_output_node(op, "out", opset15.constant(values.astype(dtype.to_dtype()), dtype))


def _counts_exactly(dtype: Type, *numbers: Any) -> bool:
    """Whether a range from ``numbers`` (start, end, step) is the same in integers and ``dtype``."""
    if dtype in (Type.i32, Type.i64):
        return True
    return dtype == Type.f32 and all(
        n == int(n) for n in numbers if not isinstance(n, SymbolicSize)
    )


@converter("pd_op.assign", dtypes=ANY, moves=True)
@converter("pd_op.assign_", dtypes=ANY, moves=True)
@converter("pd_op.assign_out_", dtypes=ANY, moves=True, inputs={"output": Role.SHAPE_ONLY})
def assign(bridge: NgraphBridge, op: Op) -> None:
    """``out = x`` (Paddle ``assign``)."""
    bridge.set_output_node(op, "out", bridge.get_input_node(op, "x"))


@converter("pd_op.fill", dtypes=ANY, inputs={"x": Role.SHAPE_ONLY})
@converter("pd_op.fill_", dtypes=ANY, inputs={"x": Role.SHAPE_ONLY})
def fill(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of the shape of ``x`` (Paddle ``fill``)."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    bridge.set_output_node(op, "out", _filled(bridge, op, shape))


@converter("pd_op.fill_grad", inputs={"out_grad": Role.SHAPE_ONLY, "value": Role.SHAPE_ONLY})
def fill_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = 0`` (Paddle ``fill_grad``)."""
    shape = bridge.shape(bridge.get_input_node(op, "out_grad"))
    bridge.set_output_node(op, "x_grad", bridge.full(0.0, "float32", shape))


@converter(
    "pd_op.linspace",
    inputs={"start": Role.CONSTANT, "stop": Role.CONSTANT, "number": Role.CONSTANT},
    limits=[
        Limit("start and stop must be float32", lambda op: op.input("start").dtype == "float32")
    ],
)
def linspace(bridge: NgraphBridge, op: Op) -> None:
    """``number`` values from ``start`` to ``stop``, computed from the nearer end (``linspace``)."""
    start, stop, number = (bridge.constant(op, name).item() for name in ("start", "stop", "number"))
    first, last = np.float32(start), np.float32(stop)
    dtype = np.float64 if releases.CURRENT.wide_linspace else np.float32
    numbers = np.arange(number, dtype=dtype)
    step = dtype(last - first) / dtype(max(number - 1, 1))
    values = np.where(
        numbers < number // 2, first + step * numbers, last - step * (number - 1 - numbers)
    )
    values = np.array([first]) if number == 1 else values
    bridge.set_output_node(op, "out", opset15.constant(values.astype(np.float32)))


@converter(
    "pd_op.sequence_mask",
    dtypes=INTEGER,
    inputs={"max_len": Role.CONSTANT, "x": Role.INDEX},
    small_integers=True,
    limits=[
        Limit(
            "maxlen must be a constant of the program, at most 2^24",
            lambda op: 0 < op.constants.get("max_len", [0])[0] <= 2**24,
        )
    ],
)
def sequence_mask(bridge: NgraphBridge, op: Op) -> None:
    """Row ``i``: ``x[i]`` ones, then zeros, ``max_len`` elements in total (``sequence_mask``)."""
    x = bridge.get_input_node(op, "x")
    length = known_int(bridge, op, "max_len")
    lengths = opset15.convert(opset15.unsqueeze(x, bridge.ints([-1])), "f32")
    indices = opset15.constant(np.arange(length, dtype=np.float32))
    mask = opset15.less(indices, lengths)
    dtype = element_type(op.output("y").dtype)
    node = mask if dtype == mask.get_element_type() else opset15.convert(mask, dtype)
    bridge.set_output_node(op, "y", node)
