"""Arithmetic of one or more tensors, with broadcasting, and the gradients."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from openvino import Node, Output, Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.passes.algebra import ADD_ZERO_MARK
from paddle_ngraph.conversion.registry import (
    BOOL,
    FLOAT,
    INT32,
    INTEGER,
    RANGES,
    Limit,
    Range,
    RangeRule,
    Role,
    converter,
    range_of,
)
from paddle_ngraph.conversion.size_rules import broadcast_shapes, is_same_shape
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import (
    Bilinear,
    Scaled,
    Term,
    applied,
    operands,
    product,
    register_slopes,
    set_double_gradient,
    set_term,
    set_triple_gradient,
    total,
)
from paddle_ngraph.ops.nodes import (
    always,
    broadcast_to,
    constant,
    in_32_bits,
    is_constant,
    keep_nan,
    reduce_to,
    scalar_input,
    select_number,
    set_reduced,
)

Binary = Callable[[Any, Any], Node]

# Arithmetic operators convert int64 only where values are known at build time, or surely
# representable in int32.
_NUMERIC_DTYPES = FLOAT | INTEGER


def _aligns_last_dimensions(op: Op) -> bool:
    ranks = [len(op.input(name).shape) for name in ("x", "y")]
    return op.attr("axis", -1) in (-1, max(ranks) - min(ranks))


_TRAILING_ALIGNMENT = Limit(
    "attribute 'axis' aligns the smaller input with leading dimensions", _aligns_last_dimensions
)
# The second gradient of a sum has gradients of both operands as inputs, of a quotient ``out``.
_TRAILING_ALIGNMENT_OF_CHANGES = Limit(
    _TRAILING_ALIGNMENT.text, lambda op: op.attr("axis", -1) == -1
)
_EQUAL_SHAPES = Limit(
    "its inputs differ in shape",
    lambda op: len({spec.shape for spec in op.inputs["inputs"]}) == 1,
)


# -- add, subtract, multiply, divide -------------------------------------------------------------


def _register_binary(
    name: str, function: Binary, dtypes: frozenset[str], integers: RangeRule | None = None
) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
        bridge.set_output_node(op, "out", function(x, y))

    converter(f"pd_op.{name}", dtypes=dtypes, integers=integers)(convert)


def _register_arithmetic(
    name: str, function: Binary, of_integers: Callable[[int, int], int], of_bools: Binary | None
) -> None:
    def convert(bridge: NgraphBridge, op: Op) -> None:
        x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
        if of_bools is not None and x.get_element_type() == Type.boolean:
            out = of_bools(x, y)
        else:
            out = in_32_bits(bridge, op, function, x, y)
        bridge.set_output_node(op, "out", out)

    converter(
        *(f"pd_op.{name}", f"pd_op.{name}_"),
        dtypes=_NUMERIC_DTYPES if of_bools is None else _NUMERIC_DTYPES | BOOL,
        integers=_extremes(of_integers),
        checks=always,
    )(convert)


def _extremes(function: Callable[[int, int], int]) -> RangeRule:
    """The range of a function whose extremes are at the bounds of its operands' ranges."""

    def rule(op: Op, ranges: Mapping[str, Range]) -> Range:
        values = [function(x, y) for x in ranges["x"] for y in ranges["y"]]
        return min(values), max(values)

    return rule


_register_arithmetic("add", opset15.add, operator.add, opset15.logical_or)
_register_arithmetic("subtract", opset15.subtract, operator.sub, None)
_register_arithmetic("multiply", opset15.multiply, operator.mul, opset15.logical_and)
# Division is not registered for integers: the engine divides int32 in float32, which is not exact.
_register_binary("divide", opset15.divide, FLOAT)
_register_binary("divide_", opset15.divide, FLOAT)


# -- floor_divide, remainder ---------------------------------------------------------------------


