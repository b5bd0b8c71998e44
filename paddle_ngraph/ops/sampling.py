"""affine_grid and grid_sample, which sample an image at points, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from openvino import Node, Output, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import known_ints, reshaped, transposed

# -- the points of an affine map -------------------------------------------------------------------


def _points(bridge: NgraphBridge, op: Op) -> tuple[list[int], Node]:
    """The output's spatial sizes, and the coordinates of its points: [points, axes + 1].

    A row contains x, y (and z) in [-1, 1], and a 1.
    """
    if op.has_input("output_shape"):
        shape = known_ints(bridge, op, "output_shape")
    else:
        shape = [int(size) for size in op.attr("output_shape")]
    lines = [_line(size, bool(op.attr("align_corners"))) for size in shape[2:]]
    axes = np.meshgrid(*lines, indexing="ij")
    columns = [axis.reshape(-1) for axis in reversed(axes)]
    columns.append(np.ones_like(columns[0]))
    return shape[2:], opset15.constant(np.stack(columns, 1).astype("float32"))


def _line(count: int, align_corners: bool) -> np.ndarray:
    """``count`` points over [-1, 1]: from end to end, or at the centres of equal segments."""
    start, total = np.float32(-1), np.float32(count)
    # A single point with ``align_corners`` divides by 0: NaN, as in Paddle.
    with np.errstate(all="ignore"):
        if align_corners:
            step = np.float32(2) / (total - np.float32(1))
        else:
            step = np.float32(2) / total
            start = start * ((total - np.float32(1)) / total)
        return np.asarray(start + np.arange(count, dtype=np.float32) * step)


@converter("pd_op.affine_grid", inputs={"output_shape": Role.CONSTANT})
def affine_grid(bridge: NgraphBridge, op: Op) -> None:
    """``input`` [N, 2, 3] or [N, 3, 4] applied to every point (Paddle ``affine_grid``)."""
    matrix = bridge.get_input_node(op, "input")
    batch, axes, _ = bridge.shape(matrix)
    sizes, points = _points(bridge, op)
    mapped = opset15.matmul(points, matrix, False, True)
    bridge.set_output_node(op, "output", reshaped(bridge, mapped, [batch, *sizes, axes]))


@converter("pd_op.affine_grid_grad", inputs={"output_shape": Role.CONSTANT})
def affine_grid_grad(bridge: NgraphBridge, op: Op) -> None:
    """The gradient of the affine matrix (Paddle ``affine_grid_grad``)."""
    grad = bridge.get_input_node(op, "output_grad")
    batch, *sizes, axes = bridge.shape(grad)
    _, points = _points(bridge, op)
    rows = reshaped(bridge, grad, [batch, math.prod(sizes), axes])
    bridge.set_output_node(op, "input_grad", opset15.matmul(rows, points, True, False))


# -- the image at the points -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Neighbour:
    """One of the two elements next to every point, along one axis.

    Attributes:
        is_inside: Whether the element is in the image, [N, P].
        position: The index of the element, int32; meaningless outside the image.
        weight: The interpolation weight, ``None`` if there is only one neighbour.
        sign: The derivative of the weight by the point's coordinate.
    """

    is_inside: Node
    position: Node
    weight: Any
    sign: int


class _Sampling:
    """The sampling of an image ``x`` [N, C, ...] at the points of ``grid`` [N, ..., axes].

    For ``grid_sample`` and its gradient.
    """

    def __init__(self, bridge: NgraphBridge, op: Op) -> None:
        self._bridge = bridge
        self._x = bridge.get_input_node(op, "x")
        self._mode = str(op.attr("mode"))
        self._border = str(op.attr("padding_mode"))
        self._align = bool(op.attr("align_corners"))
        self.batch, self.channels, *self._sizes = bridge.shape(self._x)
        grid = bridge.get_input_node(op, "grid")
        self.out = bridge.shape(grid)[1:-1]
        self.points = math.prod(self.out)
        axes = len(self._sizes)
        columns = reshaped(bridge, grid, [self.batch, self.points, axes])
        parts = opset15.split(transposed(bridge, columns, (2, 0, 1)), 0, axes).outputs()
        self.scales: list[Any] = []
        self._axes = []
        # The first coordinate of a point, x, is along the last axis of the image.
        for part, size in zip(reversed(parts), self._sizes):
            column = reshaped(bridge, part, [self.batch, self.points])
            located, scale = self._located(column, size)
            self.scales.append(scale)
            self._axes.append(self._neighbours(located, size))

    def _number(self, value: float) -> Node:
        return self._bridge.full(value, "float32")

    def _located(self, point: Node, size: int) -> tuple[Any, Any]:
        """The coordinate of a point in elements of the image, and its derivative by the grid."""
        half = self._number((size - 1 if self._align else size) * 0.5)
        at = opset15.multiply(opset15.add(point, self._number(1.0)), half)
        if not self._align:
            at = opset15.subtract(at, self._number(0.5))
        if self._border == "border":
            return self._clipped(at, size, half)
        if self._border == "reflection":
            return self._reflected(at, size, half)
        return at, half

    def _clipped(self, at: Node, size: int, scale: NodeInput) -> tuple[Node, Node]:
        clipped = opset15.minimum(opset15.maximum(at, self._number(0.0)), self._number(size - 1.0))
        inside = opset15.convert(opset15.equal(clipped, at), "f32")
        return clipped, opset15.multiply(scale, inside)

    def _reflected(self, at: Node, size: int, scale: NodeInput) -> tuple[Node, Node]:
        shift = self._number(0.0 if self._align else 0.5)
        period = self._number(2.0 * (size - 1 if self._align else size))
        shifted = opset15.add(at, shift)
        far = opset15.abs(shifted)
        rounds = opset15.floor(opset15.divide(far, period))
        rest = opset15.subtract(far, opset15.multiply(rounds, period))
        back = opset15.subtract(period, rest)
        straight = opset15.equal(
            opset15.less(shifted, self._number(0.0)), opset15.greater(rest, back)
        )
        sign = opset15.select(straight, self._number(1.0), self._number(-1.0))
        scale = opset15.multiply(scale, sign)
        folded = opset15.subtract(opset15.minimum(rest, back), shift)
        if not self._align:
            return self._clipped(folded, size, scale)
        if size == 1:
            return opset15.multiply(opset15.convert(straight, "f32"), self._number(0.0)), scale
        return folded, scale

    def _neighbours(self, at: Any, size: int) -> list[_Neighbour]:
        if self._mode == "nearest":
            return [self._neighbour(opset15.round(at, "half_to_even"), size, None, 0)]
        low = opset15.floor(at)
        high = opset15.add(low, self._number(1.0))
        return [
            self._neighbour(low, size, opset15.subtract(high, at), -1),
            self._neighbour(high, size, opset15.subtract(at, low), 1),
        ]

    def _neighbour(self, at: Any, size: int, weight: NodeInput, sign: int) -> _Neighbour:
        last = self._number(size - 1.0)
        inside = opset15.logical_and(
            opset15.greater_equal(at, self._number(0.0)), opset15.less_equal(at, last)
        )
        position = opset15.convert(opset15.clamp(at, 0.0, size - 1.0), "i32")
        return _Neighbour(inside, position, weight, sign)

    def corners(self) -> list[tuple[_Neighbour, ...]]:
        """The image elements that contribute to a point, each a neighbour along each axis."""
        return list(product(*self._axes))

    def index(self, corner: Sequence[_Neighbour], outside: int) -> Node:
        """The index of each point's corner in the flat image, [N, P]; ``outside`` if not in it."""
        position: Any = corner[0].position
        inside: Any = corner[0].is_inside
        for neighbour, size in zip(corner[1:], self._sizes[1:]):
            position = opset15.multiply(position, self._bridge.full(size, "int32"))
            position = opset15.add(position, neighbour.position)
            inside = opset15.logical_and(inside, neighbour.is_inside)
        return opset15.select(inside, position, self._bridge.full(outside, "int32"))

    def weight(self, corner: Sequence[_Neighbour], without: int | None = None) -> Any:
        """The interpolation weight of a corner: the product of its weights along the axes.

        Args:
            without: An axis to leave out.

        Returns:
            ``None`` if the product is 1.
        """
        found = None
        for axis, neighbour in enumerate(corner):
            if axis == without or neighbour.weight is None:
                continue
            own = neighbour.weight
            found = own if found is None else opset15.multiply(found, own)
        return found

    def rows(self) -> Node:
        """The images as rows of channels, one for each element; a row of zeros after each image.

        For :meth:`value`, which reads the zeros for corners outside the image.
        """
        bridge, size = self._bridge, math.prod(self._sizes)
        lines = reshaped(bridge, self._x, [self.batch, self.channels, size])
        zero = bridge.full(0.0, "float32", [self.batch, 1, self.channels])
        rows = opset15.concat([transposed(bridge, lines, (0, 2, 1)), zero], 1)
        return reshaped(bridge, rows, [self.batch * (size + 1), self.channels])

    def value(self, rows: Node, corner: Sequence[_Neighbour]) -> Node:
        """The image elements at one corner of all points: [N, P, C]."""
        size = math.prod(self._sizes)
        first = np.arange(self.batch, dtype="int32")[:, None] * (size + 1)
        index = opset15.add(self.index(corner, size), opset15.constant(first))
        return opset15.gather(rows, index, self._bridge.ints([0]))

    def column(self, node: NodeInput) -> Node:
        """Reshapes [N, P] to [N, P, 1]."""
        return reshaped(self._bridge, node, [self.batch, self.points, 1])


