"""Constants: full, full_int_array, full_like."""

from __future__ import annotations

import numpy as np
from openvino import opset15

from paddle_ngraph.bridge import NgraphBridge, element_type
from paddle_ngraph.graph import Op
from paddle_ngraph.registry import ANY, converter


@converter("pd_op.full", dtypes=ANY, small_integers=True)
def full(bridge: NgraphBridge, op: Op) -> None:
    """``out[...] = value``, of attribute ``shape`` (Paddle ``full``)."""
    bridge.set_output_node(
        op, "out", bridge.full(op.attr("value"), op.attr("dtype"), op.attr("shape"))
    )


@converter("pd_op.full_int_array", dtypes=ANY, small_integers=True)
def full_int_array(bridge: NgraphBridge, op: Op) -> None:
    """A 1-D tensor that holds attribute ``value`` (Paddle ``full_int_array``)."""
    kind = element_type(op.attr("dtype"))
    values = np.array(op.attr("value"), dtype=kind.to_dtype())
    bridge.set_output_node(op, "out", opset15.constant(values, kind))
