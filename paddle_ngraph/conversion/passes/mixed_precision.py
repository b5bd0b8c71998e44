"""bfloat16 for operands of matmuls and convolutions, and nothing else.

The pass applies to functions that train if ``FLAGS_ngraph_precision`` requests it, and to all
functions where a program itself declares the operands bfloat16 (bfloat16.py).

An update changes a weight by less than bfloat16's eight bits can represent, and a term changes a
long sum likewise. So parameters, optimizer states, normalizations, softmax and losses stay float32.
Matmuls and convolutions, with their gradients, read operands that were rounded to bfloat16, and sum
in float32. The plugin's own bfloat16 would round all values in between as well.

An operand is rounded once, for all its matmuls: activations, weights and gradients have two such
readers each. A convolution rounds its filter while it reorders it. With AMX its other operands have
their channels last: oneDNN's kernels for blocks of channels use no tiles, and are then slower than
those of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from openvino import Model, Node, Output, Type, opset15
from openvino.utils import replace_node
from openvino.utils.node_factory import NodeFactory

from paddle_ngraph.conversion import processor
from paddle_ngraph.conversion.bfloat16 import (
    NARROWING,
    ROUNDING,
    WIDENING,
    Bfloat16Values,
    before_rounding,
)
from paddle_ngraph.conversion.node_tools import Key, key_of
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.settings import SETTINGS

# The key in a model's runtime information that makes the core compile all other nodes in float32.
_MIXED_PRECISION_MARK = "ngraph_mixed_precision"
# By type of convolution node, the indices of the inputs that are rounded to bfloat16.
_CONVOLUTIONS = {
    "BlockedConvolution": (0,),
    "BlockedConvolutionDataGrad": (0,),
    "BlockedConvolutionFilterGrad": (0, 1),
}
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})


def use_bfloat16_matmuls(model: Model, extension: Callable[..., Node]) -> None:
    """Gives matmuls and convolutions bfloat16 operands, where the processor supports them.

    Args:
        model: A complete model of float32.
        extension: Creates a node of an operator of this package (``NgraphBridge.extension``).
    """
    model.set_rt_info(True, _MIXED_PRECISION_MARK)
    _use_bfloat16(model, extension, lambda value: True)


def use_bfloat16_matmuls_of_bfloat16(model: Model, extension: Callable[..., Node]) -> None:
    """Gives matmuls and convolutions bfloat16 operands if these contain bfloat16 values already.

    No value changes.

    Args:
        model: A complete model of float32.
        extension: Creates a node of an operator of this package (``NgraphBridge.extension``).
    """
    _use_bfloat16(model, extension, Bfloat16Values(extension).holds)


def _use_bfloat16(
    model: Model, extension: Callable[..., Node], may_be: Callable[[Output], bool]
) -> None:
    if not processor.has_bfloat16():
        return
    rounded = _Rounded(extension)
    chosen = [
        node
        for node in model.get_ordered_ops()
        if (_is_matmul(node) or _is_convolution(node)) and all(map(may_be, _factors(node)))
    ]
    for node in chosen:
        if _is_convolution(node):
            _round_convolution(node, rounded, extension)
        else:
            last = _following_rounding(node)
            attributes = {**node.get_attributes(), "rounds": last is not node}
            replace_node(last, extension("Bfloat16Gemm", rounded.operands(node), **attributes))


def _following_rounding(matmul: Node) -> Node:
    """The rounding to bfloat16 that alone reads a matmul, to be fused with it; else the matmul."""
    readers = [target.get_node() for target in matmul.output(0).get_target_inputs()]
    type_names = [reader.get_type_name() for reader in readers]
    return readers[0] if type_names == [ROUNDING] else matmul


def _factors(node: Node) -> list[Output]:
    """The two operands of a matmul or convolution, without those that are not float32."""
    return [value for value in node.input_values()[:2] if value.get_element_type() == Type.f32]


def _is_matmul(node: Node) -> bool:
    """Whether a node is a float32 matmul, perhaps batched, that is worth rounding for."""
    if node.get_type_name() != "MatMul" or node.get_output_element_type(0) != Type.f32:
        return False
    shapes = [_dims(value) for value in node.input_values()]
    if any(len(shape) < 2 or 0 in shape for shape in shapes) or _reads_grid(node):
        return False
    if any(None in shape for shape in shapes) and shapes[0][:-2] != shapes[1][:-2]:
        # Batch dimensions that are dynamic and may be broadcast: the matmul is not rounded.
        return False
    summed = shapes[0][-2 if node.get_attributes()["transpose_a"] else -1]
    sizes = [
        SETTINGS.typical_dimension_size if n is None else n
        for n in (summed, *_dims(node.output(0)))
    ]
    return (
        min(sizes[0], *sizes[-2:]) >= SETTINGS.min_bfloat16_dimension_size
        and math.prod(sizes) >= SETTINGS.min_bfloat16_multiplications
    )


def _dims(value: Output) -> list[int | None]:
    """The dimensions of a tensor, with ``None`` for each dynamic one."""
    shape = value.get_partial_shape()
    return [None if dim.is_dynamic else dim.get_length() for dim in shape]


def _reads_grid(node: Node) -> bool:
    """Whether a node reads quantized values, which the plugin multiplies as integers (int8.py)."""
    return any(v.get_node().get_type_name() == "FakeQuantize" for v in node.input_values())


def _is_convolution(node: Node) -> bool:
    """Whether a node is this package's convolution. Not depthwise ones, which memory limits."""
    if node.get_type_name() not in _CONVOLUTIONS:
        return False
    attributes = node.get_attributes()
    of_filter = node.get_type_name() == "BlockedConvolutionFilterGrad"
    filter_ = attributes["sizes"] if of_filter else node.get_input_shape(1)
    return attributes["groups"] == 1 or filter_[1] > 1


