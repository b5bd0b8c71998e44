"""Faults that are planted in converters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from openvino import opset15

import paddle_ngraph
from paddle_ngraph.conversion import registry
from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.ir.graph import Op

Fault = Callable[[NgraphBridge, Op], None]


@contextmanager
def planted(op_type: str, fault: Fault) -> Iterator[None]:
    """Applies a fault after each conversion of an operator, in functions that are built anew."""
    entry = registry.find_converter(op_type)
    assert entry is not None

    def convert(bridge: Any, op: Op) -> None:
        entry.function(bridge, op)
        fault(bridge, op)

    paddle_ngraph.clear_cache()
    with patch.dict(registry._converters, {op_type: replace(entry, function=convert)}):
        yield
    paddle_ngraph.clear_cache()


def negated(bridge: NgraphBridge, op: Op) -> None:
    """A wrong sign of the first result."""
    _change(bridge, op, opset15.negative)


def scaled(bridge: NgraphBridge, op: Op) -> None:
    """An error of a hundredth in the first result."""
    _change(bridge, op, lambda node: opset15.multiply(node, bridge.full(1.01, "float32")))


def reversed_rows(bridge: NgraphBridge, op: Op) -> None:
    """The first two axes of the first result exchanged, as after a wrong axis."""
    shape = next(op.output_specs()).shape
    order = [1, 0, *range(2, len(shape))]
    _change(
        bridge,
        op,
        lambda node: opset15.reshape(
            opset15.transpose(node, bridge.ints(order)), opset15.shape_of(node), False
        ),
    )


def dropped_update(bridge: NgraphBridge, op: Op) -> None:
    """An optimizer that leaves its parameter as it is."""
    _set(bridge, op.output("param_out").id, bridge.get_input_node(op, "param"))


def _change(bridge: NgraphBridge, op: Op, change: Callable[[Any], Any]) -> None:
    number = next(op.output_specs()).id
    _set(bridge, number, change(bridge._nodes[number]))


def _set(bridge: NgraphBridge, number: int, node: Any) -> None:
    bridge._nodes[number] = node.output(0) if hasattr(node, "get_type_name") else node
