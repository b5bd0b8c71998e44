"""Slices of the last position, taken before operators instead of after them.

A decoder computes the logits of all positions in each iteration, and reads the last one
(``logits[:, -1]``). Operators that compute each position by itself commute with the slice. It moves
in front of the product with the vocabulary, of normalization and of the feed-forward part of the
last layer, as long as nothing else reads their results; attention needs all positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from paddle_ngraph.conversion.analysis.position_wise import Sliced, reads_of_position
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec

_SLICE = "pd_op.slice"
_TO_THE_END = 2**31 - 1


def take_last_early(block: Graph) -> Graph:
    """The block of a loop, in which slices of the last position precede what they can."""
    ids = count(1 + max((spec.id for spec in block.all_specs()), default=0))
    first, last = (TensorSpec(next(ids), "int64", (1,)) for _ in range(2))
    moved = _Moves(block, ids, first, last)
    while moved.step():
        pass
    if moved.ops == block.ops:
        return block
    constants = [
        Op(
            "pd_op.full_int_array",
            block.ops[0].index,
            outputs={"out": (spec,)},
            attrs={"value": [value], "dtype": "int64"},
        )
        for spec, value in ((first, -1), (last, _TO_THE_END))
    ]
    return replace(block, ops=[*constants, *moved.ops])


class _Moves:
    """The operators of a block, of which :meth:`step` moves one slice in front of one of them.

    Args:
        block: The block.
        ids: Ids for new tensors.
        first, last: The bounds of new slices.
    """

    def __init__(self, block: Graph, ids: Iterator[int], first: TensorSpec, last: TensorSpec):
        self.ops = list(block.ops)
        self._outputs = {spec.id for spec in block.outputs}
        self._ids, self._first, self._last = ids, first, last
        # New slices, by the tensor and the axis.
        self._slices: dict[tuple[int, int], TensorSpec] = {}
        # Slices that have moved: what is left of them drops the axis.
        self._left: list[Op] = []

    def step(self) -> bool:
        """Moves a slice; returns whether there was one."""
        self._producers = {spec.id: op for op in self.ops for spec in op.output_specs()}
        for op in reversed(self.ops):
            axis = self._axis_of_last(op)
            producer = None if axis is None else self._producers.get(op.input("input").id)
            if axis is None or producer is None or not self._is_only_read_by(producer, op):
                continue
            reads = reads_of_position(producer, axis, self._known)
            if reads:
                self._move(op, axis, producer, reads)
                return True
        return False

    def _axis_of_last(self, op: Op) -> int | None:
        """The axis along which an operator takes the last element; ``None`` for other operators."""
        if op.type != _SLICE or op.called or any(op is each for each in self._left):
            return None
        axes = op.attr("axes")
        bounds = [self._known(op, "starts"), self._known(op, "ends")]
        if len(axes) != 1 or bounds[0] != [-1] or bounds[1] is None or bounds[1] < [_TO_THE_END]:
            return None
        return int(axes[0]) % len(op.input("input").shape)

    def _known(self, op: Op, name: str) -> list[int] | None:
        """The integers of an input that an operator of the block computes as constants."""
        specs = op.inputs.get(name, ())
        if len(specs) == 1 and specs[0].id in (self._first.id, self._last.id):
            return [-1 if specs[0].id == self._first.id else _TO_THE_END]
        producer = self._producers.get(specs[0].id) if len(specs) == 1 else None
        if producer is None or producer.type not in ("pd_op.full", "pd_op.full_int_array"):
            return None
        value = producer.attr("value")
        return [int(each) for each in (value if isinstance(value, list) else [value])]

    def _is_only_read_by(self, producer: Op, op: Op) -> bool:
        ids = {spec.id for spec in producer.output_specs()}
        if len(ids) != 1 or ids & self._outputs:
            return False
        readers = [other for other in self.ops if any(s.id in ids for s in other.input_specs())]
        return len(readers) == 1 and readers[0] is op

    def _move(self, op: Op, axis: int, producer: Op, reads: list[Sliced]) -> None:
        """Replaces ``op``, a slice of the result of ``producer``, by slices of what that reads."""
        new: list[Op] = []
        inputs = dict(producer.inputs)
        for name, position, own_axis in reads:
            specs = list(inputs[name])
            specs[position] = self._slice_of(specs[position], own_axis, producer, new)
            inputs[name] = tuple(specs)
        (result,) = producer.output_specs()
        if drops := bool(op.attr("decrease_axis")):
            kept = TensorSpec(next(self._ids), result.dtype, _with_one(result.shape, axis))
        else:
            kept = op.output("out")
        outputs = {
            name: tuple(None if spec is None else kept for spec in specs)
            for name, specs in producer.outputs.items()
        }
        new.append(replace(producer, inputs=inputs, outputs=outputs, form=None))
        place = next(n for n, each in enumerate(self.ops) if each is producer)
        self.ops[place : place + 1] = new
        at = next(n for n, each in enumerate(self.ops) if each is op)
        bounds = {"starts": (self._first,), "ends": (self._last,)}
        left = replace(op, inputs={"input": (kept,), **bounds}, form=None, constants={})
        self.ops[at : at + 1] = [left] if drops else []
        self._left.append(left)

    def _slice_of(self, spec: TensorSpec, axis: int, before: Op, new: list[Op]) -> TensorSpec:
        """The last position of a tensor: the result of a new slice, or of one that there is."""
        if (spec.id, axis) in self._slices:
            taken = self._slices[spec.id, axis]
            self._place_first(taken, before)
            return taken
        taken = TensorSpec(next(self._ids), spec.dtype, _with_one(spec.shape, axis))
        self._slices[spec.id, axis] = taken
        attributes = {"axes": [axis], "infer_flags": [1], "decrease_axis": []}
        inputs: dict[str, tuple[TensorSpec, ...]] = {"input": (spec,)}
        inputs.update(starts=(self._first,), ends=(self._last,))
        new.append(Op(_SLICE, before.index, inputs, {"out": (taken,)}, attributes, id=before.id))
        return taken

    def _place_first(self, taken: TensorSpec, before: Op) -> None:
        """Moves the slice with this result in front of ``before``, where it is behind it."""
        index = next(
            n for n, op in enumerate(self.ops) if any(s.id == taken.id for s in op.output_specs())
        )
        place = next(n for n, op in enumerate(self.ops) if op is before)
        if index > place:
            self.ops.insert(place, self.ops.pop(index))


def _with_one(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])
