"""Pooling over two or three axes, with and without indices, its gradients and its inverse.

This package's operators (``core/ov/pool_ops.h``) cover semantics that OpenVINO's own pooling lacks:
NaN in a maximum, the first of several maxima, windows inside the padding. These operators are
two-dimensional; pooling over three axes is reduced to two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from openvino import Output, opset1, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.node_tools import select
from paddle_ngraph.conversion.passes.blocked_layout import Blocked
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import as_function
from paddle_ngraph.ops.nodes import reshaped, transposed
from paddle_ngraph.ops.spatial import AxisMap, get_data, padding, set_data

_LIMITS = (
    Limit(
        "adaptive maximum without a mask",
        lambda op: op.attr("pooling_type") == "avg" or not op.attr("adaptive"),
    ),
    Limit(
        "a padding is negative",
        lambda op: min(op.attr("paddings"), default=0) >= 0,
    ),
)


_SPATIAL_FIELDS = ("size", "kernel", "strides", "begin", "out")

# Initial value of a maximum in plain Paddle: the result of a window inside the padding.
_FLOAT32_MIN = float(np.finfo("float32").min)


@dataclass(frozen=True)
class _Pooling:
    """The attributes of one pooling of data [N, C, H, W] or [N, C, D, H, W] and its sizes."""

    size: list[int]
    kernel: list[int]
    strides: list[int]
    begin: list[int]
    out: list[int]
    adaptive: bool
    exclusive: bool

    def attributes(self) -> dict[str, Any]:
        """The pooling as attributes of this package's pooling operators."""
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "pads": self.begin,
            "output": self.out,
            "adaptive": self.adaptive,
            "exclusive": self.exclusive,
        }

    def end(self, axis: int) -> int:
        """The padding after the input along ``axis`` that windows cover."""
        reach = (self.out[axis] - 1) * self.strides[axis] + self.kernel[axis]
        return max(0, reach - self.size[axis] - self.begin[axis])

    def is_even(self) -> bool:
        """Whether the windows of an adaptive pooling do not overlap, and all have one size."""
        return all(size % out == 0 for size, out in zip(self.size, self.out))

    def plane(self) -> _Pooling:
        """The pooling along the last two of three axes."""
        picked: dict[str, Any] = {name: getattr(self, name)[1:] for name in _SPATIAL_FIELDS}
        return replace(self, **picked)

    def depth(self, width: int) -> _Pooling:
        """The pooling along the first of three axes, applied to [N, C, D, width]."""
        rest = {"size": width, "kernel": 1, "strides": 1, "begin": 0, "out": width}
        if self.adaptive:
            rest["kernel"] = width
        picked: dict[str, Any] = {
            name: [getattr(self, name)[0], rest[name]] for name in _SPATIAL_FIELDS
        }
        return replace(self, **picked)

    def window(self, axis: int, index: int) -> range:
        """The indices of the input under window ``index``, padding excluded."""
        begin = index * self.strides[axis] - self.begin[axis]
        return range(max(begin, 0), min(begin + self.kernel[axis], self.size[axis]))

    def has_data_in_each_window(self) -> bool:
        """Whether every window has an element that is not padding, as the first and the last do."""
        return self.adaptive or all(
            self.kernel[axis] > begin and (out - 1) * self.strides[axis] - begin < self.size[axis]
            for axis, (begin, out) in enumerate(zip(self.begin, self.out))
        )

    def is_global(self) -> bool:
        """Whether there is a single window, which covers the whole input."""
        return (
            self.kernel == self.size and all(out == 1 for out in self.out) and not any(self.begin)
        )

    def has_openvino_divisor(self) -> bool:
        """Whether OpenVINO's average has the divisor of plain Paddle's.

        The divisors differ for windows inside the padding, and, with padding included, for windows
        that reach beyond it.
        """
        for axis in range(len(self.size)):
            begin, end, kernel = self.begin[axis], self.end(axis), self.kernel[axis]
            if max(begin, end) >= kernel or (not self.exclusive and end > begin):
                return False
        return True


