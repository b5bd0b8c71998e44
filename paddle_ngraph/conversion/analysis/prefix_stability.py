"""Values of a loop's body at each position of a growing sequence that later iterations keep.

A decoder computes all words again in each iteration, but what the network computes for a word does
not change when words follow, if no word attends to later ones. This is a dataflow analysis that
proves so, operator by operator. The length of the sequence is 1 in the first iteration, and grows
by 1. A tensor is one of these, or unknown:

- *invariant*: equal in all iterations;
- a *table*: a known function of positions (position_tables.py), such as a mask;
- *stable*: along one axis it has the length of the sequence, and its elements at position ``i``
  depend only on ``i``, on invariant tensors, and on words up to ``i``. Stable values of earlier
  positions are those of the iteration before;
- *paired*: it has that length along two axes. Its elements at ``i`` and ``j`` depend on words up to
  the larger of these: scores. If elements with ``j > i`` are *hidden*, as by a causal mask, and
  those with ``j = i`` are not, softmax makes the former *zero*; then a product with a stable tensor
  is stable. Only masks near the least float32 hide, so that any scores do that do not overflow.
  Scores that might be larger, or to which other numbers from data are added, are left unknown.

Another mask leaves scores unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paddle_ngraph.conversion.analysis.early_exits import EarlyExit
from paddle_ngraph.conversion.analysis.magnitudes import (
    ORDINARY,
    VISIBLE,
    Magnitude,
    magnitude_of,
    magnitude_of_table,
    magnitude_outside,
)
from paddle_ngraph.conversion.analysis.offsets import EARLY_EXIT
from paddle_ngraph.conversion.analysis.position_tables import MAX_TABLE, TRIANGLES, Table, table_of
from paddle_ngraph.conversion.analysis.position_wise import Sliced, reads_of_position
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import Number, is_symbolic, symbols_in
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec

# Elements of a mask up to HIDDEN hide, such as negative infinity and the least float32, those of a
# magnitude up to VISIBLE do not: the exponential of the difference is 0 in float32 for all scores
# that do not overflow themselves. -1e9 does not hide: scores of 1e9 are numbers like others.
HIDDEN = -1e37
# Maximum length of the sequence: tables are squares of it.
MAX_LENGTH = math.isqrt(MAX_TABLE)
PLAIN, HIDES, ZERO = "plain", "hides", "zero"
_SUMS = ("pd_op.add", "pd_op.subtract")
_SELECTIONS = ("pd_op.masked_fill", "pd_op.where")
_RESHAPES = ("pd_op.reshape", "pd_op.squeeze", "pd_op.unsqueeze")


@dataclass(frozen=True)
class PositionValue:
    """A tensor in each iteration, as far as it is known.

    Attributes:
        axes: The axes that have the length of the sequence; none: the tensor is invariant.
        query: For paired tensors with elements that are hidden or zero, the axis of ``i``, where
            these are the elements with ``j > i``.
        state: ``HIDES`` or ``ZERO`` for these, ``PLAIN`` for others.
        table: The tensor as a table, if the elements are known.
        is_piece: Whether the tensor is the beginning of an invariant tensor.
        magnitude: How large elements may be (magnitudes.py).
    """

    axes: tuple[int, ...] = ()
    query: int | None = None
    state: str = PLAIN
    table: Table | None = None
    is_piece: bool = False
    magnitude: Magnitude = ORDINARY

    @property
    def key(self) -> int:
        """The axis of ``j`` of a tensor with a query axis."""
        (axis,) = {*self.axes} - {self.query}
        return axis


class PrefixStability:
    """The values of a loop's body.

    Args:
        block: The block of the loop.
        args: The number of loop-carried inputs, which come first.
        shapes: The shapes of all its tensors, by id, in any iteration.
        contents: The integers in tensors that are known or follow from shapes, by id.
        iteration: The iteration index, as a symbolic size.
        most: The largest length of the sequence.

    Attributes:
        values: The values that are known, by the id of the tensor.
    """

    def __init__(
        self,
        block: Graph,
        args: int,
        shapes: Mapping[int, Sequence[Number]],
        contents: Mapping[int, np.ndarray],
        iteration: Number,
        most: int,
    ) -> None:
        self._shapes, self._contents, self._most = shapes, contents, most
        self._length = iteration + 1
        self._varying = symbols_in(iteration)
        self.values: dict[int, PositionValue] = {}
        self._producers = {spec.id: op for op in block.ops for spec in op.output_specs()}
        for spec, result in zip(block.inputs[:args], block.outputs[1:]):
            axes = self.axes_of(spec)
            if axes is not None and len(axes) == 1 and self._appends(spec, result, axes[0]):
                self.values[spec.id] = PositionValue(axes, magnitude=magnitude_outside(spec))
        for spec in block.inputs[args:]:
            if self.axes_of(spec) == ():
                self.values[spec.id] = PositionValue(magnitude=magnitude_outside(spec))
        for op in block.ops:
            self._add(op)

    def axes_of(self, spec: TensorSpec) -> tuple[int, ...] | None:
        """The axes with the length of the sequence; ``None`` if another one grows as well."""
        shape = self._shapes.get(spec.id)
        if shape is None:
            return None
        axes = tuple(n for n, size in enumerate(shape) if self._is_length(size))
        others = (size for n, size in enumerate(shape) if n not in axes)
        return axes if not any(symbols_in(size) & self._varying for size in others) else None

    def reads(self, op: Op, axis: int) -> list[Sliced] | None:
        """The inputs of which position ``i`` is read for position ``i`` along ``axis``.

        Inputs are left out that are broadcast along the axis; the other ones are read whole.
        """
        found = self._reads_of(op, axis)
        if found is None:
            return None
        kept = []
        for read in found:
            size = self._shapes[op.inputs[read.name][read.position].id][read.axis]
            if self._is_length(size):
                kept.append(read)
            elif not is_same_shape([size], [1]):
                return None
        return kept

    def whole(self, op: Op) -> TensorSpec | None:
        """The input that an operator returns as it is, such as a slice of all positions."""
        if op.type == "pd_op.assign":
            x = op.input("x")
        elif op.type == "pd_op.slice" and not op.attr("decrease_axis"):
            x = op.input("input")
        else:
            return None
        (result,) = op.output_specs()
        same = x.dtype == result.dtype and self.is_same(x, result)
        return x if same else None

    def is_same(self, one: TensorSpec, other: TensorSpec) -> bool:
        """Whether two tensors have the same shape in all iterations."""
        return is_same_shape(self._shapes[one.id], self._shapes[other.id])

    def row_shape(self, spec: TensorSpec, axis: int) -> list[int] | None:
        """The shape of one position for a reshape; ``None`` if more than one size is unknown."""
        shape = [1 if n == axis else size for n, size in enumerate(self._shapes[spec.id])]
        found = [-1 if is_symbolic([size]) else int(size) for size in shape]
        return found if found.count(-1) <= 1 else None

    def empty_shape(self, spec: TensorSpec, axis: int) -> list[Number]:
        """The shape of a tensor without any position."""
        return [0 if n == axis else size for n, size in enumerate(self._shapes[spec.id])]

    def integers(self, op: Op, name: str) -> list[int] | None:
        """The integers of an input that is equal in all iterations; ``None`` if unknown."""
        found: list[Number] = []
        for spec in op.inputs.get(name, ()):
            contents = self._contents.get(spec.id)
            if contents is None:
                return None
            found += contents.reshape(-1).tolist()
        return None if is_symbolic(found) else [int(each) for each in found]

    def _appends(self, spec: TensorSpec, result: TensorSpec, axis: int) -> bool:
        """Whether an iteration yields its input with more behind it along an axis."""
        op = self._producers.get(result.id)
        while op is not None and EARLY_EXIT in op.attrs:
            exit: EarlyExit = op.attrs[EARLY_EXIT]
            if not exit.appends or op.inputs["captured"][1 - exit.after].id != spec.id:
                return False
            op = self._producers.get(op.inputs["captured"][exit.after].id)
        along = None if op is None else self.integers(op, "axis")
        if op is None or op.type != "pd_op.concat" or along is None:
            return False
        first = op.inputs["x"][0]
        while first.id in self._producers:
            whole = self.whole(self._producers[first.id])
            if whole is None:
                return False
            first = whole
        return first.id == spec.id and along[0] % len(spec.shape) == axis

    # -- values of results ------------------------------------------------------------------------

    def _add(self, op: Op) -> None:
        results = list(op.output_specs())
        entry = find_converter(op.type)
        if op.blocks or op.called or entry is None or entry.draws(op):
            return
        axes = [self.axes_of(spec) for spec in results]
        has_shapes = all(spec.id in self._shapes for spec in op.input_specs())  # lists have none
        if not has_shapes or any(each is None for each in axes):
            return
        reads_invariant = all(self._is_invariant(spec) for spec in op.input_specs())
        if not any(axes) and (reads_invariant or self._is_known(results)):
            table = self._table(op)
            magnitude = self._magnitude(op) if table is None else magnitude_of_table(table)
            invariant = PositionValue(table=table, magnitude=magnitude)
            self.values.update((spec.id, invariant) for spec in results)
            return
        if len(results) != 1 or axes[0] is None:
            return
        value = self._value(op, results[0], axes[0])
        if value is not None and len(value.axes) == len(axes[0]):
            table = value.table
            magnitude = self._magnitude(op) if table is None else magnitude_of_table(table)
            self.values[results[0].id] = replace(value, magnitude=magnitude)

    def _magnitude(self, op: Op) -> Magnitude:
        """How large the results of an operator may be."""
        return magnitude_of(
            op,
            {
                name: [self.values[spec.id].magnitude for spec in specs if spec.id in self.values]
                for name, specs in op.inputs.items()
            },
            {
                name: table
                for name, specs in op.inputs.items()
                for spec in specs
                if (value := self.values.get(spec.id)) and (table := value.table) is not None
            },
        )

    def _is_invariant(self, spec: TensorSpec) -> bool:
        value = self.values.get(spec.id)
        return value is not None and not value.axes

    def _is_known(self, specs: Sequence[TensorSpec]) -> bool:
        """Whether tensors hold integers that follow from sizes that are equal in all iterations."""
        for spec in specs:
            contents = self._contents.get(spec.id)
            if contents is None or any(
                symbols_in(each) & self._varying for each in contents.reshape(-1).tolist()
            ):
                return False
        return True

    def _value(self, op: Op, result: TensorSpec, axes: tuple[int, ...]) -> PositionValue | None:
        table = self._table(op)
        if table is not None:
            return PositionValue(axes, table=table)
        whole = self.whole(op)
        if whole is not None:
            return self.values.get(whole.id)
        if op.type == "pd_op.slice":
            return self._value_of_slice(op, axes)
        if not axes or len(axes) > 2:
            return None
        if op.type == "pd_op.reshape":
            return self._value_of_reshape(op, result, axes)
        if op.type in ("pd_op.matmul", "pd_op.bmm"):
            return self._value_of_product(op, axes)
        if op.type == "pd_op.softmax":
            value = self.values.get(op.input("x").id)
            if value is not None and value.state == HIDES:
                along = op.attr("axis") % len(op.input("x").shape)
                return replace(value, state=ZERO) if along == value.key else None
        return self._value_by_position(op, axes)

    def _value_by_position(self, op: Op, axes: tuple[int, ...]) -> PositionValue | None:
        """The value of a result whose elements are computed from elements at the same positions."""
        # For each input, the axis of the result for each axis of the input.
        sources: dict[tuple[str, int], dict[int, int]] = {}
        for axis in axes:
            reads = self.reads(op, axis)
            if reads is None:
                return None
            for name, position, own in reads:
                sources.setdefault((name, position), {})[own] = axis
        values = {}
        for name, specs in op.inputs.items():
            for position, spec in enumerate(specs):
                value = self.values.get(spec.id)
                if value is None or {*value.axes} != {*sources.get((name, position), ())}:
                    return None
                values[name, position] = value
        if len(axes) == 1:
            return PositionValue(axes)
        return self._paired(op, axes, values, sources)

    def _paired(
        self,
        op: Op,
        axes: tuple[int, ...],
        values: Mapping[tuple[str, int], PositionValue],
        sources: Mapping[tuple[str, int], Mapping[int, int]],
    ) -> PositionValue | None:
        """The value of a paired result, from those of the inputs and the axes of these."""
        marked = {key: value for key, value in values.items() if value.query is not None}
        if len(marked) == 1:
            ((place, value),) = marked.items()
            assert value.query is not None
            query = sources[place][value.query]
            if op.type in ("pd_op.transpose", "pd_op.unsqueeze", "pd_op.squeeze"):
                return PositionValue(axes, query, value.state)
            if op.type == "pd_op.dropout" and op.attr("mode") == "upscale_in_train":
                return PositionValue(axes, query, value.state)
            return None
        unknown = [value.magnitude for value in values.values() if value.table is None]
        if marked or any(each.factor > VISIBLE for each in unknown):
            return None
        if op.type in (*_SUMS, *_SELECTIONS):
            is_open = any(each.is_open for each in unknown)
            return None if is_open else self._masked(op, axes, values)
        return None if any(map(_has_large, values.values())) else PositionValue(axes)

    def _masked(
        self, op: Op, axes: tuple[int, ...], values: Mapping[tuple[str, int], PositionValue]
    ) -> PositionValue | None:
        """The value of scores to which a mask is added, or of which a table selects."""
        rank = len(next(op.output_specs()).shape)
        tables = {
            name: self._square(value.table, axes, rank)
            for (name, _), value in values.items()
            if value.table is not None
        }
        if op.type in _SUMS:
            added = tables.get("y")
            if added is None and op.type == "pd_op.add":
                added = tables.get("x")
            if added is None or len(tables) != 1:
                return PositionValue(axes) if not tables else None
            return _hiding(-added if op.type == "pd_op.subtract" else added, axes)
        condition, names = (
            ("mask", ("value", "x"))
            if op.type == "pd_op.masked_fill"
            else ("condition", ("x", "y"))
        )
        chosen = tables.get(condition)
        if chosen is None:
            return None
        sides = [np.float32(0) if tables.get(name) is None else tables[name] for name in names]
        return _hiding(np.where(chosen, *sides), axes)

    def _square(self, table: Table, axes: tuple[int, ...], rank: int) -> np.ndarray:
        """A table, [..., most, most], with the two axes of positions last."""
        table = table.reshape([1] * (rank - table.ndim) + [*table.shape])
        shape = [self._most if n in axes else table.shape[n] for n in range(rank)]
        return np.moveaxis(np.broadcast_to(table, shape), axes, (-2, -1))

    def _value_of_product(self, op: Op, axes: tuple[int, ...]) -> PositionValue | None:
        x, y = (self.values.get(op.input(name).id) for name in "xy")
        ranks = [len(op.input(name).shape) for name in "xy"]
        if x is None or y is None or min(ranks) < 2:
            return None
        row, inner = ranks[0] - 2, ranks[0] - 1
        if op.attr("transpose_x"):
            row, inner = inner, row
        column, other = ranks[1] - 1, ranks[1] - 2
        if op.attr("transpose_y"):
            column, other = other, column
        rank = max(ranks)
        if x.axes == (row,) and y.axes == (column,):
            return PositionValue(axes) if axes == (rank - 2, rank - 1) else None
        if x.axes == (row,) and not y.axes:
            return PositionValue(axes) if axes == (rank - 2,) else None
        if {*x.axes} == {row, inner} and y.axes == (other,) and axes == (rank - 2,):
            is_zero = x.state == ZERO and x.query == row
            return PositionValue(axes) if is_zero else None
        return None

    def _value_of_slice(self, op: Op, axes: tuple[int, ...]) -> PositionValue | None:
        """The value of the first rows of an invariant tensor, as many as there are words."""
        value = self.values.get(op.input("input").id)
        if value is None or value.axes or len(axes) != 1 or op.attr("decrease_axis"):
            return None
        along, starts = op.attr("axes"), self.integers(op, "starts")
        if len(along) != 1 or along[0] % len(op.input("input").shape) != axes[0]:
            return None
        return PositionValue(axes, is_piece=True) if starts == [0] else None

    def _value_of_reshape(
        self, op: Op, result: TensorSpec, axes: tuple[int, ...]
    ) -> PositionValue | None:
        x = op.input("x")
        value = self.values.get(x.id)
        if value is None or len(value.axes) != len(axes):
            return None
        before, after = self._between(x, value.axes), self._between(result, axes)
        if not is_same_shape(before, after) or any(
            self.row_shape(result, axis) is None for axis in axes
        ):
            return None
        query = None if value.query is None else axes[value.axes.index(value.query)]
        return replace(value, axes=axes, query=query, table=None)

    def _between(self, spec: TensorSpec, axes: Sequence[int]) -> list[Number]:
        """The numbers of elements between the axes of positions."""
        found: list[Number] = [1]
        for axis, length in enumerate(self._shapes[spec.id]):
            if axis in axes:
                found.append(1)
            else:
                found[-1] = found[-1] * length
        return found

    def _table(self, op: Op) -> Table | None:
        results = list(op.output_specs())
        if len(results) != 1:
            return None
        tables = {
            name: table
            for name, specs in op.inputs.items()
            if len(specs) == 1
            and (value := self.values.get(specs[0].id)) is not None
            and (table := value.table) is not None
        }
        x = op.inputs.get("x", ())
        if op.type in _RESHAPES and not self._is_respelled(x[0], results[0]):
            return None
        if op.type in TRIANGLES and not all(map(self._is_bounded, self._shapes[x[0].id][-2:])):
            return None
        before = self._largest(x[0]) if len(x) == 1 else []
        after = self._largest(results[0])
        return table_of(op, tables, before, after, bool(self.axes_of(results[0])))

    def _is_bounded(self, size: Number) -> bool:
        """Whether the largest value of a size is known."""
        return self._is_length(size) or not is_symbolic([size])

    def _largest(self, spec: TensorSpec) -> list[int]:
        return [
            self._most if self._is_length(size) else 1 if is_symbolic([size]) else int(size)
            for size in self._shapes[spec.id]
        ]

    def _is_respelled(self, one: TensorSpec, other: TensorSpec) -> bool:
        """Whether two shapes differ in axes of size 1 only."""
        one_kept, other_kept = (
            [n for n in self._shapes[s.id] if not is_same_shape([n], [1])] for s in (one, other)
        )
        return is_same_shape(one_kept, other_kept)

    # -- what operators read ----------------------------------------------------------------------

    def _is_length(self, size: Number) -> bool:
        return is_same_shape([size], [self._length])

    def _reads_of(self, op: Op, axis: int) -> list[Sliced] | None:
        (result,) = op.output_specs()
        if op.type == "pd_op.bmm":
            return [Sliced("x", 0, 1)] if axis == 1 else None
        if op.type == "pd_op.reshape":
            value = self.values.get(op.input("x").id)
            axes = self.axes_of(result)
            if value is None or axes is None or axis not in axes:
                return None
            return [Sliced("x", 0, value.axes[axes.index(axis)])]
        return reads_of_position(op, axis, self.integers)


def _hiding(mask: np.ndarray, axes: tuple[int, ...]) -> PositionValue | None:
    """The value of scores and a mask, [..., positions, positions] along two axes."""
    if not np.all(mask <= VISIBLE):
        return None
    if not np.any(mask < -VISIBLE):
        return PositionValue(axes)
    for query, each in ((axes[0], mask), (axes[1], np.swapaxes(mask, -1, -2))):
        later = np.triu(np.ones(each.shape[-2:], bool), 1)
        is_seen = np.diagonal(each, axis1=-2, axis2=-1) >= -VISIBLE
        if np.all(is_seen) and np.all((each <= HIDDEN) | ~later):
            return PositionValue(axes, query, HIDES)
    return None


def _has_large(value: PositionValue) -> bool:
    """Whether a table has numbers that might hide others."""
    return value.table is not None and not np.all(np.abs(value.table) <= VISIBLE)
