"""Normalizations and their gradients, as Paddle's CPU kernels compute them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from openvino import opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.passes.blocked_layout import Blocked
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import Term, applied, operands, product, set_term, total
from paddle_ngraph.ops.nodes import broadcast_to, constant, reshaped, sum_over


def _mean(bridge: NgraphBridge, node: NodeInput, axes: Sequence[int]) -> Any:
    return opset15.reduce_mean(node, bridge.ints(axes), keep_dims=True)


def _inverse_deviation(variance: NodeInput, epsilon: float) -> Any:
    root = opset15.sqrt(opset15.add(variance, constant(epsilon)))
    return opset15.divide(constant(1.0), root)


def _moments(bridge: NgraphBridge, x: NodeInput, axes: Sequence[int]) -> tuple[Any, Any, Any]:
    """The mean along ``axes``, ``x`` minus the mean, and the variance."""
    mean = _mean(bridge, x, axes)
    distance = opset15.subtract(x, mean)
    return mean, distance, _mean(bridge, opset15.multiply(distance, distance), axes)


def _by_core(bridge: NgraphBridge, gradient: str) -> bool:
    """Whether an operator of this package computes a normalization: in training, on the CPU."""
    return bridge.on_cpu and bridge.trains(gradient)


# -- batch normalization -------------------------------------------------------------------------


class _Channels:
    """The channel axis of a batch: axis 1, or the last one for ``NHWC``."""

    def __init__(self, bridge: NgraphBridge, x: NodeInput, layout: str) -> None:
        self._bridge = bridge
        self._shape = shape = bridge.shape(x)
        self.is_last = layout == "NHWC"
        axis = len(shape) - 1 if self.is_last else 1
        self.axes = [i for i in range(len(shape)) if i != axis]
        self.size = shape[axis]
        self.count = math.prod(shape) // max(self.size, 1)
        self._spread = [self.size if i == axis else 1 for i in range(len(shape))]

    def spread(self, node: NodeInput) -> Any:
        """Reshapes ``node``, [channels], so that it broadcasts over the batch."""
        return reshaped(self._bridge, node, self._spread)

    def flat(self, node: NodeInput) -> Any:
        """Reverts :meth:`spread`: reshapes ``node`` to [channels]."""
        return reshaped(self._bridge, node, [self.size])

    def rows(self, node: NodeInput) -> Any:
        """Converts [N, C, ...] to a layout that the core's normalization operators accept.

        The blocked layout, if ``node`` has been computed in it. Otherwise [N, C, S, 1], or
        [1, 1, N * S, C] where the channels are contiguous.
        """
        found = None if self.is_last else Blocked.of(self._bridge).find(node)
        if found is not None:
            return found
        spatial_size = self.count // max(self._shape[0], 1)
        if self.is_last or spatial_size == 1:
            return reshaped(self._bridge, node, [1, 1, self.count, self.size])
        return reshaped(self._bridge, node, [self._shape[0], self.size, spatial_size, 1])

    def like(self, rows: NodeInput, node: NodeInput) -> Any:
        """Converts ``node`` from the layout of the input to the layout of ``rows``."""
        dims = self._bridge.shape(rows)
        if len(dims) == 5:
            return Blocked.of(self._bridge).reordered(node, dims[4])
        return reshaped(self._bridge, node, dims)

    def unlike(self, rows: NodeInput) -> Any:
        """Reverts :meth:`rows`: converts ``rows`` to the layout of the input."""
        if len(self._bridge.shape(rows)) == 5:
            return Blocked.of(self._bridge).plain(rows, self.size)
        return reshaped(self._bridge, rows, self._shape)

    def padded(self, rows: NodeInput, node: NodeInput) -> Any:
        """Appends zeros for the padded lanes of ``rows`` to ``node``, [channels]."""
        bridge, dims = self._bridge, self._bridge.shape(rows)
        extra = dims[1] * dims[4] - self.size if len(dims) == 5 else 0
        if not extra:
            return node
        return opset15.pad(node, bridge.ints([0]), bridge.ints([extra]), "constant")

    def cropped(self, node: NodeInput) -> Any:
        """Reverts :meth:`padded`: drops the elements of ``node`` that belong to no channel."""
        bridge = self._bridge
        if bridge.shape(node) == [self.size]:
            return node
        return opset15.slice(node, *(bridge.ints([value]) for value in (0, self.size, 1)))

    def constant(self, value: float) -> Any:
        """A constant tensor with ``value`` for each channel, which broadcasts over the batch."""
        return opset15.constant(np.full(self._spread, value, np.float32))


def uses_running_statistics(attributes: Mapping[str, Any]) -> bool:
    """Whether a batch normalization uses its running statistics, and does not update them."""
    is_test = attributes.get("is_test") and not attributes.get("trainable_statistics")
    return bool(is_test or attributes.get("use_global_stats"))


def _reads_updated_statistics(op: Op) -> bool:
    statistics = {op.input(name).id for name in ("mean", "variance")}
    factors = {op.input(name).id for name in ("scale", "bias") if op.has_input(name)}
    return not uses_running_statistics(op.attrs) and not statistics.isdisjoint(factors)


_OWN_FACTORS = Limit(
    "Paddle updates the running statistics before it reads the same tensors as scale or bias",
    lambda op: not _reads_updated_statistics(op),
)


@converter(
    *("pd_op.batch_norm", "pd_op.batch_norm_"),
    outputs={"reserve_space": Role.WORKSPACE},
    limits=[_OWN_FACTORS],
)
def batch_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = x * a + (bias - m * a)`` per channel, ``a = scale / sqrt(v + epsilon)``.

    In training ``m`` and ``v`` are mean and variance (over ``n``, not ``n - 1``) of the batch, and
    the running statistics move by ``1 - momentum`` towards these; otherwise ``m`` and ``v`` are the
    running statistics. The saved statistics are ``m`` and ``1 / sqrt(v + epsilon)``. A single
    element per channel is returned unchanged (Paddle ``batch_norm``; x of rank 2 to 5, the rest
    [channels]).
    """
    x = bridge.get_input_node(op, "x")
    channels = _Channels(bridge, x, op.attr("data_format"))
    running = [bridge.get_input_node(op, name) for name in ("mean", "variance")]
    if uses_running_statistics(op.attrs):
        mean, variance = map(channels.spread, running)
        inverse = _inverse_deviation(variance, op.attr("epsilon"))
        out = _scaled(bridge, op, channels, x, mean, inverse)
        statistics = [*running, channels.flat(mean), channels.flat(inverse)]
    elif channels.count == 1:
        none = channels.flat(channels.constant(0.0))
        out, statistics = x, [*running, none, none]
    elif not _by_core(bridge, "pd_op.batch_norm_grad") or op.attr("epsilon") == 0:
        # Computed by OpenVINO's nodes if epsilon is 0: this package's operator would compute 0 / 0
        # for padded channels.
        mean, _, variance = _moments(bridge, x, channels.axes)
        inverse = _inverse_deviation(variance, op.attr("epsilon"))
        out = _scaled(bridge, op, channels, x, mean, inverse)
        pairs = zip(map(channels.spread, running), (mean, variance))
        updated = [channels.flat(_moved(before, batch, op)) for before, batch in pairs]
        statistics = [*updated, channels.flat(mean), channels.flat(inverse)]
    else:
        factors = [_factor(bridge, op, channels, *pair) for pair in (("scale", 1.0), ("bias", 0.0))]
        rows = channels.rows(x)
        node = bridge.extension(
            "BatchNorm",
            [rows, *(channels.padded(rows, given) for given in (*factors, *running))],
            epsilon=op.attr("epsilon"),
            momentum=op.attr("momentum"),
        )
        out = channels.unlike(node.output(0))
        statistics = [channels.cropped(found) for found in node.outputs()[1:]]
    bridge.set_output_node(op, "out", out)
    for name, node in zip(_STATISTICS, statistics):
        bridge.set_output_node(op, name, node)