def _pooling(op: Op, size: list[int], kernel: list[int]) -> _Pooling:
    strides = [int(stride) for stride in op.attr("strides")]
    adaptive, whole = bool(op.attr("adaptive")), bool(op.attr("global_pooling"))
    exclusive = bool(op.attr("exclusive", True))
    if adaptive:
        return _Pooling(size, kernel, strides, [0] * len(size), kernel, adaptive, exclusive)
    if whole:
        none, one = [0] * len(size), [1] * len(size)
        return _Pooling(size, size, strides, none, one, adaptive, exclusive)
    begin, end = padding(op, size, kernel, strides)
    out = [
        (size[i] + begin[i] + end[i] - kernel[i] + (strides[i] - 1 if op.attr("ceil_mode") else 0))
        // strides[i]
        + 1
        for i in range(len(size))
    ]
    return _Pooling(size, kernel, strides, begin, out, adaptive, exclusive)


def _kernel(bridge: NgraphBridge, op: Op) -> list[int]:
    """The kernel size, which is an input of some operators, and an attribute of others."""
    if op.has_input("kernel_size"):
        return [int(size) for size in bridge.constant(op, "kernel_size").reshape(-1)]
    return [int(size) for size in op.attr("kernel_size")]


@converter("pd_op.pool2d", inputs={"kernel_size": Role.CONSTANT}, limits=_LIMITS)
@converter("pd_op.pool3d", limits=_LIMITS)
def pool(bridge: NgraphBridge, op: Op) -> None:
    """The maximum or average of each window (Paddle ``pool2d``, ``pool3d``)."""
    x = get_data(bridge, op, "x")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    pooled = _maximum if op.attr("pooling_type") == "max" else _average
    set_data(bridge, op, "out", pooled(bridge, x, pooling))


@converter("pd_op.pool2d_grad", inputs={"kernel_size": Role.CONSTANT}, limits=_LIMITS)
@converter("pd_op.pool3d_grad", limits=_LIMITS)
def pool_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradient to each window's first maximum, or in equal shares to all (``pool2d_grad``)."""
    x, grad = get_data(bridge, op, "x"), get_data(bridge, op, "out_grad")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    if op.attr("pooling_type") == "max":
        x_grad = _maximum_grad(bridge, x, get_data(bridge, op, "out"), grad, pooling)
    else:
        x_grad = _average_grad(bridge, x, grad, pooling)
    set_data(bridge, op, "x_grad", x_grad)


_AVERAGES = Limit("it takes maxima", lambda op: op.attr("pooling_type") == "avg")


@converter(
    "pd_op.pool2d_double_grad",
    inputs={"kernel_size": Role.CONSTANT, "x": Role.SHAPE_ONLY},
    limits=[*_LIMITS, _AVERAGES],
)
def pool2d_double_grad(bridge: NgraphBridge, op: Op) -> None:
    """The averages of ``grad_x_grad`` (Paddle ``pool2d_double_grad``)."""
    pool(bridge, as_function(op))


def _in_blocks(layout: Blocked, x: Output, pooling: _Pooling) -> Output | None:
    """``x`` in its blocked layout; ``None`` without one, or if padding channels may not stay 0."""
    return layout.find(x) if pooling.has_data_in_each_window() else None


def _pooled_in_blocks(
    operator: str, bridge: NgraphBridge, x: Output, pooling: _Pooling
) -> Any | None:
    """``x`` pooled by ``operator`` in its blocked layout; ``None`` if it has no such layout."""
    layout = Blocked.of(bridge)
    found = _in_blocks(layout, x, pooling)
    if found is None:
        return None
    pooled = bridge.extension(operator, [found], **pooling.attributes())
    return layout.plain(pooled, bridge.shape(x)[1])


