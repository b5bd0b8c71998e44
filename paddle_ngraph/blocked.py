"""The layout of convolutions in training: channels in blocks, [N, C / block, H, W, block].

In this layout the core's convolutions, normalizations and poolings run on whole vector registers.
What stands between them follows: :func:`blocked` builds a value a second time from blocked operands
where it is made element by element, and turns it at most at the ends. The plain form of a value
that nobody reads disappears with the function's other unused nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from openvino import Output, Type, opset15
from openvino.utils.node_factory import NodeFactory

from paddle_ngraph import _core, processor
from paddle_ngraph.bridge import NgraphBridge, as_output
from paddle_ngraph.node_types import ELEMENTWISE

_DEPTH = 32  # of a chain of such operators that is followed


def widest_block() -> int:
    """Floats in a vector register of this processor, 8 or 16."""
    return 16 if processor.has_avx512() else 8


def block_of(*channels: int) -> int:
    """The widest block that divides all these numbers of channels; 1 if none does."""
    blocks = (block for block in (16, 8) if block <= widest_block())
    return next((block for block in blocks if not any(c % block for c in channels)), 1)


def threads() -> int:
    """How many threads an operator of the core may use."""
    return _core.num_threads()


class Blocked:
    """The blocked values of one build: ``bridge.shared`` keeps it."""

    def __init__(self, bridge: NgraphBridge) -> None:
        self._bridge = bridge
        self._found: dict[tuple[str, int], Output | None] = {}
        bridge.settle = self._settled

    @staticmethod
    def of(bridge: NgraphBridge) -> Blocked:
        """The one of this build."""
        if Blocked not in bridge.shared:
            bridge.shared[Blocked] = Blocked(bridge)
        found: Blocked = bridge.shared[Blocked]
        return found

    def plain(self, node: Any) -> Output:
        """[N, C / block, H, W, block] -> [N, C, H, W]; the blocked value is remembered."""
        source = as_output(node)
        result = self._bridge.extension("Reblock", [source], block=1).output(0)
        self._found[_key(result)] = source
        return result

    def turned(self, node: Any, block: int) -> Output:
        """[N, C, H, W] with ``block`` channels side by side; 1: as it is."""
        if block == 1:
            return as_output(node)
        found = self.find(node)
        if found is not None and self._block(found) == block:
            return found
        source = as_output(node) if found is None else found
        key = (*_key(source), block)
        if key not in self._bridge.shared:
            turned = self._bridge.extension("Reblock", [source], block=block).output(0)
            self._bridge.shared[key] = turned
        turned = self._bridge.shared[key]
        if found is None:
            self._found[_key(as_output(node))] = turned
        return turned

    def find(self, node: Any) -> Output | None:
        """The blocked form of [N, C, H, W], if it can be had without turning the data."""
        output = as_output(node)
        shape = output.get_shape()
        if len(shape) != 4:
            return None
        return self._search(output, _DEPTH)

    def _settled(self, output: Output) -> Output:
        """``output`` of an operator, as its plain readers see it.

        What can be had in blocks is computed there, and only there.
        """
        if output.get_node().get_type_name() not in ELEMENTWISE or not _is_float(output):
            return output
        found = self.find(output)
        return output if found is None else self.plain(found)

    def _search(self, output: Output, depth: int) -> Output | None:
        key = _key(output)
        if key not in self._found:
            self._found[key] = self._rebuilt(output, depth) if depth else None
        return self._found[key]

    def _rebuilt(self, output: Output, depth: int) -> Output | None:
        node = output.get_node()
        kind = node.get_type_name()
        shape = self._bridge.shape(output)
        if kind not in ELEMENTWISE or len(shape) != 4:
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
        return _factory().create(kind, operands, node.get_attributes()).output(0)

    def _operand(
        self, source: Output, found: Output | None, shape: Sequence[int], block: int
    ) -> Output | None:
        """An operand of ``shape``, of one number for each channel, or of one number."""
        dims = self._bridge.shape(source)
        if dims == list(shape):
            if found is not None and self._block(found) == block:
                return found
            return self.turned(source, block) if _is_float(source) else None
        if max(dims, default=1) == 1:
            return source
        dims = [1] * (4 - len(dims)) + dims
        if dims[0] in (1, shape[0]) and dims[1] == shape[1] and dims[2:] == [1, 1]:
            new = [dims[0], dims[1] // block, 1, 1, block]
            return opset15.reshape(source, self._bridge.ints(new), False).output(0)
        return None

    def _block(self, value: Output) -> int:
        return self._bridge.shape(value)[4]


@cache
def _factory() -> NodeFactory:
    return NodeFactory("opset15")


def _is_float(output: Output) -> bool:
    return bool(output.get_element_type() == Type.f32)


def _key(output: Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()
