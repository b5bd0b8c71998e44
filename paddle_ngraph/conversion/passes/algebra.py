"""Algebra of the CPU plugin (OpenVINO 2026.4.1) that changes numbers, and what keeps it away.

The plugin computes with constants first, leaves out what does nothing, and takes several nodes for
one. Over the real numbers all of that is right. In float32 it is not where an intermediate result
is rounded, overflows or underflows, or where a zero has a sign.

It stops before what is :func:`kept`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from openvino import Input, Model, Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import constants
from paddle_ngraph.conversion.node_tools import Key, kept, key_of
from paddle_ngraph.conversion.passes.plugin_workarounds import EXACT_DIVIDE, RESHAPES

# Marks a product to which Paddle adds 0.
ADDS_ZERO = "ngraph_adds_zero"

# The plugin makes one node of two of these in a row, each with a constant.
_LINEAR = frozenset({"Add", "Divide", "Multiply", "Subtract"})
_SUMMING = frozenset({"Add", "Subtract"})
# What it sees through, or moves out of the way, when it looks for two nodes in a row.
_MOVED = RESHAPES | {"Broadcast", "Transpose"}
# What it multiplies the weights of, and along which axes weights make one channel.
_OUTPUT_CHANNELS = {
    "Convolution": (0,),
    "ConvolutionBackpropData": (1,),
    "GroupConvolution": (0, 1),
    "GroupConvolutionBackpropData": (0, 2),
}
# The first terms of erf(x), and below which square of x they are all that counts.
_ERF = 2.0 / np.sqrt(np.pi) * np.array([1.0, -1 / 3, 1 / 10, -1 / 42, 1 / 216])
_SMALL_FOR_ERF = 0.25**2

_LEAST = float(np.finfo(np.float32).tiny)
_GREATEST = float(np.finfo(np.float32).max)
# Less than this does not change the greatest number, by rounding.
_LARGE_TERM = _GREATEST * 2.0**-25


# -- sums ----------------------------------------------------------------------------------------


def keep_sums_before_constants(model: Model) -> None:
    """Rounds a sum with a constant where another constant is added to it or multiplies it.

    The plugin would compute (x + a) * b + c as x * b + (a * b + c). Where x is exact, as masks are,
    that loses what is left of a sum: (1 - mask) * -1e9 + c would be 0 for what is not masked.
    """
    for node in model.get_ordered_ops():
        is_sum = node.get_type_name() in _SUMMING and node.get_element_type() == Type.f32
        if is_sum and sum(map(constants.is_determined, node.input_values())) == 1:
            _keep(node.output(0))


def _keep(total: Output) -> None:
    readers = total.get_target_inputs()
    if any(_is_linear(reader.get_node()) for reader in readers):
        apart = kept(total)
        for reader in readers:
            reader.replace_source_output(apart)


def _is_linear(reader: Node) -> bool:
    """Whether it, or what reads it in other places, adds a constant or multiplies by one."""
    kind = reader.get_type_name()
    if kind in _LINEAR:
        return any(map(constants.is_determined, reader.input_values()))
    if kind not in _MOVED:
        return False
    return any(_is_linear(each.get_node()) for each in reader.output(0).get_target_inputs())


# -- products ------------------------------------------------------------------------------------


class _Sizes(NamedTuple):
    """Bounds of the absolute values of some numbers.

    Attributes:
        least, greatest: Of all of them.
        least_left: Of those that are not 0.
    """

    least: float
    greatest: float
    least_left: float

    def __mul__(self, other: object) -> _Sizes:
        assert isinstance(other, _Sizes)
        return _Sizes(*(mine * its for mine, its in zip(self, other)))

    def inverse(self) -> _Sizes:
        """Of the inverses."""
        if not self.least:
            return _NO_SIZES
        return _Sizes(1.0 / self.greatest, 1.0 / self.least, 1.0 / self.greatest)

    def fits(self) -> bool:
        """Whether float32 has all these numbers."""
        return self.greatest <= _GREATEST and self.least_left >= _LEAST

    def merges_with(self, other: _Sizes) -> bool:
        """Whether ``(x * a) * b`` is ``x * (a * b)`` but for rounding, for every x.

        What is between the two overflows only where both do if both are large, and underflows only
        where both do if both are small.
        """
        if _ONE in (self, other):
            return True
        are_large = self.least >= 1.0 and other.least >= 1.0
        are_small = self.greatest <= 1.0 and other.greatest <= 1.0
        return (are_large or are_small) and (self * other).fits()


_ONE = _Sizes(1.0, 1.0, 1.0)
_NO_SIZES = _Sizes(0.0, np.inf, 0.0)  # those that nothing fits
# Of a factor that is computed. Attention scales it, by no less than this.
_OF_ANY_SIZE = _Sizes(0.0, _GREATEST, _LEAST * 2.0**10)


def _sizes(data: np.ndarray, channels: tuple[int, ...] | None = None) -> _Sizes:
    """The bounds of these numbers, or of the greatest of each channel; denormals count as 0."""
    if not data.size:
        return _NO_SIZES
    if data.dtype.kind != "f":  # some of the others have no negatives
        data = data.astype(np.float32)
    others = tuple(axis for axis in range(data.ndim) if axis not in (channels or ()))
    along = () if channels is None else others
    high = np.asarray(np.maximum(data.max(along), -data.min(along)) if along else np.abs(data))
    if not np.isfinite(high).all():
        return _NO_SIZES
    high = np.where(high < _LEAST, 0.0, high)
    left = high[high > 0.0]
    return _Sizes(float(high.min()), float(high.max()), float(left.min()) if left.size else 1.0)


class _Made(NamedTuple):
    """What the plugin may multiply by a further constant.

    Attributes:
        factors: The product of the constants so far.
        source: The product whose weights may be multiplied by them.
        before: The product of the constants before that, which may be in the weights, too.
    """

    factors: _Sizes = _ONE
    source: Node | None = None
    before: _Sizes = _ONE

    def takes(self, factor: _Sizes) -> bool:
        """Whether a further factor changes no number if the plugin multiplies it with these."""
        if factor == _ONE:
            return True
        if not self.factors.merges_with(factor):
            return False
        if self.source is None:
            return True
        weights = _of_weights(self.source) * self.before
        return factor.greatest > 0.0 and (weights * self.factors * factor).fits()


def keep_products_before_constants(model: Model) -> None:
    """Rounds a product with a constant where the plugin must not multiply the next one with it.

    The plugin would compute (x * a) * b as x * (a * b), and a scaled product of matrices, or a
    convolution, by scaled weights. Constants like 1e30 or 1e-30 leave the range of float32 then, or
    what Paddle has between the two does and nothing of the plugin's.
    """
    made: dict[Key, _Made] = {}
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), node.input_values()
        if kind == "Result" or not sources or node.get_output_element_type(0) != Type.f32:
            continue
        if kind in _MOVED:
            made[key_of(node.output(0))] = made.get(key_of(sources[0]), _Made())
        elif kind == "MatMul":
            if not _is_on_grid(sources[1]):
                made[key_of(node.output(0))] = _Made(source=node)
        elif kind in _OUTPUT_CHANNELS:
            before = made.get(key_of(sources[0]), _Made()).factors
            if before != _ONE and not (_of_weights(node) * before).fits():
                node.input(0).replace_source_output(kept(sources[0]))
                before = _ONE
            made[key_of(node.output(0))] = _Made(source=node, before=before)
        elif kind in ("Divide", "Multiply"):
            _add_factor(node, made)


def _add_factor(node: Node, made: dict[Key, _Made]) -> None:
    is_divide = node.get_type_name() == "Divide"
    if is_divide and EXACT_DIVIDE in node.get_rt_info():
        return
    found = _beside_constant(node)
    if found is None:
        return
    number, factor = found
    before = _Made()
    if not is_divide or number == 0:  # else a constant by an inverse
        before = made.get(key_of(node.input_value(number)), before)
    if is_divide and number == 0:
        factor = factor.inverse()
        if not factor.fits():
            step, factor = _divide_in_two_steps(node)
            made[key_of(step)] = _Made(factor)
            return
    if not before.takes(factor):
        _keep_apart(node.input(number), made)
        before = _Made()
    made[key_of(node.output(0))] = _Made(before.factors * factor, before.source, before.before)


def _keep_apart(reader: Input, made: dict[Key, _Made]) -> None:
    """Keeps what is read, before a broadcast of it, which the plugin makes part of the reader."""
    value = reader.get_source_output()
    if value.get_node().get_type_name() == "Broadcast":
        made[key_of(value)] = _Made()
        reader = value.get_node().input(0)
    reader.replace_source_output(kept(reader.get_source_output()))


def _beside_constant(node: Node) -> tuple[int, _Sizes] | None:
    """Which input of a node is computed, and of what size the other is, if that is a constant."""
    known = [constants.numbers_of(value) for value in node.input_values()]
    found = [(1 - number, _sizes(data)) for number, data in enumerate(known) if data is not None]
    return found[0] if len(found) == 1 else None


def _divide_in_two_steps(node: Node) -> tuple[Output, _Sizes]:
    """Divides by what has an inverse that is a denormal, which the plugin would take for 0.

    Returns:
        The result, and the factor of the second step.
    """
    x, divisor = node.input_values()
    if divisor.get_node().get_type_name() != "Constant":
        return node.output(0), _NO_SIZES
    data = divisor.get_node().get_data().astype(np.float64)
    with np.errstate(divide="ignore"):
        has_inverse = np.isfinite(data) & (data != 0.0)
        first = np.where(has_inverse, 1.0 / np.sqrt(np.abs(data)), 1.0).astype(np.float32)
        second = (1.0 / (data * first)).astype(np.float32)
    half = kept(opset15.multiply(kept(x), opset15.constant(first)).output(0))
    quotient = opset15.multiply(half, opset15.constant(second))
    replace_node(node, quotient)
    return quotient.output(0), _sizes(second)


def _of_weights(product: Node) -> _Sizes:
    """The sizes of the weights of a product, in each channel of its result."""
    kind = product.get_type_name()
    data = constants.numbers_of(product.input_value(1))
    if data is None:
        return _OF_ANY_SIZE if kind == "MatMul" else _ONE  # weights that are computed stay
    shape = product.get_input_partial_shape(1)
    if shape.is_dynamic or data.shape != tuple(product.get_input_shape(1)):
        return _sizes(data)
    if kind != "MatMul":
        return _sizes(data, _OUTPUT_CHANNELS[kind])
    is_turned = product.get_attributes()["transpose_b"]
    return _sizes(data, (data.ndim - (2 if is_turned and data.ndim > 1 else 1),))


def _is_on_grid(value: Output) -> bool:
    """Whether weights are quantized: the plugin has kernels for that, which scale results."""
    node = value.get_node()
    while node.get_type_name() in _MOVED:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "FakeQuantize")


def keep_products_before_large_terms(model: Model) -> None:
    """Lets a product overflow where a constant that could bring it back is added to it.

    The plugin computes a product and the sum with it in one step, in which nothing overflows.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() not in _SUMMING or node.get_element_type() != Type.f32:
            continue
        found = _beside_constant(node)
        if found is None or found[1].greatest < _LARGE_TERM:
            continue
        number, product = found[0], node.input_value(found[0])
        if product.get_node().get_type_name() == "Multiply" and _may_overflow(product.get_node()):
            node.input(number).replace_source_output(kept(product))


