"""Sizes of one block during a build: shapes of nodes, and sizes as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import opset15

from paddle_ngraph.conversion.node_tools import as_output
from paddle_ngraph.conversion.size_rules import Shapes
from paddle_ngraph.conversion.symbolic_sizes import Guards, Number, is_symbolic


class Sizes:
    """The shapes of a block's nodes, which contain symbolic sizes if dimensions are dynamic.

    Args:
        guards: The symbols and guards of the build; ``None`` if every size is static.

    Attributes:
        shapes: Shape inference with symbolic sizes; ``None`` if every size is static.
    """

    def __init__(self, guards: Guards | None) -> None:
        self.shapes = None if guards is None else Shapes(guards)

    def of_block(self) -> Sizes:
        """The sizes of a loop body or branch in this block, with equal symbols and guards."""
        return Sizes(None if self.shapes is None else self.shapes.guards)

    def of(self, node: Any) -> list[Number]:
        """The shape of a node; symbolic dimensions are Sizes."""
        if self.shapes is not None:
            return self.shapes.of(as_output(node))
        return [int(dim) for dim in as_output(node).get_shape()]

    def set(self, node: Any, shape: Sequence[Number]) -> None:
        """Declares the shape of a node without a rule (size_rules.py), such as a loop's result."""
        if self.shapes is not None:
            self.shapes.set(as_output(node), shape)

    def node(self, values: Sequence[Number]) -> Any:
        """A 1-D int64 tensor (axes, shapes, pads), constant unless ``values`` contain Sizes."""
        numbers = list(values)
        if self.shapes is not None and is_symbolic(numbers):
            return self.shapes.node(numbers)
        return opset15.constant(np.asarray(numbers, dtype=np.int64).reshape(-1))
