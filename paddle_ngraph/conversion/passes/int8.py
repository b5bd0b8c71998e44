"""int8 kernels for quantized programs.

Paddle simulates quantization in float32: a tensor is rounded to 8-bit integers, and multiplied by
its scale again. Where such a tensor and such weights are the operands of a convolution or a matmul,
the plugin can compute with the integers themselves. ``FakeQuantize`` nodes, which replace this
arithmetic here, request that.

The sums are exact then, where Paddle's are rounded. A value that is quantized next may thus lie on
the other side of a boundary, one quantum off, as with float32 sums in another order. NaN is lost,
both in ``FakeQuantize`` and in the activation before it. Functions without quantized matmuls or
convolutions keep the arithmetic, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from openvino import Input, Model, Node, Output, opset15

from paddle_ngraph.conversion import constants, processor
from paddle_ngraph.conversion.node_tools import Key, fusion_barrier, key_of
from paddle_ngraph.conversion.size_rules import touches_empty_tensor

Array = np.ndarray[Any, Any]
Contents = Mapping[Key, Array]

_VIEWS = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SCALINGS = frozenset({"Divide", "Multiply"})
# Types of nodes that may be between a quantized tensor and its matmul: the plugin computes these on
# integers, too.
_GRID_PRESERVING = _VIEWS | {"MaxPool", "Relu"}
# By node type, the axes of the weights that are output channels. A matmul with transposed weights
# has another axis.
_CHANNELS = {"Convolution": (0,), "GroupConvolution": (0, 1), "MatMul": (-1,)}
_LOWEST, _HIGHEST = -128, 127
# Types of nodes that the plugin fuses with the matmul before them, or moves elsewhere: they do not
# separate the matmul from later nodes.
_FUSED = _VIEWS | _SCALINGS | {"Add", "Clamp", "Concat", "Relu", "Subtract"}


def use_int8(model: Model) -> None:
    """Requests int8 kernels, where the processor computes them without saturation.

    Args:
        model: A complete model; weights are constants if they are to be quantized.
    """
    if not processor.has_int8():
        return
    found = _Quantized(model)
    if not found.matmuls or any(map(touches_empty_tensor, model.get_ordered_ops())):
        return
    read = found.read()
    known = dict(zip(read, constants.evaluated(list(read.values()))))
    if any([_quantize_weights(weights, known) for weights in found.matmuls]):
        for tensor in found.tensors:
            if _has_grid(tensor, known):
                _quantize(tensor, known)


class _QuantizedTensor(NamedTuple):
    """A tensor that is quantized, by the arithmetic of ops/quantization.py.

    Attributes:
        x: The tensor.
        factor: The factor that it is multiplied by before rounding, one element.
        limit: The bound, on both sides, by which it is clipped before the multiplication; ``None``
            if it is not.
        low: The lowest of the integers.
        high: The highest.
        readers: The readers of the integers or of their dequantization, each with the scalings in
            between.
    """

    x: Output
    factor: Output
    limit: Output | None
    low: int
    high: int
    readers: list[tuple[Input, tuple[Node, ...]]]


class _Weights(NamedTuple):
    """The weights of a matmul or convolution with a quantized tensor.

    Attributes:
        product: The node that reads them.
        source: The value that may be integers.
        steps: The scalings and views from there to the node, in order.
    """

    product: Node
    source: Output
    steps: tuple[Node, ...]


class _Quantized:
    """The quantized tensors of a model, as far as its nodes show, and their matmuls."""

    def __init__(self, model: Model) -> None:
        self.tensors: list[_QuantizedTensor] = []
        self.matmuls: list[_Weights] = []
        self._constant = _constant_nodes(model)
        self._on_grid: set[Key] = set()
        for node in model.get_ordered_ops():
            if node.get_name() not in self._constant:
                self._visit(node)

    def read(self) -> dict[Key, Output]:
        """The constants whose contents the pass reads, by key."""
        steps = [step for weights in self.matmuls for step in weights.steps]
        steps += [step for t in self.tensors for _, path in t.readers for step in path]
        needed = [step.input_value(1) for step in steps if step.get_type_name() in _SCALINGS]
        needed += [weights.source for weights in self.matmuls]
        needed += [tensor.factor for tensor in self.tensors]
        needed += [tensor.limit for tensor in self.tensors if tensor.limit is not None]
        return {key_of(value): value for value in needed}

    def _visit(self, node: Node) -> None:
        type_name = node.get_type_name()
        first = key_of(node.input_value(0)) if node.get_input_size() else None
        if (found := self._rounding(node)) is not None:
            readers = list(self._readers(node.output(0), ()))
            self.tensors.append(_QuantizedTensor(*found, readers))
            self._on_grid.add(key_of(node.output(0)))
        elif first in self._on_grid and (type_name in _GRID_PRESERVING or self._scales(node)):
            self._on_grid.add(key_of(node.output(0)))
        elif (
            type_name in _CHANNELS
            and first in self._on_grid
            and self._is_constant(node.input_value(1))
        ):
            self.matmuls.append(_Weights(node, *self._steps(node.input_value(1))))

    def _is_constant(self, value: Output) -> bool:
        """Whether ``value`` depends on constants only."""
        return value.get_node().get_name() in self._constant

    def _is_scalar_constant(self, value: Output) -> bool:
        shape = value.get_partial_shape()
        return self._is_constant(value) and shape.is_static and math.prod(shape.to_shape()) == 1

    def _scales(self, node: Node) -> bool:
        """Whether a node multiplies its first input by a scalar constant, or divides it by one."""
        return node.get_type_name() in _SCALINGS and self._is_scalar_constant(node.input_value(1))

    def _rounding(self, node: Node) -> tuple[Output, Output, Output | None, int, int] | None:
        """Tensor, factor, limit and integer bounds of the 8-bit quantization that ends at ``node``.

        ``None`` if no quantization ends there.
        """
        if node.get_type_name() != "Select":
            return None
        is_nan, x, bounded = node.input_values()
        clamp = bounded.get_node()
        if is_nan.get_node().get_type_name() != "NotEqual" or clamp.get_type_name() != "Clamp":
            return None
        round_ = clamp.input_value(0).get_node()
        product = round_.input_value(0).get_node() if round_.get_type_name() == "Round" else None
        if product is None or product.get_type_name() != "Multiply" or not self._scales(product):
            return None
        source, factor = product.input_values()
        low, high = (int(clamp.get_attributes()[name]) for name in ("min", "max"))
        if key_of(x) not in (key_of(source), key_of(_unclipped(source))):
            return None
        is_clipped = key_of(x) != key_of(source)
        limit = source.get_node().input_value(1) if is_clipped else None
        if limit is not None and not self._is_constant(limit):
            return None
        return (x, factor, limit, low, high) if _LOWEST <= low < high <= _HIGHEST else None

    def _readers(
        self, value: Output, path: tuple[Node, ...]
    ) -> Iterator[tuple[Input, tuple[Node, ...]]]:
        """The readers of ``value`` or of its dequantization, each with the scalings in between.

        A dequantization is a multiplication by a scalar, a division by one, or both in this order.
        """
        for target in value.get_target_inputs():
            node = target.get_node()
            type_names = [step.get_type_name() for step in (*path, node)]
            is_step = target.get_index() == 0 and self._scales(node)
            if is_step and type_names in (["Multiply"], ["Divide"], ["Multiply", "Divide"]):
                yield from self._readers(node.output(0), (*path, node))
            else:
                yield target, path

    def _steps(self, value: Output) -> tuple[Output, tuple[Node, ...]]:
        """The source of ``value``, and the scalings and views that compute ``value`` from it."""
        node = value.get_node()
        steps: list[Node] = []
        while node.get_type_name() in _VIEWS | _SCALINGS:
            steps.insert(0, node)
            value = node.input_value(0)
            node = value.get_node()
        return value, tuple(steps)


def _constant_nodes(model: Model) -> set[str]:
    """The names of the nodes that depend on constants only."""
    found: set[str] = set()
    for node in model.get_ordered_ops():
        sources = {value.get_node().get_name() for value in node.input_values()}
        if node.get_type_name() == "Constant" or (sources and sources <= found):
            found.add(node.get_name())
    return found


def _unclipped(value: Output) -> Output:
    """The ``x`` if ``value`` is ``Minimum(Maximum(x, ...), ...)``, without the clamp."""
    for type_name in ("Minimum", "Maximum"):
        node = value.get_node()
        if node.get_type_name() != type_name:
            return value
        value = node.input_value(0)
    return value


def _applied(steps: Sequence[Node], values: Array, known: Contents) -> Array:
    """The array ``values`` after the scalings and views ``steps``."""
    for step in steps:
        type_name = step.get_type_name()
        if type_name in _SCALINGS:
            operand = known[key_of(step.input_value(1))]
            values = values * operand if type_name == "Multiply" else values / operand
        elif type_name == "Transpose":
            values = values.transpose(step.input_value(1).get_node().get_data())
        else:
            values = values.reshape(tuple(step.get_output_shape(0)))
    return values


def _quantize_weights(weights: _Weights, known: Contents) -> bool:
    """Quantizes weights; returns ``False`` if they are not integers times a scale per channel."""
    codes = known[key_of(weights.source)]
    is_integer = np.isin(codes, np.arange(_LOWEST, _HIGHEST + 1)).all()
    if not is_integer or codes.dtype != np.float32:
        return False
    scales = _applied(weights.steps, np.ones_like(codes), known)
    channels = [axis % scales.ndim for axis in _channels(weights.product)]
    scale = scales[tuple(slice(None if i in channels else 1) for i in range(scales.ndim))]
    if not (scale >= 0).all() or (scales != scale).any():
        return False
    # If all weights of a channel are 0, their scale is 0; 1 replaces it, because FakeQuantize needs
    # a positive scale.
    values = np.where(scales == 0, 0, _applied(weights.steps, codes, known))
    scale = np.where(scale == 0, 1, scale)
    values = opset15.constant(np.ascontiguousarray(values, np.float32))
    weights.product.input(1).replace_source_output(_rounded_to_grid(values, scale))
    return True


def _channels(matmul: Node) -> tuple[int, ...]:
    is_transposed = matmul.get_attributes().get("transpose_b", False)
    return (-2,) if is_transposed else _CHANNELS[matmul.get_type_name()]


def _has_grid(tensor: _QuantizedTensor, known: Contents) -> bool:
    """Whether the rounded values are those of a FakeQuantize.

    A factor that is 0 or infinite allows none. By a scale next to 0 Paddle clips, but does not
    divide: the clipped values are rounded to 0.
    """
    factor = known[key_of(tensor.factor)].reshape(())
    if not 0 < factor < np.inf or (_HIGHEST - _LOWEST) / float(factor) > np.finfo(np.float32).max:
        return False
    if tensor.limit is None:
        return True
    return bool(np.rint(known[key_of(tensor.limit)].reshape(()) * factor) == tensor.high)


def _quantize(tensor: _QuantizedTensor, known: Contents) -> None:
    """Inserts a FakeQuantize between a tensor that the program quantizes and its readers."""
    factor = known[key_of(tensor.factor)].reshape(())
    outputs: dict[tuple[str, ...], Output] = {}
    for target, steps in tensor.readers:
        name = tuple(step.get_name() for step in steps)
        if name not in outputs:
            scale = _applied(steps, np.ones((), np.float32), known).reshape(())
            outputs[name] = _rounded(tensor, factor, scale)
        target.replace_source_output(outputs[name])


def _rounded(tensor: _QuantizedTensor, factor: Array, scale: Array) -> Output:
    """The tensor after a FakeQuantize.

    A maximum of rounded values is the rounded maximum: so values are rounded before a pooling, in
    the convolution, and the plugin pools integers, in its own layout.
    """
    x = _without_nan(tensor.x)
    window = _window(x)
    if window is None:
        x = fusion_barrier(x) if _ends_small_matmul(x.get_node()) else x
        return _rounded_to_grid(_bounded(x, tensor, factor), scale, 1 / factor)
    inside = _bounded(_without_nan(x.get_node().input_value(0)), tensor, factor)
    rounded = _rounded_to_grid(inside, scale, 1 / factor)
    return opset15.max_pool(rounded, dilations=[1, 1], **window).output(0)


def _ends_small_matmul(node: Node) -> bool:
    """Whether ``node`` is a 2-D matmul, or follows one, with only fused or moved nodes between.

    The plugin merges several such matmuls of 4 or 8 rows into one node, and rounds their integer
    sums as if their bits were those of floats (OpenVINO 2026.4.1).
    """
    pending, visited = [node], set()
    while pending:
        node = pending.pop()
        shape = node.get_output_partial_shape(0)
        if node.get_name() in visited or shape.is_dynamic:
            continue
        visited.add(node.get_name())
        if node.get_type_name() == "MatMul" and len(shape) == 2:
            return True
        if node.get_type_name() in _FUSED:
            pending += [value.get_node() for value in node.input_values()]
    return False


# The number of readers of a value that only a quantization reads: two operands of a comparison for
# NaN, the result for NaN, and the operand that is scaled.
_MIN_READS_FOR_ROUNDING = 4


def _window(x: Output) -> dict[str, list[int]] | None:
    """Attributes of an OpenVINO MaxPool that replaces Paddle's; ``None`` if none is equivalent.

    ``x`` is the value that a FakeQuantize reads.
    """
    pool = x.get_node()
    if (
        pool.get_type_name() != "PaddleMaxPool"
        or len(x.get_target_inputs()) != _MIN_READS_FOR_ROUNDING
    ):
        return None
    shape, attributes = pool.get_input_partial_shape(0), pool.get_attributes()
    if attributes["adaptive"] or len(shape) != 4 or any(shape[axis].is_dynamic for axis in (2, 3)):
        return None
    found: dict[str, list[int]] = {"strides": [], "pads_begin": [], "pads_end": []}
    found["kernel_shape"] = [int(length) for length in attributes["kernel"]]
    for axis, kernel in enumerate(found["kernel_shape"]):
        size, out = shape[2 + axis].get_length(), int(attributes["output"][axis])
        stride, begin = int(attributes["strides"][axis]), int(attributes["pads"][axis])
        reach = (out - 1) * stride + kernel - begin
        end = max(0, reach - size)
        # For a window of padding only, Paddle's max pooling returns the lowest value, OpenVINO's
        # does not.
        if max(begin, end) >= kernel or size - reach >= stride:
            return None
        for name, value in (("strides", stride), ("pads_begin", begin), ("pads_end", end)):
            found[name].append(value)
    return found


def _bounded(x: Output, tensor: _QuantizedTensor, factor: Array) -> Output:
    """``x``, clamped to the tensor's range if FakeQuantize alone would leave values outside.

    FakeQuantize clamps to the range of int8, -128 to 127. A clamp is added if the tensor's range
    ends earlier on one side, and the activation that computes ``x`` may exceed that end.
    """
    least, most = _range(x.get_node())
    low, high = (float(np.float32(bound) / factor) for bound in (tensor.low, tensor.high))
    starts = tensor.low == _LOWEST or low <= least
    ends = tensor.high == _HIGHEST or most <= high
    return x if starts and ends else opset15.clamp(x, low, high).output(0)


def _without_nan(value: Output) -> Output:
    """``value`` without the propagation of NaN.

    FakeQuantize has no NaN. Activations that propagate it would separate a convolution from the
    FakeQuantize: only single-node activations are fused into the convolution, as rounding is.
    """
    node = value.get_node()
    if node.get_type_name() != "Select":
        return value
    is_nan, x, other = node.input_values()
    compared = [key_of(each) for each in is_nan.get_node().input_values()]
    if is_nan.get_node().get_type_name() != "NotEqual" or compared != [key_of(x)] * 2:
        return value
    return _without_nan(other)


def _range(node: Node) -> tuple[float, float]:
    """A lower and an upper bound of the results of an activation node."""
    type_name, attributes = node.get_type_name(), node.get_attributes()
    if type_name == "Clamp":
        return attributes["min"], attributes["max"]
    return (0.0 if type_name == "Relu" else -math.inf), math.inf


def _rounded_to_grid(x: Any, scale: Any, quantum: Any = None) -> Output:
    """``x`` rounded to an integer number of quanta, each of which stands for ``scale``.

    The range is always that of int8: for a smaller one the plugin computes other quanta.
    """
    quantum = scale if quantum is None else quantum
    ends = [np.float32(n) * each for each in (quantum, scale) for n in (_LOWEST, _HIGHEST)]
    bounds = [opset15.constant(np.asarray(end, np.float32)) for end in ends]
    return opset15.fake_quantize(x, *bounds, _HIGHEST - _LOWEST + 1).output(0)
