"""Converters of softmax and losses, and of their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from openvino import Type, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import INTEGER, Limit, Role, converter
from paddle_ngraph.conversion.symbolic_sizes import is_always_at_least
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import constant, reshaped, select_number, sum_over

# Paddle's softmax clamps exponents from below at this value.
_MIN_EXPONENT = -64.0
# Upper bound of a valid sum of exponentials, above the length of any axis.
_MASKED_ROW_SUM = 1e30
_MIN_VECTORIZED_ROW = 16
# From this length of rows on, inference uses RowSoftmax, too: rows of many classes are so long,
# rows of attention are not.
_MAX_CACHED_ROW = 4096
# Number of floats that Paddle's vectorized softmax processes per register.
_REGISTER_FLOATS = 8
_FLOAT32_MIN = float(np.finfo("float32").min)
# Paddle's cross entropy replaces infinity by this finite value.
_MASK_MAGNITUDE = 1e20


# -- softmax -------------------------------------------------------------------------------------


@converter("pd_op.softmax", "pd_op.softmax_")
def softmax(bridge: NgraphBridge, op: Op) -> None:
    """``out = exp(s) / sum(exp(s))`` along axis, ``s = max(x - max(x), -64)`` (Paddle ``softmax``).

    A NaN or +inf makes its whole row NaN. So does Paddle, except where its vectorised kernel
    replaces the NaN by -64. That clamping is reproduced for rows of only -inf, such as those of a
    padding token, which attends to no token.
    """
    x, axis = bridge.get_input_node(op, "x"), op.attr("axis")
    # The order of the conditions matters: the last one may compare a dynamic size, which adds a
    # guard to the function.
    if not bridge.shape(x):
        # The softmax of a scalar is 1, whatever its value, as in Paddle.
        out = bridge.full(1.0, "float32")
    elif _is_faster_by_rows(bridge, x) and _is_of_rows(bridge, x, axis):
        out = bridge.extension("RowSoftmax", [x])
    else:
        out = Softmax(bridge, x, axis).probabilities()
    bridge.set_output_node(op, "out", out)


@converter("pd_op.softmax_grad")
def softmax_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = (out_grad - sum(out * out_grad)) * out`` along axis (Paddle ``softmax_grad``)."""
    bridge.set_output_node(op, "x_grad", softmax_gradient(bridge, op, op.attr("axis")))


def softmax_gradient(bridge: NgraphBridge, op: Op, axis: int) -> Any:
    """The gradient of softmax along ``axis``, computed as in :func:`softmax_grad`."""
    out, out_grad = bridge.get_input_node(op, "out"), bridge.get_input_node(op, "out_grad")
    if _is_of_rows(bridge, out, axis):
        return bridge.extension("RowSoftmaxGrad", [out, out_grad])
    total = _sum_along(bridge, opset15.multiply(out, out_grad), axis)
    return opset15.multiply(opset15.subtract(out_grad, total), out)


def _is_of_rows(bridge: NgraphBridge, x: NodeInput, axis: int) -> bool:
    """Whether ``axis`` is the last one, with contiguous rows long enough for vector registers."""
    shape = bridge.shape(x)
    is_last = bool(shape) and axis in (-1, len(shape) - 1)
    return (
        bridge.on_cpu
        and is_last
        and (not isinstance(shape[-1], int) or is_always_at_least(shape[-1], _MIN_VECTORIZED_ROW))
    )


def _is_faster_by_rows(bridge: NgraphBridge, x: NodeInput) -> bool:
    """Whether walking over each row while it is in the cache beats the plugin's fused loops.

    The fused loops pass over the whole tensor four times, but the plugin fuses attention around
    them. Not so where sizes differ from run to run, or from iteration to iteration: there the
    plugin prepares each of two dozen nodes again for each new size.
    """
    shape = bridge.shape(x)
    return (
        bridge.trains("pd_op.softmax_grad")
        or not all(isinstance(size, int) for size in shape)
        or is_always_at_least(shape[-1], _MAX_CACHED_ROW)
    )


