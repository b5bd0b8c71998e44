"""Constants of a model, rewritten for correct results of the CPU plugin.

Two of the plugin's bugs (OpenVINO 2026.4.1) appear only with constants, such as weights:

* A node that reads only constants and that the plugin does not fold runs once, at the first
  inference. A later node that works in place then overwrites the only copy, so each inference gives
  a different result. Such values are computed here, once, and enter the model as constants.
* Packed weights are looked up by their memory and the format they are packed to, regardless of how
  a node reads them. Two matmuls with one square matrix, transposed by one of them, get the same
  packed weights; so do a convolution and a transposed one with the same filter, einsums, and
  matmuls in the iterations of recurrent layers. Here each packed form gets its own constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from openvino import Model, Node, Output, Type, opset15
from openvino.passes import ConstantFolding, Manager

from paddle_ngraph.conversion.node_tools import WITH_MODELS, Key, constant_of, key_of
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.conversion.size_rules import touches_empty_tensor

# Types of nodes that the plugin certainly replaces by a constant if all inputs are constants.
_FOLDED = frozenset(
    {"Broadcast", "Convert", "Gather", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
_WEIGHT_PACKING = frozenset(
    {
        "Convolution",
        "ConvolutionBackpropData",
        "Einsum",
        "GroupConvolution",
        "GroupConvolutionBackpropData",
        "MatMul",
    }
)
_CONSTANT_OPERAND_TYPES = frozenset({"Interpolate", "Pad", "Range"})
_RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
# Types of nodes that tell the plugin that their constant input is quantized (int8.py). The nodes
# are not folded: their value alone would not tell.
_QUANTIZING_TYPES = frozenset({"FakeQuantize"})
_QUANTIZED = (Type.i8, Type.u8)
# Describes the layout in which a node packs its weights; readers with equal descriptions
# pack equally.
PackedForm = tuple[object, ...]


# -- values determined by constants --------------------------------------------------------------


def compute_constants(model: Model) -> None:
    """Replaces every value that depends on constants only by a constant."""
    values = list(_determined(model))
    # Models with an empty tensor are left alone: nGraph would write beyond the end of results.
    if not values or any(map(touches_empty_tensor, model.get_ordered_ops())):
        return
    for value, data in zip(values, evaluated(values)):
        _redirect(model, value, constant_of(data, value.get_element_type()))


def may_be_computed(value: Output) -> bool:
    """Whether constants alone determine a value, other than one of quantized constants.

    Values of models inside, and of empty tensors, are not computed here.
    """
    visited: set[str] = set()
    pending = [value.get_node()]
    while pending:
        node = pending.pop()
        if node.get_name() in visited:
            continue
        visited.add(node.get_name())
        if node.get_type_name() == "Constant":
            if node.get_element_type() in _QUANTIZED:
                return False
            continue
        sources = [source.get_node() for source in node.input_values()]
        is_left = node.get_type_name() in _QUANTIZING_TYPES | WITH_MODELS
        if not sources or is_left or touches_empty_tensor(node):
            return False
        pending += sources
    return True


def evaluated(values: Sequence[Output]) -> list[np.ndarray]:
    """The contents of values that depend on constants only. No tensor may be empty."""
    constant_model = Model([opset15.result(value) for value in values], [], "constants").clone()
    folding = Manager()
    folding.register_pass(ConstantFolding())
    folding.run_passes(constant_model)
    return _run(constant_model)


def _run(model: Model) -> list[np.ndarray]:
    """The contents of the results of a model without parameters.

    Contents of results that are constants are read, and the plugin computes the others.
    """
    sources = [result.input_value(0) for result in model.get_results()]
    folded = [source.get_node().get_type_name() == "Constant" for source in sources]
    rest = [opset15.result(source) for source, is_folded in zip(sources, folded) if not is_folded]
    found = iter(_inferred(Model(rest, [])) if rest else ())
    return [
        np.array(source.get_node().get_data() if is_folded else next(found))
        for source, is_folded in zip(sources, folded)
    ]


def _inferred(model: Model) -> list[np.ndarray]:
    """The results of a model without parameters, as the plugin computes them.

    Float constants are fed as parameters: values that the plugin computes from constants alone are
    wrong if a later node works in place.
    """
    fed = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == Type.f32:
            parameter = opset15.parameter(node.get_output_shape(0), Type.f32)
            readers = [
                target
                for target in node.output(0).get_target_inputs()
                if target.get_node().get_type_name() not in _CONSTANT_OPERAND_TYPES
            ]
            for target in readers:
                target.replace_source_output(parameter.output(0))
            if readers:
                fed.append((parameter, np.array(node.get_data())))
    model.add_parameters([parameter for parameter, _ in fed])
    # The model is compiled without fused loops, which gain nothing in a single run, and on which
    # the plugin may crash (plugin_workarounds.py).
    settings = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
    compiled = core().compile_model(model, "CPU", settings)
    return list(compiled([data for _, data in fed]).values())


def _determined(model: Model) -> Iterator[Output]:
    """Outputs that depend on constants only, and that other nodes read.

    Of outputs that the plugin certainly folds, only those that a node packs as weights, unless they
    are a view of a constant.
    """
    # For each node that depends on constants alone, by its name: whether the plugin may leave it
    # unfolded.
    unfolded: dict[str, bool] = {}
    read: dict[Key, Output] = {}
    for node in model.get_ordered_ops():
        type_name, values = node.get_type_name(), node.input_values()
        sources = [value.get_node().get_name() for value in values]
        if type_name == "Constant":
            unfolded[node.get_name()] = False
        elif type_name != "Result" and values and all(source in unfolded for source in sources):
            if type_name in _QUANTIZING_TYPES:
                continue
            unfolded[node.get_name()] = type_name not in _FOLDED or any(map(unfolded.get, sources))
        else:
            packs = _is_ambiguous(node)
            read |= {
                key_of(value): value
                for source, value in zip(sources, values)
                if unfolded.get(source) or (source in unfolded and packs and not is_constant(value))
            }
    return iter(read.values())


def _redirect(model: Model, value: Output, constant: Node) -> None:
    members = {node.get_name() for node in model.get_ops()}
    for target in value.get_target_inputs():
        if target.get_node().get_name() in members:
            target.replace_source_output(constant.output(0))


# -- packed forms --------------------------------------------------------------------------------


def separate_packed_weights(model: Model) -> None:
    """Gives weights that are packed in several forms a constant for each form."""
    copies: dict[str, dict[tuple[object, ...], Node | None]] = {}
    for node in model.get_ordered_ops():
        for index, forms in _packed_forms(node):
            source, path = _path(node.input_value(index))
            if source.get_type_name() != "Constant":
                continue
            known = copies.setdefault(source.get_name(), {})
            form = (*forms, *map(_step, path))
            if form not in known:
                known[form] = _copy(source, path, len(known)) if known else None
            copy = known[form]
            if copy is not None:
                node.input(index).replace_source_output(copy.output(0))


def _packed_forms(node: Node) -> Iterator[tuple[int, list[PackedForm]]]:
    """Yields the index of each input that the plugin may pack for ``node``, with its forms."""
    if node.get_type_name() == "TensorIterator":
        yield from _packed_forms_in_loop(node)
    elif _is_ambiguous(node):
        for index in range(node.get_input_size()):
            yield index, [_packed_form(node, index)]


def _packed_forms_in_loop(loop: Node) -> Iterator[tuple[int, list[PackedForm]]]:
    """Yields the index of each input that iterations of a loop may pack, and the packed forms."""
    body = loop.get_function()
    inside: dict[str, list[PackedForm]] = {}
    for node in body.get_ordered_ops():
        for index, forms in _packed_forms(node):
            source, path = _path(node.input_value(index))
            found = [(*reading, *map(_step, path)) for reading in forms]
            inside[source.get_name()] = [*inside.get(source.get_name(), ()), *found]
    parameters = body.get_parameters()
    for description in loop.get_input_descriptions():
        name = parameters[description.body_parameter_index].get_name()
        if name in inside:
            yield description.input_index, inside[name]


def _packed_form(node: Node, index: int) -> PackedForm:
    attributes = node.get_attributes()
    return node.get_type_name(), index, *map(attributes.get, ("transpose_b", "equation"))


def _is_ambiguous(node: Node) -> bool:
    """Whether weights that ``node`` packs have the same size in another packed form."""
    if node.get_type_name() != "MatMul":
        return node.get_type_name() in _WEIGHT_PACKING
    shape = node.get_input_partial_shape(1)
    return shape.is_dynamic or len(shape) < 2 or shape[-1] == shape[-2]


def _path(value: Output) -> tuple[Node, list[Node]]:
    """The constant or other node of which ``value`` is a view, and the view nodes in between."""
    path: list[Node] = []
    node = value.get_node()
    while node.get_type_name() in _RESHAPING or _is_transpose(node):
        path.insert(0, node)
        node = node.input_value(0).get_node()
    return node, path


def is_constant(value: Output) -> bool:
    """Whether ``value`` is a constant, or a reshape or transpose of one.

    Then the plugin packs ``value`` for its kernels at compilation, not in each run.
    """
    return bool(_path(value)[0].get_type_name() == "Constant")


def values_of(value: Output) -> np.ndarray | None:
    """The elements of ``value``, in any order, if constants alone determine it.

    Returns the contents of the constant that the plugin folds to ``value``, or of ``value`` itself.
    """
    node = value.get_node()
    while node.get_type_name() in _FOLDED:
        if any(values_of(other) is None for other in node.input_values()[1:]):
            return None
        node = node.input_value(0).get_node()
    return node.get_data() if node.get_type_name() == "Constant" else None


def is_determined(value: Output) -> bool:
    """Whether ``value`` is a constant, or certainly becomes one when the plugin folds constants."""
    return values_of(value) is not None


def _is_transpose(node: Node) -> bool:
    order = node.input_value(1).get_node() if node.get_type_name() == "Transpose" else None
    return order is not None and order.get_type_name() == "Constant"


def _order(node: Node) -> tuple[int, ...]:
    return tuple(int(axis) for axis in node.input_value(1).get_node().get_data())


def _step(node: Node) -> tuple[str, tuple[int, ...]]:
    type_name = node.get_type_name()
    return type_name, _order(node) if type_name == "Transpose" else tuple(node.get_output_shape(0))


def _copy(source: Node, path: Sequence[Node], index: int) -> Node:
    """A new constant with the contents of ``source`` after the view nodes in ``path``."""
    data = source.get_data()
    for node in path:
        is_transpose = node.get_type_name() == "Transpose"
        shape = tuple(node.get_output_shape(0))
        data = data.transpose(_order(node)) if is_transpose else data.reshape(shape)
    copy = opset15.constant(np.array(data, order="C"))
    # The name begins with that of the weight, by which the engine recognizes the copy as a weight.
    copy.set_friendly_name(f"{source.get_friendly_name()}_read_{index}")
    return copy