def _average(bridge: NgraphBridge, x: Output, pooling: _Pooling) -> Any:
    pooled = _pooled_in_blocks("PaddleAvgPool", bridge, x, pooling)
    if pooled is not None:
        return pooled
    if pooling.adaptive and pooling.is_even():
        steps = [size // out for size, out in zip(pooling.size, pooling.out)]
        pooling = replace(pooling, adaptive=False, kernel=steps, strides=steps)
    if pooling.adaptive and not bridge.on_cpu:
        return opset15.adaptive_avg_pool(x, bridge.ints(pooling.out))
    if pooling.adaptive or not pooling.has_openvino_divisor():
        return _average_by_planes(bridge, x, pooling)
    # A mean over all spatial axes is equal, and does not depend on the size of the input.
    if pooling.is_global():
        return opset15.reduce_mean(x, bridge.ints(range(2, 2 + len(pooling.size))), True)
    end = [pooling.end(axis) for axis in range(len(pooling.size))]
    return opset15.avg_pool(
        x, pooling.strides, pooling.begin, end, pooling.kernel, exclude_pad=pooling.exclusive
    )


def _average_by_planes(bridge: NgraphBridge, x: Output, pooling: _Pooling) -> Any:
    if len(pooling.size) == 2:
        return bridge.extension("PaddleAvgPool", [x], **pooling.attributes())
    batch, channels, depth, *plane = bridge.shape(x)
    deep = pooling.depth(pooling.out[1] * pooling.out[2])
    flat = reshaped(bridge, x, [batch, channels * depth, *plane])
    pooled = bridge.extension("PaddleAvgPool", [flat], **pooling.plane().attributes())
    column = reshaped(bridge, pooled, [batch, channels, *deep.size])
    pooled = bridge.extension("PaddleAvgPool", [column], **deep.attributes())
    return reshaped(bridge, pooled, [batch, channels, *pooling.out])


def _average_grad(bridge: NgraphBridge, x: Output, grad: Output, pooling: _Pooling) -> Any:
    layout = Blocked.of(bridge)
    found = _in_blocks(layout, x, pooling)
    if found is not None:
        grad = layout.reordered(grad, bridge.shape(found)[4])
        attributes = pooling.attributes()
        spread = bridge.extension("PaddleAvgPoolGrad", [grad], input=pooling.size, **attributes)
        return layout.plain(spread, bridge.shape(x)[1])
    if len(pooling.size) == 2:
        return bridge.extension(
            "PaddleAvgPoolGrad", [grad], input=pooling.size, **pooling.attributes()
        )
    batch, channels, *_ = bridge.shape(grad)
    deep, plane = pooling.depth(pooling.out[1] * pooling.out[2]), pooling.plane()
    column = reshaped(bridge, grad, [batch, channels, *deep.out])
    spread = bridge.extension("PaddleAvgPoolGrad", [column], input=deep.size, **deep.attributes())
    flat = reshaped(bridge, spread, [batch, channels * pooling.size[0], *plane.out])
    spread = bridge.extension("PaddleAvgPoolGrad", [flat], input=plane.size, **plane.attributes())
    return reshaped(bridge, spread, [batch, channels, *pooling.size])


def _maximum(bridge: NgraphBridge, x: Output, pooling: _Pooling) -> Any:
    pooled = _pooled_in_blocks("PaddleMaxPool", bridge, x, pooling)
    if pooled is not None:
        return pooled
    if not bridge.on_cpu and pooling.has_data_in_each_window():
        end = [pooling.end(axis) for axis in range(len(pooling.size))]
        largest = opset1.max_pool(x, pooling.strides, pooling.begin, end, pooling.kernel)
        return opset15.maximum(largest, bridge.full(_FLOAT32_MIN, "float32"))
    if len(pooling.size) == 2:
        return bridge.extension("PaddleMaxPool", [x], **pooling.attributes())
    rows = _Rows(pooling)
    pooled = bridge.extension("PaddleMaxPool", [rows.of(bridge, x)], **rows.pooling.attributes())
    return reshaped(bridge, pooled, [*bridge.shape(x)[:2], *pooling.out])


def _maximum_grad(
    bridge: NgraphBridge, x: Output, out: Output, grad: Output, pooling: _Pooling
) -> Any:
    layout = Blocked.of(bridge)
    found = _in_blocks(layout, x, pooling)
    if found is not None:
        reordered = [layout.reordered(node, bridge.shape(found)[4]) for node in (out, grad)]
        inputs = [found, *reordered]
        x_grad = bridge.extension("PaddleMaxPoolGrad", inputs, **pooling.attributes())
        return layout.plain(x_grad, bridge.shape(x)[1])
    if len(pooling.size) == 2:
        return bridge.extension("PaddleMaxPoolGrad", [x, out, grad], **pooling.attributes())
    rows = _Rows(pooling)
    shape = [*bridge.shape(x)[:2], *rows.pooling.out]
    pooled = [reshaped(bridge, node, shape) for node in (out, grad)]
    inputs = [rows.of(bridge, x), *pooled]
    return rows.back(
        bridge, bridge.extension("PaddleMaxPoolGrad", inputs, **rows.pooling.attributes())
    )


class _Rows:
    """A maximum over windows of three axes as one over planes.

    The rows (d, h) that a window reads are stacked, in plain Paddle's order; a window clipped at
    the border repeats its first plane or row, which has no effect. ``pooling`` then pools [N, C,
    rows, W] in adjacent windows.
    """

    def __init__(self, pooling: _Pooling) -> None:
        self._pooling = pooling
        self._taken = [self._elements(axis) for axis in range(2)]
        (planes, deep), (lines, high) = (taken.shape for taken in self._taken)
        self.pooling = replace(
            pooling,
            size=[planes * lines * deep * high, pooling.size[2]],
            kernel=[deep * high, pooling.kernel[2]],
            strides=[deep * high, pooling.strides[2]],
            begin=[0, pooling.begin[2]],
            out=[planes * lines, pooling.out[2]],
        )

    def _elements(self, axis: int) -> np.ndarray:
        """For each window its indices along ``axis``; ``size`` for a window inside the padding."""
        length, kernel = self._pooling.size[axis], self._pooling.kernel[axis]
        rows = []
        for index in range(self._pooling.out[axis]):
            found = list(self._pooling.window(axis, index)) or [length]
            rows.append([found[0]] * (kernel - len(found)) + found)
        return np.array(rows)

    def of(self, bridge: NgraphBridge, x: Output) -> Any:
        """Stacks the rows (d, h) that the windows read: [N, C, D, H, W] -> [N, C, rows, W].

        A row is repeated for each window that reads it. A window inside the padding reads rows of
        the lowest float32.
        """
        batch, channels, depth, height, width = bridge.shape(x)
        deep, high = self._taken
        position = deep[:, None, :, None] * height + high[None, :, None, :]
        outside = (deep == depth)[:, None, :, None] | (high == height)[None, :, None, :]
        position[outside] = depth * height
        node = reshaped(bridge, x, [batch, channels, depth * height, width])
        if outside.any():
            lowest = bridge.full(_FLOAT32_MIN, "float32", [batch, channels, 1, width])
            node = opset15.concat([node, lowest], 2)
        return AxisMap(position.reshape(-1, 1)).apply(bridge, node, 2)

    def back(self, bridge: NgraphBridge, rows: NodeInput) -> Output:
        """The gradient of ``x`` from that of the rows of :meth:`of`, one axis after the other.

        [N, C, rows, W] -> [N, C, D, H, W].
        """
        (planes, deep), (lines, high) = (taken.shape for taken in self._taken)
        depth, height, width = self._pooling.size
        batch, channels, *_ = bridge.shape(rows)
        node = reshaped(bridge, rows, [batch, channels, planes, lines, deep, high, width])
        node = transposed(bridge, node, (0, 1, 2, 4, 3, 5, 6))
        node = reshaped(bridge, node, [batch, channels, planes * deep, lines * high * width])
        node = self._gathered(bridge, node, 0)
        node = reshaped(bridge, node, [batch, channels * depth, lines * high, width])
        node = self._gathered(bridge, node, 1)
        return reshaped(bridge, node, [batch, channels, depth, height, width])

    def _gathered(self, bridge: NgraphBridge, node: NodeInput, axis: int) -> Any:
        length, taken = self._pooling.size[axis], self._taken[axis].reshape(-1, 1)
        outside = bool((taken == length).any())
        node = AxisMap(taken).apply_transposed(bridge, node, 2, length + outside)
        return AxisMap(np.arange(length)[:, None]).apply(bridge, node, 2) if outside else node


# -- norms -------------------------------------------------------------------------------------


_LP_LIMITS = (
    Limit("the norm must be 1 or 2", lambda op: op.attr("norm_type") in (1, 2)),
    Limit("adaptive windows of a norm", lambda op: not op.attr("adaptive")),
    _LIMITS[-1],
)


def _with_padding_included(pooling: _Pooling) -> tuple[_Pooling, list[int]]:
    """The pooling of data that includes its padding, in equal windows; and the padding after it."""
    axes = range(len(pooling.size))
    end = [pooling.end(axis) for axis in axes]
    size = [pooling.size[axis] + pooling.begin[axis] + end[axis] for axis in axes]
    return replace(pooling, size=size, begin=[0] * len(size), exclusive=False), end


@converter("pd_op.lp_pool2d", limits=_LP_LIMITS)
def lp_pool(bridge: NgraphBridge, op: Op) -> None:
    """Sums of windows, or for norm 2 the roots of sums of squares (Paddle ``lp_pool2d``)."""
    x: Any = get_data(bridge, op, "x")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    framed, end = _with_padding_included(pooling)
    if op.attr("norm_type") == 2:
        x = opset15.multiply(x, x)
    if any(pooling.begin + end):
        before, after = bridge.ints([0, 0, *pooling.begin]), bridge.ints([0, 0, *end])
        x = opset15.pad(x, before, after, "constant", bridge.full(0.0, "float32"))
    none = [0] * len(end)
    mean = opset15.avg_pool(x, framed.strides, none, none, framed.kernel, exclude_pad=False)
    total = opset15.multiply(mean, bridge.full(float(np.prod(framed.kernel)), "float32"))
    set_data(bridge, op, "out", opset15.sqrt(total) if op.attr("norm_type") == 2 else total)


@converter("pd_op.lp_pool2d_grad", limits=_LP_LIMITS)
def lp_pool_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` to each element, times ``x / out`` for norm 2 (Paddle ``lp_pool2d_grad``)."""
    x, grad = get_data(bridge, op, "x"), get_data(bridge, op, "out_grad")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    framed, end = _with_padding_included(pooling)
    share: Any = grad
    if op.attr("norm_type") == 2:
        share = opset15.divide(grad, get_data(bridge, op, "out"))
    share = opset15.multiply(share, bridge.full(float(np.prod(framed.kernel)), "float32"))
    spread = bridge.extension(
        "PaddleAvgPoolGrad", [share], input=framed.size, **framed.attributes()
    )
    if any(pooling.begin + end):
        stop = [first + length for first, length in zip(pooling.begin, pooling.size)]
        axes = range(2, 2 + len(stop))
        begin, ones = bridge.ints(pooling.begin), bridge.ints([1] * len(stop))
        spread = opset15.slice(spread, begin, bridge.ints(stop), ones, bridge.ints(axes))
    if op.attr("norm_type") == 2:
        spread = opset15.multiply(x, spread)
    set_data(bridge, op, "x_grad", spread)


# -- maxima with their indices -----------------------------------------------------------------


_FIXED_WINDOWS = Limit(
    "the windows are sampled in every run",
    lambda op: bool(op.attr("random_u")),
)


@converter("pd_op.max_pool2d_with_index")
@converter("pd_op.max_pool3d_with_index")
def max_pool_with_index(bridge: NgraphBridge, op: Op) -> None:
    """Maxima without NaN, and their indices in the plane (``max_pool2d_with_index``)."""
    x = bridge.get_input_node(op, "x")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    out, mask = _indexed(bridge, x, pooling)
    bridge.set_output_node(op, "out", out)
    bridge.set_output_node(op, "mask", mask)


def _indexed(bridge: NgraphBridge, x: NodeInput, pooling: _Pooling) -> tuple[Any, Any]:
    """The maxima of the windows and their indices, -1 where a window has no maximum.

    Over three axes: over the planes first, then over the depth, so that the first of equal maxima
    remains the first.
    """
    if len(pooling.size) == 2:
        pooled = bridge.extension("MaxPoolWithIndex", [x], **pooling.attributes())
        return pooled.output(0), pooled.output(1)
    batch, channels, depth, *plane = bridge.shape(x)
    deep = pooling.depth(pooling.out[1] * pooling.out[2])
    flat = reshaped(bridge, x, [batch, channels * depth, *plane])
    planes = bridge.extension("MaxPoolWithIndex", [flat], **pooling.plane().attributes())
    column = reshaped(bridge, planes.output(0), [batch, channels, *deep.size])
    pooled = bridge.extension("MaxPoolWithIndex", [column], **deep.attributes())
    none, width = bridge.full(0, "int32"), deep.size[1]
    best = reshaped(bridge, pooled.output(1), [batch, channels, deep.out[0] * width])
    chosen = opset15.maximum(best, none)
    inside = reshaped(bridge, planes.output(1), [batch, channels, deep.size[0] * deep.size[1]])
    inside = opset15.gather_elements(inside, chosen, 2)
    # The index is moved to the middle of its row before the division: the engine divides in
    # float32, and there, rounding cannot change the quotient.
    to_middle = opset15.constant(width // 2 - np.arange(width, dtype="int32"))
    middle = opset15.add(reshaped(bridge, chosen, [batch, channels, *deep.out]), to_middle)
    middle = reshaped(bridge, middle, bridge.shape(chosen))
    row = opset15.divide(middle, bridge.full(width, "int32"))
    before = opset15.multiply(row, bridge.full(plane[0] * plane[1], "int32"))
    mask = select(opset15.less(best, none), best, opset15.add(before, inside))
    shape = [batch, channels, *pooling.out]
    return reshaped(bridge, pooled.output(0), shape), reshaped(bridge, mask, shape)


def _fractional_windows(op: Op, size: list[int]) -> list[list[range]]:
    """The windows along each axis, whose positions depend on the attribute ``random_u``."""
    windows = []
    for length, out, kernel in zip(size, op.attr("output_size"), op.attr("kernel_size")):
        step = np.float32(length - kernel) / np.float32(out - (1 if kernel else 0))
        shift = np.float32(op.attr("random_u"))
        if not kernel:
            base = length // out
            most = np.float32(base + 2) / step - np.float32(1)
            room = np.float32(length + 1 - base) / step - np.float32(out - 1)
            shift = shift * min(most, room)
        begins = [int((np.float32(i) + shift) * step) - int(shift * step) for i in range(out + 1)]
        ends = [begin + kernel for begin in begins] if kernel else begins[1:]
        windows.append([range(b, min(e, length)) for b, e in zip(begins[:out], ends)])
    return windows


@converter("pd_op.fractional_max_pool2d", limits=[_FIXED_WINDOWS])
@converter("pd_op.fractional_max_pool3d", limits=[_FIXED_WINDOWS])
def fractional_max_pool(bridge: NgraphBridge, op: Op) -> None:
    """Maxima of windows of changing sizes (Paddle ``fractional_max_pool2d``).

    Each axis is laid out as adjacent windows of one size, a shorter one repeating its first
    element, and the indices in that layout are mapped back by a table.
    """
    x = bridge.get_input_node(op, "x")
    batch, channels, *size = bridge.shape(x)
    layouts = []
    for windows in _fractional_windows(op, size):
        most = max(len(window) for window in windows)
        layouts.append([[w[0]] * (most - len(w)) + list(w) for w in windows])
    laid: Any = x
    for axis in reversed(range(len(size))):
        laid = AxisMap(np.reshape(layouts[axis], (-1, 1))).apply(bridge, laid, 2 + axis)
    steps = [len(windows[0]) for windows in layouts]
    out = [len(windows) for windows in layouts]
    spread = bridge.shape(laid)[2:]
    even = _Pooling(spread, steps, steps, [0] * len(size), out, False, True)
    values, found = _indexed(bridge, laid, even)
    bridge.set_output_node(op, "out", values)
    if not op.has_output("mask"):
        return
    table = np.arange(math.prod(size), dtype="int32").reshape(size)
    for axis, layout in enumerate(layouts):
        table = np.take(table, np.reshape(layout, -1), axis=axis)
    none = bridge.full(0, "int32")
    line = reshaped(bridge, found, [batch * channels * math.prod(out)])
    chosen = opset15.gather(
        opset15.constant(table.reshape(-1)), opset15.maximum(line, none), bridge.ints([0])
    )
    mask = select(opset15.less(line, none), line, chosen)
    bridge.set_output_node(op, "mask", reshaped(bridge, mask, [batch, channels, *out]))


@converter("pd_op.max_pool2d_with_index_grad", dtypes=("float32", "int32"))
@converter("pd_op.fractional_max_pool2d_grad", dtypes=("float32", "int32"))
@converter("pd_op.fractional_max_pool3d_grad", dtypes=("float32", "int32"))
@converter("pd_op.max_pool3d_with_index_grad", dtypes=("float32", "int32"))
def max_pool_with_index_grad(bridge: NgraphBridge, op: Op) -> None:
    """Adds each ``out_grad`` at the index in ``mask`` (Paddle ``max_pool2d_with_index_grad``)."""
    mask, grad = bridge.get_input_node(op, "mask"), bridge.get_input_node(op, "out_grad")
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    out = [*bridge.shape(grad)[:-2], math.prod(bridge.shape(grad)[-2:])]
    if len(dims) == 5:
        mask, grad = (reshaped(bridge, node, out) for node in (mask, grad))
    size = [math.prod(dims[2:-1]), dims[-1]]
    x_grad = bridge.extension("MaxPoolWithIndexGrad", [mask, grad], input=size)
    bridge.set_output_node(op, "x_grad", reshaped(bridge, x_grad, dims))


# -- the inverse of a maximum with indices -----------------------------------------------------


@converter(
    "pd_op.unpool",
    dtypes=("float32", "int32"),
    inputs={"output_size": Role.CONSTANT},
    unchecked=["indices"],
)
@converter("pd_op.unpool3d", dtypes=("float32", "int32"), unchecked=["indices"])
def unpool(bridge: NgraphBridge, op: Op) -> None:
    """Every element at its index, 0 elsewhere; the last one wins (Paddle ``unpool``)."""
    x = bridge.get_input_node(op, "x")
    batch, channels, *size = bridge.shape(x)
    out = _unpooled_size(bridge, op, len(size))
    total = math.prod(out)
    bridge.integers.require_range(op, "indices", 0, total)
    shape = [batch, channels, math.prod(size)]
    values = reshaped(bridge, x, shape)
    positions = reshaped(bridge, bridge.get_input_node(op, "indices"), shape)
    zeros = bridge.full(0.0, "float32", [batch, channels, total])
    placed = opset15.scatter_elements_update(zeros, positions, values, bridge.ints([2]))
    bridge.set_output_node(op, "out", reshaped(bridge, placed, [batch, channels, *out]))


@converter(
    "pd_op.unpool_grad",
    dtypes=("float32", "int32"),
    inputs={"output_size": Role.CONSTANT},
    unchecked=["indices"],
)
@converter("pd_op.unpool3d_grad", dtypes=("float32", "int32"), unchecked=["indices"])
def unpool_grad(bridge: NgraphBridge, op: Op) -> None:
    """``x_grad``: the element of ``out_grad`` at the index of each element (``unpool_grad``)."""
    grad = bridge.get_input_node(op, "out_grad")
    dims = bridge.shape(bridge.get_input_node(op, "x"))
    batch, channels, *out = bridge.shape(grad)
    total = math.prod(out)
    bridge.integers.require_range(op, "indices", 0, total)
    positions = bridge.get_input_node(op, "indices")
    positions = reshaped(bridge, positions, [batch, channels, math.prod(dims[2:])])
    found = opset15.gather_elements(reshaped(bridge, grad, [batch, channels, total]), positions, 2)
    bridge.set_output_node(op, "x_grad", reshaped(bridge, found, dims))


def _unpooled_size(bridge: NgraphBridge, op: Op, axes: int) -> list[int]:
    if op.has_input("output_size"):
        size = bridge.constant(op, "output_size").reshape(-1)
    else:
        size = np.asarray(op.attr("output_size"))
    return [int(length) for length in size[-axes:]]