@converter("pd_op.log_softmax")
def log_softmax(bridge: NgraphBridge, op: Op) -> None:
    """``out = s - log(sum(exp(s)))`` with the ``s`` of :func:`softmax` (Paddle ``log_softmax``)."""
    x, axis = bridge.get_input_node(op, "x"), op.attr("axis")
    if bridge.shape(x):
        out = Softmax(bridge, x, axis, is_vectorized=False).logarithms()
    else:
        # The log softmax of a scalar is 0, whatever its value, as in Paddle.
        out = bridge.full(0.0, "float32")
    bridge.set_output_node(op, "out", out)


@converter("pd_op.log_softmax_grad")
def log_softmax_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad - exp(out) * sum(out_grad)`` along axis (Paddle ``log_softmax_grad``)."""
    out, out_grad = bridge.get_input_node(op, "out"), bridge.get_input_node(op, "out_grad")
    total = _sum_along(bridge, out_grad, op.attr("axis"))
    # Adds ``out * 0``, which is NaN where ``out`` is: the engine's exp(NaN) is infinity.
    kept = opset15.multiply(out, constant(0.0))
    gradient = opset15.subtract(out_grad, opset15.multiply(opset15.exp(out), total))
    bridge.set_output_node(op, "x_grad", opset15.add(gradient, kept))


class Softmax:
    """The terms of a softmax along one axis.

    The sum of the exponentials is between 1 and the length of the axis, unless the row contains a
    NaN or +inf, or only -inf; such rows become NaN.

    Args:
        bridge: The bridge of the function.
        x: The input.
        axis: The axis of the softmax.
        is_vectorized: Whether Paddle's kernel is vectorized: it clamps the NaN of -inf - -inf in
            all elements that fill registers, so a row of only -inf is uniform if all elements
            fill registers.
    """

    def __init__(
        self, bridge: NgraphBridge, x: NodeInput, axis: int, is_vectorized: bool = True
    ) -> None:
        self._shape = bridge.shape(x)
        if not self._shape:
            x, axis = opset15.unsqueeze(x, bridge.ints([0])), 0
        self._bridge = bridge
        largest = opset15.reduce_max(x, bridge.ints([axis]), keep_dims=True)
        clamps = self._clamps(axis) if is_vectorized else None
        if clamps is not None:
            largest = opset15.maximum(largest, select_number(clamps, _FLOAT32_MIN, -math.inf))
        self.distance = opset15.subtract(x, largest)
        self.powers = opset15.exp(self.distance)
        self.total = sum_over(bridge, self.powers, [axis])
        inside = opset15.multiply(
            opset15.subtract(self.total, constant(0.5)),
            opset15.subtract(constant(_MASKED_ROW_SUM), self.total),
        )
        self._is_valid = opset15.greater(inside, constant(0.0))
        if clamps is not None:
            self._allow_masked_rows(clamps, axis)

    def _clamps(self, axis: int) -> Any:
        """Whether Paddle clamps every NaN of a row; ``None`` if it surely does not."""
        if not self._shape:
            return None
        length, *inner = self._shape[axis % len(self._shape) :]
        # A dynamic size is never 1, so some axis after this one has several elements.
        if any(not isinstance(size, int) or size != 1 for size in inner):
            return None
        if isinstance(length, int):
            return None if length % _REGISTER_FLOATS else opset15.constant(True)
        # Tests for divisibility in float32, which is exact: a comparison of integer sizes would be
        # decided during the build, and specialize the function.
        filled = opset15.multiply(
            opset15.convert(self._bridge.ints([length]), Type.f32), constant(1.0 / _REGISTER_FLOATS)
        )
        return opset15.equal(filled, opset15.floor(filled))

    def _allow_masked_rows(self, clamps: Any, axis: int) -> None:
        """Raises the total of a row of only -inf, which is 0, to Paddle's lower bound."""
        no_total = select_number(clamps, 0.0, -1.0)
        self._is_valid = opset15.logical_or(self._is_valid, opset15.equal(self.total, no_total))
        length = opset15.convert(self._bridge.ints([self._shape[axis]]), Type.f32)
        least = opset15.multiply(length, constant(math.exp(_MIN_EXPONENT)))
        self.total = opset15.maximum(self.total, least)

    # The lower bound of a softmax is applied to its results: in a row that becomes NaN, both
    # operands of the maximum are NaN. Some of the plugin's kernels of the maximum drop a NaN of a
    # single operand. In the total the bound is negligible against 1.

    def probabilities(self) -> Any:
        """The node of the softmax along the axis."""
        inverse = self._checked(opset15.divide(constant(1.0), self.total))
        least = opset15.multiply(constant(math.exp(_MIN_EXPONENT)), inverse)
        return self._result(opset15.maximum(opset15.multiply(self.powers, inverse), least))

    def logarithms(self) -> Any:
        """The node of the logarithm of the softmax along the axis."""
        logarithm = self._checked(opset15.log(self.total))
        least = opset15.subtract(constant(_MIN_EXPONENT), logarithm)
        return self._result(opset15.maximum(opset15.subtract(self.distance, logarithm), least))

    def _checked(self, row: Any) -> Any:
        return opset15.select(self._is_valid, row, constant(math.nan))

    def _result(self, node: NodeInput) -> Any:
        return node if self._shape else opset15.squeeze(node, self._bridge.ints([0]))


