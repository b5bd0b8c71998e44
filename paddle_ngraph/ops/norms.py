"""Norms, operators that clip or scale by one, and their gradients, as in Paddle's CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import (
    axis_first,
    constant,
    keep_nan,
    reduce_to,
    reshaped,
    select_number,
    sum_over,
    transposed,
)
from paddle_ngraph.ops.reduction import reduced_axes, spread


def _norm_axes(op: Op, rank: int) -> list[int]:
    return list(range(rank)) if op.attr("asvector") else [op.attr("axis") % rank]


def _power(node: NodeInput, exponent: float) -> Any:
    if exponent == 1:
        return node
    if exponent == 2:
        return opset15.multiply(node, node)
    return opset15.power(node, constant(exponent))


def _root(node: NodeInput, order: float) -> Any:
    return opset15.sqrt(node) if order == 2 else _power(node, 1.0 / order)


def _norm(bridge: NgraphBridge, x: NodeInput, order: float, axes: list[int]) -> Any:
    """``sum(|x|^p)^(1/p)`` over one of the axes or over all; the limit for p 0 or infinite."""
    if order == 0:
        counted = opset15.not_equal(x, constant(0.0))
        return sum_over(bridge, select_number(counted), axes)
    size = opset15.abs(x)
    if np.isfinite(order):
        return _root(sum_over(bridge, _power(size, order), axes), order)
    if len(axes) > 1:
        size, axes = reshaped(bridge, size, [-1]), [0]
    # By TopK, because the engine's ReduceMax and ReduceMin of only infinities are finite.
    mode, one = "max" if order > 0 else "min", bridge.full(1, "int64")
    return opset15.topk(size, one, axes[0], mode, "none").output(0)


def _norm_gradient(
    bridge: NgraphBridge,
    x: NodeInput,
    order: float,
    epsilon: float,
    out: NodeInput,
    grad: NodeInput,
) -> Any:
    """``|x|^(p-1) / (out^(p-1) + epsilon) * grad * sign(x)``; the limit for p 0 or infinite."""
    if order == 0:
        return bridge.full(0.0, "float32", bridge.shape(x))
    size, sign, rest = opset15.abs(x), opset15.sign(x), constant(epsilon)
    if np.isinf(order):
        share = keep_nan(x, opset15.select(opset15.equal(size, out), sign, constant(0.0)))
    elif order == 2:
        share = opset15.divide(x, opset15.add(out, rest))
    else:
        scale = opset15.add(_power(out, order - 1), rest)
        share = opset15.multiply(opset15.divide(_power(size, order - 1), scale), sign)
    return opset15.multiply(share, grad)


@converter("pd_op.p_norm")
def p_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = sum(|x|^p)^(1/p)`` along axis, or over all of x (Paddle ``p_norm``).

    For ``p == 0`` the number of elements that are not 0, for an infinite ``p`` the largest or the
    smallest ``|x|``.
    """
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    axes = _norm_axes(op, len(shape))
    kept = [1 if axis in axes else dim for axis, dim in enumerate(shape)]
    if not op.attr("keepdim"):
        kept = [dim for axis, dim in enumerate(shape) if axis not in axes]
    found = _norm(bridge, x, op.attr("porder"), axes)
    bridge.set_output_node(op, "out", reshaped(bridge, found, kept))


@converter("pd_op.p_norm_grad")
def p_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = |x|^(p-1) / (out^(p-1) + epsilon) * out_grad * sign(x)`` (Paddle ``p_norm_grad``).

    0 for ``p == 0``; for an infinite ``p``, ``sign(x) * out_grad`` where ``|x| == out``.
    """
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    axes = _norm_axes(op, len(shape))
    kept = [1 if axis in axes else dim for axis, dim in enumerate(shape)]
    out, grad = (
        reshaped(bridge, bridge.get_input_node(op, name), kept) for name in ("out", "out_grad")
    )
    gradient = _norm_gradient(bridge, x, op.attr("porder"), op.attr("epsilon"), out, grad)
    bridge.set_output_node(op, "x_grad", gradient)


@converter("pd_op.dist")
def dist(bridge: NgraphBridge, op: Op) -> None:
    """The norm of ``x - y``, over all of it: see :func:`p_norm` (Paddle ``dist``)."""
    difference = _difference(bridge, op)
    axes = list(range(len(bridge.shape(difference))))
    found = _norm(bridge, difference, op.attr("p"), axes)
    bridge.set_output_node(op, "out", reshaped(bridge, found, []))


@converter("pd_op.dist_grad")
def dist_grad(bridge: NgraphBridge, op: Op) -> None:
    """As :func:`p_norm_grad` of ``x - y``, summed where x or y was repeated (``dist_grad``)."""
    out, grad = (bridge.get_input_node(op, name) for name in ("out", "out_grad"))
    gradient = _norm_gradient(bridge, _difference(bridge, op), op.attr("p"), 1e-12, out, grad)
    for name in ("x", "y"):
        if op.has_output(f"{name}_grad"):
            shape = bridge.shape(bridge.get_input_node(op, name))
            node = opset15.negative(gradient) if name == "y" else gradient
            bridge.set_output_node(op, f"{name}_grad", reduce_to(bridge, node, shape))


def _difference(bridge: NgraphBridge, op: Op) -> Any:
    return opset15.subtract(bridge.get_input_node(op, "x"), bridge.get_input_node(op, "y"))


@converter("pd_op.l1_norm", "pd_op.l1_norm_")
def l1_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = sum(|x|)`` (Paddle ``l1_norm``)."""
    x = bridge.get_input_node(op, "x")
    axes = bridge.ints(range(len(bridge.shape(x))))
    bridge.set_output_node(op, "out", opset15.reduce_sum(opset15.abs(x), axes))


