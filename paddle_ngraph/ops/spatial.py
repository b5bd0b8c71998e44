"""What convolution and pooling share: data formats and padding algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openvino import Node, Output, opset15

from paddle_ngraph.bridge import NgraphBridge
from paddle_ngraph.graph import Op


def is_channels_last(op: Op) -> bool:
    """Whether the data is [N, H, W, C]."""
    return bool(op.attr("data_format") == "NHWC")


def get_data(bridge: NgraphBridge, op: Op, name: str) -> Output:
    """The input ``name`` as [N, C, H, W], whatever the data format."""
    node = bridge.get_input_node(op, name)
    return transpose(bridge, node, (0, 3, 1, 2)) if is_channels_last(op) else node


def set_data(bridge: NgraphBridge, op: Op, name: str, node: Any) -> None:
    """Makes ``node``, [N, C, H, W], the output ``name`` in the data format of ``op``."""
    if is_channels_last(op):
        node = transpose(bridge, node, (0, 2, 3, 1))
    bridge.set_output_node(op, name, node)


def transpose(bridge: NgraphBridge, node: Any, order: Sequence[int]) -> Output:
    """``node`` with its axes in another order."""
    return opset15.transpose(node, bridge.ints(order)).output(0)


def reshape(bridge: NgraphBridge, node: Any, shape: Sequence[int]) -> Node:
    """``node`` in another shape."""
    return opset15.reshape(node, bridge.ints(shape), special_zero=False)


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
            max((-(-s // stride) - 1) * stride + k - s, 0)
            for s, k, stride in zip(size, kernel, strides)
        ]
        return [total // 2 for total in totals], [total - total // 2 for total in totals]
    values = [int(value) for value in op.attr("paddings")]
    if len(values) == len(size):
        return values, values
    return values[0::2], values[1::2]
