"""Converters of comparisons, logical operators and selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from openvino import Node, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.node_tools import select
from paddle_ngraph.conversion.registry import (
    BOOL,
    FLOAT,
    INTEGER,
    Limit,
    Range,
    RangeRule,
    Role,
    converter,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import constant, reduce_to, reshaped, scalar_input, set_reduced

Binary = Callable[[Any, Any], Node]
Unary = Callable[[Any], Node]


def _register_binary(
    name: str, function: Binary, dtypes: frozenset[str], integers: RangeRule | None = None
) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
        bridge.set_output_node(op, "out", function(x, y))

    converter(f"pd_op.{name}", dtypes=dtypes, integers=integers)(convert)


def _register_unary(
    name: str, function: Unary, dtypes: frozenset[str], integers: RangeRule | None = None
) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        bridge.set_output_node(op, "out", function(bridge.get_input_node(op, "x")))

    converter(f"pd_op.{name}", dtypes=dtypes, integers=integers)(convert)


# -- comparison: the engine compares int32 in float32, which is not exact ------------------------

_INTEGERS = (Type.i32, Type.i64)
# int64 operands are converted to int32: only if their values are certainly representable.
_NUMERIC_DTYPES = FLOAT | INTEGER


def _are_known(x: NodeInput, y: NodeInput) -> bool:
    """Whether ``x`` and ``y`` are both constants, so that OpenVINO folds a comparison exactly."""
    return all(value.get_node().get_type_name() == "Constant" for value in (x, y))


def _equal(x: NodeInput, y: NodeInput) -> Node:
    """Whether ``x`` is ``y``; for floats, as in Paddle, up to a difference of 1e-15."""
    dtype = x.get_element_type()
    if dtype in _INTEGERS and not _are_known(x, y):
        return opset15.equal(opset15.bitwise_xor(x, y), opset15.constant(0, dtype))
    same = opset15.equal(x, y)
    if dtype != Type.f32:
        return same
    distance = opset15.abs(opset15.subtract(x, y))
    return opset15.logical_or(same, opset15.less(distance, opset15.constant(1e-15, Type.f32)))


def _not_equal(x: NodeInput, y: NodeInput) -> Node:
    return opset15.logical_not(_equal(x, y))


def _ordered(of_floats: Binary, choose: Binary, strict: bool) -> Binary:
    """A comparison: of floats, and for integers whether ``choose`` (which is exact) returns ``x``.

    A strict comparison is the negation of the opposite one, to which ``choose`` belongs.
    """

    def function(x: NodeInput, y: NodeInput) -> Node:
        if x.get_element_type() == Type.f32 or _are_known(x, y):
            return of_floats(x, y)
        takes_x = _equal(choose(x, y).output(0), x)
        return opset15.logical_not(takes_x) if strict else takes_x

    return function


def _register_with_in_place(name: str, function: Binary, dtypes: frozenset[str]) -> None:
    for variant in (name, f"{name}_"):
        _register_binary(variant, function, dtypes)


_less = _ordered(opset15.less, opset15.maximum, strict=True)
_less_equal = _ordered(opset15.less_equal, opset15.minimum, strict=False)
_greater = _ordered(opset15.greater, opset15.minimum, strict=True)
_greater_equal = _ordered(opset15.greater_equal, opset15.maximum, strict=False)
_register_with_in_place("equal", _equal, _NUMERIC_DTYPES | BOOL)
_register_with_in_place("not_equal", _not_equal, _NUMERIC_DTYPES | BOOL)
_register_with_in_place("less_than", _less, _NUMERIC_DTYPES)
_register_with_in_place("less_equal", _less_equal, _NUMERIC_DTYPES)
_register_with_in_place("greater_than", _greater, _NUMERIC_DTYPES)
_register_with_in_place("greater_equal", _greater_equal, _NUMERIC_DTYPES)


def _all_elements(bridge: NgraphBridge, node: NodeInput) -> Any:
    rank = len(bridge.shape(node))
    return opset15.reduce_logical_and(node, bridge.ints(range(rank))) if rank else node


@converter("pd_op.equal_all", dtypes=_NUMERIC_DTYPES | BOOL)
def equal_all(bridge: NgraphBridge, op: Op) -> None:
    """Whether ``x`` and ``y`` have one shape and equal elements (Paddle ``equal_all``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    shapes = bridge.shape(x), bridge.shape(y)
    if len(shapes[0]) == len(shapes[1]) and all(m == n for m, n in zip(*shapes)):
        bridge.set_output_node(op, "out", _all_elements(bridge, _equal(x, y)))
    else:
        bridge.set_output_node(op, "out", bridge.full(False, "bool"))


def _tolerances_are(dtypes: frozenset[str]) -> Callable[[Op], bool]:
    """Returns whether both tolerances of an operator are scalars of one of ``dtypes``.

    Paddle rejects all others.
    """

    def holds(op: Op) -> bool:
        specs = [op.input(name) for name in ("rtol", "atol")]
        return all(spec.dtype in dtypes and set(spec.shape) <= {1} for spec in specs)

    return holds


_DOUBLE = Limit("a tolerance is not one float64", _tolerances_are(frozenset({"float64"})))
_REAL = Limit("a tolerance is not one float", _tolerances_are(FLOAT | {"float64"}))


@converter("pd_op.isclose", inputs={"rtol": Role.CONSTANT, "atol": Role.CONSTANT}, limits=[_DOUBLE])
def isclose(bridge: NgraphBridge, op: Op) -> None:
    """``abs(x - y) <= atol + rtol * abs(y)`` (Paddle ``isclose``).

    Equal infinities are close, and NaNs with attribute ``equal_nan``.
    """
    bridge.set_output_node(op, "out", _is_close(bridge, op))


@converter("pd_op.allclose", inputs={"rtol": Role.CONSTANT, "atol": Role.CONSTANT}, limits=[_REAL])
def allclose(bridge: NgraphBridge, op: Op) -> None:
    """Whether all elements are close as in :func:`isclose` (Paddle ``allclose``)."""
    bridge.set_output_node(op, "out", _all_elements(bridge, _is_close(bridge, op)))


def _is_close(bridge: NgraphBridge, op: Op) -> Any:
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    rtol, atol = (float(bridge.constant(op, name).item()) for name in ("rtol", "atol"))
    slack = opset15.multiply(opset15.abs(y), bridge.full(rtol, "float32"))
    slack = opset15.add(slack, bridge.full(atol, "float32"))
    near = opset15.less_equal(opset15.abs(opset15.subtract(x, y)), slack)
    close = opset15.logical_or(near, opset15.equal(x, y))
    if op.attr("equal_nan"):
        strange = opset15.logical_and(opset15.not_equal(x, x), opset15.not_equal(y, y))
        close = opset15.logical_or(close, strange)
    return close


# -- logic ---------------------------------------------------------------------------------------


def _as_boolean(x: NodeInput) -> Any:
    """Whether ``x`` is not 0, compared as float32: no int32 but 0 becomes 0.0."""
    dtype = x.get_element_type()
    return x if dtype == Type.boolean else opset15.not_equal(x, opset15.constant(0, dtype))


def _on_booleans(function: Binary) -> Binary:
    return lambda x, y: function(_as_boolean(x), _as_boolean(y))


def _logical_not(x: NodeInput) -> Node:
    return opset15.logical_not(_as_boolean(x))


_register_with_in_place("logical_and", _on_booleans(opset15.logical_and), _NUMERIC_DTYPES | BOOL)
_register_with_in_place("logical_or", _on_booleans(opset15.logical_or), _NUMERIC_DTYPES | BOOL)
_register_with_in_place("logical_xor", _on_booleans(opset15.logical_xor), _NUMERIC_DTYPES | BOOL)


def _is_finite(x: NodeInput) -> Node:
    # Compares magnitudes, since with AVX-512 the plugin's IsFinite is false for the largest finite
    # value.
    return opset15.less_equal(opset15.abs(x), constant(np.finfo(np.float32).max))


def _is_infinite(x: NodeInput) -> Node:
    # Compares magnitudes: with AVX-512 the plugin's IsInf is always false where it is fused with
    # the producer of x.
    return opset15.equal(opset15.abs(x), constant(np.inf))


_register_unary("logical_not", _logical_not, _NUMERIC_DTYPES | BOOL)
_register_unary("logical_not_", _logical_not, _NUMERIC_DTYPES | BOOL)
_register_unary("isnan", opset15.is_nan, FLOAT)
_register_unary("isinf", _is_infinite, FLOAT)
_register_unary("isfinite", _is_finite, FLOAT)

# -- bits ----------------------------------------------------------------------------------------


def _bitwise(of_integers: Binary, of_bools: Binary) -> Binary:
    def function(x: NodeInput, y: NodeInput) -> Node:
        return (of_bools if x.get_element_type() == Type.boolean else of_integers)(x, y)

    return function


def _bits_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    """The range of a bitwise operator: as many bits as the longest operand has."""
    bounds = [bound for each in ranges.values() for bound in each]
    bits = max(max(bound, ~bound).bit_length() for bound in bounds)
    return (0 if min(bounds) >= 0 and "not" not in op.type else -(2**bits)), 2**bits - 1


def _bitwise_not(x: NodeInput) -> Node:
    is_bool = x.get_element_type() == Type.boolean
    return opset15.logical_not(x) if is_bool else opset15.bitwise_not(x)


_bitwise_and = _bitwise(opset15.bitwise_and, opset15.logical_and)
_bitwise_or = _bitwise(opset15.bitwise_or, opset15.logical_or)
_bitwise_xor = _bitwise(opset15.bitwise_xor, opset15.logical_xor)
for _suffix in ("", "_"):
    _register_binary(f"bitwise_and{_suffix}", _bitwise_and, INTEGER | BOOL, _bits_range)
    _register_binary(f"bitwise_or{_suffix}", _bitwise_or, INTEGER | BOOL, _bits_range)
    _register_binary(f"bitwise_xor{_suffix}", _bitwise_xor, INTEGER | BOOL, _bits_range)
    _register_unary(f"bitwise_not{_suffix}", _bitwise_not, INTEGER | BOOL, _bits_range)

# -- selection -----------------------------------------------------------------------------------


@converter("pd_op.where", dtypes=FLOAT | INTEGER | BOOL, moves=True)
def where(bridge: NgraphBridge, op: Op) -> None:
    """``arr_grad``: adds each element of ``out_grad`` at its index (``take_along_axis_grad``)."""
    condition = bridge.get_input_node(op, "condition")
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    if any(list(bridge.shape(each)) != list(bridge.shape(condition)) for each in (x, y)):
        # Paddle does not broadcast the inputs of ``where`` either.
        raise NgraphError("the inputs differ in shape")
    bridge.set_output_node(op, "out", select(condition, x, y))


@converter(
    "pd_op.where_grad", dtypes=FLOAT | BOOL, inputs={"x": Role.SHAPE_ONLY, "y": Role.SHAPE_ONLY}
)
def where_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where the input was selected, 0 elsewhere, for each input (``where_grad``)."""
    condition = bridge.get_input_node(op, "condition")
    grad = bridge.get_input_node(op, "out_grad")
    zero = bridge.full(0.0, "float32")
    set_reduced(bridge, op, "x", lambda: opset15.select(condition, grad, zero))
    set_reduced(bridge, op, "y", lambda: opset15.select(condition, zero, grad))


@converter("pd_op.masked_fill", dtypes=FLOAT | INTEGER | BOOL, moves=True)
def masked_fill(bridge: NgraphBridge, op: Op) -> None:
    """``value`` where ``mask`` is true, else ``x`` (Paddle ``masked_fill``)."""
    x, mask = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "mask")
    value = scalar_input(bridge, op, "value", x.get_element_type())
    bridge.set_output_node(op, "out", select(mask, value, x))


@converter(
    "pd_op.masked_fill_grad",
    dtypes=FLOAT | BOOL,
    inputs={"x": Role.SHAPE_ONLY, "value": Role.SHAPE_ONLY},
)
def masked_fill_grad(bridge: NgraphBridge, op: Op) -> None:
    """``value_grad`` gets ``out_grad`` where ``mask`` is true, ``x_grad`` elsewhere."""
    mask, grad = bridge.get_input_node(op, "mask"), bridge.get_input_node(op, "out_grad")
    zero = bridge.full(0.0, "float32")
    set_reduced(bridge, op, "x", lambda: opset15.select(mask, zero, grad))
    if op.has_output("value_grad"):
        shape = bridge.shape(bridge.get_input_node(op, "value"))
        total = reduce_to(bridge, opset15.select(mask, grad, zero), [])
        bridge.set_output_node(op, "value_grad", reshaped(bridge, total, shape))