def _quotient_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    low, high = ranges["y"]
    divisors = {low, high, *(one for one in (-1, 1) if low <= one <= high)} - {0}
    values = [x // y for x in ranges["x"] for y in divisors]
    return (min(values), max(values)) if values else None


def _remainder_range(op: Op, ranges: Mapping[str, Range]) -> Range:
    """The range of a remainder: the sign of the divisor, and a smaller magnitude.

    Values between 0 and the divisor stay.
    """
    (least, most), (low, high) = ranges["x"], ranges["y"]
    if (least >= 0 and most < low) or (high < least and most <= 0):
        return least, most
    return min(0, low + 1), max(0, high - 1)


def _floored(bridge: NgraphBridge, name: str, x: NodeInput, y: NodeInput) -> Any:
    """This package's ``FloorDivide`` or ``Remainder`` of x and y, broadcast to each other."""
    shape = broadcast_shapes(bridge.shape(x), bridge.shape(y))
    operands = [
        value
        if is_same_shape(bridge.shape(value), shape)
        else opset15.broadcast(value, bridge.ints(shape))
        for value in (x, y)
    ]
    return bridge.extension(name, operands)


def _convert_floored(bridge: NgraphBridge, op: Op, name: str, of_known: Binary) -> None:
    """Converts to this package's operator; int64 known at build time to OpenVINO's ``of_known``.

    This package's operator is 32-bit; int64 that is not known is surely representable in int32.
    """
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    if x.get_element_type() != Type.i64:
        out = _floored(bridge, name, x, y)
    elif bridge.is_known(op, "x") and bridge.is_known(op, "y"):
        if not bridge.constant(op, "y").all():
            raise NgraphError("an integer is divided by zero")
        out = of_known(x, y)
    else:
        operands = (opset15.convert(operand, Type.i32) for operand in (x, y))
        out = opset15.convert(_floored(bridge, name, *operands), Type.i64)
    bridge.set_output_node(op, "out", out)


@converter("pd_op.floor_divide", dtypes=_NUMERIC_DTYPES, integers=_quotient_range)
@converter("pd_op.floor_divide_", dtypes=_NUMERIC_DTYPES, integers=_quotient_range)
def floor_divide(bridge: NgraphBridge, op: Op) -> None:
    """``floor(x / y)`` (Paddle ``floor_divide``)."""
    _convert_floored(bridge, op, "FloorDivide", opset15.divide)


@converter("pd_op.remainder", dtypes=_NUMERIC_DTYPES, integers=_remainder_range)
@converter("pd_op.remainder_", dtypes=_NUMERIC_DTYPES, integers=_remainder_range)
def remainder(bridge: NgraphBridge, op: Op) -> None:
    """``x - floor(x / y) y``, with the sign of y (Paddle ``remainder``)."""
    _convert_floored(bridge, op, "Remainder", opset15.floor_mod)


@converter("pd_op.remainder_grad", limits=[_TRAILING_ALIGNMENT])
def remainder_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = sum_to(x, out_grad)``, ``y_grad = -sum_to(y, out_grad floor(x / y))``.

    The quotient is rounded before its floor is taken, unlike that of ``floor_divide``.
    """
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    grad = bridge.get_input_node(op, "out_grad")

    def of_y() -> Node:
        return opset15.multiply(opset15.negative(grad), opset15.floor(opset15.divide(x, y)))

    set_reduced(bridge, op, "x", lambda: grad)
    set_reduced(bridge, op, "y", of_y)


# -- gradients of add, subtract, multiply, divide ------------------------------------------------


@converter(
    "pd_op.add_grad",
    inputs={"x": Role.SHAPE_ONLY, "y": Role.SHAPE_ONLY},
    limits=[_TRAILING_ALIGNMENT],
)
def add_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = sum_to(x, out_grad)``, ``y_grad`` likewise (Paddle ``add_grad``)."""
    grad = bridge.get_input_node(op, "out_grad")
    set_reduced(bridge, op, "x", lambda: grad)
    set_reduced(bridge, op, "y", lambda: grad)


@converter(
    "pd_op.subtract_grad",
    inputs={"x": Role.SHAPE_ONLY, "y": Role.SHAPE_ONLY},
    limits=[_TRAILING_ALIGNMENT],
)
def subtract_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = sum_to(x, out_grad)``, ``y_grad = -sum_to(y, out_grad)``."""
    grad = bridge.get_input_node(op, "out_grad")
    set_reduced(bridge, op, "x", lambda: grad)
    if op.has_output("y_grad"):
        shape = bridge.shape(bridge.get_input_node(op, "y"))
        reduced = reduce_to(bridge, grad, shape)
        bridge.set_output_node(op, "y_grad", opset15.negative(reduced))


@converter("pd_op.multiply_grad", limits=[_TRAILING_ALIGNMENT])
def multiply_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = sum_to(x, out_grad * y)``, ``y_grad = sum_to(y, out_grad * x)``."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    grad = bridge.get_input_node(op, "out_grad")
    set_reduced(bridge, op, "x", lambda: opset15.multiply(grad, y))
    set_reduced(bridge, op, "y", lambda: opset15.multiply(grad, x))


@converter("pd_op.divide_grad", inputs={"x": Role.SHAPE_ONLY}, limits=[_TRAILING_ALIGNMENT])
def divide_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = sum_to(x, g)``, ``y_grad = sum_to(y, -out * g)`` with ``g = out_grad / y``."""
    y, out = bridge.get_input_node(op, "y"), bridge.get_input_node(op, "out")
    grad = bridge.get_input_node(op, "out_grad")
    set_reduced(bridge, op, "x", lambda: opset15.divide(grad, y))
    set_reduced(
        bridge,
        op,
        "y",
        lambda: opset15.divide(opset15.multiply(opset15.negative(grad), out), y),
    )


# -- second and third gradients of add, subtract, multiply, divide -------------------------------


@converter(
    *("pd_op.add_double_grad", "pd_op.add_double_grad_"),
    inputs={"y": Role.SHAPE_ONLY, "grad_out": Role.SHAPE_ONLY},
    limits=[_TRAILING_ALIGNMENT_OF_CHANGES],
)
def add_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """``grad_out_grad = grad_x_grad + grad_y_grad``, broadcast (Paddle ``add_double_grad``)."""
    _, out, of_x, of_y = operands(bridge, op)
    set_term(bridge, op, "grad_out_grad", lambda: total(of_x, of_y), out, broadcast_to)


@converter(
    *("pd_op.subtract_double_grad", "pd_op.subtract_double_grad_"),
    inputs={"y": Role.SHAPE_ONLY, "grad_out": Role.SHAPE_ONLY},
    limits=[_TRAILING_ALIGNMENT_OF_CHANGES],
)
def subtract_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """``grad_out_grad = grad_x_grad - grad_y_grad``, broadcast (``subtract_double_grad``).

    Paddle's kernel exchanges both where ``grad_x_grad`` has fewer dimensions: the wrong sign.
    """
    _, out, of_x, of_y = operands(bridge, op)
    if of_x is not None and of_y is not None and len(bridge.shape(of_x)) < len(bridge.shape(of_y)):
        of_x, of_y = of_y, of_x
    set_term(bridge, op, "grad_out_grad", lambda: _difference(of_x, of_y), out, broadcast_to)


def _difference(x: Term, y: Term) -> Term:
    if x is not None and y is not None:
        return opset15.subtract(x, y)
    return total(x, applied(opset15.negative, y))


@converter(
    *("pd_op.add_triple_grad", "pd_op.add_triple_grad_"),
    inputs={"grad_grad_x": Role.SHAPE_ONLY, "grad_grad_y": Role.SHAPE_ONLY},
    limits=[_TRAILING_ALIGNMENT_OF_CHANGES],
)
def add_triple_grad(bridge: NgraphBridge, op: Op) -> None:
    """Each gradient is ``grad_grad_out_grad``, summed as its operand was broadcast.

    (Paddle ``add_triple_grad``.)
    """
    x, y, grad = operands(bridge, op)
    for output, like in zip(op.outputs, (x, y)):
        set_term(bridge, op, output, lambda: grad, like)


@converter(
    *("pd_op.multiply_double_grad", "pd_op.multiply_double_grad_"), limits=[_TRAILING_ALIGNMENT]
)
def multiply_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of ``x``, ``y`` and ``grad_out`` (Paddle ``multiply_double_grad``).

    ``x_grad = grad_out * grad_y_grad``, ``y_grad = grad_out * grad_x_grad``, and
    ``grad_out_grad = grad_x_grad * y + x * grad_y_grad``.
    """
    set_double_gradient(bridge, op, _MULTIPLY)


@converter("pd_op.multiply_triple_grad", limits=[_TRAILING_ALIGNMENT])
def multiply_triple_grad(bridge: NgraphBridge, op: Op) -> None:
    """The gradients of :func:`multiply_double_grad` (Paddle ``multiply_triple_grad``).

    Summed as their operands were broadcast, which Paddle's kernel omits.
    """
    set_triple_gradient(bridge, op, _MULTIPLY)


_MULTIPLY = Bilinear(
    value=product,
    x_gradient=lambda x, y, grad: opset15.multiply(grad, y),
    y_gradient=lambda x, y, grad: opset15.multiply(grad, x),
)


@converter(
    *("pd_op.divide_double_grad", "pd_op.divide_double_grad_"),
    limits=[_TRAILING_ALIGNMENT_OF_CHANGES],
)
def divide_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of ``y``, ``out`` and ``grad_out`` (Paddle ``divide_double_grad``).

    ``y_grad = g / y * (out * grad_y_grad - grad_x_grad)``, ``out_grad = -g * grad_y_grad``,
    ``grad_out_grad = (grad_x_grad - out * grad_y_grad) / y`` with ``g = grad_out / y``, which is
    ``grad_x`` unless that was summed.
    """
    y, out, grad, grad_x, of_x, of_y = operands(bridge, op)
    share = grad_x
    if share is None or not is_same_shape(bridge.shape(share), bridge.shape(out)):
        share = opset15.divide(grad, y)
    change = _difference(of_x, product(out, of_y))

    def of_y_of_gradient() -> Any:
        return product(applied(opset15.negative, change), opset15.divide(share, y))

    set_term(bridge, op, "y_grad", of_y_of_gradient, y)
    set_term(bridge, op, "out_grad", lambda: product(applied(opset15.negative, share), of_y), out)
    set_term(bridge, op, "grad_out_grad", lambda: applied(opset15.divide, change, y), out)


# -- maximum, minimum ----------------------------------------------------------------------------


def _either(choose: Binary) -> Binary:
    def function(x: NodeInput, y: NodeInput) -> Node:
        if x.get_element_type() != Type.f32:
            return choose(x, y)
        # A NaN of either operand is restored: the engine's kernels return the second operand then.
        return keep_nan(x, keep_nan(y, choose(x, y)))

    return function


def _register_choice(
    name: str, choose: Binary, wins: Binary, of_integers: Callable[[int, int], int]
) -> None:
    def gradient(bridge: NgraphBridge, op: Op) -> None:
        x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
        grad = bridge.get_input_node(op, "out_grad")

        def share(mine: Any, other: NodeInput) -> Node:
            won = opset15.multiply(grad, select_number(wins(mine, other)))
            tied = opset15.multiply(grad, select_number(opset15.equal(mine, other), 0.5))
            return opset15.add(won, tied)

        set_reduced(bridge, op, "x", lambda: share(x, y))
        set_reduced(bridge, op, "y", lambda: share(y, x))

    _register_binary(name, _either(choose), _NUMERIC_DTYPES, _extremes(of_integers))
    converter(f"pd_op.{name}_grad")(gradient)


# Paddle halves the gradient where the inputs are equal, drops it where one is NaN, and adds both
# cases, each times its mask: an infinite gradient becomes NaN.
_register_choice("maximum", opset15.maximum, opset15.greater, max)
_register_choice("minimum", opset15.minimum, opset15.less, min)


def _register_fchoice(name: str, choose: Binary, wins: Binary) -> None:
    def forward(x: NodeInput, y: NodeInput) -> Node:
        number = opset15.select(opset15.not_equal(y, y), x, choose(x, y))
        return opset15.select(opset15.not_equal(x, x), y, number)

    def gradient(bridge: NgraphBridge, op: Op) -> None:
        x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
        grad = bridge.get_input_node(op, "out_grad")
        zero, one = bridge.full(0.0, "float32"), bridge.full(1.0, "float32")
        y_is_nan = opset15.not_equal(y, y)
        takes_x = opset15.logical_or(wins(x, y), y_is_nan)
        set_reduced(
            bridge, op, "x", lambda: opset15.multiply(grad, opset15.select(takes_x, one, zero))
        )
        set_reduced(
            bridge, op, "y", lambda: opset15.multiply(grad, opset15.select(takes_x, zero, one))
        )

    converter(f"pd_op.{name}")(
        lambda bridge, op: bridge.set_output_node(
            op, "out", forward(bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y"))
        )
    )
    converter(f"pd_op.{name}_grad")(gradient)


# fmax and fmin ignore NaN. Their gradients go to x alone where the inputs are equal.
_register_fchoice("fmax", opset15.maximum, opset15.greater_equal)
_register_fchoice("fmin", opset15.minimum, opset15.less_equal)


# -- scale, add_n, clip --------------------------------------------------------------------------


def _scaled_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    numbers = [*op.constants.get("scale", [np.inf]), op.attr("bias", 0.0)]
    if range_of(numbers) is None:
        return None
    factor, bias = map(int, numbers)
    after = op.attr("bias_after_scale", True)
    return range_of(x * factor + bias if after else (x + bias) * factor for x in ranges["x"])


def _fits_int32(found: Range | None) -> bool:
    least, most = RANGES["int32"]
    return found is not None and least <= found[0] and found[1] <= most


def _terms_fit_int32(op: Op) -> bool:
    return _fits_int32(range_of([*op.constants.get("scale", [np.inf]), op.attr("bias", 0.0)]))


@converter("pd_op.scale_", dtypes=_NUMERIC_DTYPES, integers=_scaled_range, checks=_terms_fit_int32)
@converter("pd_op.scale", dtypes=_NUMERIC_DTYPES, integers=_scaled_range, checks=_terms_fit_int32)
def scale(bridge: NgraphBridge, op: Op) -> None:
    """``x * scale + bias``, or ``(x + bias) * scale`` (Paddle ``scale``).

    Scale and bias are converted to the dtype of ``x`` first, which truncates them where ``x`` is
    integer. In bfloat16 the first operation is rounded, too. A bias of 0 turns -0 into 0.
    """
    out = bridge.get_input_node(op, "x")
    dtype = out.get_element_type()
    factor = scalar_input(bridge, op, "scale", dtype)
    bias = opset15.constant(np.asarray(op.attr("bias", 0.0)).astype(dtype.to_dtype()), dtype)
    steps: list[tuple[Binary, Any, float]]
    steps = [(opset15.multiply, factor, 1.0), (opset15.add, bias, 0.0)]
    if not op.attr("bias_after_scale", True):
        steps.reverse()
    is_product = False
    for function, operand, neutral in steps:
        if not is_constant(operand, neutral):
            pair = (bridge.rounded(op, "out", each) for each in (out, operand))
            out = in_32_bits(bridge, op, function, *pair)
        elif function is opset15.add and dtype == Type.f32:  # not omitted: adding 0 turns -0 into 0
            if is_product:  # a pass adds the 0 where its sign has an effect
                as_output(out).get_node().get_rt_info()[ADD_ZERO_MARK] = True
            else:
                out = opset15.add(out, bias)
        is_product = function is opset15.multiply and not is_constant(operand, neutral)
    bridge.set_output_node(op, "out", out)


def _incremented_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    step = op.attr("value")
    return range_of(x + int(step) for x in ranges["x"]) if range_of([step]) else None


def _step_fits_int32(op: Op) -> bool:
    return _fits_int32(range_of([op.attr("value")]))


@converter(
    "pd_op.increment_", dtypes=_NUMERIC_DTYPES, integers=_incremented_range, checks=_step_fits_int32
)
@converter(
    "pd_op.increment", dtypes=_NUMERIC_DTYPES, integers=_incremented_range, checks=_step_fits_int32
)
def increment(bridge: NgraphBridge, op: Op) -> None:
    """``x + value`` for the attribute ``value`` (Paddle ``increment``)."""
    x = bridge.get_input_node(op, "x")
    dtype = x.get_element_type()
    step = opset15.constant(np.asarray(op.attr("value")).astype(dtype.to_dtype()), dtype)
    bridge.set_output_node(op, "out", in_32_bits(bridge, op, opset15.add, x, step))


@converter("pd_op.add_n", dtypes=FLOAT | INT32, limits=[_EQUAL_SHAPES])
def add_n(bridge: NgraphBridge, op: Op) -> None:
    """The sum of all ``inputs`` (Paddle ``add_n``)."""
    first, *others = bridge.get_input_nodes(op, "inputs")
    for node in others:
        first = opset15.add(first, node)
    bridge.set_output_node(op, "out", first)


def _clipped_range(op: Op, ranges: Mapping[str, Range]) -> Range | None:
    if not {"min", "max"} <= op.constants.keys():
        return None
    return range_of([*ranges["x"], *op.constants["min"], *op.constants["max"]])


def _has_valid_bounds(op: Op) -> bool:
    low, high = (op.constants.get(name) for name in ("min", "max"))
    return not low or not high or low[0] <= high[0]


# A limit of ``clip``: with a minimum above the maximum, Paddle raises an error.
_VALID_BOUNDS = Limit("its minimum is above its maximum", _has_valid_bounds)


@converter("pd_op.clip_", dtypes=_NUMERIC_DTYPES, limits=[_VALID_BOUNDS], integers=_clipped_range)
@converter("pd_op.clip", dtypes=_NUMERIC_DTYPES, limits=[_VALID_BOUNDS], integers=_clipped_range)
def clip(bridge: NgraphBridge, op: Op) -> None:
    """``min(max(x, min), max)``; a NaN remains NaN (Paddle ``clip``)."""
    x = bridge.get_input_node(op, "x")
    dtype = x.get_element_type()
    low, high = (scalar_input(bridge, op, name, dtype) for name in ("min", "max"))
    out = opset15.minimum(opset15.maximum(x, low), high)
    bridge.set_output_node(op, "out", keep_nan(x, out) if dtype == Type.f32 else out)


@converter("pd_op.clip_grad")
def clip_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` where ``min <= x <= max``, else 0 (Paddle ``clip_grad``)."""
    _set_inside(bridge, op, "out_grad", "x_grad")


def _set_inside(bridge: NgraphBridge, op: Op, name_in: str, name_out: str) -> None:
    """Sets an output to an input where ``min <= x <= max``, else to 0."""
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, name_in)
    low = scalar_input(bridge, op, "min", Type.f32)
    high = scalar_input(bridge, op, "max", Type.f32)
    inside = opset15.logical_and(opset15.greater_equal(x, low), opset15.less_equal(x, high))
    bridge.set_output_node(op, name_out, opset15.select(inside, grad, bridge.full(0.0, "float32")))


@converter("pd_op.clip_double_grad")
def clip_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """``grad_x_grad`` where ``min <= x <= max``, else 0 (Paddle ``clip_double_grad``)."""
    _set_inside(bridge, op, "grad_x_grad", "grad_out_grad")


# -- powers --------------------------------------------------------------------------------------


@converter("pd_op.elementwise_pow")
def elementwise_pow(bridge: NgraphBridge, op: Op) -> None:
    """``x ** y`` (Paddle ``elementwise_pow``)."""
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    bridge.set_output_node(op, "out", _power(x, y))


@converter("pd_op.elementwise_pow_grad")
def elementwise_pow_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * y * x ** (y - 1)``, ``y_grad = out_grad * log(x) * x ** y``.

    ``x_grad`` is 0 where ``y`` is 0, ``y_grad`` where ``x`` is 0 and ``y`` is not negative.
    """
    x, y = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y")
    grad = bridge.get_input_node(op, "out_grad")
    zero, one = bridge.full(0.0, "float32"), bridge.full(1.0, "float32")

    def of_x() -> Node:
        slope = opset15.multiply(y, _power(x, opset15.subtract(y, one)))
        return opset15.select(opset15.equal(y, zero), zero, opset15.multiply(grad, slope))

    def of_y() -> Node:
        slope = opset15.multiply(opset15.log(x), opset15.power(x, y))
        flat = opset15.logical_and(opset15.equal(x, zero), opset15.greater_equal(y, zero))
        return opset15.select(flat, zero, opset15.multiply(grad, slope))

    set_reduced(bridge, op, "x", of_x)
    set_reduced(bridge, op, "y", of_y)


@converter("pd_op.pow_")
@converter("pd_op.pow")
def pow(bridge: NgraphBridge, op: Op) -> None:
    """``x ** y`` for the attribute ``y`` (Paddle ``pow``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _power(x, bridge.full(op.attr("y"), "float32")))


@converter("pd_op.pow_grad")
def pow_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad * y * x ** (y - 1)`` for the attribute ``y`` (Paddle ``pow_grad``); 0 for 0."""
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out_grad")
    exponent = float(op.attr("y"))
    if exponent == 0:
        bridge.set_output_node(op, "x_grad", bridge.full(0.0, "float32", bridge.shape(x)))
        return
    power = _power(x, bridge.full(exponent - 1.0, "float32"))
    scaled = opset15.multiply(grad, bridge.full(exponent, "float32"))
    bridge.set_output_node(op, "x_grad", opset15.multiply(scaled, power))


def _pow_derivative(order: int) -> Scaled:
    """``factor`` times the derivative of ``x ** y`` of an order, for the attribute ``y``.

    Zero where the derivative before is constant, even at 0, where the power is infinite.
    """

    def scaled(op: Op, x: Any, factor: Any) -> Any:
        exponent = float(op.attr("y"))
        if exponent in range(1, order):
            return None
        weight = math.prod(exponent - step for step in range(order))
        power = exponent - order
        if power:
            factor = opset15.multiply(factor, _power(x, constant(power)))
        return opset15.multiply(factor, constant(weight))

    return scaled


register_slopes("pow", _pow_derivative(1), _pow_derivative(2), _pow_derivative(3), in_place=2)


def _power(x: NodeInput, exponent: Any) -> Node:
    """``x ** exponent``, by multiplication for the most common exponents."""
    producer = exponent.get_node() if isinstance(exponent, Output) else exponent
    data = producer.get_data() if producer.get_type_name() == "Constant" else np.zeros(0)
    if data.ndim == 0:
        if data == 2.0:
            return opset15.multiply(x, x)
        if data == 3.0:
            return opset15.multiply(opset15.multiply(x, x), x)
    is_root = data.size > 0 and bool(np.all(np.abs(data) == 0.5))
    return opset15.power(_for_root(x) if is_root else x, exponent)


def _for_root(x: NodeInput) -> NodeInput:
    """``x``, with -0 and -infinity replaced by their absolute values, as the base of ``x ** 0.5``.

    The engine runs such a power as a square root. A sum, as with the epsilon of a norm, stays.
    """
    if as_output(x).get_node().get_type_name() == "Add":
        return x
    has_no_sign = opset15.equal(opset15.add(x, x), x)
    return opset15.select(has_no_sign, opset15.abs(x), x)
