"""Integers as other integers plus a constant, as far as operators show, for the sizes of slices.

``x[:, i]`` reads ``stack([i])`` and ``stack([i + 1])``: the slice has size 1 for every ``i``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from paddle_ngraph.ir.graph import Op, TensorSpec

# Types of operators that preserve the elements of their input, in order.
VALUE_PRESERVING = (
    "pd_op.assign",
    "pd_op.reshape",
    "pd_op.squeeze",
    "pd_op.unsqueeze",
    "pd_op.flatten",
)
OPERANDS = "x", "y"
# Types of operators that add a value to each element of an input, with the names of the inputs that
# can be the one added to.
_TERMS: Mapping[str, Sequence[str]] = {
    "pd_op.add": OPERANDS,
    "pd_op.increment": ("x",),
    "pd_op.scale": ("x",),
    "pd_op.subtract": ("x",),
}
# Types of operators that compute known values, with the name of the attribute of these.
_CONSTANTS = {
    "pd_op.full": "value",
    "pd_op.full_int_array": "value",
    "pd_op.assign_value": "values",
}
INTEGER_DTYPES = ("int32", "int64")
# Attribute of a branch with one result: an EarlyExit (early_exits.py).
EARLY_EXIT = "early_exit"
# Maximum number of elements of a tensor that is analysed: lists of indices are not longer.
_MAX_ELEMENTS = 16


def terms(op: Op, ones: Collection[int] = ()) -> Sequence[str]:
    """The names of the inputs that an operator may add a value to, such as x of ``x + c``.

    Args:
        op: The operator. In graphs it does not state which inputs are constant.
        ones: Ids of the tensors that are 1: as a factor, these leave an input as it is.
    """
    if op.type == "pd_op.scale" and op.constants.get("scale") != [1]:
        factors = {spec.id for spec in op.inputs.get("scale", ())}
        return _TERMS[op.type] if factors and factors <= {*ones} else ()
    return _TERMS.get(op.type, ())


class Offset(NamedTuple):
    """An integer, as a sum of a base and a constant.

    Attributes:
        base: An element of a tensor (id, index); ``None`` for a known integer.
        added: The constant.
    """

    base: tuple[int, int] | None
    added: int


class Offsets:
    """The integers in the short tensors of a block, each as an :class:`Offset`.

    Args:
        ops: The operators of the block, in order.
        changing: The tensors that other operators overwrite after their producer.
        dtypes: The dtypes of the tensors. Those of float32 have to be integers below 2^24.
    """

    def __init__(
        self,
        ops: Iterable[Op],
        changing: Collection[int] = (),
        dtypes: Collection[str] = INTEGER_DTYPES,
    ) -> None:
        self._known: dict[int, list[Offset]] = {}
        self._changing = changing
        self._dtypes = dtypes
        self._ones: set[int] = set()
        for op in ops:
            results = list(op.output_specs())
            if op.type == "pd_op.full" and op.attr("value") == 1:
                self._ones |= {spec.id for spec in results}
            if len(results) != 1 or results[0].dtype not in dtypes or _count(results[0]) is None:
                continue
            found = self._computed(op)
            if found is not None and len(found) == _count(results[0]):
                self._known[results[0].id] = found

    def slice_bounds(self, op: Op) -> list[tuple[Offset, Offset]] | None:
        """Start and end of the slices that an operator takes, for each of its axes.

        Returns:
            ``None`` if their lengths are uncertain, or if a step is not 1.
        """
        starts, ends = self._read(op, "starts"), self._read(op, "ends")
        name = next((name for name in ("strides", "steps") if op.has_input(name)), None)
        steps = [Offset(None, 1)] if name is None else self._read(op, name)
        if starts is None or ends is None or steps is None or len(starts) != len(ends):
            return None
        pairs = list(zip(starts, ends))
        are_certain = all(
            start.base == end.base and (start.base is None or start.added < end.added)
            for start, end in pairs
        )
        return pairs if are_certain and set(steps) <= {Offset(None, 1)} else None

    def slice_bases(self, op: Op) -> set[tuple[int, int]] | None:
        """The bases of an operator's slice bounds, see :class:`Offset`, other than known integers.

        Returns:
            ``None`` if a bound is not a short list of integers.
        """
        found: set[tuple[int, int]] = set()
        for name in ("starts", "ends"):
            offsets = self._read(op, name)
            if offsets is None:
                return None
            found |= {offset.base for offset in offsets if offset.base is not None}
        return found

    def scalar(self, tensor: TensorSpec) -> Offset | None:
        """The :class:`Offset` that is the only integer in a tensor; ``None`` for other tensors."""
        if tensor.id in self._changing or _count(tensor) != 1 or tensor.dtype not in self._dtypes:
            return None
        (found,) = self._known.get(tensor.id, [Offset((tensor.id, 0), 0)])
        return found

    def increment(self, tensor: TensorSpec, result: TensorSpec) -> int | None:
        """The constant ``result - tensor`` of two tensors of one integer; ``None`` if unknown."""
        found = self.scalar(result)
        return found.added if found is not None and found.base == (tensor.id, 0) else None

    def _read(self, op: Op, name: str) -> list[Offset] | None:
        """The offsets of all integers of an input, in order of its tensors; ``None`` if unknown."""
        return self._known_of(op.inputs.get(name, ()))

    def _known_of(self, specs: Sequence[TensorSpec]) -> list[Offset] | None:
        found: list[Offset] = []
        for spec in specs:
            count = _count(spec)
            if spec.id in self._changing or count is None or spec.dtype not in self._dtypes:
                return None
            itself = [Offset((spec.id, index), 0) for index in range(count)]
            found += self._known.get(spec.id, itself)
        return found

    def _computed(self, op: Op) -> list[Offset] | None:
        if op.type in _CONSTANTS:
            (result,) = op.output_specs()
            value = op.attr(_CONSTANTS[op.type])
            values = value if isinstance(value, list) else [value] * (_count(result) or 0)
            if not all(math.isfinite(each) and each == int(each) for each in values):
                return None
            return [Offset(None, int(each)) for each in values]
        if EARLY_EXIT in op.attrs:
            # Of the last iteration, no later one sees the result.
            return self._known_of([op.inputs["captured"][op.attrs[EARLY_EXIT].after]])
        if op.type in (*VALUE_PRESERVING, "pd_op.cast"):
            return self._read(op, "x")
        if op.type == "pd_op.stack":
            return self._read(op, "x") if op.attr("axis") == 0 else None
        for name in terms(op, self._ones):
            step = self._added(op, name)
            found = self._read(op, name)
            if step is not None and found is not None:
                return [Offset(base, added + step) for base, added in found]
        return None

    def _added(self, op: Op, term: str) -> int | None:
        """The integer that ``op`` adds to each element of its operand ``term``, if it is known."""
        if op.type in _ADDED:
            value = _ADDED[op.type](op)
            return int(value) if math.isfinite(value) and value == int(value) else None
        (other,) = {*OPERANDS} - {term}
        found = self._read(op, other)
        if found is None or len(found) != 1 or found[0].base is not None:
            return None
        return -found[0].added if op.type == "pd_op.subtract" else found[0].added


_ADDED: Mapping[str, Callable[[Op], float]] = {
    "pd_op.increment": lambda op: op.attr("value"),
    "pd_op.scale": lambda op: op.attr("bias", 0.0),
}


def _count(spec: TensorSpec) -> int | None:
    """The number of elements of a tensor; ``None`` if its shape is dynamic or it is too large."""
    count = math.prod(spec.shape)
    return count if min(spec.shape, default=0) >= 0 and count <= _MAX_ELEMENTS else None
