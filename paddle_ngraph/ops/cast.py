"""Cast: from one dtype to another.

The gradient of a cast is a cast. bfloat16 is represented as float32, which the bridge rounds.
"""

from __future__ import annotations

import numpy as np
from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion.bridge import NgraphBridge, element_type
from paddle_ngraph.conversion.errors import overflow_error
from paddle_ngraph.conversion.registry import Limit, converter
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op

# Casts for which the engine computes the same results as Paddle: dtype of ``x`` -> dtypes of
# ``out``.
_CASTS = {
    "float32": {"float32", "bool", "int32", "int64"},
    "int32": {"int32", "float32", "bool", "int64"},
    "int64": {"int64", "int32", "bool", "float32"},
    "bool": {"bool", "float32", "int32", "int64"},
    "int8": {"float32"},  # int8 only occurs as quantized weights
}


_EXACT = Limit(
    "the engine has no exact conversion between these dtypes",
    lambda op: op.output("out").dtype in _CASTS[op.input("x").dtype],
)


def _truncates(op: Op) -> bool:
    return op.input("x").dtype == "float32" and op.output("out").dtype == "int64"


@converter(
    "pd_op.cast", "pd_op.cast_", dtypes=_CASTS, limits=[_EXACT], moves=True, checks=_truncates
)
def cast(bridge: NgraphBridge, op: Op) -> None:
    """``out = x`` as attribute ``dtype``; any value but 0 is true (Paddle ``cast``).

    float32 to int64 truncates, and a run checks that the result is representable in int32.
    """
    x = bridge.get_input_node(op, "x")
    source, target = x.get_element_type(), element_type(op.output("out").dtype)
    node: Node | Output = x
    if source != target and op.output("out").dtype == "bool":
        # A comparison with 0 instead of the engine's own conversion to bool, which turns NaN into
        # false.
        node = opset15.not_equal(x, bridge.full(0, source))
    elif source == Type.f32 and target == Type.i64:
        return _truncated(bridge, op, x)
    elif source != target:
        node = opset15.convert(x, target)
    bridge.set_output_node(op, "out", node)


def _truncated(bridge: NgraphBridge, op: Op, x: Output) -> None:
    """The integer part of ``x`` as int64; 0, and a deferred error, where it overflows int32."""
    if not bridge.on_cpu:
        raise NgraphError(f"whole numbers are not checked on {bridge.device}")
    least, end = (opset15.constant(np.float32(sign * 2.0**31)) for sign in (-1, 1))
    inside = opset15.logical_and(opset15.greater_equal(x, least), opset15.less(x, end))
    wrong = opset15.logical_or(opset15.logical_not(inside), opset15.not_equal(x, x))
    whole = opset15.convert(opset15.select(wrong, bridge.full(0.0, Type.f32), x), Type.i32)
    bridge.set_output_node(op, "out", opset15.convert(whole, Type.i64))
    bridge.integers.defer_check(op, "out", wrong, overflow_error(op))
