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
from typing import NamedTuple

from paddle_ngraph.ir.graph import Graph, Op, TensorSpec

_SLICE = "pd_op.slice"
_TO_THE_END = 2**31 - 1
_OF_EACH_ELEMENT = frozenset(
    f"pd_op.{name}"
    for name in (
        *("abs", "assign", "cast", "elu", "exp", "gelu", "hardswish", "leaky_relu", "relu"),
        *("relu6", "rsqrt", "scale", "sigmoid", "silu", "softplus", "sqrt", "square", "swish"),
        "tanh",
    )
)
_OF_PAIRS = frozenset(
    f"pd_op.{name}" for name in ("add", "divide", "maximum", "minimum", "multiply", "subtract")
)


class _Sliced(NamedTuple):
    """An input of an operator that has the positions of its result, along ``axis``."""

    name: str
    position: int
    axis: int


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
            reads = self._reads(producer, axis)
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

    def _reads(self, op: Op, axis: int) -> list[_Sliced] | None:
        """The inputs from which an operator computes each position along an axis of its result.

        ``None`` if other positions have an effect, too, or if it is a kernel call.
        """
        if op.called:
            return None
        if op.type in _OF_EACH_ELEMENT or (op.type == "pd_op.dropout" and op.attr("is_test")):
            return [_Sliced("x", 0, axis)]
        (result,) = op.output_specs()
        rank = len(result.shape)
        if op.type in _OF_PAIRS:
            found = []
            for name in ("x", "y"):
                shape = op.input(name).shape
                own = axis - (rank - len(shape))
                if own >= 0 and shape[own] != 1:
                    found.append(_Sliced(name, 0, own))
            return found
        if op.type == "pd_op.matmul":
            x = op.input("x").shape
            is_row = axis == rank - 2 and min(len(x), len(op.input("y").shape)) >= 2
            return [_Sliced("x", 0, len(x) - 1 - (not op.attr("transpose_x")))] if is_row else None
        if op.type == "pd_op.layer_norm":
            return [_Sliced("x", 0, axis)] if axis < op.attr("begin_norm_axis") else None
        if op.type == "pd_op.softmax":
            return [_Sliced("x", 0, axis)] if axis != op.attr("axis") % rank else None
        if op.type == "pd_op.transpose":
            return [_Sliced("x", 0, op.attr("perm")[axis])]
        if op.type == "pd_op.conv2d":
            return [_Sliced("input", 0, axis)] if axis >= 2 and _is_pointwise(op) else None
        if op.type in ("pd_op.unsqueeze", "pd_op.squeeze"):
            return self._read_of_other_rank(op, axis)
        if op.type == "pd_op.concat":
            along = self._known(op, "axis")
            if along is None or along[0] % rank == axis:
                return None
            return [_Sliced("x", index, axis) for index in range(len(op.inputs["x"]))]
        return None

    def _read_of_other_rank(self, op: Op, axis: int) -> list[_Sliced] | None:
        axes, x = self._known(op, "axis"), op.input("x").shape
        if axes is None or len(axes) != 1:
            return None
        if op.type == "pd_op.unsqueeze":
            added = axes[0] % (len(x) + 1)
            return [_Sliced("x", 0, axis - (added < axis))] if added != axis else None
        dropped = axes[0] % len(x)
        return [_Sliced("x", 0, axis + (dropped <= axis))] if x[dropped] == 1 else None

    def _move(self, op: Op, axis: int, producer: Op, reads: list[_Sliced]) -> None:
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


def _is_pointwise(op: Op) -> bool:
    """Whether a convolution has a filter of one element, and takes all positions once."""
    window = op.input("filter").shape[2:]
    return (
        op.attr("data_format") == "NCHW"
        and {*window} == {*op.attr("strides")} == {1}
        and not any(op.attr("paddings"))
        and op.attr("padding_algorithm") != "SAME"
    )