# -- cross entropy -------------------------------------------------------------------------------


_SOFT_OR_HARD = Limit(
    "its labels are integers where probabilities are expected, or the reverse",
    lambda op: op.attr("soft_label") != (op.input("label").dtype in INTEGER),
)


@converter(
    "pd_op.cross_entropy_with_softmax",
    "pd_op.cross_entropy_with_softmax_",
    inputs={"label": Role.INDEX},
    limits=[_SOFT_OR_HARD],
)
def cross_entropy_with_softmax(bridge: NgraphBridge, op: Op) -> None:
    """The softmax of the input along axis, and its loss (Paddle ``cross_entropy_with_softmax``).

    ``loss = -log(softmax[label])``, 0 where the label is ``ignore_index``; for soft labels
    ``loss = -sum(label * log(softmax))``. Without ``use_softmax`` the input is the softmax, and
    logarithms of 0 and infinity become -1e20 and 1e20. The loss has size 1 along axis.
    """
    x, axis = bridge.get_input_node(op, "input"), _axis(op, "input")
    if op.attr("use_softmax"):
        terms = Softmax(bridge, x, axis)
        probabilities = terms.probabilities()
    else:
        terms, probabilities = None, x
    if op.attr("soft_label"):
        logarithms = terms.logarithms() if terms else _tolerable_log(x)
        label = bridge.get_input_node(op, "label")
        total = _sum_along(bridge, opset15.multiply(label, logarithms), axis)
        loss = opset15.negative(total)
    else:
        loss = _hard_loss(bridge, op, probabilities, axis)
    bridge.set_output_node(op, "softmax", probabilities)
    bridge.set_output_node(op, "loss", loss)


def _hard_loss(bridge: NgraphBridge, op: Op, probabilities: Any, axis: int) -> Any:
    taken, ignored = _picked_by_label(bridge, op, probabilities, axis)
    logarithm = opset15.log(taken) if op.attr("use_softmax") else _tolerable_log(taken)
    return opset15.select(ignored, constant(0.0), opset15.negative(logarithm))