@converter("pd_op.l1_norm_grad", "pd_op.l1_norm_grad_")
def l1_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = sign(x) * out_grad`` (Paddle ``l1_norm_grad``)."""
    sign = opset15.sign(bridge.get_input_node(op, "x"))
    bridge.set_output_node(
        op, "x_grad", opset15.multiply(sign, bridge.get_input_node(op, "out_grad"))
    )


@converter("pd_op.squared_l2_norm")
def squared_l2_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = [sum(x * x)]`` (Paddle ``squared_l2_norm``)."""
    x = bridge.get_input_node(op, "x")
    flat = reshaped(bridge, x, [-1])
    bridge.set_output_node(op, "out", sum_over(bridge, opset15.multiply(flat, flat), [0]))


@converter("pd_op.squared_l2_norm_grad")
def squared_l2_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = 2 * x * out_grad`` (Paddle ``squared_l2_norm_grad``)."""
    x = bridge.get_input_node(op, "x")
    grad = reshaped(bridge, bridge.get_input_node(op, "out_grad"), [])
    double = opset15.multiply(grad, constant(2.0))
    bridge.set_output_node(op, "x_grad", opset15.multiply(x, double))


@converter("pd_op.frobenius_norm", inputs={"axis": Role.CONSTANT})
def frobenius_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = sqrt(sum(x * x))`` over axes (Paddle ``frobenius_norm``)."""
    x = bridge.get_input_node(op, "x")
    axes = bridge.ints(reduced_axes(bridge, op, len(bridge.shape(x))))
    total = opset15.reduce_sum(opset15.multiply(x, x), axes, op.attr("keep_dim"))
    bridge.set_output_node(op, "out", opset15.sqrt(total))


@converter("pd_op.frobenius_norm_grad", inputs={"axis": Role.CONSTANT})
def frobenius_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = x / (out + 1e-12) * out_grad`` (Paddle ``frobenius_norm_grad``)."""
    norm = opset15.add(spread(bridge, op, "out"), constant(1e-12))
    share = opset15.divide(bridge.get_input_node(op, "x"), norm)
    bridge.set_output_node(op, "x_grad", opset15.multiply(share, spread(bridge, op, "out_grad")))


@converter("pd_op.norm")
def norm(bridge: NgraphBridge, op: Op) -> None:
    """``norm = sqrt(sum(x * x) + epsilon)`` along axis, ``out = x / norm`` (Paddle ``norm``)."""
    x = bridge.get_input_node(op, "x")
    total = sum_over(bridge, opset15.multiply(x, x), [op.attr("axis")])
    length = opset15.sqrt(opset15.add(total, constant(op.attr("epsilon"))))
    bridge.set_output_node(op, "out", opset15.divide(x, length))
    bridge.set_output_node(op, "norm", length)


@converter("pd_op.norm_grad")
def norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = (g - x * sum(x * g) / norm^2) / norm`` along axis (Paddle ``norm_grad``)."""
    x, length = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "norm")
    grad = bridge.get_input_node(op, "out_grad")
    product = sum_over(bridge, opset15.multiply(x, grad), [op.attr("axis")])
    along = opset15.divide(opset15.multiply(product, x), opset15.multiply(length, length))
    gradient = opset15.divide(opset15.subtract(grad, along), length)
    bridge.set_output_node(op, "x_grad", gradient)