_STATISTICS = ("mean_out", "variance_out", "saved_mean", "saved_variance")


def _factor(bridge: NgraphBridge, op: Op, channels: _Channels, name: str, absent: float) -> Any:
    """Input ``name``, of shape [channels]; if it is absent, filled with ``absent``."""
    if op.has_input(name):
        return bridge.get_input_node(op, name)
    return channels.flat(channels.constant(absent))


def _scaled(
    bridge: NgraphBridge,
    op: Op,
    channels: _Channels,
    x: NodeInput,
    mean: NodeInput,
    inverse: NodeInput,
) -> Any:
    factor = inverse
    if op.has_input("scale"):
        factor = opset15.multiply(inverse, channels.spread(bridge.get_input_node(op, "scale")))
    offset = opset15.multiply(mean, factor)
    if op.has_input("bias"):
        offset = opset15.subtract(channels.spread(bridge.get_input_node(op, "bias")), offset)
    else:
        offset = opset15.negative(offset)
    return opset15.add(opset15.multiply(x, factor), offset)


def _moved(running: Any, batch: Any, op: Op) -> Any:
    momentum = float(np.float32(op.attr("momentum")))
    kept = opset15.multiply(running, constant(momentum))
    return opset15.add(kept, opset15.multiply(batch, constant(1.0 - momentum)))


