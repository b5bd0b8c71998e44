"""Images rearranged: pixel and channel shuffle, unfold and fold, temporal shift.

Each operator is a data movement, and its gradient is the inverse movement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import Node, Output, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import reshaped, transposed
from paddle_ngraph.ops.spatial import AxisMap, is_channels_last

# -- pixels and channels ---------------------------------------------------------------------------


def _to_pixels(bridge: NgraphBridge, x: Output, factor: int, channels_last: bool) -> Node:
    """Moves ``factor * factor`` channels into squares of pixels: pixel shuffle."""
    if channels_last:
        batch, height, width, channels = bridge.shape(x)
        channels //= factor * factor
        x = reshaped(bridge, x, [batch, height, width, channels, factor, factor])
        x = transposed(bridge, x, (0, 1, 4, 2, 5, 3))
        return reshaped(bridge, x, [batch, height * factor, width * factor, channels])
    batch, channels, height, width = bridge.shape(x)
    channels //= factor * factor
    x = reshaped(bridge, x, [batch, channels, factor, factor, height, width])
    x = transposed(bridge, x, (0, 1, 4, 2, 5, 3))
    return reshaped(bridge, x, [batch, channels, height * factor, width * factor])


def _to_channels(bridge: NgraphBridge, x: Output, factor: int, channels_last: bool) -> Node:
    """Moves squares of pixels into ``factor * factor`` channels: pixel unshuffle."""
    if channels_last:
        batch, height, width, channels = bridge.shape(x)
        height, width = height // factor, width // factor
        x = reshaped(bridge, x, [batch, height, factor, width, factor, channels])
        x = transposed(bridge, x, (0, 1, 3, 5, 2, 4))
        return reshaped(bridge, x, [batch, height, width, channels * factor * factor])
    batch, channels, height, width = bridge.shape(x)
    height, width = height // factor, width // factor
    x = reshaped(bridge, x, [batch, channels, height, factor, width, factor])
    x = transposed(bridge, x, (0, 1, 3, 5, 2, 4))
    return reshaped(bridge, x, [batch, channels * factor * factor, height, width])


@converter("pd_op.pixel_shuffle")
def pixel_shuffle(bridge: NgraphBridge, op: Op) -> None:
    """[N, C * r * r, H, W] -> [N, C, H * r, W * r] (Paddle ``pixel_shuffle``)."""
    x, factor = bridge.get_input_node(op, "x"), int(op.attr("upscale_factor"))
    bridge.set_output_node(op, "out", _to_pixels(bridge, x, factor, is_channels_last(op)))


@converter("pd_op.pixel_shuffle_grad")
def pixel_shuffle_grad(bridge: NgraphBridge, op: Op) -> None:
    """Reverts :func:`pixel_shuffle` for ``out_grad`` (Paddle ``pixel_shuffle_grad``)."""
    grad, factor = bridge.get_input_node(op, "out_grad"), int(op.attr("upscale_factor"))
    bridge.set_output_node(op, "x_grad", _to_channels(bridge, grad, factor, is_channels_last(op)))


@converter("pd_op.pixel_unshuffle")
def pixel_unshuffle(bridge: NgraphBridge, op: Op) -> None:
    """[N, C, H * r, W * r] -> [N, C * r * r, H, W] (Paddle ``pixel_unshuffle``)."""
    x, factor = bridge.get_input_node(op, "x"), int(op.attr("downscale_factor"))
    bridge.set_output_node(op, "out", _to_channels(bridge, x, factor, is_channels_last(op)))


@converter("pd_op.pixel_unshuffle_grad")
def pixel_unshuffle_grad(bridge: NgraphBridge, op: Op) -> None:
    """Reverts :func:`pixel_unshuffle` for ``out_grad`` (Paddle ``pixel_unshuffle_grad``)."""
    grad, factor = bridge.get_input_node(op, "out_grad"), int(op.attr("downscale_factor"))
    bridge.set_output_node(op, "x_grad", _to_pixels(bridge, grad, factor, is_channels_last(op)))


@converter("pd_op.channel_shuffle")
def channel_shuffle(bridge: NgraphBridge, op: Op) -> None:
    """Interleaves the channels of ``groups`` groups (Paddle ``channel_shuffle``)."""
    x, groups = bridge.get_input_node(op, "x"), int(op.attr("groups"))
    bridge.set_output_node(op, "out", _shuffled(bridge, op, x, groups))


@converter("pd_op.channel_shuffle_grad")
def channel_shuffle_grad(bridge: NgraphBridge, op: Op) -> None:
    """Reverts :func:`channel_shuffle` for ``out_grad`` (Paddle ``channel_shuffle_grad``)."""
    grad = bridge.get_input_node(op, "out_grad")
    channels = bridge.shape(grad)[-1 if is_channels_last(op) else 1]
    node = _shuffled(bridge, op, grad, channels // int(op.attr("groups")))
    bridge.set_output_node(op, "x_grad", node)


def _shuffled(bridge: NgraphBridge, op: Op, x: Output, groups: int) -> Node:
    """``x`` with its channels, as a matrix [groups, C / groups], transposed."""
    dims = bridge.shape(x)
    axis = len(dims) - 1 if is_channels_last(op) else 1
    before, after = dims[:axis], dims[axis + 1 :]
    cells = reshaped(bridge, x, [*before, groups, dims[axis] // groups, *after])
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(dims) + 1)]
    return reshaped(bridge, transposed(bridge, cells, order), dims)


# -- patches ---------------------------------------------------------------------------------------


class _Patches:
    """The patches of ``unfold``: along each axis, the elements under each element of the kernel."""

    def __init__(self, op: Op, size: Sequence[int]) -> None:
        kernel = [int(k) for k in op.attr("kernel_sizes")]
        strides = [int(s) for s in op.attr("strides")]
        dilations = [int(d) for d in op.attr("dilations")]
        paddings = [int(p) for p in op.attr("paddings")]
        self._before, self._after = paddings[:2], paddings[2:]
        self._size = list(size)
        self._kernel = kernel
        self._out = []
        self._maps = []
        for axis in range(2):
            extent = dilations[axis] * (kernel[axis] - 1) + 1
            reach = self._padded(axis) - extent
            out = reach // strides[axis] + 1
            taps = np.arange(kernel[axis])[:, None] * dilations[axis]
            at = taps + np.arange(out)[None, :] * strides[axis]
            self._out.append(out)
            self._maps.append(AxisMap(at.reshape(-1, 1)))

    def _padded(self, axis: int) -> int:
        return self._size[axis] + self._before[axis] + self._after[axis]

    def take(self, bridge: NgraphBridge, x: Output) -> Node:
        """Extracts the patches of ``x``: [N, C, H, W] -> [N, C * KH * KW, OH * OW]."""
        batch, channels, *_ = bridge.shape(x)
        node: Any = x
        if any(self._before + self._after):
            before = bridge.ints([0, 0, *self._before])
            after = bridge.ints([0, 0, *self._after])
            node = opset15.pad(x, before, after, "constant", bridge.full(0.0, "float32"))
        for axis in (1, 0):
            node = self._maps[axis].apply(bridge, node, 2 + axis)
        (rows, columns), (height, width) = self._kernel, self._out
        node = reshaped(bridge, node, [batch, channels, rows, height, columns, width])
        node = transposed(bridge, node, (0, 1, 2, 4, 3, 5))
        return reshaped(bridge, node, [batch, channels * rows * columns, height * width])

    def add(self, bridge: NgraphBridge, patches: Output) -> Any:
        """The sum of windows, gradient of ``take``: [N, C * KH * KW, OH * OW] -> [N, C, H, W]."""
        (rows, columns), (height, width) = self._kernel, self._out
        batch, channels, _ = bridge.shape(patches)
        channels //= rows * columns
        node = reshaped(bridge, patches, [batch, channels, rows, columns, height, width])
        node = transposed(bridge, node, (0, 1, 2, 4, 3, 5))
        node = reshaped(bridge, node, [batch, channels, rows * height, columns * width])
        for axis in (0, 1):
            padded = self._padded(axis)
            node = self._maps[axis].apply_transposed(bridge, node, 2 + axis, padded)
            begin = self._before[axis]
            inside = AxisMap(np.arange(begin, begin + self._size[axis])[:, None])
            node = inside.apply(bridge, node, 2 + axis)
        return node


@converter("pd_op.unfold")
def unfold(bridge: NgraphBridge, op: Op) -> None:
    """The elements of ``x`` under each position of the kernel, as columns (Paddle ``unfold``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _Patches(op, bridge.shape(x)[2:]).take(bridge, x))


