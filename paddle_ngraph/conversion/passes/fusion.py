"""Fusion of nodes into this package's operators before or after them.

Batch normalization fuses the ReLU after it; optimizer updates fuse the sum of their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from openvino import Model, Node, Output, PartialShape, Type
from openvino.utils import replace_node

from paddle_ngraph.conversion.node_tools import Key, key_of

Extension = Callable[..., Node]


def fuse_relus(model: Model, extension: Extension) -> None:
    """Fuses ReLUs into the batch normalizations before them; likewise their gradients.

    Each fusion saves a pass over the data. The model has to be complete: a fusion depends on all
    readers of a value.

    Args:
        model: The complete model.
        extension: Creates a node of an operator of this package (``NgraphBridge.extension``).
    """
    readers = Readers(model)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "BatchNorm":
            _fuse_forward(node, readers, extension)
        elif node.get_type_name() == "BatchNormGrad":
            _fuse_backward(node, readers, extension)


class Readers:
    """The nodes of a model that read each output; readers that belong to no model are left out."""

    def __init__(self, model: Model) -> None:
        self._found: dict[Key, list[Node]] = {}
        for node in model.get_ordered_ops():
            for source in node.input_values():
                self._found.setdefault(key_of(source), []).append(node)

    def of(self, output: Output) -> list[Node]:
        """The nodes that read ``output``; a node that reads it twice occurs twice."""
        return self._found.get(key_of(output), [])


def _fuse_forward(norm: Node, readers: Readers, extension: Extension) -> None:
    found = _relu_of(norm.output(0), readers)
    if found is None:
        return
    relu, ceiling = found
    attributes = {**norm.get_attributes(), "rectified": True, "ceiling": ceiling}
    fused = extension("BatchNorm", norm.input_values(), **attributes)
    for reader in relu.output(0).get_target_inputs():
        reader.replace_source_output(fused.output(0))
    replace_node(norm, fused)


def _relu_of(output: Output, readers: Readers) -> tuple[Node, float] | None:
    """The ReLU of ``output``, and its upper limit (0: none), if it is the only reader."""
    found = {reader.get_type_name(): reader for reader in readers.of(output)}
    if found.keys() == {"Relu"}:
        return found["Relu"], 0.0
    if found.keys() != {"Clamp", "NotEqual", "Select"} or len(readers.of(output)) != 4:
        # Other readers than those of the pattern by which converters express a clamp that
        # propagates NaN.
        return None
    clamp, is_nan, select = found["Clamp"], found["NotEqual"], found["Select"]
    operands = [is_nan.output(0), output, clamp.output(0)]
    bounds = clamp.get_attributes()
    if [key_of(source) for source in select.input_values()] != [
        key_of(operand) for operand in operands
    ]:
        return None
    if bounds["min"] != 0 or len(readers.of(operands[0])) != 1 or len(readers.of(operands[2])) != 1:
        return None
    return select, float(bounds["max"])


def _fuse_backward(norm: Node, readers: Readers, extension: Extension) -> None:
    sources = norm.input_values()
    if len(sources) != 5 or len(readers.of(sources[1])) != 1:
        return
    found = _relu_gradient(sources[1].get_node())
    if found is None:
        return
    grad, out, ceiling = found
    sources = [sources[0], grad, *sources[2:], out]
    replace_node(norm, extension("BatchNormGrad", sources, rectified=True, ceiling=ceiling))


def _relu_gradient(masked: Node) -> tuple[Output, Output, float] | None:
    """(grad, out, ceiling) of a gradient of ReLU: ``grad * (0 < out [< ceiling] ? 1 : 0)``.

    ``None`` if ``masked`` is no such product.
    """
    if masked.get_type_name() != "Multiply":
        return None
    grad, mask = masked.input_values()
    select = mask.get_node()
    if (
        select.get_type_name() != "Select"
        or not _is_constant_input(select, 1, 1.0)
        or not _is_constant_input(select, 2, 0.0)
    ):
        return None
    condition = select.input_value(0).get_node()
    above, below = condition, None
    if condition.get_type_name() == "LogicalAnd":
        above, below = (value.get_node() for value in condition.input_values())
    if above.get_type_name() != "Greater" or not _is_constant_input(above, 1, 0.0):
        return None
    out = above.input_value(0)
    shapes = out.get_partial_shape(), grad.get_partial_shape()
    if any(shape.is_dynamic for shape in shapes) or shapes[0] != shapes[1]:
        return None
    if below is None:
        return grad, out, 0.0
    ceiling = known_value(below.input_value(1))
    is_bound = below.get_type_name() == "Less" and ceiling is not None and ceiling > 0
    if not is_bound or key_of(below.input_value(0)) != key_of(out):
        return None
    return grad, out, float(ceiling or 0.0)


def _is_constant_input(node: Node, index: int, value: float) -> bool:
    return known_value(node.input_value(index)) == value


def known_value(output: Output) -> float | None:
    """The element of a constant that has one element; ``None`` for other outputs."""
    node = output.get_node()
    if node.get_type_name() == "Reshape":
        return known_value(node.input_value(0))
    if node.get_type_name() != "Constant" or node.get_data().size != 1:
        return None
    return float(node.get_data().reshape(-1)[0])


def gradient_sum(
    gradient: Output, readers: Readers, is_given: Callable[[Output], bool]
) -> tuple[list[Output], list[Output]]:
    """The terms of a gradient that its optimizer update can sum up, and the factors of the sum.

    A clipped gradient is multiplied by a scalar at the end, and the gradient of a batch computed in
    slices is a sum of inputs of the subgraph. Any other sum is a single term, which the model
    computes: all terms of the sum would have to be retained for the update.

    Args:
        gradient: The gradient that the update reads.
        readers: The readers in the model; values with other readers are computed in any case.
        is_given: Whether an output is an input of the subgraph.
    """
    factors: list[Output] = []
    while True:
        split = _split_factor(gradient)
        if split is None or len(readers.of(gradient)) != 1:
            break
        gradient, factor = split
        factors.insert(0, factor)
    terms = _terms(gradient, readers)
    return (terms if all(map(is_given, terms)) else [gradient]), factors


def _split_factor(product: Output) -> tuple[Output, Output] | None:
    """The tensor and the scalar of a multiplication by a scalar; ``None`` for other outputs."""
    if product.get_node().get_type_name() != "Multiply":
        return None
    shape = product.get_partial_shape()
    left, right = product.get_node().input_values()
    for term, factor in ((left, right), (right, left)):
        sizes = factor.get_partial_shape()
        is_number = sizes.is_static and factor.get_element_type() == Type.f32
        if is_number and math.prod(sizes.get_shape()) == 1 and _has_shape(term, shape):
            return term, factor
    return None


def _terms(total: Output, readers: Readers) -> list[Output]:
    """The terms of ``total``, in the order of the additions: ``(a + b) + c``."""
    others: list[Output] = []
    while total.get_node().get_type_name() == "Add" and len(readers.of(total)) == 1:
        shape = total.get_partial_shape()
        terms = total.get_node().input_values()
        if not all(_has_shape(term, shape) for term in terms):
            break
        total = terms[0]
        others.insert(0, terms[1])
    return [total, *others]


def _has_shape(output: Output, shape: PartialShape) -> bool:
    """Whether ``output`` certainly has this shape and dtype float32."""
    sizes = output.get_partial_shape()
    is_same = sizes.is_static and shape.is_static and sizes == shape
    return is_same and output.get_element_type() == Type.f32


def have_same_shape(*outputs: Output) -> bool:
    """Whether all outputs certainly have the same shape, and dtype float32."""
    return all(_has_shape(output, outputs[0].get_partial_shape()) for output in outputs)
