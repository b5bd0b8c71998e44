"""Bodies that compute the last position of a growing sequence, and keep what others need.

Where the values of all positions are stable (prefix_stability.py), and an iteration reads the last
one of the network's result, operators compute that position alone. Attention reads keys and values
of all positions: these become loop-carried values, to which an iteration appends its own. They
start without any, as the sequence has one position in the first iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from paddle_ngraph.conversion.analysis.position_wise import BROADCASTING
from paddle_ngraph.conversion.analysis.prefix_stability import PositionValue, PrefixStability
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.conversion.symbolic_sizes import Number
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX

_SLICE = "pd_op.slice"
_LAST, _TO_THE_END = -1, 2**31 - 1


class Kept(NamedTuple):
    """A tensor that becomes a loop-carried value.

    Attributes:
        spec: The value before an iteration.
        shape: The shape before the first one, without a position.
    """

    spec: TensorSpec
    shape: list[Number]


class _Impossible(Exception):
    """An operator needs a tensor of all positions that cannot be kept."""


def compute_single_rows(
    block: Graph, args: int, stability: PrefixStability
) -> tuple[Graph, list[Kept]] | None:
    """The block of a loop that computes one position, and what it keeps of earlier ones.

    The block has the values that are kept as further loop-carried inputs and outputs.

    Args:
        block: The block.
        args: The number of loop-carried inputs, which come first.
        stability: What is known of its tensors.

    Returns:
        ``None`` if some product or convolution is left that computes all positions.
    """
    rows = _LastPositions(block, stability)
    try:
        ops = rows.rewritten()
    except _Impossible:
        return None
    kept = rows.kept
    if not kept:
        return None
    outputs = [*block.outputs[: 1 + args], *rows.extended, *block.outputs[1 + args :]]
    ops = _needed(ops, outputs)
    computed = (op for op in _needed(ops, outputs, for_shapes=False) if op.type in _PRODUCTS)
    left = {spec.id for op in computed for spec in op.output_specs()}
    if any(rows.is_of_all_positions(id) for id in left):
        return None
    inputs = [*block.inputs[:args], *(each.spec for each in kept), *block.inputs[args:]]
    return replace(block, ops=ops, inputs=inputs, outputs=outputs), kept


_PRODUCTS = frozenset({"pd_op.matmul", "pd_op.bmm", "pd_op.conv2d"})


class _LastPositions:
    """Operators that compute the last position, beside those of a block that compute all.

    Args:
        block: The block.
        stability: What is known of its tensors.

    Attributes:
        kept: The tensors that are kept.
        extended: These, with the position of the iteration.
    """

    def __init__(self, block: Graph, stability: PrefixStability) -> None:
        self.kept: list[Kept] = []
        self.extended: list[TensorSpec] = []
        self._block, self._stability = block, stability
        self._ids = count(1 + max((spec.id for spec in block.all_specs()), default=0))
        self._producers = {spec.id: op for op in block.ops for spec in op.output_specs()}
        # New operators behind one of the block, by its id(); None: in front of all.
        self._new: dict[int | None, list[Op]] = {}
        self._last: dict[tuple[int, int, bool], TensorSpec] = {}
        self._whole: dict[int, TensorSpec] = {}
        self._integers: dict[tuple[int, ...], TensorSpec] = {}

    def rewritten(self) -> list[Op]:
        """The operators of the block, in which slices read the last position alone."""
        ops = [self._reading_last(op) for op in self._block.ops]
        found = list(self._new.get(None, ()))
        for op, original in zip(ops, self._block.ops):
            found += [op, *self._new.get(id(original), ())]
        return found

    def is_of_all_positions(self, id: int) -> bool:
        """Whether a tensor of the block has a value for all positions."""
        value = self._stability.values.get(id)
        return value is not None and bool(value.axes)

    def _reading_last(self, op: Op) -> Op:
        axis = self._axis_of_last(op)
        if axis is None:
            return op
        taken = self._last_of(op.input("input"), axis)
        return replace(op, inputs={**op.inputs, "input": (taken,)}, form=None, constants={})

    def _axis_of_last(self, op: Op) -> int | None:
        """The axis along which an operator takes the last position of a stable tensor."""
        if op.type != _SLICE or len(op.attr("axes")) != 1:
            return None
        value = self._stability.values.get(op.input("input").id)
        axis = int(op.attr("axes")[0]) % len(op.input("input").shape)
        is_stable = value is not None and value.axes == (axis,)
        starts, ends = (self._stability.integers(op, name) for name in ("starts", "ends"))
        is_last = starts == [_LAST] and ends is not None and ends >= [_TO_THE_END]
        return axis if is_stable and is_last else None

    def _last_of(self, spec: TensorSpec, axis: int, is_broadcast: bool = False) -> TensorSpec:
        """A tensor at the last position along an axis, which has size 1.

        Args:
            spec: The tensor.
            axis: The axis.
            is_broadcast: Whether other axes may have size 1, too.
        """
        key = spec.id, axis, is_broadcast
        if key not in self._last:
            self._last[key] = self._compute_last(spec, axis, is_broadcast)
        return self._last[key]

    def _compute_last(self, spec: TensorSpec, axis: int, is_broadcast: bool) -> TensorSpec:
        op = self._producers.get(spec.id)
        value = self._value(spec)
        if op is None:
            return self._slice(spec, axis, None)
        if (whole := self._stability.whole(op)) is not None:
            return self._last_of(whole, axis, is_broadcast)
        if value.table is not None and is_broadcast and spec.dtype == "float32":
            seen = _equal_number(value.table, value, axis, len(spec.shape))
            if seen is not None:
                return self._full(spec, seen)
        if value.table is not None or value.is_piece:
            return self._slice(spec, axis, op)
        return self._copy(op, spec, axis)

    def _copy(self, op: Op, spec: TensorSpec, axis: int) -> TensorSpec:
        """The result of an operator at the last position, computed by another such operator."""
        reads = self._stability.reads(op, axis)
        if reads is None:
            raise _Impossible
        taken = {(name, position): own for name, position, own in reads}
        inputs = {
            name: tuple(
                self._last_of(each, taken[name, position], self._is_covered(op, name))
                if (name, position) in taken
                else self._all_of(each)
                for position, each in enumerate(specs)
            )
            for name, specs in op.inputs.items()
        }
        constants = op.constants
        if op.type == "pd_op.reshape":
            shape = self._stability.row_shape(spec, axis)
            if shape is None:
                raise _Impossible
            inputs["shape"] = (self._integers_of(shape),)
            constants = {}
        result = self._new_spec(spec, axis, 1)
        outputs = {
            name: tuple(None if each is None else result for each in specs)
            for name, specs in op.outputs.items()
        }
        copy = replace(op, inputs=inputs, outputs=outputs, constants=constants, form=None)
        self._insert(copy, op)
        return result

    def _is_covered(self, op: Op, name: str) -> bool:
        """Whether an operator broadcasts an input to the shape of its other one."""
        if op.type not in BROADCASTING:
            return False
        (result,) = op.output_specs()
        return self._stability.is_same(op.input("y" if name == "x" else "x"), result)

    def _all_of(self, spec: TensorSpec) -> TensorSpec:
        """A tensor at all positions: that of the block, or one that is kept and extended."""
        if spec.id not in self._stability.values:
            return spec
        value, op = self._value(spec), self._producers.get(spec.id)
        if not value.axes or op is None or value.table is not None or value.is_piece:
            return spec
        if (whole := self._stability.whole(op)) is not None:
            return self._all_of(whole)
        if len(value.axes) != 1:
            raise _Impossible
        if spec.id not in self._whole:
            self._whole[spec.id] = self._keep(spec, value.axes[0], op)
        return self._whole[spec.id]

    def _keep(self, spec: TensorSpec, axis: int, op: Op) -> TensorSpec:
        last = self._last_of(spec, axis)
        before, after = (self._new_spec(spec, axis, -1) for _ in range(2))
        self.kept.append(Kept(before, self._stability.empty_shape(spec, axis)))
        self.extended.append(after)
        along = TensorSpec(next(self._ids), "int32", (1,))
        attributes = {"dtype": "int32", "value": axis, "shape": [1]}
        self._insert(Op("pd_op.full", op.index, {}, {"out": (along,)}, attributes, id=op.id), op)
        inputs: dict[str, tuple[TensorSpec, ...]] = {"x": (before, last), "axis": (along,)}
        self._insert(Op("pd_op.concat", op.index, inputs, {"out": (after,)}, id=op.id), op)
        return after

    def _slice(self, spec: TensorSpec, axis: int, op: Op | None) -> TensorSpec:
        taken = self._new_spec(spec, axis, 1)
        inputs: dict[str, tuple[TensorSpec, ...]] = {"input": (spec,)}
        inputs["starts"] = (self._integers_of([_LAST]),)
        inputs["ends"] = (self._integers_of([_TO_THE_END]),)
        attributes = {"axes": [axis], "infer_flags": [1], "decrease_axis": []}
        at = self._block.ops[0] if op is None else op
        self._insert(Op(_SLICE, at.index, inputs, {"out": (taken,)}, attributes, id=at.id), op)
        return taken

    def _full(self, spec: TensorSpec, number: float) -> TensorSpec:
        """A tensor with one number, which is broadcast."""
        result = TensorSpec(next(self._ids), spec.dtype, (1,) * len(spec.shape))
        attributes = {"dtype": spec.dtype, "value": number, "shape": list(result.shape)}
        first = self._block.ops[0]
        full = Op("pd_op.full", first.index, {}, {"out": (result,)}, attributes, id=first.id)
        self._insert(full, None)
        return result

    def _integers_of(self, numbers: Sequence[int]) -> TensorSpec:
        key = tuple(numbers)
        if key not in self._integers:
            spec = TensorSpec(next(self._ids), "int64", (len(key),))
            self._integers[key] = spec
            first, attributes = self._block.ops[0], {"value": list(key), "dtype": "int64"}
            op = Op("pd_op.full_int_array", first.index, {}, {"out": (spec,)}, attributes)
            self._insert(replace(op, id=first.id), None)
        return self._integers[key]

    def _insert(self, op: Op, behind: Op | None) -> None:
        self._new.setdefault(None if behind is None else id(behind), []).append(op)

    def _new_spec(self, spec: TensorSpec, axis: int, size: int) -> TensorSpec:
        shape = (*spec.shape[:axis], size, *spec.shape[axis + 1 :])
        return TensorSpec(next(self._ids), spec.dtype, shape)

    def _value(self, spec: TensorSpec) -> PositionValue:
        value = self._stability.values.get(spec.id)
        if value is None:
            raise _Impossible
        return value


def _equal_number(table: np.ndarray, value: PositionValue, axis: int, rank: int) -> float | None:
    """The number that all elements of a table at the last position are, if they are, else ``None``.

    The last position is any one along ``axis``, seen up to the same one along another axis.
    """
    table = table.reshape([1] * (rank - table.ndim) + [*table.shape])
    axes = [axis, *(each for each in value.axes if each != axis)]
    most: int = max(table.shape[each] for each in axes)
    shape = [most if n in axes else size for n, size in enumerate(table.shape)]
    rows = np.moveaxis(np.broadcast_to(table, shape), axes, range(-len(axes), 0))
    first = rows.reshape(-1)[0]
    is_equal = rows == first
    if len(axes) == 2:
        is_equal = is_equal | np.triu(np.ones((most, most), bool), 1)
    return float(first) if len(axes) <= 2 and np.all(is_equal) else None


def _needed(ops: Sequence[Op], outputs: Sequence[TensorSpec], for_shapes: bool = True) -> list[Op]:
    """The operators that some output depends on, in order.

    Args:
        ops: The operators.
        outputs: The outputs.
        for_shapes: Whether those count of which nothing but the shape is read.
    """
    needed = {spec.id for spec in outputs}
    found = []
    for op in reversed(ops):
        entry = find_converter(op.type)
        if _has_effects(op) or any(spec.id in needed for spec in op.output_specs()):
            found.append(op)
            for name, specs in op.inputs.items():
                if for_shapes or entry is None or entry.role(name).has_contents_read:
                    needed |= {spec.id for spec in specs}
    return found[::-1]


def _has_effects(op: Op) -> bool:
    """Whether an operator has to stay even if nothing reads its results."""
    entry = find_converter(op.type)
    specs = (*op.input_specs(), *op.output_specs())
    is_array = any(spec.dtype.endswith(ARRAY_SUFFIX) for spec in specs)
    return bool(op.blocks) or is_array or entry is None or entry.draws(op)
