"""Interpolation: nearest, linear over one to three axes, cubic, and their gradients.

The axes are interpolated one after the other, each by a map with constant weights; a gradient
applies the transposed maps. Indices and weights are computed with the rounding of plain Paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from openvino import Node, opset11
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.registry import Role, converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import Number, is_symbolic
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.nodes import known_ints
from paddle_ngraph.ops.spatial import AxisMap, is_channels_last
from paddle_ngraph.paddle_private import releases

_CUBIC = -0.75  # the parameter of the cubic convolution kernel, as in Paddle


def _scales(bridge: NgraphBridge, op: Op, axes: int) -> list[float]:
    """The scale factors along each axis; -1 if the operator gives output sizes instead."""
    if op.has_input("scale_tensor"):
        given = [float(scale) for scale in bridge.constant(op, "scale_tensor").reshape(-1)]
        return given if len(given) > 1 else given * axes
    return [float(np.float32(scale)) for scale in op.attr("scale", ())] or [-1.0] * axes


def _sizes(
    bridge: NgraphBridge, op: Op, dims: Sequence[Number], scales: Sequence[float]
) -> list[Number]:
    for name in ("size_tensor", "out_size"):
        if op.has_input(name):
            return known_ints(bridge, op, name)
    if scales[0] > 0:
        if all(s == int(s) and dim * int(s) <= 2**24 for dim, s in zip(dims, scales)):
            return [dim * int(s) for dim, s in zip(dims, scales)]
        return [int(np.float32(dim) * np.float32(s)) for dim, s in zip(dims, scales)]
    return [int(op.attr(name)) for name in ("out_d", "out_h", "out_w")[-len(dims) :]]


def _ratio(op: Op, size: int, out: int, scale: float) -> np.float32:
    """The distance between two neighbouring output elements, in elements of the input."""
    if out <= 1 and (op.type not in releases.CURRENT.centred or op.attr("align_corners")):
        # A single output element is at the first element of the input: there is no distance.
        return np.float32(0)
    if op.attr("align_corners"):
        return np.float32(size - 1) / np.float32(out - 1)
    return np.float32(1.0 / scale) if scale > 0 else np.float32(size) / np.float32(out)


def _centres(ratio: np.float32, out: int) -> np.ndarray:
    """The coordinates in the input of the centres of the output's elements, float64."""
    return np.float64(ratio) * (np.arange(out) + 0.5) - 0.5


def _corners(ratio: np.float32, out: int) -> np.ndarray:
    return ratio * np.arange(out, dtype=np.float32)


def _nearest(op: Op, size: int, out: int, ratio: np.float32) -> AxisMap:
    at = _corners(ratio, out).astype(np.float64) + (0.5 if op.attr("align_corners") else 0.0)
    return AxisMap(np.minimum(at.astype(np.int64), size - 1)[:, None])


def _linear(op: Op, size: int, out: int, ratio: np.float32) -> AxisMap:
    by_centres = op.attr("align_mode") == 0 and not op.attr("align_corners")
    at = _centres(ratio, out) if by_centres else _corners(ratio, out)
    left = np.clip(at.astype(np.int64), 0, size - 1)
    share = np.maximum(at.astype(np.float32), 0) - left.astype(np.float32)
    positions = np.stack([left, np.minimum(left + 1, size - 1)], 1)
    return AxisMap(positions, np.stack([1 - share, share], 1))


def _cubic(op: Op, size: int, out: int, ratio: np.float32) -> AxisMap:
    at = _corners(ratio, out) if op.attr("align_corners") else _centres(ratio, out)
    at = at.astype(np.float32)
    left = np.floor(at)
    share = at - left
    positions = np.clip(left[:, None].astype(np.int64) + np.arange(-1, 3), 0, size - 1)
    weights = [
        _cubic_outer(1 + share),
        _cubic_inner(share),
        _cubic_inner(1 - share),
        _cubic_outer(2 - share),
    ]
    return AxisMap(positions, np.stack(weights, 1))


