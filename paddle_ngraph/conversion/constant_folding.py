"""Constant folding during a build: the contents of nodes that are known before a run."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion.extensions import evaluate
from paddle_ngraph.conversion.size_rules import Shapes, touches_empty_tensor
from paddle_ngraph.conversion.sizes import Sizes
from paddle_ngraph.conversion.symbolic_sizes import SymbolicSize, is_symbolic, symbolic_size
from paddle_ngraph.ir.graph import MAX_FOLDED_ELEMENTS

# Node types that preserve the integers of their input, in another shape, order or width.
VALUE_PRESERVING = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


class ConstantFolding:
    """The contents of a block's nodes, as far as they are known during the build.

    Args:
        sizes: The sizes of the block.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._unknown: set[str] = set()  # names of nodes whose contents are known only in a run

    def contents(self, node: Output) -> np.ndarray | None:
        """The contents of a node, an array, with symbolic elements where they follow from sizes.

        ``None`` if they are unknown during the build.
        """
        producer = node.get_node()
        if producer.get_type_name() == "Constant":
            return np.asarray(producer.get_data())
        if self._sizes.shapes is None or self._sizes.shapes.depends_on(node) == "data":
            return None
        value = self._sizes.shapes.value(node)
        return self._sizes.shapes.fixed_value(node) if value is None else value

    def known_contents(self, output: Output) -> np.ndarray | None:
        """The contents of ``output`` if they are known, even if it is not a constant node yet."""
        return self.known_value(output) if self._sizes.shapes is None else self.contents(output)

    def size_behind(self, value: Output) -> SymbolicSize | None:
        """The symbolic size that was converted to ``value``, one float32 element, or ``None``."""
        # Sizes in tensors of other dtypes than float32 are found by contents().
        if value.get_element_type() != Type.f32:
            return None
        node = value.get_node()
        while node.get_type_name() in VALUE_PRESERVING:
            source = node.input_value(0)
            if source.get_element_type() in (Type.i32, Type.i64):
                known = self.contents(source)
                return (
                    symbolic_size(known.item()) if known is not None and known.size == 1 else None
                )
            node = source.get_node()
        return None

    def folded(self, output: Output) -> Output:
        """``output`` as a constant if it is a small computation on constants only."""
        if output.get_node().get_type_name() == "Constant":
            return output
        if self._sizes.shapes is not None and self._sizes.shapes.depends_on(output) == "sizes":
            return self._from_sizes(self._sizes.shapes, output)
        value = self.known_value(output)
        return output if value is None else opset15.constant(value).output(0)

    def _from_sizes(self, shapes: Shapes, output: Output) -> Output:
        """A node in place of ``output``, integers computed from sizes, that is valid for all sizes.

        Computes in int64, and converts the result to the dtype of ``output``.
        """
        dtype = output.get_element_type()
        if dtype.is_real():
            return output
        value = shapes.value(output)
        if value is None or not is_symbolic(value.reshape(-1).tolist()):
            return opset15.constant(shapes.fixed_value(output), dtype).output(0)
        node = shapes.node(value.reshape(-1).tolist())
        if dtype != Type.i64:
            node = opset15.convert(node, dtype).output(0)
        if value.ndim != 1:
            node = opset15.reshape(node, self._sizes.node(value.shape), False).output(0)
        return node

    def known_value(self, output: Output) -> np.ndarray | None:
        """The contents of ``output`` if they follow from constants and shapes."""
        if (
            self._sizes.shapes is not None
            and (source := self._sizes.shapes.depends_on(output)) != "nothing"
        ):
            return self._sizes.shapes.fixed_value(output) if source == "sizes" else None
        node = output.get_node()
        if node.get_type_name() == "Constant":
            return np.array(node.get_data())
        if node.get_type_name() == "ShapeOf":
            dtype = output.get_element_type().to_dtype()
            return np.array(list(node.input_value(0).get_shape()), dtype=dtype)
        # Remembers nodes whose contents only a run computes: this function is called for each
        # output of a node, of which there may be thousands.
        if node.get_name() in self._unknown:
            return None
        results = self._evaluated(node)
        if results is None:
            self._unknown.add(node.get_name())
            return None
        return np.array(results[output.get_index()].data)

    def _evaluated(self, node: Node) -> list[ov.Tensor] | None:
        """The contents of a node's outputs, if small and determined by constants and shapes."""
        if not node.input_values() or touches_empty_tensor(
            node
        ):  # nGraph would write beyond the end of empty outputs
            return None
        # A kernel of Paddle may make results whose size is known in a run only.
        if any(
            o.get_partial_shape().is_dynamic or math.prod(o.get_shape()) > MAX_FOLDED_ELEMENTS
            for o in node.outputs()
        ):
            return None
        values = []
        for source in node.input_values():
            value = self.known_value(source)
            if value is None:
                return None
            values.append(ov.Tensor(value))
        results = [ov.Tensor(o.get_element_type(), o.get_shape()) for o in node.outputs()]
        return results if evaluate(node, results, values) else None


def _initialize_dtype_table() -> None:
    """Initializes the dtype table of OpenVINO's bindings.

    The bindings do so at first use, holding a lock but releasing the GIL: two threads that come
    first would deadlock. A module is imported by one thread only.
    """
    one = opset15.constant(np.ones(1, np.float32))
    ov.Tensor(one.get_data().astype(one.get_element_type().to_dtype()))


_initialize_dtype_table()
