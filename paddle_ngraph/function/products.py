"""Large matrix products by oneDNN, where that is faster than the plugin."""

from __future__ import annotations

import math
from collections.abc import Callable

from openvino import Model, Node, Type
from openvino.utils import replace_node

from paddle_ngraph.function import constants, processor

# Multiplications from which on oneDNN is the faster one, by 1.2 to 1.4 times with 1024 rows and
# the weights of BERT (Zen 3, 2 threads, OpenVINO 2026.4.1). The plugin packs weights that it knows
# before the first run; oneDNN has to, in each.
LEAST = 1 << 26
LEAST_WITH_CONSTANT = 1 << 29
LEAST_SIZE = 64  # of rows, columns and what is summed over

# With AVX-512 the plugin falls behind only where it sums over many weights, by 1.1 to 1.3 times
# (Zen 4, 128 to 1024 rows).
LEAST_WITH_AVX512 = 1 << 28
LEAST_SUMMED_WITH_AVX512 = 2048


def by_onednn(model: Model, extension: Callable[..., Node]) -> None:
    """Replaces matrix products that are large enough with the core's ``Gemm``.

    Args:
        model: A complete model.
        extension: Makes a node of one of the core's operators (``NgraphBridge.extension``).
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and _is_worth_it(node):
            replace_node(node, extension("Gemm", node.input_values(), **node.get_attributes()))


def _is_worth_it(node: Node) -> bool:
    shapes = [node.get_input_partial_shape(number) for number in (0, 1)]
    if any(shape.is_dynamic or len(shape) != 2 for shape in shapes):
        return False
    is_int8 = node.input_value(1).get_node().get_type_name() == "FakeQuantize"
    if is_int8 or node.get_output_element_type(0) != Type.f32:
        return False
    summed = node.get_input_shape(0)[0 if node.get_attributes()["transpose_a"] else 1]
    sizes = [summed, *node.get_output_shape(0)]
    packs = any(constants.is_constant(value) for value in node.input_values())
    if processor.has_avx512():
        is_slow = packs and summed >= LEAST_SUMMED_WITH_AVX512
        return is_slow and min(sizes) >= LEAST_SIZE and math.prod(sizes) >= LEAST_WITH_AVX512
    least = LEAST_WITH_CONSTANT if packs else LEAST
    return min(sizes) >= LEAST_SIZE and math.prod(sizes) >= least