def _may_overflow(product: Node) -> bool:
    """Whether numbers may become infinite in it; not as attention scales, before its masks."""
    found = _beside_constant(product)
    return found is None or found[1].greatest > 1.0


# -- signs of zeros ------------------------------------------------------------------------------

# The signs of zeros in what they read have no effect.
_WITHOUT_SIGN = frozenset(
    {"Abs", "Constant", "Convolution", "Cos", "Cosh", "Equal", "Exp", "Greater", "GreaterEqual"}
    | {"GroupConvolution", "Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "MatMul"}
    | {"NotEqual", "Parameter", "Sigmoid", "SoftPlus", "Softmax"}
)


def keep_positive_zeros(model: Model) -> None:
    """Makes 0 of -0 where Paddle adds 0 and something divides by what comes of it.

    The plugin leaves out sums with 0, and 0 - x is -x to it. Paddle adds 0 to everything that it
    scales. Only an inverse tells the two zeros apart.
    """
    seen: set[Key] = set()
    pending = [value for node in model.get_ops() for value in _divisors(node)]
    while pending:
        value = pending.pop()
        node = value.get_node()
        if key_of(value) in seen or node.get_type_name() in _WITHOUT_SIGN or _is_square(node):
            continue
        seen.add(key_of(value))
        if ADDS_ZERO in node.get_rt_info() or _has_term(node, zero=True):
            _make_positive(value)
        elif not _has_term(node, zero=False):
            pending += node.input_values()


def _divisors(node: Node) -> list[Output]:
    kind = node.get_type_name()
    if kind == "Divide" and node.get_element_type() == Type.f32:
        return [node.input_value(1)]
    return [node.input_value(0)] if kind == "Power" else []


def _is_square(node: Node) -> bool:
    """Whether a node multiplies numbers by themselves, as for norms: no zero of it is negative."""
    return node.get_type_name() == "Multiply" and len(set(map(key_of, node.input_values()))) == 1


def _has_term(node: Node, zero: bool) -> bool:
    """Whether a node adds a constant that is all 0, or one that is nowhere 0."""
    if node.get_type_name() not in _SUMMING or node.get_element_type() != Type.f32:
        return False
    data = [constants.numbers_of(value) for value in node.input_values()]
    if zero and node.get_type_name() == "Subtract":  # x - 0 is x, with its sign
        data = data[:1]
    return any(each is not None and bool(not each.any() if zero else each.all()) for each in data)


def _make_positive(value: Output) -> None:
    readers = value.get_target_inputs()
    zero = opset15.constant(np.float32(0.0))
    positive = opset15.select(opset15.equal(value, zero), zero, value).output(0)
    for reader in readers:
        reader.replace_source_output(positive)


# -- several nodes that are one to the plugin ----------------------------------------------------


def keep_rectifiers_of_negatives(model: Model) -> None:
    """Keeps relu(x) and relu(-x) apart, which are 0 for NaN.

    The plugin makes a PRelu of relu(x) - a * relu(-x), which is NaN.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Relu":
            continue
        source = _negated(node.input_value(0))
        if source is not None and any(
            reader.get_node().get_type_name() == "Relu" for reader in source.get_target_inputs()
        ):
            node.input(0).replace_source_output(kept(node.input_value(0)))


def _negated(value: Output) -> Output | None:
    """The x of -x."""
    node = value.get_node()
    if node.get_type_name() == "Negative":
        return node.input_value(0)
    if node.get_type_name() == "Multiply":
        for x, factor in (node.input_values(), node.input_values()[::-1]):
            data = constants.numbers_of(factor)
            if data is not None and bool(np.all(data == -1.0)):
                return x
    return None


def compute_small_erf(model: Model) -> None:
    """Computes erf(x) of small x by its first terms: the plugin's is exact beside 1 only.

    It is good enough for 1 + erf(x), which the plugin makes part of a GELU, and for half of that.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Erf" or node.get_element_type() != Type.f32:
            continue
        readers = node.output(0).get_target_inputs()
        if all(_adds_more(reader.get_node()) for reader in readers):
            continue
        x = node.input_value(0)
        square = opset15.multiply(x, x)
        terms: Node = opset15.constant(np.float32(_ERF[-1]))
        for factor in _ERF[-2::-1]:
            terms = opset15.add(opset15.multiply(terms, square), np.float32(factor))
        is_small = opset15.less(square, opset15.constant(np.float32(_SMALL_FOR_ERF)))
        found = opset15.select(is_small, opset15.multiply(terms, x), node)
        for reader in readers:
            reader.replace_source_output(found.output(0))


def _adds_more(reader: Node, factor: float = 1.0) -> bool:
    """Whether it adds a constant of at least ``factor``, maybe behind a product with another."""
    found = _beside_constant(reader)
    if found is None:
        return False
    if reader.get_type_name() in _SUMMING:
        return found[1].least >= factor
    if reader.get_type_name() != "Multiply":
        return False
    factor *= found[1].greatest
    return all(_adds_more(each.get_node(), factor) for each in reader.output(0).get_target_inputs())
