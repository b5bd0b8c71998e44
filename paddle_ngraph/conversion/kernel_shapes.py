"""Shapes of the results of kernel calls where sizes of operands are dynamic.

Paddle's shape inference is compiled code, so it is probed with several sizes. A size of a result
that never changes is a constant; any other is a multiple of a size of an operand plus a constant,
half of such a sum (a one-sided FFT has ``n // 2 + 1`` frequencies), a number of steps along an
operand (frames of a signal), a multiple of a product of sizes (a flattened operand) plus a
constant, or a sum of multiples of several sizes (a concatenation). A kernel call with other sizes
has static shapes, and no dynamic ones. The node compares what the kernel makes in each run
(core/ov/kernel_call_op.h): a rule that only looks like one of these rejects the run.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np
from openvino import PartialShape, Type, opset15

from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.symbolic_sizes import Number, SymbolicSize, evaluate, symbols_in
from paddle_ngraph.errors import NgraphError

# A size that only a run knows.
_OPEN = -1
# What is added to sizes, of which some are even and some odd; and for each further symbol more of
# the second number. The last sizes show strides that are longer than the differences of the others.
_PROBES = ((0, 0), (5, 14), (13, 32), (44, 58), (61, 3), (20011, 4013))
# Sizes for dimensions of which nothing is known; the second ones if the first are too small, for a
# window of a signal, say.
_DECLARED_PROBES = (64, 83, 97, 120, 20011), (8192, 8211, 8225, 8248, 28139)

# How far a size is increased in the search for the steps of a size of a result.
_MAX_STEP = 2**16
# The most sizes of operands in a product, and in a sum.
_MAX_SIZES = 4

Shapes = Sequence[Sequence[int]]
# Operand and axis.
Place = tuple[int, int]


class Term(NamedTuple):
    """A multiple of a product of sizes of operands.

    Attributes:
        places: The sizes, at least one, each by its operand and axis.
        factor: The integer before the product.
    """

    places: tuple[Place, ...]
    factor: int


class SizeRule(NamedTuple):
    """A size of a result: ``(sum of terms + offset) // divisor``.

    Attributes:
        terms, divisor: See above.
        offset: See above; without terms the size itself, or -1 if only a run knows it.
    """

    terms: tuple[Term, ...]
    offset: int = 0
    divisor: int = 1

    @property
    def is_open(self) -> bool:
        """Whether only a run knows the size."""
        return not self.terms and self.offset == _OPEN

    def of(self, shapes: Sequence[Sequence[Number]]) -> Number:
        """The size, given the shapes of the operands; -1 if only a run knows it."""
        size: Number = self.offset
        for places, factor in self.terms:
            size += math.prod((shapes[input][axis] for input, axis in places), start=factor)
        return size // self.divisor if self.divisor > 1 else size

    def words(self) -> list[int]:
        """The size in the attribute ``shapes`` of a node."""
        words = [len(self.terms)]
        for places, factor in self.terms:
            words += [len(places), *(number for place in places for number in place), factor]
        return [*words, self.offset, self.divisor]


# Per result, its sizes.
Rule = list[list[SizeRule]]


def rule_of(
    kernel: str, types: Sequence[Type], probes: Sequence[Shapes], is_samplewise: bool = False
) -> Rule | None:
    """How the sizes of results follow from those of operands.

    Args:
        kernel: The description of the kernel.
        types: The element types of the operands.
        probes: Shapes of the operands, several times.
        is_samplewise: Whether results have the samples of the operands along axis 0, also where
            their number is the same in all probes.

    Returns:
        ``None`` if a size follows in another way.
    """
    try:
        return _Probed(kernel, types, probes).rule(is_samplewise)
    except NgraphError:  # of Paddle's shape inference
        return None


class _Probed:
    """The sizes of operands and results of a kernel, several times.

    Raises:
        NgraphError: Paddle's shape inference rejects one of the probes.
    """

    def __init__(self, kernel: str, types: Sequence[Type], probes: Sequence[Shapes]) -> None:
        self._made_of = lambda shapes: inferred(kernel, types, shapes)
        self._probes = probes
        self._made = list(map(self._made_of, probes))
        # The places of a size, by the size in each probe.
        self._places: dict[tuple[int, ...], list[Place]] = {}
        for index, shape in enumerate(probes[0]):
            for axis in range(len(shape)):
                given = tuple(shapes[index][axis] for shapes in probes)
                self._places.setdefault(given, []).append((index, axis))

    def rule(self, is_samplewise: bool) -> Rule | None:
        """See :func:`rule_of`."""
        rule: Rule = []
        for index, shape in enumerate(self._made[0]):
            rule.append([])
            for axis in range(len(shape)):
                made = tuple(results[index][axis] for results in self._made)
                is_constant = len(set(made)) == 1 and not (is_samplewise and axis == 0)
                size = SizeRule((), made[0]) if is_constant else self._size(made, index, axis)
                if size is None:
                    return None
                rule[-1].append(size)
        return rule

    def _size(self, made: tuple[int, ...], index: int, axis: int) -> SizeRule | None:
        """How the size of a result along an axis follows from those of operands."""
        if made in self._places:
            return SizeRule((self._term([made], 1),))
        varying = [given for given in self._places if len(set(given)) > 1]
        for count in range(1, _MAX_SIZES + 1):
            for factors in combinations_with_replacement(varying, count):
                product = tuple(map(math.prod, zip(*factors)))
                if (solved := _affine(made, product, (1, 2) if count == 1 else (1,))) is not None:
                    factor, *others = solved
                    return SizeRule((self._term(factors, factor),), *others)
        for count in range(2, _MAX_SIZES + 1):
            for summands in combinations(varying, count):
                if (found := _sum_of(made, summands)) is not None:
                    factors_of_sum, offset = found
                    terms = (self._term([s], f) for s, f in zip(summands, factors_of_sum))
                    return SizeRule(tuple(terms), offset)
        return next(filter(None, (self._stepped(made, g, index, axis) for g in varying)), None)

    def _term(self, sizes: Sequence[tuple[int, ...]], factor: int) -> Term:
        """A multiple of a product of sizes, each given as it is in each probe."""
        return Term(tuple(self._places[size][0] for size in sizes), factor)

    def _stepped(
        self, made: tuple[int, ...], given: tuple[int, ...], index: int, axis: int
    ) -> SizeRule | None:
        """A size that grows by 1 after equally many steps of an operand's: the stride of frames."""

        def made_at(size: int) -> int:
            changed = [list(shape) for shape in self._probes[0]]
            for operand, along in self._places[given]:
                changed[operand][along] = size
            return self._made_of(changed)[index][axis]

        first = _next_step(made_at, max(given))
        second = None if first is None else _next_step(made_at, first)
        if first is None or second is None:
            return None
        divisor = second - first
        offset = divisor * made_at(first) - first
        if any((size + offset) // divisor != wanted for size, wanted in zip(given, made)):
            return None
        return SizeRule((self._term([given], 1),), offset, divisor)


def _next_step(made_at: Callable[[int], int], start: int) -> int | None:
    """The least size above ``start`` whose result is larger than that of ``start``."""
    before, low, high = made_at(start), start, start + 1
    while made_at(high) <= before:
        low, high = high, high + 2 * (high - start)
        if high - start > _MAX_STEP:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if made_at(middle) <= before else (low, middle)
    return high


def _affine(
    made: tuple[int, ...], given: tuple[int, ...], divisors: Sequence[int]
) -> tuple[int, int, int] | None:
    """Factor, offset and divisor by which ``made`` follows from ``given``, or ``None``."""
    low, high = min(given), max(given)
    first, last = made[given.index(low)], made[given.index(high)]
    for divisor in divisors:
        factor = round((last - first) * divisor / (high - low))
        if divisor > 1 and factor % divisor == 0:
            continue
        # The offsets for which the quotients are these.
        least = max(divisor * y - factor * x for x, y in zip(given, made))
        most = min(divisor * y - factor * x for x, y in zip(given, made)) + divisor - 1
        if factor != 0 and least == most:
            return factor, least, divisor
    return None


def _sum_of(
    made: tuple[int, ...], summands: Sequence[tuple[int, ...]]
) -> tuple[list[int], int] | None:
    """The integers by which ``made`` is a sum of multiples of ``summands``, and what is added.

    ``None`` if there are none, or several.
    """
    if len(summands) + 2 > len(made):
        return None
    columns = np.array([*summands, [1] * len(made)], float).T
    solution, _, rank, _ = np.linalg.lstsq(columns, np.array(made, float), rcond=None)
    *factors, offset = (round(number) for number in solution.tolist())
    if rank < len(summands) + 1 or 0 in factors:
        return None
    sums = [offset + sum(map(operator.mul, factors, row)) for row in zip(*summands)]
    return (factors, offset) if sums == [*made] else None


def has_rule(
    kernel: str, types: Sequence[Type], declared: Shapes, may_be_open: Sequence[bool]
) -> bool:
    """Whether all sizes of results follow from those of operands.

    Args:
        kernel, types: As for :func:`rule_of`.
        declared: The shapes of the operands, of which -1 is any size.
        may_be_open: For each result, whether its sizes may depend on data.
    """
    for sizes in _DECLARED_PROBES:
        probes = [[[size if s < 0 else s for s in shape] for shape in declared] for size in sizes]
        if (rule := rule_of(kernel, types, probes)) is not None:
            return all(
                is_open or not any(size.is_open for size in shape)
                for shape, is_open in zip(rule, may_be_open)
            )
    return False


def symbolic_rule_of(
    kernel: str,
    types: Sequence[Type],
    shapes: Sequence[Sequence[Number]],
    is_samplewise: bool = False,
) -> Rule | None:
    """Like :func:`rule_of`, at several values of the symbols in the operands' shapes."""
    sizes = [size for shape in shapes for size in shape if isinstance(size, SymbolicSize)]
    symbols = sorted(set().union(*map(symbols_in, sizes)))
    hints = {s: sizes[0].guards.size(s).hint for s in symbols}
    probes = []
    for more, for_others in _PROBES:
        values = {s: hints[s] + more + index * for_others for index, s in enumerate(symbols)}
        probes.append([[_at(size, values) for size in shape] for shape in shapes])
    return rule_of(kernel, types, probes, is_samplewise)


def sizes_by(rule: Rule, shapes: Sequence[Sequence[Number]]) -> list[list[Number]]:
    """The shapes of the results, given those of the operands; -1 where only a run knows a size."""
    return [[size.of(shapes) for size in sizes] for sizes in rule]


def words_of(rule: Rule) -> list[int]:
    """The attribute ``shapes`` of a node."""
    return [
        word
        for sizes in rule
        for word in (len(sizes), *(word for size in sizes for word in size.words()))
    ]


def _at(size: Number, values: dict[int, int]) -> int:
    return evaluate(size.terms, values) if isinstance(size, SymbolicSize) else int(size)


def inferred(kernel: str, types: Sequence[Type], shapes: Shapes) -> list[list[int]]:
    """The shapes of the results, by Paddle's inference; -1 where only a run knows a size.

    Raises:
        NgraphError: Paddle rejects these operands, or a result has another dtype than declared.
    """
    parameters = [
        opset15.parameter(PartialShape(list(shape)), type) for shape, type in zip(shapes, types)
    ]
    node = extension("KernelCall", parameters, kernel=kernel, op_id=0)
    return [
        [size.get_length() if size.is_static else _OPEN for size in output.get_partial_shape()]
        for output in node.outputs()
    ]
