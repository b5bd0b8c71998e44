"""Blocked layout of convolutions in training: [N, ceil(C / block), H, W, block].

In this layout this package's convolutions, normalizations and poolings run on whole vector
registers. The operators between them follow: :class:`Blocked` builds an elementwise value a second
time from blocked operands, and reorders data at most at the ends. The plain value, if it has no
reader, disappears with the function's other unused nodes.

Where the number of channels is not a multiple of the block, padded lanes fill the last block. They
are zero where this package's operators read them: a NaN there would reach the other channels in
the next convolution. In between, all padded lanes have one value, known in the build.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Output, Type, opset15
from openvino.utils.node_factory import NodeFactory

from paddle_ngraph.conversion import processor
from paddle_ngraph.conversion.bfloat16 import ROUNDING
from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.node_tools import ELEMENTWISE, Key, as_output, key_of

# Maximum length of a chain of elementwise operators that is searched for an operand in blocked
# layout.
_MAX_SEARCH_DEPTH = 32
# The number of channels of a block if no block size divides the number of channels.
_NARROW_BLOCK = 8
# The maximum ratio of channels with padded lanes to channels without, up to which blocks are used.
_MAX_PADDING_RATIO = 1.5
# The most channels of data that kernels read from the plain layout, such as those of an image.
_MAX_UNBLOCKED_CHANNELS = 4
# Transpositions from [N, C / block, block, H, W] to the blocked layout, and back.
TO_BLOCKS, FROM_BLOCKS = [0, 1, 3, 4, 2], [0, 1, 4, 2, 3]


def widest_block() -> int:
    """Floats per vector register of the processor, 8 or 16; 1 if the processor is not known."""
    if not processor.is_known():
        return 1
    return 16 if processor.has_avx512() else 8


def block_of(*channels: int) -> int:
    """The widest block that divides all these channel counts; 1 if none does."""
    blocks = (block for block in (16, 8) if block <= widest_block())
    return next((block for block in blocks if not any(c % block for c in channels)), 1)


def padded_block_of(*channels: int) -> int:
    """The block of :func:`block_of`; if none divides the channels, one with few padded lanes."""
    block = block_of(*channels)
    if (
        block == 1
        and widest_block() > 1
        and all(_padded(c, _NARROW_BLOCK) <= _MAX_PADDING_RATIO * c for c in channels)
    ):
        return _NARROW_BLOCK
    return block


def blocks_of_convolution(channels: int, features: int, groups: int) -> tuple[int, int]:
    """The blocks of a convolution's data and of its output; 1: plain layout."""
    if channels == features == groups:
        block = padded_block_of(groups)
        return block, block
    if groups > 1:
        block = block_of(channels // groups, features // groups)
        return block, block
    if channels <= _MAX_UNBLOCKED_CHANNELS:
        return 1, padded_block_of(features)
    block = padded_block_of(channels, features)
    return block, block


def _padded(channels: int, block: int) -> int:
    """The number of channels, rounded up to a multiple of ``block``."""
    return -(-channels // block) * block


class Blocked:
    """The values in blocked layout in one build; an instance is in ``bridge.shared``."""

    def __init__(self, bridge: NgraphBridge) -> None:
        self._bridge = bridge
        self._found: dict[Key, Output | None] = {}
        # By key of a blocked value, the contents of its padded lanes; 0 if a value is absent.
        self._padding: dict[Key, np.ndarray] = {}
        bridge.materialize = self._materialized

    @staticmethod
    def of(bridge: NgraphBridge) -> Blocked:
        """The instance of this build, which all converters and passes share."""
        if Blocked not in bridge.shared:
            bridge.shared[Blocked] = Blocked(bridge)
        found: Blocked = bridge.shared[Blocked]
        return found

    def plain(self, node: Any, channels: int) -> Output:
        """[N, ceil(C / block), H, W, block] -> [N, C, H, W]; records its blocked value, too."""
        source = as_output(node)
        result = self.moved(source, 1, channels)
        self._found[key_of(result)] = source
        return result

    def reordered(self, node: Any, block: int) -> Output:
        """Converts [N, C, H, W] to blocks of ``block`` channels, padded by zeros; 1: unchanged."""
        output = as_output(node)
        if block == 1:
            return output
        found = self._any(output)
        if found is not None and self._block(found) == block and self._is_clean(found):
            return found
        source = output if found is None else found
        key = (*key_of(source), block)
        if key not in self._bridge.shared:
            reordered = self.moved(source, block, self._bridge.shape(output)[1])
            self._bridge.shared[key] = reordered
        reordered = self._bridge.shared[key]
        if found is None:
            self._found[key_of(output)] = reordered
        return reordered

    def find(self, node: Any) -> Output | None:
        """The output with ``node``, a [N, C, H, W] value, in blocked layout and padded by zeros.

        ``None`` if data would have to be reordered for it.
        """
        found = self._any(as_output(node))
        return found if found is not None and self._is_clean(found) else None

    def moved(self, source: Output, block: int, channels: int) -> Output:
        """Reorders ``source``, plain or blocked, to blocks of ``block`` channels; 1: to plain."""
        node = self._bridge.extension("BlockedReorder", [source], block=block, channels=channels)
        return node.output(0)

    def _any(self, output: Output) -> Output | None:
        """The blocked layout of ``output`` as in :meth:`find`, even if padded lanes are not 0."""
        return (
            self._search(output, _MAX_SEARCH_DEPTH)
            if len(self._bridge.shape(output)) == 4
            else None
        )

    def _is_clean(self, blocked: Output) -> bool:
        return not self._padding.get(key_of(blocked), np.float32(0)).any()

    def _materialized(self, output: Output) -> Output:
        """``output`` of an operator in plain layout, for readers of that layout.

        A value that can be computed in blocks is computed in blocks, and only there.
        """
        if output.get_node().get_type_name() not in ELEMENTWISE or not _is_float(output):
            return output
        found = self._any(output)
        return output if found is None else self.plain(found, self._bridge.shape(output)[1])

    def _search(self, output: Output, depth: int) -> Output | None:
        key = key_of(output)
        if key not in self._found:
            self._found[key] = self._rebuilt(output, depth) if depth else None
        return self._found[key]

    def _rebuilt(self, output: Output, depth: int) -> Output | None:
        node = output.get_node()
        type_name = node.get_type_name()
        shape = self._bridge.shape(output)
        if type_name not in ELEMENTWISE or len(shape) != 4:
            return None
        sources = node.input_values()
        found = [
            self._search(source, depth - 1) if self._bridge.shape(source) == shape else None
            for source in sources
        ]
        block = next((self._block(value) for value in found if value is not None), 0)
        if not block:
            return None
        operands = []
        for source, value in zip(sources, found):
            operand = self._operand(source, value, shape, block)
            if operand is None:
                return None
            operands.append(operand)
        result = self._created(type_name, operands, node.get_attributes())
        if shape[1] % block == 0:
            return result
        padding = self._computed_padding(result)
        if padding is None or not np.isfinite(padding):
            return None
        self._padding[key_of(result)] = padding
        return result

    def _computed_padding(self, blocked: Output) -> np.ndarray | None:
        """The contents of padded lanes of an elementwise result, from those of its operands."""
        node = blocked.get_node()
        values = [self._padding_of(source) for source in node.input_values()]
        known = [opset15.constant(value) for value in values if value is not None]
        if len(known) < len(values):
            return None
        computed = self._created(node.get_type_name(), known, node.get_attributes())
        return self._bridge.folding.known_value(computed)

    def _created(
        self, type_name: str, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> Output:
        """Creates an elementwise node of the type ``type_name``, and returns its output."""
        if type_name == ROUNDING:
            return self._bridge.extension(type_name, operands).output(0)
        return NodeFactory("opset15").create(type_name, operands, attributes).output(0)

    def _padding_of(self, operand: Output) -> np.ndarray | None:
        """The contents of padded lanes of a blocked operand, or a scalar's; ``None`` if unknown."""
        if len(self._bridge.shape(operand)) == 5:
            return self._padding.get(key_of(operand), np.zeros((), np.float32))
        value = self._bridge.folding.known_value(operand)
        return None if value is None else value.reshape(())

    def _operand(
        self, source: Output, found: Output | None, shape: Sequence[int], block: int
    ) -> Output | None:
        """An operand of an elementwise operator on blocked data, in the blocked layout.

        Converts an operand of ``shape``, or one with one element per channel. ``None`` for other
        shapes; an operand with a single element is returned as it is.
        """
        dims = self._bridge.shape(source)
        if dims == list(shape):
            if found is not None and self._block(found) == block:
                return found
            return self.reordered(source, block) if _is_float(source) else None
        if max(dims, default=1) == 1:
            return source
        dims = [1] * (4 - len(dims)) + dims
        if dims[0] in (1, shape[0]) and dims[1] == shape[1] and dims[2:] == [1, 1]:
            return self._per_channel(source, dims[:2], block)
        return None

    def _per_channel(self, source: Output, dims: Sequence[int], block: int) -> Output | None:
        """``source``, of shape ``dims``, [N or 1, C], as a blocked operand, padded by 0."""
        bridge, padded = self._bridge, _padded(dims[1], block)
        node: Any = source
        if padded > dims[1]:
            if not _is_float(source):
                return None
            before, after = bridge.ints([0, 0]), bridge.ints([0, padded - dims[1]])
            flat = opset15.reshape(source, bridge.ints(dims), False)
            node = opset15.pad(flat, before, after, "constant")
        new = [dims[0], padded // block, 1, 1, block]
        return opset15.reshape(node, bridge.ints(new), False).output(0)

    def _block(self, value: Output) -> int:
        return self._bridge.shape(value)[4]


def put_in_blocks(bridge: NgraphBridge, node: Any, order: Sequence[int]) -> Output | None:
    """``node`` with its axes in ``order``, if that puts [N, C, H, W] into blocks.

    The original shape is that of the Reshape's input. A value without a blocked layout is put
    into blocks here: the plugin transposes five axes on one thread.
    """
    x = as_output(node)
    if list(order) != TO_BLOCKS or x.get_node().get_type_name() != "Reshape":
        return None
    source = x.get_node().input_value(0)
    if not _is_between_layouts(bridge, x, bridge.shape(source)):
        return None
    layout = Blocked.of(bridge)
    found = layout.find(source)
    # Inserts a copy: the plugin would copy a result that has other readers itself, on one thread.
    block, channels = bridge.shape(x)[2], bridge.shape(source)[1]
    return layout.moved(source if found is None else found, block, channels)


def taken_from_blocks(bridge: NgraphBridge, node: Any, shape: Sequence[Any]) -> Output | None:
    """The plain layout, of ``shape``, of the blocks that ``node`` transposes; else ``None``."""
    x = as_output(node)
    if x.get_node().get_type_name() != "Transpose" or not _is_between_layouts(bridge, x, shape):
        return None
    source, order = x.get_node().input_values()
    known = bridge.folding.known_value(order)
    if known is None or known.tolist() != FROM_BLOCKS:
        return None
    return Blocked.of(bridge).plain(source, shape[1])


def _is_between_layouts(bridge: NgraphBridge, x: Output, plain: Sequence[Any]) -> bool:
    """Whether ``x``, [N, C / block, block, H, W], is between layouts of ``plain``, [N, C, H, W].

    A subgraph may read blocked values that convolutions of other subgraphs pass on.
    """
    if len(plain) != 4 or not bridge.on_cpu or not bridge.trains() or not _is_float(x):
        return False
    dims = bridge.shape(x)
    if len(dims) != 5 or dims[2] not in (_NARROW_BLOCK, widest_block()):
        return False
    return [plain[0], plain[2], plain[3]] == [dims[0], dims[3], dims[4]]


def _is_float(output: Output) -> bool:
    return bool(output.get_element_type() == Type.f32)