_SCALE_AND_BIAS = Limit(
    "Paddle computes neither gradient if scale or bias is absent",
    lambda op: op.has_input("scale") == op.has_input("bias"),
)


@converter("pd_op.batch_norm_grad", inputs={"reserve_space": Role.UNUSED}, limits=[_SCALE_AND_BIAS])
def batch_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of :func:`batch_norm` (Paddle ``batch_norm_grad``).

    ``bias_grad = sum(g)``, ``scale_grad = sum((x - m) * i * g)`` with the inverse deviation ``i``,
    ``x_grad = scale * i / n * (n * g - bias_grad - (x - m) * i * scale_grad)``; without the last
    two terms where the running statistics are used. See :func:`_has_both` for frozen parameters.
    """
    x, grad = bridge.get_input_node(op, "x"), bridge.get_input_node(op, "out_grad")
    channels = _Channels(bridge, x, op.attr("data_format"))
    is_global = op.attr("is_test") or op.attr("use_global_stats")
    zeros = channels.flat(channels.constant(0.0))
    if channels.count == 1 and not is_global:
        # The gradient of bias is zeros if that of x is requested: Paddle's kernel then returns
        # before it computes the former.
        bias_grad = zeros if op.outputs["x_grad"] else channels.flat(grad)
        gradients: tuple[Any, ...] = (grad, zeros, bias_grad)
    else:
        by_core = _by_core(bridge, "pd_op.batch_norm_grad") and not is_global
        gradients = (_core_gradients if by_core else _gradients)(bridge, op, channels, x, grad)
    if not _has_both(op):
        gradients = (gradients[0], zeros, zeros)
    for name, node in zip(("x_grad", "scale_grad", "bias_grad"), gradients):
        if op.has_output(name):
            bridge.set_output_node(op, name, node)


def _has_both(op: Op) -> bool:
    """Whether scale and bias are both trained.

    Where one of them is frozen, Paddle's kernels of batch and instance normalization compute no
    gradient of the other one either, but zeros.
    """
    return bool(op.outputs["scale_grad"]) and bool(op.outputs["bias_grad"])


def _core_gradients(
    bridge: NgraphBridge, op: Op, channels: _Channels, x: NodeInput, grad: NodeInput
) -> tuple[Any, ...]:
    rows = channels.rows(x)
    scale = _factor(bridge, op, channels, "scale", 1.0)
    statistics = [bridge.get_input_node(op, name) for name in _STATISTICS[2:]]
    given = [channels.padded(rows, found) for found in (scale, *statistics)]
    node = bridge.extension("BatchNormGrad", [rows, channels.like(rows, grad), *given])
    return channels.unlike(node.output(0)), *map(channels.cropped, node.outputs()[1:])


def _gradients(
    bridge: NgraphBridge, op: Op, channels: _Channels, x: NodeInput, grad: NodeInput
) -> tuple[Any, ...]:
    is_global = op.attr("is_test") or op.attr("use_global_stats")
    names = _STATISTICS[:2] if is_global else _STATISTICS[2:]
    mean, inverse = (channels.spread(bridge.get_input_node(op, name)) for name in names)
    if is_global:
        inverse = _inverse_deviation(inverse, op.attr("epsilon"))
    distance = opset15.subtract(x, mean)
    scores = opset15.multiply(opset15.multiply(distance, inverse), grad)
    product, total = (sum_over(bridge, node, channels.axes) for node in (scores, grad))
    factor = opset15.multiply(channels.spread(_factor(bridge, op, channels, "scale", 1.0)), inverse)
    if not is_global:
        count = constant(channels.count)
        slope = opset15.divide(opset15.multiply(product, inverse), count)
        grad = opset15.subtract(grad, opset15.divide(total, count))
        grad = opset15.subtract(grad, opset15.multiply(distance, slope))
    return opset15.multiply(factor, grad), channels.flat(product), channels.flat(total)


@dataclass(frozen=True)
class _SecondGradients:
    """The gradients of the gradients of a normalization.

    ``y = normal * scale + bias`` with ``normal = (x - mean) * inverse``. Scale and inverse
    broadcast over x; an absent gradient is zero.

    Attributes:
        normal, inverse, scale: See above.
        axes: The axes along which x is normalized; empty if mean and inverse are given, and do not
            depend on x.
        other_axes: The axes of x that scale does not have.
        grad: The gradient of y.
        of_x, of_scale, of_bias: The gradients of those of x, scale and bias.
    """

    bridge: NgraphBridge
    normal: Any
    inverse: Any
    scale: Any
    axes: Sequence[int]
    other_axes: Sequence[int]
    grad: Any
    of_x: Term
    of_scale: Term
    of_bias: Term

    def x_grad(self) -> Term:
        """The gradient of x: ``-scale * inverse * (...) + of_scale * d(grad)``.

        With ``d`` as in :meth:`_derivative`, means over ``axes``, ``a = mean(grad * normal)`` and
        ``b = mean(of_x * normal)``, the sum is ``d(of_x) * a + d(grad) * b + normal * inverse *
        (mean(of_x * grad) - mean(of_x) * mean(grad) - a * b)``.
        """
        by_scale = product(self.of_scale, self._derivative(self.grad))
        return total(applied(self._bend, self.of_x) if self.axes else None, by_scale)

    def _bend(self, change: Any) -> Any:
        mean = partial(_mean, self.bridge, axes=self.axes)
        a, b = (mean(product(each, self.normal)) for each in (self.grad, change))
        means = opset15.add(product(mean(change), mean(self.grad)), product(a, b))
        covariance = opset15.subtract(mean(product(change, self.grad)), means)
        found = total(
            product(self._derivative(change), a),
            product(self._derivative(self.grad), b),
            product(self.normal, self.inverse, covariance),
        )
        return product(opset15.negative(self.scale), self.inverse, found)

    def scale_grad(self) -> Term:
        """The gradient of scale, of shape [channels]."""
        found = product(self._derivative(self.grad), self.of_x)
        axes = self.bridge.ints(self.other_axes)
        return applied(opset15.reduce_sum, found, axes)

    def grad_grad(self) -> Term:
        """The gradient of ``grad``."""
        found = total(
            product(self.scale, applied(self._derivative, self.of_x)),
            product(self.normal, self.of_scale),
            self.of_bias,
        )
        shape = self.bridge.shape(self.normal)
        return applied(partial(broadcast_to, self.bridge, shape=shape), found)

    def _derivative(self, change: Any) -> Any:
        """The change of ``normal`` for a change of x, which is also the gradient of x."""
        if not self.axes:
            return product(change, self.inverse)
        return _input_gradient(self.bridge, change, self.normal, self.inverse, self.axes)


_TRAINS = Limit("attribute 'is_test' is set", lambda op: not op.attr("is_test"))


@converter("pd_op.batch_norm_double_grad", "pd_op.batch_norm_double_grad_", limits=[_TRAINS])
def batch_norm_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of x, scale and ``grad_out`` (Paddle ``batch_norm_double_grad``)."""
    x, scale, *statistics, grad, of_x, of_scale, of_bias = operands(bridge, op)
    channels = _Channels(bridge, x, op.attr("data_format"))
    is_global = op.attr("use_global_stats")
    mean, inverse = map(channels.spread, statistics[:2] if is_global else statistics[2:])
    if is_global:
        inverse = _inverse_deviation(inverse, op.attr("epsilon"))
    gradients = _SecondGradients(
        bridge,
        opset15.multiply(opset15.subtract(x, mean), inverse),
        inverse,
        channels.constant(1.0) if scale is None else channels.spread(scale),
        [] if is_global else channels.axes,
        channels.axes,
        grad,
        of_x,
        applied(channels.spread, of_scale),
        applied(channels.spread, of_bias),
    )

    set_term(bridge, op, "x_grad", gradients.x_grad, x)
    set_term(bridge, op, "scale_grad", gradients.scale_grad, statistics[2])
    set_term(bridge, op, "grad_out_grad", gradients.grad_grad, x)