_LIMITS = (
    Limit(
        "the mode must be bilinear or nearest",
        lambda op: op.attr("mode") in ("bilinear", "nearest"),
    ),
)


@converter("pd_op.grid_sample", limits=_LIMITS)
def grid_sample(bridge: NgraphBridge, op: Op) -> None:
    """``x`` at the points ``grid``, interpolated from neighbouring elements (``grid_sample``)."""
    sampling = _Sampling(bridge, op)
    rows = sampling.rows()
    total: Any = None
    for corner in sampling.corners():
        term, weight = sampling.value(rows, corner), sampling.weight(corner)
        if weight is not None:
            term = opset15.multiply(term, sampling.column(weight))
        total = term if total is None else opset15.add(total, term)
    lines = transposed(bridge, total, (0, 2, 1))
    shape = [sampling.batch, sampling.channels, *sampling.out]
    bridge.set_output_node(op, "out", reshaped(bridge, lines, shape))


@converter("pd_op.grid_sample_grad", limits=_LIMITS)
def grid_sample_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of image and grid (Paddle ``grid_sample_grad``)."""
    sampling = _Sampling(bridge, op)
    grad = bridge.get_input_node(op, "out_grad")
    grad = reshaped(bridge, grad, [sampling.batch, sampling.channels, 1, sampling.points])
    if op.has_output("x_grad"):
        bridge.set_output_node(op, "x_grad", _image_gradient(bridge, op, sampling, grad))
    if op.has_output("grid_grad"):
        bridge.set_output_node(op, "grid_grad", _points_gradient(bridge, op, sampling, grad))


def _image_gradient(bridge: NgraphBridge, op: Op, sampling: _Sampling, grad: Output) -> Node:
    """The gradient of the image: weighted gradients of all corners, summed by element.

    This package's gradient of max pooling with indices does the sum.
    """
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    corners = sampling.corners()
    shape = [sampling.batch, 1, 1, sampling.points]
    indices = [reshaped(bridge, sampling.index(corner, -1), shape) for corner in corners]
    index = opset15.concat(indices, 2)
    target = [sampling.batch, sampling.channels, len(corners), sampling.points]
    index = opset15.broadcast(index, bridge.ints(target))
    shares: Any = grad
    if sampling.weight(corners[0]) is not None:
        weights = [reshaped(bridge, sampling.weight(corner), shape) for corner in corners]
        shares = opset15.multiply(grad, opset15.concat(weights, 2))
    size = [math.prod(dims[2:-1]), dims[-1]]
    added = bridge.extension("MaxPoolWithIndexGrad", [index, shares], input=size)
    return reshaped(bridge, added, dims)


def _points_gradient(bridge: NgraphBridge, op: Op, sampling: _Sampling, grad: Output) -> Any:
    dims = bridge.shape(bridge.get_input_node(op, "grid"))
    corners = sampling.corners()
    if sampling.weight(corners[0]) is None:
        return bridge.full(0.0, "float32", dims)
    rows = sampling.rows()
    lines = reshaped(bridge, grad, [sampling.batch, sampling.channels, sampling.points])
    grads = transposed(bridge, lines, (0, 2, 1))
    products = []
    for corner in corners:
        product_ = opset15.multiply(sampling.value(rows, corner), grads)
        products.append(opset15.reduce_sum(product_, bridge.ints([2]), False))
    columns = []
    for axis in reversed(range(len(sampling.scales))):
        total: Any = None
        for corner, shared in zip(corners, products):
            term = opset15.multiply(sampling.weight(corner, without=axis), shared)
            if total is None:
                # The first corner is the lower neighbour along every axis, where the weight falls.
                total = opset15.negative(term)
            elif corner[axis].sign > 0:
                total = opset15.add(total, term)
            else:
                total = opset15.subtract(total, term)
        columns.append(sampling.column(opset15.multiply(total, sampling.scales[axis])))
    return reshaped(bridge, opset15.concat(columns, 2), dims)
