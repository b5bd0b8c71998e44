"""Algebraic simplifications of the CPU plugin (OpenVINO 2026.4.1) that change results, prevented.

The plugin folds constants, eliminates nodes without effect, and merges several nodes into one. Over
the real numbers all of that is correct. In float32 it is not where an intermediate result is
rounded, overflows or underflows, or where a zero has a sign.

No simplification goes beyond a :func:`fusion_barrier`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from openvino import Input, Model, Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import constants
from paddle_ngraph.conversion.node_tools import Key, fusion_barrier, key_of
from paddle_ngraph.conversion.passes.plugin_workarounds import EXACT_DIVIDE, RESHAPES

# The key in a node's runtime information that marks a multiplication to whose result Paddle adds 0.
ADD_ZERO_MARK = "ngraph_adds_zero"

# Types of nodes of which the plugin merges two in a row, each with a constant operand, into one.
_LINEAR = frozenset({"Add", "Divide", "Multiply", "Subtract"})
_SUMMING = frozenset({"Add", "Subtract"})
# Types of nodes that may be between two linear nodes that the plugin merges: it looks through them,
# or moves them.
_DATA_MOVEMENT = RESHAPES | {"Broadcast", "Transpose"}
# Types of nodes whose constant weights the plugin multiplies by a factor that follows, and the axes
# of the weights that are output channels.
_OUTPUT_CHANNELS = {
    "Convolution": (0,),
    "ConvolutionBackpropData": (1,),
    "GroupConvolution": (0, 1),
    "GroupConvolutionBackpropData": (0, 2),
}
# The first coefficients of erf(x)'s series, and the square of x below which they suffice.
_ERF_COEFFICIENTS = 2.0 / np.sqrt(np.pi) * np.array([1.0, -1 / 3, 1 / 10, -1 / 42, 1 / 216])
_MAX_SQUARE_FOR_ERF_SERIES = 0.25**2

_FLOAT32_TINY = float(np.finfo(np.float32).tiny)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
# A smaller number does not change the greatest float32, since the sum is rounded.
_LARGE_TERM = _FLOAT32_MAX * 2.0**-25


# -- sums ----------------------------------------------------------------------------------------


def round_sums_before_constants(model: Model) -> None:
    """Rounds a sum with a constant where another constant is added to it or multiplies it.

    The plugin would compute (x + a) * b + c as x * b + (a * b + c). Where x is exact, as masks are,
    that loses the remainder of a sum: (1 - mask) * -1e9 + c would be 0 for unmasked elements.
    """
    for node in model.get_ordered_ops():
        is_sum = node.get_type_name() in _SUMMING and node.get_element_type() == Type.f32
        if is_sum and sum(map(constants.is_determined, node.input_values())) == 1:
            _insert_barrier(node.output(0))


def _insert_barrier(total: Output) -> None:
    readers = total.get_target_inputs()
    if any(_is_linear(reader.get_node()) for reader in readers):
        barrier = fusion_barrier(total)
        for reader in readers:
            reader.replace_source_output(barrier)


def _is_linear(reader: Node) -> bool:
    """Whether ``reader``, which reads a sum, adds a constant to it or multiplies it by a constant.

    If ``reader`` only reshapes, transposes or broadcasts the sum, whether a reader of the result
    does so.
    """
    type_name = reader.get_type_name()
    if type_name in _LINEAR:
        return any(map(constants.is_determined, reader.input_values()))
    if type_name not in _DATA_MOVEMENT:
        return False
    return any(_is_linear(each.get_node()) for each in reader.output(0).get_target_inputs())


# -- multiplications -----------------------------------------------------------------------------


class _Magnitudes(NamedTuple):
    """Bounds of the absolute values of an array.

    Attributes:
        smallest, largest: The bounds of all absolute values.
        smallest_nonzero: The lower bound of the absolute values other than 0.
    """

    smallest: float
    largest: float
    smallest_nonzero: float

    def __mul__(self, other: object) -> _Magnitudes:
        assert isinstance(other, _Magnitudes)
        return _Magnitudes(*(mine * its for mine, its in zip(self, other)))

    def inverse(self) -> _Magnitudes:
        """Bounds of the reciprocals of the values whose bounds these are."""
        if not self.smallest:
            return _UNBOUNDED_MAGNITUDES
        return _Magnitudes(1.0 / self.largest, 1.0 / self.smallest, 1.0 / self.largest)

    def fits(self) -> bool:
        """Whether all values are in the range of normal float32 values, or 0."""
        return self.largest <= _FLOAT32_MAX and self.smallest_nonzero >= _FLOAT32_TINY

    def merges_with(self, other: _Magnitudes) -> bool:
        """Whether ``(x * a) * b`` is ``x * (a * b)`` but for rounding, for every x.

        If both are large, the intermediate result overflows only where the final one does; if both
        are small, it underflows only where the final one does.
        """
        if _UNIT_MAGNITUDE in (self, other):
            return True
        are_large = self.smallest >= 1.0 and other.smallest >= 1.0
        are_small = self.largest <= 1.0 and other.largest <= 1.0
        return (are_large or are_small) and (self * other).fits()


_UNIT_MAGNITUDE = _Magnitudes(1.0, 1.0, 1.0)
# The magnitudes of values about which nothing is known: only factors of 1 merge with such values.
_UNBOUNDED_MAGNITUDES = _Magnitudes(0.0, np.inf, 0.0)
# The assumed magnitudes of a factor that is known in runs only. Attention scales such a factor by
# at least 2**-10, so that the scaled factor is no denormal either.
_COMPUTED_MAGNITUDES = _Magnitudes(0.0, _FLOAT32_MAX, _FLOAT32_TINY * 2.0**10)


def _magnitudes(data: np.ndarray, channels: tuple[int, ...] | None = None) -> _Magnitudes:
    """Bounds of ``|data|``, or of the maxima of its channels; denormals are treated as 0."""
    if not data.size:
        return _UNBOUNDED_MAGNITUDES
    # Integer types and bool are converted to float32, since unsigned types have no negative values.
    if data.dtype.kind != "f":
        data = data.astype(np.float32)
    others = tuple(axis for axis in range(data.ndim) if axis not in (channels or ()))
    along = () if channels is None else others
    high = np.asarray(np.maximum(data.max(along), -data.min(along)) if along else np.abs(data))
    if not np.isfinite(high).all():
        return _UNBOUNDED_MAGNITUDES
    high = np.where(high < _FLOAT32_TINY, 0.0, high)
    nonzero = high[high > 0.0]
    return _Magnitudes(
        float(high.min()), float(high.max()), float(nonzero.min()) if nonzero.size else 1.0
    )


class _Multiplied(NamedTuple):
    """A value that the plugin may multiply by a further constant.

    Attributes:
        factors: The product of the constants so far.
        source: The matmul or convolution whose weights may be multiplied by them.
        before: The product of the constants before ``source``, which may be in the weights, too.
    """

    factors: _Magnitudes = _UNIT_MAGNITUDE
    source: Node | None = None
    before: _Magnitudes = _UNIT_MAGNITUDE

    def can_absorb(self, factor: _Magnitudes) -> bool:
        """Whether results stay the same if the plugin merges ``factor`` into these factors."""
        if factor == _UNIT_MAGNITUDE:
            return True
        if not self.factors.merges_with(factor):
            return False
        if self.source is None:
            return True
        weights = _weight_magnitudes(self.source) * self.before
        return factor.largest > 0.0 and (weights * self.factors * factor).fits()


def round_products_before_constants(model: Model) -> None:
    """Rounds a product with a constant where the plugin must not merge the next constant into it.

    The plugin would compute (x * a) * b as x * (a * b), and a scaled matmul or convolution by
    scaled weights. With constants like 1e30 or 1e-30 the merged constants leave the range of
    float32, or Paddle's intermediate result does and no value of the plugin's does.
    """
    multiplied: dict[Key, _Multiplied] = {}
    for node in model.get_ordered_ops():
        type_name, sources = node.get_type_name(), node.input_values()
        if type_name == "Result" or not sources or node.get_output_element_type(0) != Type.f32:
            continue
        if type_name in _DATA_MOVEMENT:
            multiplied[key_of(node.output(0))] = multiplied.get(key_of(sources[0]), _Multiplied())
        elif type_name == "MatMul":
            if not _is_on_grid(sources[1]):
                multiplied[key_of(node.output(0))] = _Multiplied(source=node)
        elif type_name in _OUTPUT_CHANNELS:
            before = multiplied.get(key_of(sources[0]), _Multiplied()).factors
            if before != _UNIT_MAGNITUDE and not (_weight_magnitudes(node) * before).fits():
                node.input(0).replace_source_output(fusion_barrier(sources[0]))
                before = _UNIT_MAGNITUDE
            multiplied[key_of(node.output(0))] = _Multiplied(source=node, before=before)
        elif type_name in ("Divide", "Multiply"):
            _add_factor(node, multiplied)


def _add_factor(node: Node, multiplied: dict[Key, _Multiplied]) -> None:
    is_divide = node.get_type_name() == "Divide"
    if is_divide and EXACT_DIVIDE in node.get_rt_info():
        return
    found = _constant_operand(node)
    if found is None:
        return
    index, factor = found
    before = _Multiplied()
    # If a constant is divided by a value, the plugin does not merge the constant with the constant
    # factors of the value.
    if not is_divide or index == 0:
        before = multiplied.get(key_of(node.input_value(index)), before)
    if is_divide and index == 0:
        factor = factor.inverse()
        if not factor.fits():
            quotient, factor = _divide_in_two_steps(node)
            multiplied[key_of(quotient)] = _Multiplied(factor)
            return
    if not before.can_absorb(factor):
        _insert_barrier_before_broadcast(node.input(index), multiplied)
        before = _Multiplied()
    multiplied[key_of(node.output(0))] = _Multiplied(
        before.factors * factor, before.source, before.before
    )


def _insert_barrier_before_broadcast(reader: Input, multiplied: dict[Key, _Multiplied]) -> None:
    """Inserts a barrier, before a Broadcast if the plugin would fuse one with the reader."""
    value = reader.get_source_output()
    if value.get_node().get_type_name() == "Broadcast":
        multiplied[key_of(value)] = _Multiplied()
        reader = value.get_node().input(0)
    reader.replace_source_output(fusion_barrier(reader.get_source_output()))


def _constant_operand(node: Node) -> tuple[int, _Magnitudes] | None:
    """Index of the computed input of a node, and bounds of the other one, if it is constant."""
    known = [constants.values_of(value) for value in node.input_values()]
    found = [(1 - index, _magnitudes(data)) for index, data in enumerate(known) if data is not None]
    return found[0] if len(found) == 1 else None


def _divide_in_two_steps(node: Node) -> tuple[Output, _Magnitudes]:
    """Divides by values with denormal reciprocals, which the plugin would treat as 0.

    Returns:
        The result, and the factor of the second step.
    """
    x, divisor = node.input_values()
    if divisor.get_node().get_type_name() != "Constant":
        return node.output(0), _UNBOUNDED_MAGNITUDES
    data = divisor.get_node().get_data().astype(np.float64)
    with np.errstate(divide="ignore"):
        has_inverse = np.isfinite(data) & (data != 0.0)
        first = np.where(has_inverse, 1.0 / np.sqrt(np.abs(data)), 1.0).astype(np.float32)
        second = (1.0 / (data * first)).astype(np.float32)
    half = fusion_barrier(opset15.multiply(fusion_barrier(x), opset15.constant(first)).output(0))
    quotient = opset15.multiply(half, opset15.constant(second))
    replace_node(node, quotient)
    return quotient.output(0), _magnitudes(second)


def _weight_magnitudes(matmul: Node) -> _Magnitudes:
    """Bounds of the weights of a matmul or convolution, by channel of the result."""
    type_name = matmul.get_type_name()
    data = constants.values_of(matmul.input_value(1))
    if data is None:
        return (
            _COMPUTED_MAGNITUDES if type_name == "MatMul" else _UNIT_MAGNITUDE
            # The plugin merges scales into constant weights of convolutions only, not into computed
            # ones.
        )
    shape = matmul.get_input_partial_shape(1)
    if shape.is_dynamic or data.shape != tuple(matmul.get_input_shape(1)):
        return _magnitudes(data)
    if type_name != "MatMul":
        return _magnitudes(data, _OUTPUT_CHANNELS[type_name])
    is_transposed = matmul.get_attributes()["transpose_b"]
    return _magnitudes(data, (data.ndim - (2 if is_transposed and data.ndim > 1 else 1),))


def _is_on_grid(value: Output) -> bool:
    """Whether weights are quantized: the plugin has kernels for these, which scale results."""
    node = value.get_node()
    while node.get_type_name() in _DATA_MOVEMENT:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "FakeQuantize")


def preserve_overflow_before_large_terms(model: Model) -> None:
    """Has a multiplication overflow, as in Paddle, before a large constant is added to the product.

    The plugin would compute the product and the sum in one step, in which nothing overflows.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() not in _SUMMING or node.get_element_type() != Type.f32:
            continue
        found = _constant_operand(node)
        if found is None or found[1].largest < _LARGE_TERM:
            continue
        index, product = found[0], node.input_value(found[0])
        if product.get_node().get_type_name() == "Multiply" and _may_overflow(product.get_node()):
            node.input(index).replace_source_output(fusion_barrier(product))


