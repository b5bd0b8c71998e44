"""Slices of a tensor, or padding around it: slice, flip, crop, roll, pad.

Shapes are concrete while a function is built, so most gradients need only the shape of the forward
input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import Node, Output, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import ANY, BOOL, FLOAT, INT32, Role, converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.size_rules import slice_extent as taken_of
from paddle_ngraph.conversion.symbolic_sizes import Number, SymbolicSize
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import as_function
from paddle_ngraph.ops.indexing import gathered_slices as gathered
from paddle_ngraph.ops.nodes import axis_of, known_ints, reshaped
from paddle_ngraph.ops.spatial import AxisMap

_MOVED_DTYPES = FLOAT | INT32 | BOOL
_UNBOUNDED_RANGE = -(2**31), 2**31

# -- slices ----------------------------------------------------------------------------------------


@converter(
    "pd_op.slice",
    dtypes=ANY,
    inputs={"starts": Role.CONSTANT, "ends": Role.CONSTANT},
    moves=True,
    open_starts=True,
)
def slice_(bridge: NgraphBridge, op: Op) -> None:
    """``input[starts:ends]`` along ``axes``, without ``decrease_axis`` (Paddle ``slice``)."""
    x = bridge.get_input_node(op, "input")
    dims = bridge.shape(x)
    ranges = slice_ranges(bridge, op, dims)
    node = sliced(bridge, x, ranges)
    decrease = {axis_of(axis, len(dims)) for axis in op.attr("decrease_axis")}
    if decrease:
        kept = [taken.count for axis, taken in enumerate(ranges) if axis not in decrease]
        node = reshaped(bridge, node, kept)
    bridge.set_output_node(op, "out", node)


@converter(
    "pd_op.slice_grad",
    inputs={"starts": Role.CONSTANT, "ends": Role.CONSTANT, "input": Role.SHAPE_ONLY},
)
def slice_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` at the elements that ``slice`` read, 0 elsewhere (Paddle ``slice_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "input"))
    ranges = slice_ranges(bridge, op, dims)
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "input_grad", _scattered_back(bridge, out_grad, ranges, dims))


@converter(
    "pd_op.strided_slice",
    dtypes=ANY,
    inputs={"starts": Role.CONSTANT, "ends": Role.CONSTANT, "strides": Role.CONSTANT},
    moves=True,
    open_starts=True,
)
def strided_slice(bridge: NgraphBridge, op: Op) -> None:
    """``x[starts:ends:strides]`` along ``axes`` (Paddle ``strided_slice``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", sliced(bridge, x, slice_ranges(bridge, op, bridge.shape(x))))


@converter(
    "pd_op.strided_slice_grad",
    inputs={
        "starts": Role.CONSTANT,
        "ends": Role.CONSTANT,
        "strides": Role.CONSTANT,
        "x": Role.SHAPE_ONLY,
    },
)
def strided_slice_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` at the elements that the slice read, 0 elsewhere (``strided_slice_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    ranges = slice_ranges(bridge, op, dims)
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _scattered_back(bridge, out_grad, ranges, dims))


@converter("pd_op.flip", dtypes=ANY, moves=True)
def flip(bridge: NgraphBridge, op: Op) -> None:
    """``x`` reversed along every axis in ``axis`` (Paddle ``flip``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    ranges = [Positions(0, dim) for dim in dims]
    for axis in op.attr("axis"):
        ranges[axis_of(axis, len(dims))] = Positions(0, dims[axis]).reversed()
    bridge.set_output_node(op, "out", sliced(bridge, x, ranges))


@dataclass(frozen=True)
class Positions:
    """Evenly spaced indices along an axis: a ``range`` whose start and count may be symbolic sizes.

    Attributes:
        start: The first index.
        count: The number of indices.
        step: The distance between indices.
        read: An offset to add to all indices, which a run reads from a tensor of one element.
    """

    start: Number
    count: Number
    step: int = 1
    read: Output | None = None

    @property
    def stop(self) -> Number:
        """The end of the range, like that of ``range``: one step after the last index."""
        return self.start + self.count * self.step

    def are_all(self, size: Number) -> bool:
        """Whether the indices are 0 to ``size - 1``, in order: the slice is the whole axis."""
        return (
            self.read is None
            and self.step == 1
            and is_same_shape([self.start, self.count], [0, size])
        )

    def are_none(self) -> bool:
        """Whether the number of indices is 0."""
        return is_same_shape([self.count], [0])

    def reversed(self) -> Positions:
        """Returns the indices in reverse order."""
        return Positions(self.start + (self.count - 1) * self.step, self.count, -self.step)

    def has_dynamic_start(self) -> bool:
        """Whether the indices are consecutive, static in number, and begin at a dynamic index.

        That is: ``start`` is symbolic or ``read`` is given, ``count`` is static and positive, and
        ``step`` is 1. The slice then has a static shape along the axis.
        """
        is_dynamic_start = self.read is not None or isinstance(self.start, SymbolicSize)
        is_static = not isinstance(self.count, SymbolicSize) and self.count > 0
        return is_dynamic_start and is_static and self.step == 1

    def node(self, bridge: NgraphBridge) -> Node | Output:
        """The indices as a tensor; requires that :meth:`has_dynamic_start` is true."""
        first = bridge.ints([self.start]) if self.read is None else self.read
        return first if self.count == 1 else opset15.add(first, bridge.ints(range(self.count)))

    def fixed(self) -> range:
        """The indices as a Python range; makes symbolic sizes static, at their current values."""
        start, count = int(self.start), int(self.count)
        return range(start, start + count * self.step, self.step)


def slice_ranges(bridge: NgraphBridge, op: Op, dims: Sequence[Number]) -> list[Positions]:
    """The indices along each axis of ``x`` that a slice operator reads."""
    if not bridge.is_known(op, "starts") or not bridge.is_known(op, "ends"):
        return _runtime_ranges(bridge, op, dims)
    shapes = bridge.sizes.shapes
    with nullcontext() if shapes is None else shapes.guards.requiring_iterations():
        return _known_ranges(bridge, op, dims)


def _known_ranges(bridge: NgraphBridge, op: Op, dims: Sequence[Number]) -> list[Positions]:
    ranges = [Positions(0, dim) for dim in dims]
    starts, ends = (known_ints(bridge, op, name) for name in ("starts", "ends"))
    name = next((name for name in ("strides", "steps") if op.has_input(name)), None)
    strides = known_ints(bridge, op, name) if name else [1] * len(starts)
    for axis, start, end, stride in zip(op.attr("axes"), starts, ends, strides):
        axis = axis_of(axis, len(dims))
        stride = int(stride)
        taken = Positions(*taken_of(dims[axis], start, end, stride), stride)
        ranges[axis] = Positions(0, 0) if taken.are_none() else taken
    return ranges


def _runtime_ranges(bridge: NgraphBridge, op: Op, dims: Sequence[Number]) -> list[Positions]:
    """Indices of slices whose starts are known only in a run; falls back if out of range."""
    pairs = bridge.induction.offsets.slice_bounds(op)
    axes = [axis_of(axis, len(dims)) for axis in op.attr("axes")]
    if pairs is None or len(pairs) != len(axes):
        raise NgraphError("input 'starts' is known only at run time")
    spaces = [
        _UNBOUNDED_RANGE if start.base is None else (0, dims[axis] - (end.added - start.added) + 1)
        for axis, (start, end) in zip(axes, pairs)
    ]
    low, high = ([int(at) for at in side] for side in zip(*spaces))
    starts = _checked_starts(bridge, op, low, high)
    ranges = [Positions(0, dim) for dim in dims]
    for number, (axis, (start, end)) in enumerate(zip(axes, pairs)):
        if start.base is None:
            taken = Positions(*taken_of(dims[axis], start.added, end.added, 1))
            ranges[axis] = Positions(0, 0) if taken.are_none() else taken
            continue
        first = opset15.gather(starts, bridge.ints([number]), bridge.full(0, "int64")).output(0)
        ranges[axis] = Positions(0, end.added - start.added, read=first)
    return ranges


def _checked_starts(
    bridge: NgraphBridge, op: Op, low: Sequence[int], high: Sequence[int]
) -> Output:
    """The starts of a slice as one tensor, checked in each run; a list of them is joined."""
    starts, first = [], 0
    for position, spec in enumerate(op.inputs["starts"]):
        count = math.prod(spec.shape)
        part = slice(first, first + count)
        bridge.integers.require_range(op, "starts", low[part], high[part], position=position)
        start = bridge.get_input_node(op, "starts", position)
        starts.append(opset15.convert(reshaped(bridge, start, [count]), "i64"))
        first += count
    return (opset15.concat(starts, 0) if len(starts) > 1 else starts[0]).output(0)


def sliced(bridge: NgraphBridge, x: NodeInput, ranges: Sequence[Positions]) -> Node | Output:
    """The slice of ``x`` with the indices ``ranges``, one for each axis."""
    dims = bridge.shape(x)
    last = len(dims) - 1
    axes = [axis for axis, dim in enumerate(dims) if not ranges[axis].are_all(dim)]
    for axis in [axis for axis in axes if ranges[axis].has_dynamic_start()]:
        axes.remove(axis)
        x = gathered(bridge, x, ranges[axis].node(bridge), axis)
    by_gather = last in axes and ranges[last].step != 1 and isinstance(ranges[last].count, int)
    # A last axis with a step is sliced by Gather, since Slice copies its elements one by one.
    if by_gather:
        axes.remove(last)
    if axes:
        # An end of -1 would mean the last index: the end of a range that runs down to index 0 is
        # moved to before the first index instead.
        ends = [ranges[a].stop if ranges[a].stop >= 0 else -dims[a] - 1 for a in axes]
        x = opset15.slice(
            x,
            bridge.ints([ranges[axis].start for axis in axes]),
            bridge.ints(ends),
            bridge.ints([ranges[axis].step for axis in axes]),
            bridge.ints(axes),
        )
    if not by_gather:
        return x
    return opset15.gather(x, bridge.ints(ranges[last].fixed()), bridge.ints([last]))


def _scattered_back(
    bridge: NgraphBridge, part: Any, ranges: Sequence[Positions], dims: Sequence[Number]
) -> Node | Output:
    """A tensor of shape ``dims`` with ``part`` at the indices ``ranges``, and 0 elsewhere."""
    counts = [taken.count for taken in ranges]
    node = reshaped(bridge, part, counts)
    backwards = [axis for axis, taken in enumerate(ranges) if taken.step < 0]
    if backwards:
        whole = [Positions(0, count) for count in counts]
        reordered = [all_.reversed() if a in backwards else all_ for a, all_ in enumerate(whole)]
        node = sliced(bridge, node, reordered)
    upwards = [taken.reversed() if taken.step < 0 else taken for taken in ranges]
    for axis, taken in enumerate(upwards):
        if taken.step > 1 and taken.count > 1:
            node = _spread(bridge, node, axis, taken.step)
    before = [taken.start for taken in upwards]
    now = bridge.shape(node)
    after = [dim - first - n for dim, first, n in zip(dims, before, now)]
    return _padded(bridge, node, before, after, 0)


def _spread(bridge: NgraphBridge, node: NodeInput, axis: int, step: int) -> Node | Output:
    """Inserts ``step - 1`` zeros between neighbouring elements along ``axis``."""
    dims = bridge.shape(node)
    rank = len(dims)
    cells = reshaped(bridge, node, [*dims[: axis + 1], 1, *dims[axis + 1 :]])
    after = [0] * (rank + 1)
    after[axis + 1] = step - 1
    cells = _padded(bridge, cells, [0] * (rank + 1), after, 0)
    line = reshaped(bridge, cells, [*dims[:axis], dims[axis] * step, *dims[axis + 1 :]])
    ranges = [Positions(0, dim) for dim in bridge.shape(line)]
    ranges[axis] = Positions(0, (dims[axis] - 1) * step + 1)
    return sliced(bridge, line, ranges)


@converter(
    "pd_op.crop", dtypes=ANY, inputs={"shape": Role.CONSTANT, "offsets": Role.CONSTANT}, moves=True
)
def crop(bridge: NgraphBridge, op: Op) -> None:
    """``shape`` elements of ``x`` from ``offsets`` on; -1 takes all the rest (``crop``)."""
    x = bridge.get_input_node(op, "x")
    dims = bridge.shape(x)
    counts = known_ints(bridge, op, "shape")
    offsets = known_ints(bridge, op, "offsets")
    counts = [dim - first if n == -1 else n for dim, n, first in zip(dims, counts, offsets)]
    for dim, first, count in zip(dims, offsets, counts):
        # Rejected as by Paddle: the nodes would cut or pad without an error.
        if first < 0 or first + count > dim:
            raise NgraphError(f"crop to {count} elements from {first} on leaves an axis of {dim}")
    ranges = [Positions(first, count) for first, count in zip(offsets, counts)]
    bridge.set_output_node(op, "out", sliced(bridge, x, ranges))


@converter("pd_op.crop_grad", inputs={"offsets": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def crop_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` at the elements that ``crop`` read, 0 elsewhere (Paddle ``crop_grad``)."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out_grad = bridge.get_input_node(op, "out_grad")
    counts = bridge.shape(out_grad)
    offsets = known_ints(bridge, op, "offsets")
    ranges = [Positions(first, count) for first, count in zip(offsets, counts)]
    bridge.set_output_node(op, "x_grad", _scattered_back(bridge, out_grad, ranges, dims))


@converter("pd_op.roll", dtypes=ANY, inputs={"shifts": Role.CONSTANT}, moves=True)
def roll(bridge: NgraphBridge, op: Op) -> None:
    """``x`` shifted cyclically along ``axis``, or flattened without one (Paddle ``roll``)."""
    shifts = known_ints(bridge, op, "shifts")
    bridge.set_output_node(op, "out", _rolled(bridge, op, bridge.get_input_node(op, "x"), shifts))


@converter("pd_op.roll_grad", inputs={"shifts": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def roll_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` shifted in the other direction (Paddle ``roll_grad``)."""
    shifts = [-shift for shift in known_ints(bridge, op, "shifts")]
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _rolled(bridge, op, out_grad, shifts))


def _rolled(bridge: NgraphBridge, op: Op, x: Output, shifts: Sequence[int]) -> Node | Output:
    dims = bridge.shape(x)
    if op.attr("axis"):
        axes = [axis_of(axis, len(dims)) for axis in op.attr("axis")]
        return opset15.roll(x, bridge.ints(shifts), bridge.ints(axes))
    line = opset15.roll(reshaped(bridge, x, [-1]), bridge.ints(shifts), bridge.ints([0]))
    return reshaped(bridge, line, dims)


# -- padding ---------------------------------------------------------------------------------------


@converter("pd_op.pad", dtypes=_MOVED_DTYPES, inputs={"pad_value": Role.CONSTANT})
def pad(bridge: NgraphBridge, op: Op) -> None:
    """``x`` padded by ``pad_value``; ``paddings``: counts before and after each axis (``pad``)."""
    paddings = op.attr("paddings")
    value = bridge.constant(op, "pad_value").item()
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _padded(bridge, x, paddings[::2], paddings[1::2], value))


@converter("pd_op.pad_grad", inputs={"pad_value": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def pad_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` without the padding (Paddle ``pad_grad``)."""
    paddings = op.attr("paddings")
    _set_cropped(bridge, op, paddings[::2])


@converter("pd_op.pad_double_grad", inputs={"pad_value": Role.CONSTANT})
def pad_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """``grad_x_grad`` padded as ``x``, even by the same value (Paddle ``pad_double_grad``)."""
    pad(bridge, as_function(op))


_PAD3D_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


@converter("pd_op.pad3d", dtypes=_MOVED_DTYPES, inputs={"paddings": Role.CONSTANT})
def pad3d(bridge: NgraphBridge, op: Op) -> None:
    """``x`` padded along the three spatial axes (Paddle ``pad3d``).

    ``paddings`` are left, right, top, bottom, front, back; reflect omits the border element,
    circular continues at the other end.
    """
    before, after = _pad3d_frame(bridge, op)
    node: Any = bridge.get_input_node(op, "x")
    if op.attr("mode") == "circular":
        for axis, dim in enumerate(bridge.shape(node)):
            if before[axis] or after[axis]:
                node = _frame_map("circular", dim, before[axis], after[axis]).apply(
                    bridge, node, axis
                )
    else:
        mode = _PAD3D_MODES[op.attr("mode")]
        node = _padded(bridge, node, before, after, op.attr("pad_value"), mode)
    bridge.set_output_node(op, "out", node)


@converter("pd_op.pad3d_grad", inputs={"paddings": Role.CONSTANT, "x": Role.SHAPE_ONLY})
def pad3d_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad``, with gradients of the padding added at its sources (``pad3d_grad``)."""
    before, after = _pad3d_frame(bridge, op)
    node: Any = bridge.get_input_node(op, "out_grad")
    if op.attr("mode") == "constant":
        if min(before + after) >= 0:
            _set_cropped(bridge, op, before)
        else:  # negative padding has cropped: cropped elements have gradient 0
            back = [-width for width in before], [-width for width in after]
            bridge.set_output_node(op, "x_grad", _padded(bridge, node, *back, 0))
        return
    for axis, dim in enumerate(bridge.shape(bridge.get_input_node(op, "x"))):
        if before[axis] or after[axis]:
            frame = _frame_map(op.attr("mode"), dim, before[axis], after[axis])
            node = frame.apply_transposed(bridge, node, axis, dim)
    bridge.set_output_node(op, "x_grad", node)


@converter("pd_op.pad3d_double_grad", inputs={"paddings": Role.CONSTANT})
def pad3d_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """``grad_x_grad`` padded as ``x``, even by the same value (Paddle ``pad3d_double_grad``)."""
    pad3d(bridge, as_function(op))


def _frame_map(mode: str, size: int, before: int, after: int) -> AxisMap:
    """The map that pads an axis: for each padded element, the index of its source."""
    size = int(size)
    at = np.arange(-before, size + after)
    if mode == "circular":
        at = at % size
    elif mode == "replicate":
        at = np.clip(at, 0, size - 1)
    else:
        at = np.minimum(np.abs(at), 2 * size - 2 - at)
    return AxisMap(at[:, None])


def _pad3d_frame(bridge: NgraphBridge, op: Op) -> tuple[list[int], list[int]]:
    """The padding before, and the padding after, each of the five axes."""
    paddings = known_ints(bridge, op, "paddings")
    sides = list(zip(paddings[::2], paddings[1::2]))[::-1]
    channels_last = op.attr("data_format") == "NDHWC"
    frame = [(0, 0), *sides, (0, 0)] if channels_last else [(0, 0), (0, 0), *sides]
    return [before for before, _ in frame], [after for _, after in frame]


def _set_cropped(bridge: NgraphBridge, op: Op, before: Sequence[int]) -> None:
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    ranges = [Positions(first, dim) for first, dim in zip(before, dims)]
    out_grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", sliced(bridge, out_grad, ranges))


def _padded(
    bridge: NgraphBridge,
    x: NodeInput,
    before: Sequence[int],
    after: Sequence[int],
    value: float,
    mode: str = "constant",
) -> Node | Output:
    if not any(before) and not any(after):
        return x
    dtype = x.get_element_type()
    fill = bridge.full(value, dtype) if mode == "constant" else None
    return opset15.pad(x, bridge.ints(before), bridge.ints(after), mode, fill)
