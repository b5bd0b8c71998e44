"""Pooling: pool2d, max_pool2d_with_index, and their gradients.

Operators of the core (``core/pool_ops.h``) compute what OpenVINO's own pooling does differently or
lacks: NaN in a maximum, the first of several maxima, windows that lie in the padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from openvino import Node, Output, opset15

from paddle_ngraph.bridge import NgraphBridge
from paddle_ngraph.graph import Op
from paddle_ngraph.ops.spatial import get_data, padding, set_data
from paddle_ngraph.registry import Limit, converter

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


@dataclass(frozen=True)
class _Pooling:
    """The attributes of one pooling of data [N, C, H, W] and its sizes."""

    size: list[int]
    kernel: list[int]
    strides: list[int]
    begin: list[int]
    out: list[int]
    adaptive: bool
    exclusive: bool

    def attributes(self) -> dict[str, Any]:
        """For the core's pooling operators."""
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "pads": self.begin,
            "output": self.out,
            "adaptive": self.adaptive,
            "exclusive": self.exclusive,
        }

    def end(self, axis: int) -> int:
        """The padding after the axis that the outputs need."""
        reach = (self.out[axis] - 1) * self.strides[axis] + self.kernel[axis]
        return max(reach - self.size[axis] - self.begin[axis], 0)

    def is_even(self) -> bool:
        """Whether adaptive windows are all of one size, side by side."""
        return all(size % out == 0 for size, out in zip(self.size, self.out))

    def counts_plainly(self) -> bool:
        """Whether OpenVINO's average divides by what native Paddle's does.

        It does not for windows that lie in the padding, and for windows beyond it that count.
        """
        for axis in range(2):
            begin, end, kernel = self.begin[axis], self.end(axis), self.kernel[axis]
            if max(begin, end) >= kernel or (not self.exclusive and end > begin):
                return False
        return True


def _pooling(op: Op, size: list[int], kernel: list[int]) -> _Pooling:
    strides = [int(stride) for stride in op.attr("strides")]
    adaptive, whole = bool(op.attr("adaptive")), bool(op.attr("global_pooling"))
    exclusive = bool(op.attr("exclusive", True))
    if adaptive:
        return _Pooling(size, kernel, strides, [0, 0], kernel, adaptive, exclusive)
    if whole:
        return _Pooling(size, size, strides, [0, 0], [1, 1], adaptive, exclusive)
    begin, end = padding(op, size, kernel, strides)
    out = [
        (size[i] + begin[i] + end[i] - kernel[i] + (strides[i] - 1 if op.attr("ceil_mode") else 0))
        // strides[i]
        + 1
        for i in range(2)
    ]
    return _Pooling(size, kernel, strides, begin, out, adaptive, exclusive)


def _kernel(bridge: NgraphBridge, op: Op) -> list[int]:
    return [int(size) for size in bridge.constant(op, "kernel_size").reshape(-1)]


@converter("pd_op.pool2d", constant=("kernel_size",), limits=_LIMITS)
def pool2d(bridge: NgraphBridge, op: Op) -> None:
    """The maximum or average of each window (Paddle ``pool2d``)."""
    x = get_data(bridge, op, "x")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    if op.attr("pooling_type") == "max":
        out = bridge.extension("MaxPool", [x], **pooling.attributes())
    else:
        out = _average(bridge, x, pooling)
    set_data(bridge, op, "out", out)


def _average(bridge: NgraphBridge, x: Output, pooling: _Pooling) -> Node:
    if pooling.adaptive and pooling.is_even():
        steps = [size // out for size, out in zip(pooling.size, pooling.out)]
        pooling = replace(pooling, adaptive=False, kernel=steps, strides=steps)
    if pooling.adaptive or not pooling.counts_plainly():
        return bridge.extension("AvgPool", [x], **pooling.attributes())
    end = [pooling.end(axis) for axis in range(2)]
    return opset15.avg_pool(
        x, pooling.strides, pooling.begin, end, pooling.kernel, exclude_pad=pooling.exclusive
    )


@converter("pd_op.pool2d_grad", constant=("kernel_size",), limits=_LIMITS)
def pool2d_grad(bridge: NgraphBridge, op: Op) -> None:
    """To the first maximum of each window, or a share to each element (Paddle ``pool2d_grad``)."""
    x, grad = get_data(bridge, op, "x"), get_data(bridge, op, "out_grad")
    pooling = _pooling(op, bridge.shape(x)[2:], _kernel(bridge, op))
    if op.attr("pooling_type") == "max":
        out = get_data(bridge, op, "out")
        x_grad = bridge.extension("MaxPoolGrad", [x, out, grad], **pooling.attributes())
    else:
        x_grad = bridge.extension("AvgPoolGrad", [grad], input=pooling.size, **pooling.attributes())
    set_data(bridge, op, "x_grad", x_grad)


# -- maxima with their positions ---------------------------------------------------------------


@converter("pd_op.max_pool2d_with_index")
def max_pool2d_with_index(bridge: NgraphBridge, op: Op) -> None:
    """Maxima and where they are in ``H * W``, NaN left out (Paddle ``max_pool2d_with_index``)."""
    x = bridge.get_input_node(op, "x")
    pooling = _pooling(op, bridge.shape(x)[2:], [int(size) for size in op.attr("kernel_size")])
    pooled = bridge.extension("MaxPoolWithIndex", [x], **pooling.attributes())
    bridge.set_output_node(op, "out", pooled.output(0))
    bridge.set_output_node(op, "mask", pooled.output(1))


@converter("pd_op.max_pool2d_with_index_grad", dtypes=("float32", "int32"))
def max_pool2d_with_index_grad(bridge: NgraphBridge, op: Op) -> None:
    """Hands ``out_grad`` to the element ``mask`` (Paddle ``max_pool2d_with_index_grad``)."""
    mask, grad = bridge.get_input_node(op, "mask"), bridge.get_input_node(op, "out_grad")
    size = bridge.shape(bridge.get_input_node(op, "x"))[2:]
    x_grad = bridge.extension("MaxPoolWithIndexGrad", [mask, grad], input=size)
    bridge.set_output_node(op, "x_grad", x_grad)