def _may_overflow(product: Node) -> bool:
    """Whether a product may be infinite although its factors are finite.

    Not if one factor is a constant of at most 1, as in attention before its masks.
    """
    found = _constant_operand(product)
    return found is None or found[1].largest > 1.0


# -- signs of zeros ------------------------------------------------------------------------------

# Types of nodes whose results do not depend on the signs of zeros in their inputs.
_WITHOUT_SIGN = frozenset(
    {"Abs", "Constant", "Convolution", "Cos", "Cosh", "Equal", "Exp", "Greater", "GreaterEqual"}
    | {"GroupConvolution", "Less", "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "MatMul"}
    | {"NotEqual", "Parameter", "Sigmoid", "SoftPlus", "Softmax"}
)


def keep_positive_zeros(model: Model) -> None:
    """Turns -0 into 0 where Paddle adds 0 and the result reaches a divisor.

    The plugin eliminates sums with 0, and replaces 0 - x by -x. Paddle adds 0 to all values that it
    scales. Only a division distinguishes the two zeros.
    """
    seen: set[Key] = set()
    pending = [value for node in model.get_ops() for value in _divisors(node)]
    while pending:
        value = pending.pop()
        node = value.get_node()
        if key_of(value) in seen or node.get_type_name() in _WITHOUT_SIGN or _is_square(node):
            continue
        seen.add(key_of(value))
        if ADD_ZERO_MARK in node.get_rt_info() or _has_term(node, zero=True):
            _make_positive(value)
        elif not _has_term(node, zero=False):
            pending += node.input_values()


def _divisors(node: Node) -> list[Output]:
    type_name = node.get_type_name()
    if type_name == "Divide" and node.get_element_type() == Type.f32:
        return [node.input_value(1)]
    return [node.input_value(0)] if type_name == "Power" else []


def _is_square(node: Node) -> bool:
    """Whether a node multiplies values by themselves, as for norms: it yields no -0."""
    return node.get_type_name() == "Multiply" and len(set(map(key_of, node.input_values()))) == 1


def _has_term(node: Node, zero: bool) -> bool:
    """Whether a node adds a constant whose elements are all 0, or all other than 0."""
    if node.get_type_name() not in _SUMMING or node.get_element_type() != Type.f32:
        return False
    data = [constants.values_of(value) for value in node.input_values()]
    # The result of x - 0 is x, with its sign: only a first operand of 0 counts.
    if zero and node.get_type_name() == "Subtract":
        data = data[:1]
    return any(each is not None and bool(not each.any() if zero else each.all()) for each in data)


def _make_positive(value: Output) -> None:
    readers = value.get_target_inputs()
    zero = opset15.constant(np.float32(0.0))
    positive = opset15.select(opset15.equal(value, zero), zero, value).output(0)
    for reader in readers:
        reader.replace_source_output(positive)


# -- nodes that the plugin merges ----------------------------------------------------------------


def separate_relus_of_negatives(model: Model) -> None:
    """Separates relu(x) from relu(-x), which are 0 for NaN.

    The plugin merges relu(x) - a * relu(-x) into a PRelu, which is NaN for NaN.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Relu":
            continue
        source = _negated(node.input_value(0))
        if source is not None and any(
            reader.get_node().get_type_name() == "Relu" for reader in source.get_target_inputs()
        ):
            node.input(0).replace_source_output(fusion_barrier(node.input_value(0)))


def _negated(value: Output) -> Output | None:
    """The ``x`` if ``value`` is computed as ``-x``, else ``None``."""
    node = value.get_node()
    if node.get_type_name() == "Negative":
        return node.input_value(0)
    if node.get_type_name() == "Multiply":
        for x, factor in (node.input_values(), node.input_values()[::-1]):
            data = constants.values_of(factor)
            if data is not None and bool(np.all(data == -1.0)):
                return x
    return None


def compute_small_erf(model: Model) -> None:
    """Computes erf(x) of small x by its series: the plugin's error is small relative to 1, not x.

    The plugin's result suffices for 1 + erf(x), which it fuses into a GELU, and for half of that.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Erf" or node.get_element_type() != Type.f32:
            continue
        readers = node.output(0).get_target_inputs()
        if all(_adds_more(reader.get_node()) for reader in readers):
            continue
        x = node.input_value(0)
        square = opset15.multiply(x, x)
        terms: Node = opset15.constant(np.float32(_ERF_COEFFICIENTS[-1]))
        for factor in _ERF_COEFFICIENTS[-2::-1]:
            terms = opset15.add(opset15.multiply(terms, square), np.float32(factor))
        is_small = opset15.less(square, opset15.constant(np.float32(_MAX_SQUARE_FOR_ERF_SERIES)))
        found = opset15.select(is_small, opset15.multiply(terms, x), node)
        for reader in readers:
            reader.replace_source_output(found.output(0))


def _adds_more(reader: Node, factor: float = 1.0) -> bool:
    """Whether a reader of erf(x) adds a constant of at least ``factor``, as in 1 + erf(x).

    A multiplication by a constant before the sum scales ``factor``.
    """
    found = _constant_operand(reader)
    if found is None:
        return False
    if reader.get_type_name() in _SUMMING:
        return found[1].smallest >= factor
    if reader.get_type_name() != "Multiply":
        return False
    factor *= found[1].largest
    return all(_adds_more(each.get_node(), factor) for each in reader.output(0).get_target_inputs())