# -- layer, group and instance normalization -----------------------------------------------------


@dataclass
class _Statistics:
    """Mean, variance and ``1 / sqrt(variance + epsilon)`` of the elements normalized together."""

    mean: Any
    variance: Any
    inverse: Any


def _normalized(
    bridge: NgraphBridge, op: Op, x: NodeInput, axes: list[int]
) -> tuple[Any, _Statistics | None]:
    """``x`` normalized along ``axes``, and its statistics if the program uses them."""
    names = ("mean", "variance", "saved_mean", "saved_variance")
    is_last = axes == list(range(axes[0], len(bridge.shape(x))))
    if is_last and not any(op.has_output(name) for name in names):
        return opset15.mvn(x, bridge.ints(axes), True, op.attr("epsilon"), "inside_sqrt"), None
    mean, distance, variance = _moments(bridge, x, axes)
    inverse = _inverse_deviation(variance, op.attr("epsilon"))
    return opset15.multiply(distance, inverse), _Statistics(mean, variance, inverse)


def _affine(bridge: NgraphBridge, op: Op, node: NodeInput, shape: Sequence[int]) -> Any:
    """``node * scale + bias`` with the inputs scale and bias, if ``op`` has them, in ``shape``."""
    if op.has_input("scale"):
        scale = reshaped(bridge, bridge.get_input_node(op, "scale"), shape)
        node = opset15.multiply(node, scale)
    if op.has_input("bias"):
        node = opset15.add(node, reshaped(bridge, bridge.get_input_node(op, "bias"), shape))
    return node


