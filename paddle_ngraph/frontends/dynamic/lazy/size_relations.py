"""Relations between numbers of a trace and sizes of its inputs, as a bound of ``x[:, :length]``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import paddle


class SizeRelation(NamedTuple):
    """A number that is a linear function of a size, as far as is known from two calls.

    Attributes:
        value, axis: The input of the trace, and its axis, that has the size.
        factor, offset: The number is ``factor * size + offset``.
    """

    value: int
    axis: int
    factor: int
    offset: int

    def holds(self, number: Any, given: Sequence[Any]) -> bool:
        """Returns whether the relation holds in a call with these values."""
        return self.in_call(given[self.value]) == number

    def in_call(self, x: Any) -> int:
        """Returns the number in a call in which the input is the tensor ``x``."""
        size: int = x.shape[self.axis]
        return self.factor * size + self.offset

    def in_program(self, x: Any) -> Any:
        """Adds the number to a program, in which ``x`` is the input; an integer without axes."""
        number = paddle.shape(x)[self.axis]
        if self.factor != 1:
            number = number * self.factor
        return number + self.offset if self.offset != 0 else number


def find_relation(
    numbers: Sequence[Any], shapes: Sequence[Sequence[Sequence[int]]], inputs: Iterable[int]
) -> SizeRelation | None:
    """Returns a relation of a number that holds in some calls, or ``None``.

    Args:
        numbers: The number in each of the calls.
        shapes: The shapes of all values in each of the calls.
        inputs: The ids of the inputs of the trace.
    """
    found = []
    if len(shapes) < 2:
        return None
    (first, *_, last), (one, *_, other) = numbers, shapes
    for value in inputs:
        for axis, (size, other_size) in enumerate(zip(one[value], other[value])):
            if size == other_size or not all(isinstance(each, int) for each in numbers):
                continue
            factor, rest = divmod(last - first, other_size - size)
            relation = SizeRelation(value, axis, factor, first - factor * size)
            if rest == 0 and factor != 0:
                found.append(relation)
    return min(found, key=lambda each: (each.factor != 1, abs(each.offset)), default=None)
