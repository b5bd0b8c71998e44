"""Gradients that optimizer updates read in the memory of the function that has computed them.

A result has memory of its own. Inside the function, a gradient shares memory with activations that
are no longer needed. So large results that only updates read become values that the function pins
until the updates are done (core/ov/pin_values_op.h, core/ov/pinned_values.h).

A function with a dynamic shape anywhere pins none: its memory is not laid out before a run. Nor do
functions that compute chunks of a batch, each with memory of its own, or functions for other
devices than the CPU, whose memory updates cannot read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from openvino import Model, Output, Type, opset15

from paddle_ngraph.conversion.draft import Draft, Update
from paddle_ngraph.conversion.node_tools import read_by
from paddle_ngraph.settings import SETTINGS

# Node types that write to memory of their own. A value that may be a view of another one remains a
# result: an update could write to memory that another update still reads.
_OWN_MEMORY = frozenset(
    {"Bfloat16Gemm", "BlockedConvolutionFilterGrad", "EmbeddingGrad", "Gemm", "MatMul"}
)


def pin_gradients(draft: Draft) -> None:
    """Has a finished model pin large gradients, instead of returning them as results.

    Pinned values are numbered after the remaining results, in their order.
    """
    if not draft.bridge.on_cpu or draft.parts > 1 or not draft.updates:
        return
    if _has_dynamic_shapes(draft.model):
        return
    _, num_outputs = draft.builder.boundary_sizes()
    results = draft.model.get_results()
    values = [result.input_value(0) for result in results]
    sources = {source for update in draft.updates for source in update.gradients}
    input_dependent = _input_dependent_nodes(draft.model)
    pinned = [
        index
        for index, value in enumerate(values)
        if index >= num_outputs and -1 - index in sources and _can_be_pinned(value, input_dependent)
    ]
    if not pinned:
        return
    remaining = [index for index in range(len(results)) if index not in pinned]
    gradients = [values[index] for index in pinned]
    others = _independent_of(gradients, [values[index] for index in remaining])
    pin = draft.bridge.extension("PinValues", [*gradients, *others], count=len(pinned))
    for index in pinned:
        draft.model.remove_result(results[index])
    draft.model.add_results([opset15.result(pin)])
    renumbering = {-1 - old: -1 - new for new, old in enumerate([*remaining, *pinned])}
    draft.updates = [_renumbered(update, renumbering) for update in draft.updates]


def _has_dynamic_shapes(model: Model) -> bool:
    outputs = (output for node in model.get_ordered_ops() for output in node.outputs())
    return any(output.get_partial_shape().is_dynamic for output in outputs)


def _input_dependent_nodes(model: Model) -> set[str]:
    """The names of the nodes whose contents, not only shapes, depend on the model's inputs."""
    found = {parameter.get_name() for parameter in model.get_parameters()}
    for node in model.get_ordered_ops():
        sources = (value.get_node().get_name() for value in node.input_values())
        if node.get_type_name() != "ShapeOf" and any(name in found for name in sources):
            found.add(node.get_name())
    return found


def _can_be_pinned(value: Output, input_dependent: set[str]) -> bool:
    node, shape = value.get_node(), value.get_partial_shape()
    if node.get_type_name() not in _OWN_MEMORY or node.get_name() not in input_dependent:
        return False
    if shape.is_dynamic or value.get_element_type() != Type.f32:
        return False
    return 4 * math.prod(shape.get_shape()) >= SETTINGS.min_pinned_gradient_bytes


def _independent_of(gradients: Sequence[Output], others: Sequence[Output]) -> list[Output]:
    """Returns the computed values among ``others`` that ``gradients`` do not depend on."""
    before = read_by(gradients)
    nodes = [value.get_node() for value in others]
    return [
        value
        for value, node in zip(others, nodes)
        if node.get_type_name() not in ("Constant", "Parameter") and node.get_name() not in before
    ]


def _renumbered(update: Update, renumbering: dict[int, int]) -> Update:
    # An index that is not in ``renumbering``, such as that of an input, stays.
    def all_of(sources: Iterable[int]) -> list[int]:
        return [renumbering.get(source, source) for source in sources]

    return Update(
        *update[:3],
        gradients=all_of(update.gradients),
        factors=all_of(update.factors),
        parameters=all_of(update.parameters),
    )
