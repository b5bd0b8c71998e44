"""What is the same in each turn of a loop, and computed before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paddle_ngraph.conversion.registry import Converter, Role, find_converter
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX

# What takes long enough to be computed once, with all that it needs and all that follows from it:
# the keys and values of what a decoder looks at, say.
_EXPENSIVE = frozenset(
    {"pd_op.matmul", "pd_op.bmm", "pd_op.conv2d", "pd_op.depthwise_conv2d", "pd_op.conv3d"}
    | {"pd_op.conv2d_transpose", "pd_op.addmm", "pd_op.einsum"}
)


def hoist_invariants(block: Graph, args: int) -> tuple[Graph, Graph]:
    """The block of a loop in two parts.

    Args:
        block: What is inside.
        args: How many of its inputs, the first ones, are others in each turn.

    Returns:
        What can be computed before the loop: it reads some of the inputs, and makes what the rest
        reads of it. And the rest, with that behind its inputs.
    """
    hoisted = _invariant_ops(block, args)
    before = [op for op in block.ops if id(op) in hoisted]
    # What makes a constant stays, too: a turn computes nothing for it.
    rest = [op for op in block.ops if id(op) not in hoisted or not _reads(op)]
    made = {spec.id: spec for op in before if _reads(op) for spec in op.output_specs()}
    wanted = {spec.id for op in rest for spec in op.input_specs()}
    wanted |= {spec.id for spec in block.outputs}
    handed_on = [spec for number, spec in made.items() if number in wanted]
    return (
        replace(block, ops=before, outputs=handed_on),
        replace(block, ops=rest, inputs=[*block.inputs, *handed_on]),
    )


def _reads(op: Op) -> bool:
    return any(True for _ in op.input_specs())


def _invariant_ops(block: Graph, args: int) -> set[int]:
    """The operators that are computed before the loop, by their identity."""
    same = {spec.id for spec in block.inputs[args:] if not spec.dtype.endswith(ARRAY_SUFFIX)}
    producers: dict[int, Op] = {}
    hoisted: set[int] = set()
    for op in block.ops:
        reads = list(op.input_specs())
        if not _can_be_hoisted(op, producers) or not all(spec.id in same for spec in reads):
            continue
        for spec in op.output_specs():
            same.add(spec.id)
            producers[spec.id] = op
        needed = [producers[spec.id] for spec in reads if spec.id in producers]
        if op.type in _EXPENSIVE or any(id(each) in hoisted and _reads(each) for each in needed):
            _add(op, producers, hoisted)
    return hoisted


def _add(op: Op, producers: dict[int, Op], hoisted: set[int]) -> None:
    """Adds an operator and all that it needs."""
    pending = [op]
    while pending:
        each = pending.pop()
        if id(each) not in hoisted:
            hoisted.add(id(each))
            pending += [producers[spec.id] for spec in each.input_specs() if spec.id in producers]


def _can_be_hoisted(op: Op, producers: Mapping[int, Op]) -> bool:
    """Whether an operator computes the same wherever it is.

    On a TensorArray it does not: others may write to that where it is, and each turn has its own.
    """
    entry = find_converter(op.type)
    if entry is None or not _is_plain(op, entry) or _makes_array(op):
        return False
    # Only inside it may be certain how long a slice is.
    return not entry.open_starts or all(
        spec.id in producers and not _reads(producers[spec.id])
        for name, specs in op.inputs.items()
        for spec in specs
        if entry.role(name) is Role.CONSTANT
    )


def _makes_array(op: Op) -> bool:
    return any(spec.dtype.endswith(ARRAY_SUFFIX) for spec in op.output_specs())


def only_selects(block: Graph) -> bool:
    """Whether a branch results in what it is given, or in constants."""
    if any(spec.dtype.endswith(ARRAY_SUFFIX) for spec in block.outputs):
        return False
    kinds = (find_converter(op.type) for op in block.ops)
    return all(
        entry is not None and _is_plain(op, entry) and not _reads(op)
        for op, entry in zip(block.ops, kinds)
    )


def _is_plain(op: Op, entry: Converter) -> bool:
    """Whether an operator is no loop or branch, and draws no random numbers."""
    return not op.blocks and not entry.draws(op)
