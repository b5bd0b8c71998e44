"""Builders that add operators of Paddle to a PIR program."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import make_persistable
from paddle_ngraph.paddle_private.protocols import Block, Operation, Value
from paddle_ngraph.partitioning.analysis.block_view import RING_ATTRIBUTE, dtype_name

SELECT_RING = "custom_op.ngraph_select_ring_"
# Prefix of the names of variables in which gradients are added up over several runs.
ACCUMULATED = "ngraph_accumulated_"


class Builder:
    """Adds operators to a block, one after the other.

    Each operator is inserted at its final index. Paddle aborts the process when a program is
    destroyed whose operators precede the producers of their operands, such as a rejected program.

    Args:
        block: The block.
        before: The operator before which to insert; ``None``: at the end.
    """

    def __init__(self, block: Block, before: Operation | None = None) -> None:
        self._block = block
        self._before = before

    def results(self, name: str, operands: Sequence[Any], /, **attributes: Any) -> list[Any]:
        """Adds an operator.

        Args:
            name: The name of the operator.
            operands: Values, lists of values, ``None`` for absent ones.
            attributes: Scalars, strings and lists; a pair contains the type of attribute for
                ``_core.append_operator``, and the value.

        Returns:
            Its results; a list for a result that is a list.
        """
        given = [
            (key, *value) if isinstance(value, tuple) else (key, None, value)
            for key, value in attributes.items()
        ]
        return self._added(name, operands, None, given)

    def __call__(self, name: str, operands: Sequence[Any], /, **attributes: Any) -> Any:
        """Adds an operator of type ``name``; returns its first result."""
        return self.results(name, operands, **attributes)[0]

    def selected_ring(self, value: Value, ring: int) -> Value:
        """Adds the operator after which the collectives of this process use a ring.

        Args:
            value: A tensor of a static shape, which the next collective sums.
            ring: The ring id.
        """
        types = [(dtype_name(value.dtype), list(value.shape))]
        attributes = [(RING_ATTRIBUTE, None, ring)]
        return self._added(SELECT_RING, [value], types, attributes)[0]

    def like(self, op: Operation, operands: Sequence[Any]) -> list[Any]:
        """Adds an operator with the type and attributes of ``op`` for other operands."""
        return self._added(op.name(), operands, None, _core.attributes_of(op))

    def _added(
        self,
        name: str,
        operands: Sequence[Any],
        types: Sequence[Any] | None,
        attributes: Sequence[tuple[str, str | None, Any]],
    ) -> list[Any]:
        return _core.append_operator(
            self._block, name, operands, types, attributes, before=self._before
        )

    # -- constants -------------------------------------------------------------------------------

    def number(self, value: float, dtype: str = "float32") -> Value:
        """Adds a constant of shape ``[1]``."""
        given = {"shape": ("ints", [1]), "value": ("float64", float(value))}
        result: Value = self("pd_op.full", [], dtype=("dtype", dtype), **given)
        return result

    def integers(self, values: Sequence[int]) -> Value:
        """Adds a constant 1-D int64 tensor."""
        given = {"value": ("int64", list(values)), "dtype": ("dtype", "int64")}
        result: Value = self("pd_op.full_int_array", [], **given)
        return result

    def fed(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """Adds a variable with this name that each run feeds."""
        given = {"shape": ("ints", list(shape)), "dtype": ("dtype", dtype)}
        result: Value = self("pd_op.data", [], name=name, **given)
        return result

    def variable(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """Adds a read of a variable of the scope, by name, whose value a run may overwrite."""
        return _core.append_variable(self._block, name, (dtype, list(shape)), before=self._before)

    def set_variable(self, name: str, value: Value) -> None:
        """Writes a value to a variable of the scope, as startup programs do."""
        make_persistable(value)
        attributes = [("parameter_name", None, name)]
        self._added("builtin.set_parameter", [value], [], attributes)

    def zeros(self, shape: Sequence[int], dtype: str) -> Value:
        """Adds a tensor of zeros."""
        given = {"shape": ("ints", list(shape)), "value": ("float64", 0.0)}
        result: Value = self("pd_op.full", [], dtype=("dtype", dtype), **given)
        return result

    # -- tensors ---------------------------------------------------------------------------------

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """Adds a reshape of a tensor to another shape."""
        if list(value.shape) == list(shape):
            return value
        result: Value = self("pd_op.reshape", [value, self.integers(shape)])
        return result

    def scaled(self, value: Value, factor: float) -> Value:
        """Adds the product of a tensor and a scalar."""
        factors = self.number(factor, dtype_name(value.dtype))
        result: Value = self("pd_op.scale", [value, factors], bias=0.0, bias_after_scale=True)
        return result

    def flat(self, values: Sequence[Value]) -> Value:
        """Flattens tensors of static shapes, and concatenates them to a tensor of rank 1."""
        rows = [self.reshaped(value, [prod(value.shape)]) for value in values]
        if len(rows) == 1:
            return rows[0]
        result: Value = self("pd_op.concat", [rows, self.number(0, "int32")])
        return result

    def unflattened(self, flat: Value, shapes: Sequence[Sequence[int]]) -> list[Value]:
        """Reverts :meth:`flat`: splits ``flat`` into tensors of these shapes."""
        if len(shapes) == 1:
            return [self.reshaped(flat, shapes[0])]
        sections = self.integers([prod(shape) for shape in shapes])
        rows = self("pd_op.split", [flat, sections, self.number(0, "int32")])
        return [self.reshaped(row, shape) for row, shape in zip(rows, shapes)]
