"""Builders of converters for second and third gradients; no converters of operators.

Paddle computes the gradient of a gradient by an operator ``NAME_double_grad``, the next one by
``NAME_triple_grad``. Names of operands vary, their order does not:

- double: the operands of the function, ``out_grad``, and a gradient of each gradient of the
  operands; the results are gradients of the operands and of ``out_grad``;
- triple: the operands of the double gradient, and a gradient of each of its results; the results
  are gradients of the former.

An absent gradient is zero. Three kinds of functions need only their formulas of the first order:

- linear functions of one tensor, such as padding (:func:`as_function`);
- elementwise functions: ``x_grad = slope(source) * out_grad``, the source being ``x`` or ``out``,
  with the derivatives of the slope (:data:`Scaled`);
- bilinear functions, such as products and convolutions (:class:`Bilinear`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from openvino import opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import reduce_to

# A node, or ``None`` for zero.
Term = Any
Make = Callable[[], Term]
# A slope, or a derivative of a slope, times a factor: called with the operator (for attributes),
# the source and the factor.
Scaled = Callable[[Op, Any, Any], Any]


# -- terms, of which any may be zero ---------------------------------------------------------------


def operands(bridge: NgraphBridge, op: Op) -> list[Term]:
    """The inputs of ``op`` in Paddle's order; ``None`` for those that are absent.

    A gradient of zeros, such as Paddle fills in, is not absent: its product with an infinite number
    or NaN is NaN.
    """
    return [bridge.get_input_node(op, name) if op.has_input(name) else None for name in op.inputs]


def applied(function: Callable[..., Any], *arguments: Term) -> Term:
    """``function`` of the arguments; zero if one of them is."""
    return None if any(each is None for each in arguments) else function(*arguments)


def product(*factors: Term) -> Term:
    """The product of the factors, from left to right."""
    found, *others = factors
    for factor in others:
        found = applied(opset15.multiply, found, factor)
    return found


def total(*terms: Term) -> Term:
    """The sum of the terms."""
    found, *others = [term for term in terms if term is not None] or [None]
    for term in others:
        found = opset15.add(found, term)
    return found


def set_term(
    bridge: NgraphBridge,
    op: Op,
    name: str,
    make: Make,
    like: Any,
    fit: Callable[..., Any] = reduce_to,
) -> None:
    """Sets output ``name``, if it is used, to ``make()`` in the shape of ``like``, by ``fit``."""
    if op.has_output(name):
        term, shape = make(), bridge.shape(like)
        node = bridge.full(0.0, "float32", shape) if term is None else fit(bridge, term, shape)
        bridge.set_output_node(op, name, node)


# -- linear functions of one tensor ----------------------------------------------------------------


def as_function(op: Op) -> Op:
    """The function of ``grad_x_grad`` that the double gradient of a linear function is."""
    inputs = {**op.inputs, "x": op.inputs["grad_x_grad"]}
    return replace(op, inputs=inputs, outputs={"out": op.outputs["grad_out_grad"]})


# -- elementwise functions -------------------------------------------------------------------------


def register_slopes(
    name: str,
    slope: Scaled,
    second: Scaled | None = None,
    third: Scaled | None = None,
    in_place: int = 3,
) -> None:
    """Registers the double and triple gradients of an elementwise function.

    Args:
        name: The function.
        slope: Its slope.
        second: The derivative of the slope by its source; ``None`` if Paddle takes it as zero, and
            computes only the gradient of ``out_grad``.
        third: The second derivative of the slope; ``None`` if Paddle has no triple gradient.
        in_place: The highest order of which Paddle has an in-place variant.
    """

    @wraps(slope)
    def double(bridge: NgraphBridge, op: Op) -> None:
        """``s_grad = slope'(s) * out_grad * change``, ``out_grad_grad = slope(s) * change``."""
        source, *given, change = operands(bridge, op)
        made: list[Make] = [lambda: _scaled(slope, op, source, change)]
        if second is not None:
            made.insert(0, lambda: _scaled(second, op, source, given[-1], change))
        for output, make in zip(op.outputs, made):
            set_term(bridge, op, output, make, source)

    @wraps(slope)
    def triple(bridge: NgraphBridge, op: Op) -> None:
        """The gradients of both results of ``double``."""
        source, grad, change, of_source, of_change = operands(bridge, op)
        made: list[Make] = [
            lambda: total(
                _scaled(third, op, source, grad, change, of_source),
                _scaled(second, op, source, change, of_change),
            ),
            lambda: _scaled(second, op, source, change, of_source),
            lambda: total(
                _scaled(second, op, source, grad, of_source),
                _scaled(slope, op, source, of_change),
            ),
        ]
        for output, make in zip(op.outputs, made):
            set_term(bridge, op, output, make, source)

    _register(f"{name}_double_grad", double, in_place >= 2)
    if third is not None:
        _register(f"{name}_triple_grad", triple, in_place >= 3)