@converter("pd_op.clip_by_norm")
def clip_by_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = x``, scaled down to norm ``max_norm`` if it is larger (Paddle ``clip_by_norm``)."""
    x, bound = bridge.get_input_node(op, "x"), constant(op.attr("max_norm"))
    flat = reshaped(bridge, x, [-1])
    total = opset15.reduce_sum(opset15.multiply(flat, flat), bridge.ints([0]))
    length = opset15.sqrt(total)
    scale = opset15.select(
        opset15.less_equal(length, bound), constant(1.0), opset15.divide(bound, length)
    )
    bridge.set_output_node(op, "out", opset15.multiply(x, scale))


_FINITE_ORDER = Limit("its p is not a positive number", lambda op: 0 < op.attr("p") < np.inf)


@converter("pd_op.renorm", "pd_op.renorm_", limits=[_FINITE_ORDER])
def renorm(bridge: NgraphBridge, op: Op) -> None:
    """Every slice of x along axis, scaled down to ``max_norm`` if its p-norm is larger.

    (Paddle ``renorm``.)
    """
    x = bridge.get_input_node(op, "x")
    axes = [axis for axis in range(len(bridge.shape(x))) if axis != op.attr("axis")]
    order = op.attr("p")
    length = _root(sum_over(bridge, _power(opset15.abs(x), order), axes), order)
    bridge.set_output_node(op, "out", opset15.multiply(x, _clip_factor(op, length)))


def _clip_factor(op: Op, length: Any) -> Any:
    bound = constant(op.attr("max_norm"))
    return opset15.select(
        opset15.greater(length, bound), opset15.divide(bound, length), constant(1.0)
    )


@converter("pd_op.renorm_grad", limits=[_FINITE_ORDER])
def renorm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`renorm` (Paddle ``renorm_grad``).

    ``x_grad = g * f``, where scaled down by ``f = max_norm / length`` also
    ``- sum(x * g) * max_norm / length^(p+1) * |x|^(p-1) * sign(x)``.
    """
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out_grad")
    order, bound = op.attr("p"), constant(op.attr("max_norm"))
    axes = [axis for axis in range(len(bridge.shape(x))) if axis != op.attr("axis")]
    size = opset15.abs(x)
    total = sum_over(bridge, _power(size, order), axes)
    length = _root(total, order)
    product = sum_over(bridge, opset15.multiply(x, grad), axes)
    steepness = opset15.divide(bound, opset15.multiply(total, length))
    is_longer = opset15.greater(length, bound)
    slope = opset15.multiply(product, opset15.select(is_longer, steepness, constant(0.0)))
    at_least_0 = opset15.greater_equal(x, constant(0.0))
    sign = select_number(at_least_0, 1.0, -1.0)
    along = opset15.multiply(opset15.multiply(slope, _power(size, order - 1)), sign)
    direct = opset15.multiply(grad, _clip_factor(op, length))
    bridge.set_output_node(op, "x_grad", opset15.subtract(direct, along))


# -- spectral normalization ----------------------------------------------------------------------


class _Spectrum:
    """A weight as a matrix W with axis ``dim`` first, and its largest singular value.

    ``power_iters`` times ``v = W^T u / (|W^T u| + eps)`` and ``u = W v / (|W v| + eps)``, then
    ``sigma = u^T W v``.
    """

    def __init__(self, bridge: NgraphBridge, op: Op) -> None:
        self._bridge = bridge
        weight = bridge.get_input_node(op, "weight")
        rank, dim = len(bridge.shape(weight)), op.attr("dim")
        self._order = axis_first(dim, rank)
        self._shape = [bridge.shape(weight)[axis] for axis in self._order]
        self.matrix = self.as_matrix(weight)
        self.u, self.v = (
            reshaped(bridge, bridge.get_input_node(op, name), [-1, 1]) for name in ("u", "v")
        )
        for _ in range(op.attr("power_iters")):
            self.v = self._direction(True, self.u, op.attr("eps"))
            self.u = self._direction(False, self.v, op.attr("eps"))
        image = opset15.matmul(self.matrix, self.v, False, False)
        self.sigma = sum_over(bridge, opset15.multiply(self.u, image), [0, 1])

    def _direction(self, transposed: bool, vector: Any, epsilon: float) -> Any:
        image = opset15.matmul(self.matrix, vector, transposed, False)
        total = sum_over(self._bridge, opset15.multiply(image, image), [0, 1])
        return opset15.divide(image, opset15.add(opset15.sqrt(total), constant(epsilon)))

    def as_matrix(self, node: NodeInput) -> Any:
        """A tensor of the weight's shape, as the matrix W of spectral normalization."""
        node = transposed(self._bridge, node, self._order)
        return reshaped(self._bridge, node, [self._shape[0], -1])

    def as_weight(self, node: NodeInput) -> Any:
        """Reverts :meth:`as_matrix`: reshapes the matrix to the weight's shape."""
        node = reshaped(self._bridge, node, self._shape)
        return transposed(self._bridge, node, self._order, back=True)


@converter("pd_op.spectral_norm")
def spectral_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = weight / sigma``, ``sigma`` its largest singular value by power iteration.

    (Paddle ``spectral_norm``.)
    """
    terms = _Spectrum(bridge, op)
    out = opset15.divide(terms.matrix, terms.sigma)
    bridge.set_output_node(op, "out", terms.as_weight(out))


@converter("pd_op.spectral_norm_grad")
def spectral_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """``weight_grad = g * (1 - u v^T * sum(weight / sigma)) / sigma``, as in Paddle.

    (Paddle ``spectral_norm_grad``.)
    """
    terms = _Spectrum(bridge, op)
    total = sum_over(bridge, opset15.divide(terms.matrix, terms.sigma), [0, 1])
    product = opset15.multiply(opset15.matmul(terms.u, terms.v, False, True), total)
    grad = terms.as_matrix(bridge.get_input_node(op, "out_grad"))
    gradient = opset15.multiply(grad, opset15.subtract(constant(1.0), product))
    gradient = opset15.divide(gradient, terms.sigma)
    bridge.set_output_node(op, "weight_grad", terms.as_weight(gradient))