@converter(
    "pd_op.cross_entropy_with_softmax_grad",
    "pd_op.cross_entropy_with_softmax_grad_",
    inputs={"label": Role.INDEX},
    limits=[_SOFT_OR_HARD],
)
def cross_entropy_with_softmax_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient of :func:`cross_entropy_with_softmax` (Paddle ``cross_entropy_with_softmax_grad``).

    ``input_grad = (softmax - hit) * loss_grad``; ``hit`` is the soft label, or 1 at the label and 0
    elsewhere. Without ``use_softmax``: ``-hit / softmax * loss_grad``. 0 where the label is
    ``ignore_index``.
    """
    softmax, axis = bridge.get_input_node(op, "softmax"), _axis(op, "softmax")
    loss_grad = bridge.get_input_node(op, "loss_grad")
    if op.attr("soft_label"):
        gradient = _soft_gradient(softmax, bridge.get_input_node(op, "label"), loss_grad, op)
    else:
        gradient = _hard_gradient(bridge, op, softmax, loss_grad, axis)
    bridge.set_output_node(op, "input_grad", gradient)


def _soft_gradient(softmax: NodeInput, label: NodeInput, loss_grad: Any, op: Op) -> Any:
    if op.attr("use_softmax"):
        return opset15.multiply(loss_grad, opset15.subtract(softmax, label))
    return opset15.multiply(loss_grad, opset15.divide(opset15.negative(label), softmax))


def _hard_gradient(
    bridge: NgraphBridge, op: Op, softmax: NodeInput, loss_grad: Any, axis: int
) -> Any:
    hit, ignored = _label_mask(bridge, op, bridge.shape(softmax), axis)
    if op.attr("use_softmax"):
        difference = opset15.subtract(softmax, opset15.convert(hit, Type.f32))
        gradient = opset15.multiply(difference, loss_grad)
    else:
        inverse = opset15.divide(constant(-1.0), softmax)
        gradient = opset15.select(hit, opset15.multiply(inverse, loss_grad), constant(0.0))
    return opset15.select(ignored, constant(0.0), gradient)


def _axis(op: Op, name: str) -> int:
    rank = len(op.input(name).shape)
    axis: int = op.attr("axis")
    return axis % rank


def _picked_by_label(bridge: NgraphBridge, op: Op, x: NodeInput, axis: int) -> tuple[Any, Any]:
    """The elements of ``x`` at the labels along ``axis``, and a mask of ignored labels."""
    classes = bridge.shape(x)[axis]
    bridge.integers.require_range(op, "label", 0, classes, ignored=op.attr("ignore_index"))
    label = _label(bridge, op, bridge.shape(x), axis, Type.i32)
    # Clamps the labels to valid indices: an ignored label may be any integer.
    position = opset15.maximum(label, bridge.full(0, "int32"))
    position = opset15.minimum(position, bridge.full(classes - 1, "int32"))
    ignored = opset15.equal(label, bridge.full(op.attr("ignore_index"), "int32"))
    return opset15.gather_elements(x, position, axis), ignored


def _label_mask(bridge: NgraphBridge, op: Op, shape: list[int], axis: int) -> tuple[Any, Any]:
    """One-hot mask of the labels along ``axis`` of ``shape``, and a mask of ignored labels."""
    # Compares class indices as float32, which represents all that fit in memory.
    label = _label(bridge, op, shape, axis, Type.f32)
    along = [1] * len(shape)
    along[axis] = shape[axis]
    classes = opset15.constant(np.arange(shape[axis], dtype=np.float32).reshape(along))
    return opset15.equal(classes, label), opset15.equal(label, constant(op.attr("ignore_index")))


def _label(bridge: NgraphBridge, op: Op, shape: list[int], axis: int, dtype: Type) -> Any:
    """The labels, with size 1 along ``axis``, also where Paddle omits that dimension."""
    wanted = [*shape[:axis], 1, *shape[axis + 1 :]]
    label = opset15.convert(bridge.get_input_node(op, "label"), dtype)
    return reshaped(bridge, label, wanted)


def _tolerable_log(x: NodeInput) -> Any:
    logarithm = opset15.log(x)
    for infinity, bound in ((math.inf, _MASK_MAGNITUDE), (-math.inf, -_MASK_MAGNITUDE)):
        is_infinite = opset15.equal(logarithm, constant(infinity))
        logarithm = opset15.select(is_infinite, constant(bound), logarithm)
    return logarithm


@converter("pd_op.nll_loss", inputs={"label": Role.INDEX})
def nll_loss(bridge: NgraphBridge, op: Op) -> None:
    """``out = -input[label] * weight[label]`` along axis 1, 0 where the label is ``ignore_index``.

    Reduced to the sum or to the mean over labels not ignored; ``total_weight`` is the sum of
    their weights, which are 1 by default, or 0 without a reduction (Paddle ``nll_loss``).
    """
    x, reduction = bridge.get_input_node(op, "input"), op.attr("reduction")
    taken, ignored = _picked_by_label(bridge, op, x, 1)
    counted = _label_weight(bridge, op, bridge.shape(x))
    counted = opset15.select(ignored, constant(0.0), counted)
    loss = opset15.select(ignored, constant(0.0), opset15.negative(taken))
    if op.has_input("weight"):
        loss = opset15.multiply(loss, counted)
    total = constant(0.0)
    if reduction == "none":
        loss = opset15.squeeze(loss, bridge.ints([1]))
    else:
        axes = bridge.ints(range(len(bridge.shape(x))))
        total, loss = opset15.reduce_sum(counted, axes), opset15.reduce_sum(loss, axes)
        if reduction == "mean":
            nothing = opset15.equal(total, constant(0.0))
            loss = opset15.divide(loss, opset15.select(nothing, constant(1.0), total))
    bridge.set_output_node(op, "out", loss)
    bridge.set_output_node(op, "total_weight", total)


def _label_weight(bridge: NgraphBridge, op: Op, shape: list[int]) -> Any:
    """The weight of each label's class; the labels are along axis 1 of ``shape``."""
    if not op.has_input("weight"):
        return constant(1.0)
    weight = bridge.get_input_node(op, "weight")
    label = opset15.maximum(_label(bridge, op, shape, 1, Type.i32), bridge.full(0, "int32"))
    last = bridge.full(shape[1] - 1, "int32")
    return opset15.gather(weight, opset15.minimum(label, last), bridge.full(0, "int64"))


