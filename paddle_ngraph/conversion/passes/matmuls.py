"""Passes over matmuls: uniform operands are narrowed, and oneDNN computes some large matmuls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from openvino import Model, Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import constants, processor

# Types of nodes that broadcast their operands.
_ELEMENTWISE = frozenset({"Add", "Divide", "Multiply", "Subtract"})

# The minimal number of rows, of columns and of summed terms of a matmul that oneDNN computes.
MIN_DIMENSION = 64


# -- uniform operands ----------------------------------------------------------------------------


def narrow_uniform_matmuls(model: Model) -> None:
    """Multiplies by one column or row of a constant matrix whose elements are all equal.

    All columns of the product by such a matrix are equal, with NaN where a row of the other operand
    has NaN, or infinity for zeros. Paddle fills zeros in for absent second gradients, and
    multiplies by them.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and node.get_output_element_type(0) == Type.f32:
            for index in (0, 1):
                if _narrow(node, index):
                    break


def _narrow(node: Node, index: int) -> bool:
    """Narrows a matmul by its operand ``index`` if that is uniform; returns whether it was."""
    value = _uniform_value(node.input_value(index))
    shapes = [node.get_input_partial_shape(each) for each in (0, 1)]
    if value is None or any(shape.rank.is_dynamic or len(shape) < 2 for shape in shapes):
        return False
    sizes = list(node.get_input_shape(index))
    attributes = node.get_attributes()
    # The axis of the operand that becomes one of the product: rows of the left, columns of the
    # right operand.
    is_summed_first = attributes["transpose_a"] if index == 0 else not attributes["transpose_b"]
    axis = 1 if is_summed_first else 0
    # Not a matrix without elements: the product would have one column or row instead of none.
    if len(sizes) != 2 or sizes[axis] == 1 or 0 in sizes:
        return False
    target = [sizes[axis], 1] if index == 0 else [sizes[axis]]
    sizes[axis] = 1
    operands = node.input_values()
    operands[index] = opset15.constant(np.full(sizes, value, np.float32)).output(0)
    narrow = opset15.matmul(*operands, attributes["transpose_a"], attributes["transpose_b"])
    whole = opset15.broadcast(narrow, target, broadcast_spec="BIDIRECTIONAL")
    whole.set_friendly_name(node.get_friendly_name())
    replace_node(node, whole)
    _read_narrow(whole.output(0), narrow.output(0))
    return True


def _uniform_value(operand: Output) -> float | None:
    """The value of all elements of a constant operand of static shape, if these are equal."""
    producer = operand.get_node()
    if operand.get_partial_shape().is_dynamic:
        return None
    if producer.get_type_name() == "Broadcast":
        producer = producer.input_value(0).get_node()
    if producer.get_type_name() != "Constant":
        return None
    values = producer.get_data().reshape(-1)
    # The ends are compared first: weights are large, and their ends differ.
    if not values.size or values[0] != values[-1] or (values != values[0]).any():
        return None
    return float(values[0])


def _read_narrow(whole: Output, narrow: Output) -> None:
    """Has elementwise readers of ``whole``, a broadcast of ``narrow``, broadcast it themselves.

    Not sums with an input of the function: that may be a state, to which an update in place adds an
    operand of its shape.
    """
    for reader in whole.get_target_inputs():
        node = reader.get_node()
        if node.get_type_name() not in _ELEMENTWISE:
            continue
        other = node.input_value(1 - reader.get_index())
        if other.get_node().get_type_name() == "Parameter":
            continue
        if other.get_partial_shape() == node.get_output_partial_shape(0):
            reader.replace_source_output(narrow)


# -- matmuls by oneDNN ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OneDnnThresholds:
    """The sizes from which on oneDNN is faster, with an instruction set.

    Attributes:
        min_multiplications: Multiplications, where both operands are computed; ``None``: never.
        min_multiplications_packed: Multiplications, where one operand is a constant weight;
            ``None``: never. The plugin packs it before the first run; oneDNN has to, in each.
        min_summed_size: The minimal size of the summed dimension with such a weight.
        measured: The processors of the measurements, with results.
    """

    min_multiplications: int | None
    min_multiplications_packed: int | None
    min_summed_size: int
    measured: tuple[str, ...]


# Thresholds by the widest instruction set, and the vendor where it matters. `python -m benchmarks
# products` measures the effect of the thresholds on the current processor, next to results for
# others (benchmarks/results/products.md).
ONEDNN_THRESHOLDS = {
    "avx2": OneDnnThresholds(
        min_multiplications=1 << 26,
        min_multiplications_packed=1 << 29,
        min_summed_size=MIN_DIMENSION,
        measured=("Zen 3: oneDNN ahead by 1.2 to 1.4 times, 1024 rows and the weights of BERT",),
    ),
    "avx512": OneDnnThresholds(
        min_multiplications=9 << 26,  # the count of a matmul of 1024 x 768 by 768 x 768
        min_multiplications_packed=1 << 28,
        min_summed_size=2048,
        measured=(
            "Zen 4, weights: oneDNN ahead by 1.1 times where it sums over many, 128 to 1024 rows; "
            "else level or behind",
            "Zen 4, both computed: oneDNN ahead by 1.0 to 1.4 times from 1024 x 768 x 768 on; "
            "level below",
        ),
    ),
    "avx512, Intel": OneDnnThresholds(
        min_multiplications=9 << 26,
        min_multiplications_packed=None,
        min_summed_size=MIN_DIMENSION,
        measured=(
            "Xeon with AMX, weights: the plugin level or ahead, by up to 1.3 times",
            "Xeon with AMX, both computed: oneDNN level or ahead from 1024 x 768 x 768 on, by 1.7 "
            "to 3.3 times with 3072 columns, which the plugin packs slowly; behind by up to "
            "1.2 below",
        ),
    ),
}


def thresholds() -> OneDnnThresholds:
    """The sizes from which ``Gemm`` (core/ov), by oneDNN, replaces a matmul on this processor."""
    if not processor.has_avx512():
        return ONEDNN_THRESHOLDS["avx2"]
    return ONEDNN_THRESHOLDS["avx512, Intel" if processor.is_of_intel() else "avx512"]


def use_onednn_matmuls(model: Model, extension: Callable[..., Node]) -> None:
    """Replaces large matmuls, for which oneDNN is faster, by this package's ``Gemm``.

    Args:
        model: A complete model.
        extension: Creates a node of an operator of this package (``NgraphBridge.extension``).
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and _is_worth_it(node):
            replace_node(node, extension("Gemm", node.input_values(), **node.get_attributes()))


def _is_worth_it(node: Node) -> bool:
    shapes = [node.get_input_partial_shape(index) for index in (0, 1)]
    if any(shape.is_dynamic or len(shape) != 2 for shape in shapes):
        return False
    is_int8 = node.input_value(1).get_node().get_type_name() == "FakeQuantize"
    if is_int8 or node.get_output_element_type(0) != Type.f32:
        return False
    summed = node.get_input_shape(0)[0 if node.get_attributes()["transpose_a"] else 1]
    sizes = [summed, *node.get_output_shape(0)]
    chosen = thresholds()
    packs = any(constants.is_constant(value) for value in node.input_values())
    minimum = chosen.min_multiplications_packed if packs else chosen.min_multiplications
    if minimum is None or (packs and summed < chosen.min_summed_size):
        return False
    return min(sizes) >= MIN_DIMENSION and math.prod(sizes) >= minimum