def _input_gradient(
    bridge: NgraphBridge,
    grad: NodeInput,
    normal: Any,
    inverse: NodeInput,
    axes: Sequence[int],
    is_centered: bool = True,
) -> Any:
    """The gradient of ``normal = (x - mean) * inverse`` along ``axes``, from that of ``normal``."""
    slope = _mean(bridge, opset15.multiply(grad, normal), axes)
    if is_centered:
        grad = opset15.subtract(grad, _mean(bridge, grad, axes))
    return opset15.multiply(opset15.subtract(grad, opset15.multiply(normal, slope)), inverse)


def _set_parameter_gradients(
    bridge: NgraphBridge, op: Op, grad: NodeInput, normal: Any, axes: Sequence[int]
) -> None:
    for name, node in (
        ("scale_grad", opset15.multiply(grad, normal)),
        ("bias_grad", grad),
    ):
        if op.has_output(name):
            total = opset15.reduce_sum(node, bridge.ints(axes)) if axes else node
            bridge.set_output_node(op, name, reshaped(bridge, total, [-1]))


def rows_of(bridge: NgraphBridge, op: Op, name: str) -> Any:
    """Input ``name``, which has the shape of x, reshaped to a row for each normalized slice."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    length = math.prod(shape[op.attr("begin_norm_axis") :])
    return reshaped(bridge, bridge.get_input_node(op, name), [-1, length])


def _parameter(bridge: NgraphBridge, op: Op, name: str, length: int, absent: float) -> Any:
    """Input ``name``, of shape [length]; if it is absent, filled with ``absent``."""
    if op.has_input(name):
        return bridge.get_input_node(op, name)
    return opset15.constant(np.full(length, absent, np.float32))


@converter("pd_op.layer_norm")
def layer_norm(bridge: NgraphBridge, op: Op) -> None:
    """``out = (x - mean) / sqrt(variance + epsilon) * scale + bias`` (Paddle ``layer_norm``).

    Mean and variance are taken over the axes from ``begin_norm_axis`` on; scale and bias have their
    size, in one dimension.
    """
    x = rows_of(bridge, op, "x")
    shape, length = bridge.shape(bridge.get_input_node(op, "x")), bridge.shape(x)[1]
    statistics: list[Any] = []
    if not _by_core(bridge, "pd_op.layer_norm_grad"):
        normal, found = _normalized(bridge, op, x, [1])
        statistics = [found.mean, found.variance] if found is not None else []
        out = _affine(bridge, op, normal, [1, -1])
    else:
        parameters = [
            _parameter(bridge, op, name, length, absent)
            for name, absent in (("scale", 1.0), ("bias", 0.0))
        ]
        node = bridge.extension("LayerNorm", [x, *parameters], epsilon=op.attr("epsilon"))
        out, *statistics = node.outputs()
    rows = shape[: op.attr("begin_norm_axis")]
    for name, statistic in zip(("mean", "variance"), statistics):
        bridge.set_output_node(op, name, reshaped(bridge, statistic, rows))
    bridge.set_output_node(op, "out", reshaped(bridge, out, shape))


@converter("pd_op.layer_norm_grad", inputs={"bias": Role.SHAPE_ONLY})
def layer_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of :func:`layer_norm` (Paddle ``layer_norm_grad``).

    ``scale_grad = sum(g * n)`` with the normalized ``n``, ``bias_grad = sum(g)``,
    ``x_grad = (h - mean(h) - n * mean(h * n)) / sqrt(variance + epsilon)`` with ``h = g * scale``;
    as on Paddle's CPU, ``h = g`` where the scale is not trained.
    """
    x, grad = rows_of(bridge, op, "x"), rows_of(bridge, op, "out_grad")
    length = bridge.shape(x)[1]
    is_trained = op.has_input("scale") and bool(op.outputs["scale_grad"])
    ones = opset15.constant(np.ones(length, np.float32))
    scale = _parameter(bridge, op, "scale", length, 1.0) if is_trained else ones
    statistics = [
        reshaped(bridge, bridge.get_input_node(op, name), [-1]) for name in ("mean", "variance")
    ]
    if not bridge.on_cpu:
        return _set_layer_norm_gradients(bridge, op, x, grad, scale, statistics)
    node = bridge.extension(
        "LayerNormGrad", [x, grad, scale, *statistics], epsilon=op.attr("epsilon")
    )
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    shapes = (("x_grad", shape), ("scale_grad", [length]), ("bias_grad", [length]))
    for (name, dims), output in zip(shapes, node.outputs()):
        if op.has_output(name):
            bridge.set_output_node(op, name, reshaped(bridge, output, dims))