@converter("pd_op.nll_loss_grad", inputs={"label": Role.INDEX})
def nll_loss_grad(bridge: NgraphBridge, op: Op) -> None:
    """``input_grad``: ``-out_grad * weight`` at the labels, else 0 (Paddle ``nll_loss_grad``).

    For reduction ``mean``, divided by ``total_weight``.
    """
    shape = bridge.shape(bridge.get_input_node(op, "input"))
    hit, ignored = _label_mask(bridge, op, shape, 1)
    gradient = opset15.negative(bridge.get_input_node(op, "out_grad"))
    if op.attr("reduction") == "none":
        gradient = opset15.unsqueeze(gradient, bridge.ints([1]))
    if op.has_input("weight"):
        weight = bridge.get_input_node(op, "weight")
        along = [1, -1, *[1] * (len(shape) - 2)]
        gradient = opset15.multiply(gradient, reshaped(bridge, weight, along))
    if op.attr("reduction") == "mean":
        gradient = opset15.divide(gradient, bridge.get_input_node(op, "total_weight"))
    counts = opset15.logical_and(hit, opset15.logical_not(ignored))
    bridge.set_output_node(op, "input_grad", opset15.select(counts, gradient, constant(0.0)))


# -- other losses --------------------------------------------------------------------------------


_PLAIN_LOGITS = [
    Limit("it is divided by the number of labels", lambda op: not op.attr("normalize")),
]


@converter(
    "pd_op.sigmoid_cross_entropy_with_logits",
    "pd_op.sigmoid_cross_entropy_with_logits_",
    limits=_PLAIN_LOGITS,
)
def sigmoid_cross_entropy_with_logits(bridge: NgraphBridge, op: Op) -> None:
    """``max(x, 0) - x * label + log(1 + exp(-|x|))``, 0 where the label is ``ignore_index``.

    With weights ``(1 - label) * x + pos_weight * (max(-x, 0) + log(1 + exp(-|x|)))`` (Paddle
    ``sigmoid_cross_entropy_with_logits``).
    """
    x, label = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "label")
    rest = opset15.softplus(opset15.negative(opset15.abs(x)))
    if op.has_input("pos_weight"):
        rest = opset15.add(rest, opset15.relu(opset15.negative(x)))
        rest = opset15.multiply(rest, bridge.get_input_node(op, "pos_weight"))
        linear = opset15.multiply(opset15.subtract(constant(1.0), label), x)
    else:
        linear = opset15.subtract(opset15.relu(x), opset15.multiply(x, label))
    loss = opset15.add(linear, rest)
    bridge.set_output_node(op, "out", _unless_ignored(op, label, loss))


