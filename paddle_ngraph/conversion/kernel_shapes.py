"""Shapes of the results of kernel calls where sizes of operands are dynamic.

Paddle's shape inference is compiled code, so it is probed with several sizes. A size of a result
that never changes is a constant; any other is a multiple of a size of an operand plus a constant,
or half of such a sum (a one-sided FFT has ``n // 2 + 1`` frequencies). A kernel call with other
sizes has static shapes, and no dynamic ones. The node compares what the kernel makes in each run
(core/ov/kernel_call_op.h): a rule that only looks like one of these rejects the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openvino import PartialShape, Type, opset15

from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.symbolic_sizes import Number, SymbolicSize, evaluate, symbols_in
from paddle_ngraph.errors import NgraphError

# A size that only a run knows.
_OPEN = -1
# What is added to sizes, of which some are even and some odd; and for each further symbol more of
# the second number.
_PROBES = ((0, 0), (5, 14), (13, 32), (44, 58))
# Sizes for dimensions of which nothing is known.
_DECLARED_PROBES = (64, 83, 97, 120)

Shapes = Sequence[Sequence[int]]


class SizeRule(NamedTuple):
    """A size of a result: ``(size * factor + offset) // divisor``.

    Attributes:
        input, axis: The operand and its axis that have ``size``; 0 if ``factor`` is 0.
        factor, divisor: See above.
        offset: See above; without a factor the size itself, or -1 if only a run knows it.
    """

    input: int
    axis: int
    factor: int
    offset: int
    divisor: int

    def of(self, shapes: Sequence[Sequence[Number]]) -> Number:
        """The size, given the shapes of the operands; -1 if only a run knows it."""
        if self.factor == 0:
            return self.offset
        size = shapes[self.input][self.axis] * self.factor + self.offset
        return size // self.divisor if self.divisor > 1 else size


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
        found = [inferred(kernel, types, shapes) for shapes in probes]
    except NgraphError:  # of Paddle's shape inference
        return None
    sizes = {
        tuple(shapes[index][axis] for shapes in probes): (index, axis)
        for index in reversed(range(len(types)))
        for axis in reversed(range(len(probes[0][index])))
    }
    rule: Rule = []
    for index in range(len(found[0])):
        rule.append([])
        for axis, made in enumerate(zip(*(results[index] for results in found))):
            is_constant = len(set(made)) == 1 and not (is_samplewise and axis == 0)
            each = SizeRule(0, 0, 0, made[0], 1) if is_constant else _rule_of_size(made, sizes)
            if each is None:
                return None
            rule[-1].append(each)
    return rule


def _rule_of_size(
    made: tuple[int, ...], sizes: dict[tuple[int, ...], tuple[int, int]]
) -> SizeRule | None:
    """How a size follows from one of an operand.

    Args:
        made: The size in each probe.
        sizes: Operand and axis, by the size in each probe.
    """
    if made in sizes:
        return SizeRule(*sizes[made], 1, 0, 1)
    for given, place in sizes.items():
        low, high = min(given), max(given)
        if low == high:
            continue
        first, last = made[given.index(low)], made[given.index(high)]
        for divisor in (1, 2):
            factor = round((last - first) * divisor / (high - low))
            if divisor > 1 and factor % divisor == 0:
                continue
            # The offsets for which the quotients are these.
            least = max(divisor * y - factor * x for x, y in zip(given, made))
            most = min(divisor * y - factor * x for x, y in zip(given, made)) + divisor - 1
            if factor != 0 and least == most:
                return SizeRule(*place, factor, least, divisor)
    return None


def has_rule(
    kernel: str, types: Sequence[Type], declared: Shapes, may_be_open: Sequence[bool]
) -> bool:
    """Whether all sizes of results follow from those of operands.

    Args:
        kernel, types: As for :func:`rule_of`.
        declared: The shapes of the operands, of which -1 is any size.
        may_be_open: For each result, whether its sizes may depend on data.
    """
    probes = [[[size if s < 0 else s for s in shape] for shape in declared]
              for size in _DECLARED_PROBES]  # fmt: skip
    rule = rule_of(kernel, types, probes)
    return rule is not None and all(
        is_open or not any(size.factor == 0 and size.offset == _OPEN for size in shape)
        for shape, is_open in zip(rule, may_be_open)
    )


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
    return [word for sizes in rule for word in (len(sizes), *(w for size in sizes for w in size))]


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