def _set_layer_norm_gradients(
    bridge: NgraphBridge,
    op: Op,
    x: NodeInput,
    grad: NodeInput,
    scale: NodeInput,
    statistics: Sequence[NodeInput],
) -> None:
    """The gradients of layer normalization by OpenVINO nodes, for devices other than the CPU."""
    mean, variance = (reshaped(bridge, node, [-1, 1]) for node in statistics)
    inverse = _inverse_deviation(variance, op.attr("epsilon"))
    normal = opset15.multiply(opset15.subtract(x, mean), inverse)
    _set_parameter_gradients(bridge, op, grad, normal, [0])
    if op.has_output("x_grad"):
        scaled = opset15.multiply(grad, reshaped(bridge, scale, [1, -1]))
        gradient = _input_gradient(bridge, scaled, normal, inverse, [1])
        shape = bridge.shape(bridge.get_input_node(op, "x"))
        bridge.set_output_node(op, "x_grad", reshaped(bridge, gradient, shape))


class _Groups:
    """The shape of a batch by groups: [N, G, C / G, S], or [N, S, G, C / G] for ``NHWC``."""

    def __init__(self, shape: Sequence[int], groups: int, layout: str) -> None:
        is_last = layout == "NHWC"
        channels = shape[-1] if is_last else shape[1]
        spatial_size = math.prod(shape[1:]) // max(channels, 1)
        parts = [groups, channels // groups]
        self.shape = (
            [shape[0], spatial_size, *parts] if is_last else [shape[0], *parts, spatial_size]
        )
        self.axes = [1, 3] if is_last else [2, 3]
        self.others = [0, 1] if is_last else [0, 3]
        self.parameter = [1, 1, *parts] if is_last else [1, *parts, 1]
        self.statistic = [shape[0], 1, groups, 1] if is_last else [shape[0], groups, 1, 1]
        self.flat = [shape[0], groups]


@converter("pd_op.group_norm", kept_for="fusion between convolutions")
def group_norm(bridge: NgraphBridge, op: Op) -> None:
    """``y = (x - mean) / sqrt(variance + epsilon) * scale + bias`` (Paddle ``group_norm``).

    Mean and variance are taken over each of ``groups`` groups of channels of each example.
    """
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    groups = _Groups(shape, op.attr("groups"), op.attr("data_format"))
    x = reshaped(bridge, x, groups.shape)
    normal, statistics = _normalized(bridge, op, x, groups.axes)
    out = _affine(bridge, op, normal, groups.parameter)
    bridge.set_output_node(op, "y", reshaped(bridge, out, shape))
    if statistics is not None:
        mean, variance = statistics.mean, statistics.variance
        bridge.set_output_node(op, "mean", reshaped(bridge, mean, groups.flat))
        bridge.set_output_node(op, "variance", reshaped(bridge, variance, groups.flat))


@converter(
    "pd_op.group_norm_grad",
    "pd_op.group_norm_grad_",
    inputs={"x": Role.SHAPE_ONLY, "mean": Role.SHAPE_ONLY},
)
def group_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of :func:`group_norm`, as :func:`layer_norm_grad` (Paddle ``group_norm_grad``).

    Paddle derives the normalized input from the output: ``n = (y - bias) / scale``, the division
    omitted where ``scale == 0``; without a scale ``mean(h)`` is replaced by 0.
    """
    y, grad = bridge.get_input_node(op, "y"), bridge.get_input_node(op, "y_grad")
    shape = bridge.shape(y)
    groups = _Groups(shape, op.attr("groups"), op.attr("data_format"))
    normal, grad = reshaped(bridge, y, groups.shape), reshaped(bridge, grad, groups.shape)
    if op.has_input("bias"):
        bias = reshaped(bridge, bridge.get_input_node(op, "bias"), groups.parameter)
        normal = opset15.subtract(normal, bias)
    scale = None
    if op.has_input("scale"):
        scale = reshaped(bridge, bridge.get_input_node(op, "scale"), groups.parameter)
        is_zero = opset15.equal(scale, constant(0.0))
        normal = opset15.divide(normal, opset15.select(is_zero, constant(1.0), scale))
    _set_parameter_gradients(bridge, op, grad, normal, groups.others)
    variance = reshaped(bridge, bridge.get_input_node(op, "variance"), groups.statistic)
    inverse = _inverse_deviation(variance, op.attr("epsilon"))
    if scale is not None:
        grad = opset15.multiply(grad, scale)
    gradient = _input_gradient(bridge, grad, normal, inverse, groups.axes, scale is not None)
    bridge.set_output_node(op, "x_grad", reshaped(bridge, gradient, shape))


def _instances(bridge: NgraphBridge, node: NodeInput) -> Any:
    """Reshapes ``node`` to [N, C, product of all other dimensions]."""
    shape = bridge.shape(node)
    rest = math.prod(shape[2:])
    return reshaped(bridge, node, [shape[0], shape[1], rest])


@converter("pd_op.instance_norm")
def instance_norm(bridge: NgraphBridge, op: Op) -> None:
    """``y = (x - mean) * i * scale + bias`` with ``i = 1 / sqrt(variance + epsilon)``.

    Mean and variance are taken over each channel of each example; the saved ones are the mean and
    ``i`` (Paddle ``instance_norm``).
    """
    source = bridge.get_input_node(op, "x")
    x = _instances(bridge, source)
    normal, statistics = _normalized(bridge, op, x, [2])
    out = _affine(bridge, op, normal, [1, bridge.shape(x)[1], 1])
    bridge.set_output_node(op, "y", reshaped(bridge, out, bridge.shape(source)))
    if statistics is not None:
        mean, inverse = statistics.mean, statistics.inverse
        bridge.set_output_node(op, "saved_mean", reshaped(bridge, mean, [-1]))
        bridge.set_output_node(op, "saved_variance", reshaped(bridge, inverse, [-1]))


@converter("pd_op.instance_norm_grad", inputs={"bias": Role.SHAPE_ONLY})
def instance_norm_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of :func:`instance_norm`; see :func:`layer_norm_grad` (``instance_norm_grad``)."""
    source = bridge.get_input_node(op, "x")
    x, grad = _instances(bridge, source), _instances(bridge, bridge.get_input_node(op, "y_grad"))
    batch, channels, _ = bridge.shape(x)
    mean, inverse = (
        reshaped(bridge, bridge.get_input_node(op, name), [batch, channels, 1])
        for name in ("saved_mean", "saved_variance")
    )
    normal = opset15.multiply(opset15.subtract(x, mean), inverse)
    if _has_both(op):
        _set_parameter_gradients(bridge, op, grad, normal, [0, 2])
    else:
        for name in ("scale_grad", "bias_grad"):
            if op.has_output(name):
                bridge.set_output_node(op, name, bridge.full(0.0, "float32", [channels]))
    gradient = _input_gradient(bridge, grad, normal, inverse, [2])
    if op.has_input("scale"):
        scale = reshaped(bridge, bridge.get_input_node(op, "scale"), [1, channels, 1])
        gradient = opset15.multiply(gradient, scale)
    bridge.set_output_node(op, "x_grad", reshaped(bridge, gradient, bridge.shape(source)))


@converter("pd_op.instance_norm_double_grad")
def instance_norm_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of x, scale and ``grad_y`` (Paddle ``instance_norm_double_grad``).

    Where the gradient of one of scale and bias is absent, Paddle's kernel omits the other one from
    ``grad_y_grad``.
    """
    source, scale, *statistics, grad, of_x, of_scale, of_bias = operands(bridge, op)
    x = _instances(bridge, source)
    batch, channels, _ = bridge.shape(x)
    mean, inverse = (reshaped(bridge, each, [batch, channels, 1]) for each in statistics)

    def spread(node: NodeInput) -> Any:
        return reshaped(bridge, node, [1, channels, 1])

    gradients = _SecondGradients(
        bridge,
        opset15.multiply(opset15.subtract(x, mean), inverse),
        inverse,
        constant(1.0) if scale is None else spread(scale),
        [2],
        [0, 2],
        _instances(bridge, grad),
        applied(partial(_instances, bridge), of_x),
        applied(spread, of_scale),
        applied(spread, of_bias),
    )
    set_term(bridge, op, "x_grad", gradients.x_grad, source, reshaped)
    if op.has_output("scale_grad"):
        made = gradients.scale_grad()
        zeros = bridge.full(0.0, "float32", [channels])
        bridge.set_output_node(op, "scale_grad", zeros if made is None else made)
    set_term(bridge, op, "grad_y_grad", gradients.grad_grad, source, reshaped)
