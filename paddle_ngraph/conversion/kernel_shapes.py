"""Shapes of the results of kernel calls where sizes of operands are dynamic.

Paddle's shape inference is compiled code, so it is probed with several sizes. A size of a result
that never changes is a constant, and one that always equals a size of an operand is that size. A
kernel call with other sizes has static shapes, and no dynamic ones. The node compares what the
kernel makes in each run (core/ov/kernel_call_op.h): a rule that only looks like one of these
rejects the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from openvino import PartialShape, Type, opset15

from paddle_ngraph.conversion.extensions import extension
from paddle_ngraph.conversion.symbolic_sizes import Number, SymbolicSize, evaluate, symbols_in
from paddle_ngraph.errors import NgraphError

# As in core/ov/kernel_call_op.h: a size that only a run knows, and that of axis 0 of input 0.
_OPEN, _SIZE_OF_INPUT, _MAX_RANK = -1, -2, 16
# What is added to sizes, once for the first symbol, twice for the second, and so on.
_PROBES = (0, 5, 13, 44)
# Sizes for dimensions of which nothing is known.
_DECLARED_PROBES = (64, 83, 97, 120)

Shapes = Sequence[Sequence[int]]
# Per result, its sizes: constants, _OPEN, or those of an input.
Rule = list[list[int]]


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
        ``None`` if a size is neither a constant nor that of an operand.
    """
    try:
        found = [inferred(kernel, types, shapes) for shapes in probes]
    except NgraphError:  # of Paddle's shape inference
        return None
    sizes = {
        tuple(shapes[index][axis] for shapes in probes): _SIZE_OF_INPUT - index * _MAX_RANK - axis
        for index in reversed(range(len(types)))
        for axis in reversed(range(min(len(probes[0][index]), _MAX_RANK)))
    }
    rule: Rule = []
    for index in range(len(found[0])):
        rule.append([])
        for axis, made in enumerate(zip(*(results[index] for results in found))):
            is_constant = len(set(made)) == 1 and not (is_samplewise and axis == 0)
            if not is_constant and made not in sizes:
                return None
            rule[-1].append(made[0] if is_constant else sizes[made])
    return rule


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
        is_open or _OPEN not in shape for shape, is_open in zip(rule, may_be_open)
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
    hints = sizes[0].guards.hints if sizes else {}
    probes = []
    for more in _PROBES:
        values = {s: hints[s] + more * (1 + index) for index, s in enumerate(symbols)}
        probes.append([[_at(size, values) for size in shape] for shape in shapes])
    return rule_of(kernel, types, probes, is_samplewise)


def sizes_by(rule: Rule, shapes: Sequence[Sequence[Number]]) -> list[list[Number]]:
    """The shapes of the results, given those of the operands; -1 where only a run knows a size."""
    return [[_size(word, shapes) for word in words] for words in rule]


def words_of(rule: Rule) -> list[int]:
    """The attribute ``shapes`` of a node."""
    return [word for words in rule for word in (len(words), *words)]


def _size(word: int, shapes: Sequence[Sequence[Number]]) -> Number:
    if word > _SIZE_OF_INPUT:
        return word
    index, axis = divmod(_SIZE_OF_INPUT - word, _MAX_RANK)
    return shapes[index][axis]


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