def _round_convolution(node: Node, rounded: _Rounded, extension: Callable[..., Node]) -> None:
    type_name, operands = node.get_type_name(), node.input_values()
    attributes = node.get_attributes()
    channels_last = processor.has_amx()
    if channels_last:
        attributes["channels_last"] = True
        if type_name == "BlockedConvolutionDataGrad":
            attributes["sizes"] = [*attributes["sizes"], node.get_output_shape(0)[4]]
    for index in _CONVOLUTIONS[type_name]:
        value = operands[index]
        operands[index] = rounded.channels_last(value) if channels_last else rounded.of(value)
    # The convolution stays float32 if oneDNN has no kernel: without AMX, kernels exist for blocks
    # of 16 only.
    with suppress(NgraphError):
        replace_node(node, extension(type_name, operands, **attributes))


class _Rounded:
    """The values of one model that are rounded to bfloat16, each rounded once."""

    def __init__(self, extension: Callable[..., Node]) -> None:
        self._extension = extension
        self._found: dict[Key, Output] = {}
        self._channels_last: dict[Key, Output] = {}

    def operands(self, matmul: Node) -> list[Output]:
        """The operands of a matmul, rounded to bfloat16 and broadcast to equal batch dimensions."""
        batch = _dims(matmul.output(0))[:-2]
        return [self._broadcast(self.of(value), batch) for value in matmul.input_values()]

    def of(self, value: Output) -> Output:
        """``value`` rounded to bfloat16; if it is a view, a view of its rounded source."""
        value = before_rounding(value)
        key = key_of(value)
        if key not in self._found:
            self._found[key] = self._build(value)
        return self._found[key]

    def channels_last(self, value: Output) -> Output:
        """``value``, [N, C, H, W] or in blocks of channels, as [N, 1, H, W, C] in bfloat16."""
        value = before_rounding(value)
        key = key_of(value)
        if key not in self._channels_last:
            self._channels_last[key] = self._extension("ToChannelsLast", [value]).output(0)
        return self._channels_last[key]

    def _build(self, value: Output) -> Output:
        node = value.get_node()
        type_name = node.get_type_name()
        if type_name == WIDENING:
            return node.input_value(0)
        if type_name in _VIEWS or (type_name == "Transpose" and _is_only_multiplied(node)):
            source, *others = node.input_values()
            view = NodeFactory("opset15").create(
                type_name, [self.of(source), *others], node.get_attributes()
            )
            return view.output(0)
        return self._extension(NARROWING, [value]).output(0)

    @staticmethod
    def _broadcast(value: Output, batch: list[int | None]) -> Output:
        shape = _dims(value)
        if shape[:-2] == batch:
            return value
        return opset15.broadcast(value, [*batch, *shape[-2:]]).output(0)


def _is_only_multiplied(node: Node) -> bool:
    readers = [target.get_node() for target in node.output(0).get_target_inputs()]
    return all(_is_matmul(reader) for reader in readers)
