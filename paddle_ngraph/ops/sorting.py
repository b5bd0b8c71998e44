"""Sorting and the largest elements, forward and gradient; how many predictions are right.

Paddle's kernels leave the order of equal elements to the C++ library, except where they sort in a
stable way, or a short axis. Elsewhere these converters only serve programs that use the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import Type, opset15

from paddle_ngraph.bridge import NgraphBridge
from paddle_ngraph.graph import Op
from paddle_ngraph.registry import Limit, converter

# Up to these lengths the C++ library sorts, or finds the n-th element, by insertion: stably.
_STABLE_SORT = 16
_STABLE_SEARCH = 3
# The engine's stable sort takes quadratic time.
_LONGEST_STABLE = 64
_LARGEST = float(np.finfo(np.float32).max)


def _length(op: Op) -> int:
    """The length of the sorted axis, -1 where it is open."""
    shape = op.input("x").shape
    return shape[op.attr("axis")] if shape else 1


def _sorts_like_paddle(op: Op) -> bool:
    if not op.has_output("indices") or op.attr("stable"):
        return True
    return 0 < _length(op) <= _STABLE_SORT


def _sorts_fast(op: Op) -> bool:
    return not op.has_output("indices") or 0 < _length(op) <= _LONGEST_STABLE


def _finds_like_paddle(op: Op) -> bool:
    return not op.has_output("indices") or 0 < _length(op) <= _STABLE_SEARCH


_SORT_ORDER = Limit(
    "its indices are used, and it does not order equal elements in a stable way", _sorts_like_paddle
)
_SORT_LENGTH = Limit(
    f"its indices are used, and its axis is open or longer than {_LONGEST_STABLE}, "
    "which the engine sorts slowly",
    _sorts_fast,
)
_SEARCH_ORDER = Limit(
    "its indices are used, and Paddle's order of equal elements is that of its C++ library",
    _finds_like_paddle,
)
_SORTED = Limit("attribute 'sorted' leaves their order open", lambda op: op.attr("sorted"))


def _set_sorted(bridge: NgraphBridge, op: Op, count: int, descending: bool) -> None:
    """Sets ``out`` and ``indices`` to the first ``count`` elements along axis in order."""
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    if not shape:
        bridge.set_output_node(op, "out", x)
        bridge.set_output_node(op, "indices", bridge.full(0, "int64"))
        return
    axis = op.attr("axis") % len(shape)
    key = _key(bridge, x)
    order = opset15.topk(
        key,
        bridge.full(count, "int64"),
        axis,
        "max" if descending else "min",
        "value",
        Type.i32,
        stable=op.has_output("indices"),
    )
    indices = order.output(1)
    bridge.set_output_node(op, "out", opset15.gather_elements(x, indices, axis))
    bridge.set_output_node(op, "indices", opset15.convert(indices, Type.i64))


def _key(bridge: NgraphBridge, x: Any) -> Any:
    """Numbers in the order of ``x``, a NaN being greater than infinity.

    Halving makes room for that above infinity.
    """
    half = opset15.multiply(x, bridge.full(0.5, "float32"))
    infinite = opset15.equal(x, bridge.full(np.inf, "float32"))
    half = opset15.select(infinite, bridge.full(_LARGEST, "float32"), half)
    return opset15.select(opset15.not_equal(x, x), bridge.full(np.inf, "float32"), half)


@converter("pd_op.argsort", limits=[_SORT_ORDER, _SORT_LENGTH], small_integers=True)
def argsort(bridge: NgraphBridge, op: Op) -> None:
    """``x`` sorted along axis, and where its elements came from (Paddle ``argsort``)."""
    x = bridge.get_input_node(op, "x")
    shape = bridge.shape(x)
    count = shape[op.attr("axis")] if shape else 1
    _set_sorted(bridge, op, count, op.attr("descending"))


@converter("pd_op.topk", constant=("k",), limits=[_SEARCH_ORDER, _SORTED], small_integers=True)
def topk(bridge: NgraphBridge, op: Op) -> None:
    """The ``k`` largest or smallest elements along axis, in order (Paddle ``topk``)."""
    _set_sorted(bridge, op, int(bridge.constant(op, "k").item()), op.attr("largest"))


@converter("pd_op.argsort_grad", index=("indices",), unread=("x",))
@converter("pd_op.topk_grad", index=("indices",), unread=("x", "k"))
def scattered_grad(bridge: NgraphBridge, op: Op) -> None:
    """``out_grad`` at the positions that the elements came from, else 0."""
    shape = bridge.shape(bridge.get_input_node(op, "x"))
    grad = bridge.get_input_node(op, "out_grad")
    if not shape:
        bridge.set_output_node(op, "x_grad", grad)
        return
    indices = opset15.convert(bridge.get_input_node(op, "indices"), Type.i32)
    axis = bridge.full(op.attr("axis") % len(shape), "int64")
    nothing = bridge.full(0.0, "float32", shape)
    bridge.set_output_node(
        op, "x_grad", opset15.scatter_elements_update(nothing, indices, grad, axis)
    )


@converter(
    "pd_op.accuracy", index=("indices", "label"), unread=("x",), unwritten=("correct", "total")
)
def accuracy(bridge: NgraphBridge, op: Op) -> None:
    """How often the label of a row is among its indices, of 1 (Paddle ``accuracy``)."""
    bridge.require_range(op, "label", 0, 2**31)
    indices, label = bridge.get_input_node(op, "indices"), bridge.get_input_node(op, "label")
    rows = bridge.shape(indices)[0]
    label = opset15.slice(
        opset15.reshape(label, bridge.ints([-1, 1]), False),
        bridge.ints([0]),
        bridge.ints([rows]),
        bridge.ints([1]),
        bridge.ints([0]),
    )
    distance = opset15.bitwise_xor(
        opset15.convert(indices, Type.i32), opset15.convert(label, Type.i32)
    )
    hit = opset15.equal(distance, bridge.full(0, "int32"))
    right = opset15.reduce_logical_or(hit, bridge.ints([1]), False)
    ones = opset15.select(right, bridge.full(1.0, "float32"), bridge.full(0.0, "float32"))
    total = opset15.reduce_sum(ones, bridge.ints([0]), False)
    bridge.set_output_node(
        op, "accuracy", opset15.divide(total, bridge.full(float(rows), "float32"))
    )