def _scaled(function: Scaled | None, op: Op, source: Any, *factors: Term) -> Term:
    factor = product(*factors)
    return None if function is None or factor is None else function(op, source, factor)


def _register(name: str, convert: Callable[[NgraphBridge, Op], None], in_place: bool) -> None:
    converter(f"pd_op.{name}", *([f"pd_op.{name}_"] if in_place else []))(convert)


# -- bilinear functions ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Bilinear:
    """A function that is linear in x and in y.

    Attributes:
        value: The function of x and y.
        x_gradient: The gradient of x, from the shape of x, y and the gradient of the value.
        y_gradient: The gradient of y, from x, the shape of y, and the gradient of the value.
    """

    value: Callable[[Any, Any], Any]
    x_gradient: Callable[[Any, Any, Any], Any]
    y_gradient: Callable[[Any, Any, Any], Any]

    def double_gradient(self, x: Any, y: Any, grad: Any, dx: Term, dy: Term) -> list[Make]:
        """The gradients of x, y and ``grad``, the gradient of the value.

        Args:
            x, y, grad: The operands of the gradient.
            dx, dy: The gradients of its results.
        """
        return [
            lambda: applied(self.x_gradient, x, dy, grad),
            lambda: applied(self.y_gradient, dx, y, grad),
            lambda: total(applied(self.value, dx, y), applied(self.value, x, dy)),
        ]

    def triple_gradient(
        self, x: Any, y: Any, grad: Any, dx: Term, dy: Term, of_x: Term, of_y: Term, of_grad: Term
    ) -> list[Make]:
        """The gradients of the operands of :meth:`double_gradient`.

        Args:
            x, y, grad, dx, dy: These operands.
            of_x, of_y, of_grad: The gradients of its results.
        """
        return [
            lambda: applied(self.x_gradient, x, dy, of_grad),
            lambda: applied(self.y_gradient, dx, y, of_grad),
            lambda: total(applied(self.value, of_x, dy), applied(self.value, dx, of_y)),
            lambda: total(
                applied(self.x_gradient, x, of_y, grad), applied(self.x_gradient, x, y, of_grad)
            ),
            lambda: total(
                applied(self.y_gradient, of_x, y, grad), applied(self.y_gradient, x, y, of_grad)
            ),
        ]


def set_double_gradient(bridge: NgraphBridge, op: Op, function: Bilinear) -> None:
    """Sets the results of the double gradient of a bilinear function."""
    given = operands(bridge, op)
    for output, make, like in zip(op.outputs, function.double_gradient(*given), given):
        set_term(bridge, op, output, make, like)


def set_triple_gradient(bridge: NgraphBridge, op: Op, function: Bilinear) -> None:
    """Sets the results of the triple gradient of a bilinear function."""
    x, y, grad, *_ = given = operands(bridge, op)
    likes = (x, y, grad, x, y)
    for output, make, like in zip(op.outputs, function.triple_gradient(*given), likes):
        set_term(bridge, op, output, make, like)
