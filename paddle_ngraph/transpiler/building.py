"""Adding Paddle's own operators to a PIR program."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import make_persistable
from paddle_ngraph.paddle_private.protocols import Block, Operation, Value
from paddle_ngraph.partitioning.analysis.block_view import dtype_name

# What the variables begin with in which gradients of several runs are added up.
ACCUMULATED = "ngraph_accumulated_"


class Builder:
    """Adds operators to a block, one behind the other.

    Each is at its place at once. A program whose operators read what is made further down ends the
    process when it is dropped, as it is where something is refused.

    Args:
        block: The block.
        before: The operator before which they belong; ``None``: at the end.
    """

    def __init__(self, block: Block, before: Operation | None = None) -> None:
        self._block = block
        self._before = before

    def results(self, name: str, operands: Sequence[Any], /, **attributes: Any) -> list[Any]:
        """Adds an operator.

        Args:
            name: Its name.
            operands: Values, lists of values, ``None`` for absent ones.
            attributes: Numbers, strings and lists; a pair gives a kind too, as
                ``_core.append_operator`` takes it.

        Returns:
            Its results; those that are lists as lists.
        """
        given = [
            (key, *value) if isinstance(value, tuple) else (key, None, value)
            for key, value in attributes.items()
        ]
        return self._added(name, operands, None, given)

    def __call__(self, name: str, operands: Sequence[Any], /, **attributes: Any) -> Any:
        """Adds an operator; returns its first result."""
        return self.results(name, operands, **attributes)[0]

    def like(self, op: Operation, operands: Sequence[Any]) -> list[Any]:
        """Adds an operator of the type and with the attributes of another, for others."""
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
        """A constant of the shape ``[1]``."""
        given = {"shape": ("ints", [1]), "value": ("float64", float(value))}
        result: Value = self("pd_op.full", [], dtype=("dtype", dtype), **given)
        return result

    def integers(self, values: Sequence[int]) -> Value:
        """A constant of int64 numbers."""
        given = {"value": ("int64", list(values)), "dtype": ("dtype", "int64")}
        result: Value = self("pd_op.full_int_array", [], **given)
        return result

    def fed(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """What a run is fed under this name."""
        given = {"shape": ("ints", list(shape)), "dtype": ("dtype", dtype)}
        result: Value = self("pd_op.data", [], name=name, **given)
        return result

    def variable(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """A variable of the scope."""
        return _core.append_variable(self._block, name, (dtype, list(shape)), before=self._before)

    def set_variable(self, name: str, value: Value) -> None:
        """Makes a variable of the scope of a value, as startup programs do."""
        make_persistable(value)
        attributes = [("parameter_name", None, name)]
        self._added("builtin.set_parameter", [value], [], attributes)

    def zeros(self, shape: Sequence[int], dtype: str) -> Value:
        """A constant of nothing but zeros."""
        given = {"shape": ("ints", list(shape)), "value": ("float64", 0.0)}
        result: Value = self("pd_op.full", [], dtype=("dtype", dtype), **given)
        return result

    # -- tensors ---------------------------------------------------------------------------------

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """A tensor in another shape."""
        if list(value.shape) == list(shape):
            return value
        result: Value = self("pd_op.reshape", [value, self.integers(shape)])
        return result

    def scaled(self, value: Value, factor: float) -> Value:
        """A tensor times a number."""
        factors = self.number(factor, dtype_name(value.dtype))
        result: Value = self("pd_op.scale", [value, factors], bias=0.0, bias_after_scale=True)
        return result

    def flat(self, values: Sequence[Value]) -> Value:
        """Tensors of known shapes, one after the other: of rank 1."""
        rows = [self.reshaped(value, [prod(value.shape)]) for value in values]
        if len(rows) == 1:
            return rows[0]
        result: Value = self("pd_op.concat", [rows, self.number(0, "int32")])
        return result

    def unflattened(self, flat: Value, shapes: Sequence[Sequence[int]]) -> list[Value]:
        """The tensors of these shapes that :meth:`flat` has put together."""
        if len(shapes) == 1:
            return [self.reshaped(flat, shapes[0])]
        sections = self.integers([prod(shape) for shape in shapes])
        rows = self("pd_op.split", [flat, sections, self.number(0, "int32")])
        return [self.reshaped(row, shape) for row, shape in zip(rows, shapes)]