@converter(
    "pd_op.sigmoid_cross_entropy_with_logits_grad",
    "pd_op.sigmoid_cross_entropy_with_logits_grad_",
    limits=_PLAIN_LOGITS,
)
def sigmoid_cross_entropy_with_logits_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad = out_grad * (sigmoid(x) - label)``, 0 where the label is ``ignore_index``.

    At ``x == 0`` Paddle takes -0.5 for the sigmoid. With weights it is ``out_grad *
    (pos_weight * (sigmoid(x) - 1) + 1 - label)`` (``sigmoid_cross_entropy_with_logits_grad``).
    """
    x, label = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "label")
    sigmoid = opset15.sigmoid(x)
    if op.has_input("pos_weight"):
        short = opset15.subtract(sigmoid, constant(1.0))
        short = opset15.multiply(short, bridge.get_input_node(op, "pos_weight"))
        slope = opset15.add(short, opset15.subtract(constant(1.0), label))
    else:
        sigmoid = opset15.select(opset15.equal(x, constant(0.0)), constant(-0.5), sigmoid)
        slope = opset15.subtract(sigmoid, label)
    gradient = opset15.multiply(bridge.get_input_node(op, "out_grad"), slope)
    bridge.set_output_node(op, "x_grad", _unless_ignored(op, label, gradient))


def _unless_ignored(op: Op, label: NodeInput, node: NodeInput) -> Any:
    # Compares with bounds around ``ignore_index``: Paddle truncates the label before it compares.
    index = op.attr("ignore_index")
    low, high = index - (index <= 0), index + (index >= 0)
    above = opset15.greater_equal(label, constant(low))
    if index <= 0:
        above = opset15.greater(label, constant(low))
    below = opset15.less(label, constant(high))
    if index < 0:
        below = opset15.less_equal(label, constant(high))
    return opset15.select(opset15.logical_and(above, below), constant(0.0), node)


@converter("pd_op.huber_loss")
def huber_loss(bridge: NgraphBridge, op: Op) -> None:
    """``residual = label - input``; ``out = residual^2 / 2`` up to ``delta``, linear beyond.

    (Paddle ``huber_loss``.)
    """
    residual = opset15.subtract(
        bridge.get_input_node(op, "label"), bridge.get_input_node(op, "input")
    )
    delta = float(np.float32(op.attr("delta")))
    size = opset15.abs(residual)
    square = opset15.multiply(opset15.multiply(constant(0.5), residual), residual)
    linear = opset15.multiply(constant(delta), opset15.subtract(size, constant(0.5 * delta)))
    near = opset15.less_equal(size, constant(delta))
    bridge.set_output_node(op, "residual", residual)
    bridge.set_output_node(op, "out", opset15.select(near, square, linear))


@converter("pd_op.huber_loss_grad")
def huber_loss_grad(bridge: NgraphBridge, op: Op) -> None:
    """``label_grad = out_grad * residual``, the residual limited to ``[-delta, delta]``.

    ``input_grad = -label_grad`` (Paddle ``huber_loss_grad``).
    """
    residual = bridge.get_input_node(op, "residual")
    delta = op.attr("delta")
    side = select_number(opset15.greater(residual, constant(0.0)), delta, -delta)
    near = opset15.less_equal(opset15.abs(residual), constant(delta))
    slope = opset15.select(near, residual, side)
    gradient = opset15.multiply(bridge.get_input_node(op, "out_grad"), slope)
    if op.has_output("label_grad"):
        bridge.set_output_node(op, "label_grad", gradient)
    if op.has_output("input_grad"):
        bridge.set_output_node(op, "input_grad", opset15.negative(gradient))


def _sum_along(bridge: NgraphBridge, node: NodeInput, axis: int) -> Any:
    return sum_over(bridge, node, [axis]) if bridge.shape(node) else node
