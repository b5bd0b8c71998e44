"""Sizes of one block during a build: shapes of nodes, and sizes as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import Output, opset15

from paddle_ngraph.conversion.node_tools import Key, as_output, key_of
from paddle_ngraph.conversion.size_rules import Shapes
from paddle_ngraph.conversion.symbolic_sizes import Guards, Number, SymbolicSize, is_symbolic


class Sizes:
    """The shapes of a block's nodes, which contain symbolic sizes if dimensions are dynamic.

    Args:
        guards: The symbols and guards of the build; ``None`` if every size is static.

    Attributes:
        shapes: Shape inference with symbolic sizes; ``None`` if every size is static.
        has_empty_tensor: Whether the model of the block has an empty tensor; ``None`` until
            :meth:`record` has found out.
    """

    def __init__(self, guards: Guards | None) -> None:
        self.shapes = None if guards is None else Shapes(guards)
        self.has_empty_tensor: bool | None = None
        self._initial: set[Key] = set()

    def of_block(self) -> Sizes:
        """New sizes for a loop body or branch in this block, with the same symbols and guards."""
        return Sizes(None if self.shapes is None else self.shapes.guards)

    @property
    def are_symbolic(self) -> bool:
        """Whether a size may be symbolic."""
        return self.shapes is not None

    def of(self, node: Any) -> list[Number]:
        """The shape of a node; dynamic dimensions are symbolic sizes."""
        if self.shapes is not None:
            return self.shapes.of(as_output(node))
        return [int(dim) for dim in as_output(node).get_shape()]

    def set(self, node: Any, shape: Sequence[Number]) -> None:
        """Declares the shape of a node without a rule (size_rules.py), such as a loop's result."""
        if self.shapes is not None:
            self.shapes.set(as_output(node), shape)

    def set_initial(self, node: Output, shape: Sequence[Number]) -> None:
        """Declares the shape of an initial value, which may be empty: no operator reads it."""
        self._initial.add(key_of(node))
        self.set(node, shape)

    def node(self, values: Sequence[Number]) -> Any:
        """A 1-D int64 tensor of ``values``; a constant unless some of them are symbolic sizes."""
        numbers = list(values)
        if self.shapes is not None and is_symbolic(numbers):
            return self.shapes.node(numbers)
        return opset15.constant(np.asarray(numbers, dtype=np.int64).reshape(-1))

    def record(self, model: ov.Model) -> None:
        """Records the shapes of all nodes in a model of the block, and whether any tensor is empty.

        Only the first call does: afterwards nGraph may no longer know the current shapes.
        """
        if self.shapes is None or self.has_empty_tensor is not None:
            return
        self.has_empty_tensor = False
        for node in model.get_ordered_ops():
            for output in node.outputs():
                sizes = self.shapes.of(output)
                is_empty = any(not isinstance(dim, SymbolicSize) and dim == 0 for dim in sizes)
                is_read = key_of(output) not in self._initial and not _is_list(output)
                self.has_empty_tensor |= is_empty and is_read


def _is_list(output: Output) -> bool:
    """Whether ``output`` is an empty list of axes or sizes, as in core/ov/empty_tensors.cc."""
    is_constant = output.get_node().get_type_name() == "Constant"
    is_row = len(output.get_partial_shape()) == 1
    return is_constant and is_row and bool(output.get_element_type().is_integral())