def _cubic_inner(t: np.ndarray) -> np.ndarray:
    """The cubic convolution kernel at a distance ``t`` of at most 1."""
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def _cubic_outer(t: np.ndarray) -> np.ndarray:
    """The cubic convolution kernel at a distance ``t`` from 1 to 2."""
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


_AXIS_MAPS: dict[str, Callable[[Op, int, int, np.float32], AxisMap]] = {
    "nearest": _nearest,
    "linear": _linear,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
}


def _maps(bridge: NgraphBridge, op: Op) -> list[tuple[int, int, AxisMap]]:
    """(axis, input size, interpolation) of each resized axis; the axis that shrinks most first."""
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    first = 1 if is_channels_last(op) else 2
    axes = range(first, first + len(dims) - 2)
    sizes = [dims[axis] for axis in axes]
    scales = _scales(bridge, op, len(sizes))
    outs = _sizes(bridge, op, sizes, scales)
    if outs == sizes:
        return []
    axis_map = _AXIS_MAPS[op.attr("interp_method")]
    found = []
    for axis, size, out, scale in zip(axes, sizes, outs, scales):
        ratio = _ratio(op, size, out, scale)
        found.append((axis, size, out, axis_map(op, size, out, ratio)))
    found.sort(key=lambda item: (item[2] / item[1], -item[0]))
    return [(axis, size, mapping) for axis, size, _, mapping in found]


def interpolate(bridge: NgraphBridge, op: Op) -> None:
    """``x`` interpolated at other sizes (``nearest_interp``, ``bilinear_interp`` and so on)."""
    node: Any = bridge.get_input_node(op, "x")
    if repeated := _repeats(bridge, op):
        bridge.set_output_node(op, "output", _upsampled(node, *repeated))
        return
    maps = _maps(bridge, op)
    factors = [mapping.repeats() for _, _, mapping in maps]
    if maps and len(bridge.shape(node)) == 4 and all(factor in (2, 4, 8, 16) for factor in factors):
        node = _upsampled(node, [axis for axis, _, _ in maps], factors)
    else:
        for axis, _, mapping in maps:
            node = mapping.apply(bridge, node, axis)
    bridge.set_output_node(op, "output", node)


def _repeats(bridge: NgraphBridge, op: Op) -> tuple[list[int], list[int]] | None:
    """Axes and factors if upsampling only repeats the elements of an image of dynamic size.

    Else ``None``.
    """
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    axes = [1, 2] if is_channels_last(op) else [2, 3]
    if len(dims) != 4 or op.attr("interp_method") != "nearest" or op.attr("align_corners"):
        return None
    sizes = [dims[axis] for axis in axes]
    scales = _scales(bridge, op, 2)
    if not is_symbolic(sizes) or not all(scale in (2, 4, 8, 16) for scale in scales):
        return None
    outs = [size * int(scale) for size, scale in zip(sizes, scales)]
    if not is_same_shape(_sizes(bridge, op, sizes, scales), outs):
        return None
    return axes, [int(scale) for scale in scales]


def _upsampled(node: NodeInput, axes: list[int], factors: list[int]) -> Node:
    """Repeats each element along ``axes``; the factors are powers of two, with exact inverses."""
    return opset11.interpolate(
        node,
        opset11.constant(np.array(factors, np.float32)),
        mode="nearest",
        shape_calculation_mode="scales",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        axes=opset11.constant(np.array(axes, np.int64)),
    )


def interpolate_grad(bridge: NgraphBridge, op: Op) -> None:
    """Adds each ``output_grad``, times its weights, to its source elements (``*_interp_grad``)."""
    node: Any = bridge.get_input_node(op, "output_grad")
    for axis, size, mapping in reversed(_maps(bridge, op)):
        node = mapping.apply_transposed(bridge, node, axis, size)
    bridge.set_output_node(op, "x_grad", node)


_SIZES = dict.fromkeys(("out_size", "size_tensor", "scale_tensor"), Role.CONSTANT)

for _kind in _AXIS_MAPS:
    converter(f"pd_op.{_kind}_interp", inputs=_SIZES)(interpolate)
    converter(f"pd_op.{_kind}_interp_grad", inputs={**_SIZES, "x": Role.SHAPE_ONLY})(
        interpolate_grad
    )
