"""Data formats, padding algorithms and maps along an axis, for all spatial operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import Node, Output, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import reshaped, transposed


def is_channels_last(op: Op) -> bool:
    """Whether the data is [N, ..., C], with any number of axes between N and C."""
    return str(op.attr("data_format", "NCHW")).endswith("C")


def get_data(bridge: NgraphBridge, op: Op, name: str) -> Output:
    """The input ``name`` as [N, C, ...], for any data format and number of axes."""
    node = bridge.get_input_node(op, name)
    rank = len(bridge.shape(node))
    return (
        transposed(bridge, node, (0, rank - 1, *range(1, rank - 1)))
        if is_channels_last(op)
        else node
    )


def set_data(bridge: NgraphBridge, op: Op, name: str, node: NodeInput) -> None:
    """Sets output ``name`` to ``node`` [N, C, ...] in the data format of ``op``."""
    if is_channels_last(op):
        node = transposed(bridge, node, (0, *range(2, len(bridge.shape(node))), 1))
    bridge.set_output_node(op, name, node)


def padding(
    op: Op, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after each axis (Paddle ``UpdatePadding``).

    ``SAME`` pads to ``ceil(size / stride)`` outputs, the odd element goes to the end.
    """
    algorithm = op.attr("padding_algorithm", "EXPLICIT")
    if algorithm == "VALID":
        return [0] * len(size), [0] * len(size)
    if algorithm == "SAME":
        totals = [
            max(0, (-(-s // stride) - 1) * stride + k - s)
            for s, k, stride in zip(size, kernel, strides)
        ]
        return [total // 2 for total in totals], [total - total // 2 for total in totals]
    values = [int(value) for value in op.attr("paddings")]
    if len(values) == len(size):
        return values, values
    return values[0::2], values[1::2]


@dataclass(frozen=True)
class AxisMap:
    """A sparse matrix along one axis: ``out[i] = sum_k weights[i, k] * x[positions[i, k]]``.

    Uses Gather, not a matmul: a NaN or an infinity reaches only the elements that depend on it.

    Attributes:
        positions: [out, K]; indices of K elements for every row.
        weights: [out, K]; ``None`` where every weight is 1.
    """

    positions: np.ndarray
    weights: np.ndarray | None = None

    def repeats(self) -> int:
        """How often the map repeats each element in place, if it does nothing else; otherwise 0."""
        rows, terms = self.positions.shape
        size = int(self.positions.max()) + 1
        if self.weights is not None or terms > 1 or rows % size:
            return 0
        repeated = np.repeat(np.arange(size), rows // size)
        return rows // size if np.array_equal(self.positions[:, 0], repeated) else 0

    def apply(self, bridge: NgraphBridge, node: NodeInput, axis: int) -> Any:
        """The result of this map for ``node`` along ``axis``."""
        rows, terms = self.positions.shape
        dims = bridge.shape(node)
        before, after = dims[:axis], dims[axis + 1 :]
        if self.weights is None and self._covers(dims[axis]):
            if terms == 1:
                return node
            cells = reshaped(bridge, node, [*before, rows, terms, *after])
            return opset15.reduce_sum(cells, bridge.ints([axis + 1]), False)
        if terms <= _MAX_UNROLLED_TERMS:
            return self._added(bridge, node, axis)
        found = _gathered(bridge, node, axis, self.positions.T.reshape(-1))
        if self.weights is not None:
            found = self._weighted(found, self.weights.T, len(after))
        cells = reshaped(bridge, found, [*before, terms, rows, *after])
        return opset15.reduce_sum(cells, bridge.ints([axis]), False)

    def apply_transposed(self, bridge: NgraphBridge, node: NodeInput, axis: int, size: int) -> Any:
        """The gradient of the input of :meth:`apply`, from that of its result, ``node``.

        The axis of the input has length ``size``. Successive elements with equally many terms are
        computed together, if there are few such runs.
        """
        owners = self.positions.reshape(-1)
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=size)
        sources = np.repeat(np.arange(len(self.positions)), self.positions.shape[1])[order]
        weights = None if self.weights is None else self.weights.reshape(-1)[order]
        starts = np.concatenate([[0], np.cumsum(counts)])
        breaks = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), size]
        if len(breaks) > _MAX_PIECES + 1:
            rows = len(self.positions)
            # Elements to which no term is added read a zero, which is appended to the node.
            if counts.min() == 0:
                node = _with_zero(bridge, node, axis)
            return _padded_rows(counts, starts, sources, weights, rows).apply(bridge, node, axis)
        parts = []
        for first, last in zip(breaks, breaks[1:]):
            taken = slice(starts[first], starts[last])
            shape = (last - first, int(counts[first]))
            if not counts[first]:
                dims = bridge.shape(node)
                parts.append(
                    bridge.full(0.0, "float32", [*dims[:axis], shape[0], *dims[axis + 1 :]])
                )
                continue
            own = None if weights is None else weights[taken].reshape(shape)
            parts.append(AxisMap(sources[taken].reshape(shape), own).apply(bridge, node, axis))
        return parts[0] if len(parts) == 1 else opset15.concat(parts, axis)

    def _added(self, bridge: NgraphBridge, node: NodeInput, axis: int) -> Any:
        """The sum of the terms, added one by one: the engine fuses the additions into one loop."""
        after = len(bridge.shape(node)) - axis - 1
        total = None
        for k in range(self.positions.shape[1]):
            term = _gathered(bridge, node, axis, self.positions[:, k])
            if self.weights is not None:
                term = self._weighted(term, self.weights[:, k], after)
            total = term if total is None else opset15.add(total, term)
        return total

    def _weighted(self, found: Any, weights: np.ndarray, after: int) -> Node:
        column = weights.reshape(-1, *[1] * after).astype("float32")
        return opset15.multiply(found, opset15.constant(column))

    def _covers(self, size: int) -> bool:
        """Whether the map reads each of ``size`` elements exactly once, in order."""
        flat = self.positions.reshape(-1)
        return bool(flat.size == size and (flat == np.arange(size)).all())


_MAX_PIECES = 8
_MAX_UNROLLED_TERMS = 32


def _padded_rows(
    counts: np.ndarray,
    starts: np.ndarray,
    sources: np.ndarray,
    weights: np.ndarray | None,
    zero: int,
) -> AxisMap:
    """A map with rows of one length: the last term of a shorter row is split into equal shares.

    A row without terms contains the element ``zero``.
    """
    terms = int(counts.max())
    last = np.maximum(counts[:, None] - 1, 0)
    column = np.minimum(np.arange(terms)[None, :], last)
    index = np.minimum(starts[:-1, None] + column, len(sources) - 1)
    positions = np.where(counts[:, None] > 0, sources[index], zero)
    if weights is None and terms == 1:
        return AxisMap(positions)
    shares = np.where(column == last, terms - last, 1)
    own = np.ones(len(sources), "float32") if weights is None else weights
    return AxisMap(positions, (own[index] / shares).astype("float32"))


def _with_zero(bridge: NgraphBridge, node: NodeInput, axis: int) -> Node:
    dims = bridge.shape(node)
    zero = bridge.full(0.0, "float32", [*dims[:axis], 1, *dims[axis + 1 :]])
    return opset15.concat([node, zero], axis)


def _gathered(bridge: NgraphBridge, node: NodeInput, axis: int, positions: np.ndarray) -> Any:
    """The elements of ``node`` with the indices ``positions`` along ``axis``."""
    first, last = int(positions[0]), int(positions[-1]) + 1
    if not np.array_equal(positions, np.arange(first, last)):
        return opset15.gather(node, bridge.ints(positions.tolist()), bridge.ints([axis]))
    if last - first == bridge.shape(node)[axis]:
        return node
    return opset15.slice(
        node, bridge.ints([first]), bridge.ints([last]), bridge.ints([1]), bridge.ints([axis])
    )