@converter("pd_op.fold")
def fold(bridge: NgraphBridge, op: Op) -> None:
    """The image of which ``x`` are the patches; overlaps are summed (Paddle ``fold``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _Patches(op, op.attr("output_sizes")).add(bridge, x))


@converter("pd_op.fold_grad", inputs={"x": Role.SHAPE_ONLY})
def fold_grad(bridge: NgraphBridge, op: Op) -> None:
    """The patches of ``out_grad``, as columns (Paddle ``fold_grad``)."""
    grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _Patches(op, op.attr("output_sizes")).take(bridge, grad))


# -- time ------------------------------------------------------------------------------------------


@converter("pd_op.temporal_shift")
def temporal_shift(bridge: NgraphBridge, op: Op) -> None:
    """Some channels from the step before, some from the one after (Paddle ``temporal_shift``)."""
    x = bridge.get_input_node(op, "x")
    bridge.set_output_node(op, "out", _shifted(bridge, op, x, 1))


@converter("pd_op.temporal_shift_grad")
def temporal_shift_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` shifted in the other direction (Paddle ``temporal_shift_grad``)."""
    grad = bridge.get_input_node(op, "out_grad")
    bridge.set_output_node(op, "x_grad", _shifted(bridge, op, grad, -1))


def _shifted(bridge: NgraphBridge, op: Op, x: Output, direction: int) -> Node:
    """Shifts some channels by ``direction`` time steps, as many others by ``-direction``."""
    dims = bridge.shape(x)
    axis = 3 if is_channels_last(op) else 1
    channels, steps, ratio = dims[axis], int(op.attr("seg_num")), np.float32(op.attr("shift_ratio"))
    first, second = (int(np.float32(count) * ratio) for count in (channels, 2 * channels))
    lengths = [first, second - first, channels - second]
    node = reshaped(bridge, x, [dims[0] // steps, steps, *dims[1:]])
    moves = [move for move, length in zip((direction, -direction, 0), lengths) if length]
    lengths = [length for length in lengths if length]
    parts = opset15.variadic_split(node, axis + 1, bridge.ints(lengths)).outputs()
    moved = []
    for part, move in zip(parts, moves):
        if move:
            before, after = ([0, sign, 0, 0, 0] for sign in (move, -move))
            zero = bridge.full(0.0, "float32")
            part = opset15.pad(part, bridge.ints(before), bridge.ints(after), "constant", zero)
        moved.append(part)
    return reshaped(bridge, opset15.concat(moved, axis + 1), dims)
