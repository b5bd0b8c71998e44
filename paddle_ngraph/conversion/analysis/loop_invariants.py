"""Loop-invariant code motion: operators that compute equal values in all iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paddle_ngraph.conversion.registry import Converter, Role, find_converter
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.utils.dtypes import ARRAY_SUFFIX, BYTES

# Operators slow enough to be moved out of a loop if they are invariant, with all operators that
# they need and all that depend on them: the keys and values that a decoder attends to, say.
_EXPENSIVE = frozenset(
    {"pd_op.matmul", "pd_op.bmm", "pd_op.conv2d", "pd_op.depthwise_conv2d", "pd_op.conv3d"}
    | {"pd_op.conv2d_transpose", "pd_op.addmm", "pd_op.einsum"}
)


def hoist_invariants(block: Graph, args: int) -> tuple[Graph, Graph]:
    """Splits the block of a loop in two.

    Args:
        block: The block.
        args: The number of loop-carried inputs, which come first.

    Returns:
        The operators that can be computed before the loop: a block that reads some of the inputs,
        and whose outputs the rest reads. And the rest, with these outputs as further inputs.
    """
    hoisted = _invariant_ops(block, args)
    before = [op for op in block.ops if id(op) in hoisted]
    # Hoisted constants stay in the loop, too: no iteration computes anything for them.
    rest = [op for op in block.ops if id(op) not in hoisted or not _reads(op)]
    computed = {spec.id: spec for op in before if _reads(op) for spec in op.output_specs()}
    needed = {spec.id for op in rest for spec in op.input_specs()}
    needed |= {spec.id for spec in block.outputs}
    carried = [spec for tensor, spec in computed.items() if tensor in needed]
    return (
        replace(block, ops=before, outputs=carried),
        replace(block, ops=rest, inputs=[*block.inputs, *carried]),
    )


def _reads(op: Op) -> bool:
    return any(True for _ in op.input_specs())


def _invariant_ops(block: Graph, args: int) -> set[int]:
    """The ids of the operators of a loop body that can be computed before the loop."""
    invariant = {spec.id for spec in block.inputs[args:] if not spec.dtype.endswith(ARRAY_SUFFIX)}
    producers: dict[int, Op] = {}
    hoisted: set[int] = set()
    for op in block.ops:
        reads = list(op.input_specs())
        if not _can_be_hoisted(op, producers) or not all(spec.id in invariant for spec in reads):
            continue
        for spec in op.output_specs():
            invariant.add(spec.id)
            producers[spec.id] = op
        needed = [producers[spec.id] for spec in reads if spec.id in producers]
        if op.type in _EXPENSIVE or any(id(each) in hoisted and _reads(each) for each in needed):
            _hoist(op, producers, hoisted)
    return hoisted


def _hoist(op: Op, producers: dict[int, Op], hoisted: set[int]) -> None:
    """Adds to ``hoisted`` the operator ``op``, and all operators of the body that it depends on."""
    pending = [op]
    while pending:
        each = pending.pop()
        if id(each) not in hoisted:
            hoisted.add(id(each))
            pending += [producers[spec.id] for spec in each.input_specs() if spec.id in producers]


def _can_be_hoisted(op: Op, producers: Mapping[int, Op]) -> bool:
    """Whether an operator computes the same result outside the loop.

    Operators on TensorArrays do not: other operators may write to them, and each iteration has its
    own state.
    """
    entry = find_converter(op.type)
    if entry is None or not _is_plain(op, entry) or _creates_array(op):
        return False
    # A slice stays in the loop if its length may follow from an induction variable, whose value is
    # certain inside the loop only.
    return not entry.open_starts or all(
        spec.id in producers and not _reads(producers[spec.id])
        for name, specs in op.inputs.items()
        for spec in specs
        if entry.role(name) is Role.CONSTANT
    )


def _creates_array(op: Op) -> bool:
    return any(spec.dtype.endswith(ARRAY_SUFFIX) for spec in op.output_specs())


def only_selects(block: Graph) -> bool:
    """Whether every output of a branch is one of its inputs, or a constant; none is bytes."""
    if any(spec.dtype.endswith(ARRAY_SUFFIX) or spec.dtype in BYTES for spec in block.outputs):
        return False
    entries = (find_converter(op.type) for op in block.ops)
    return all(
        entry is not None and _is_plain(op, entry) and not _reads(op)
        for op, entry in zip(block.ops, entries)
    )


def _is_plain(op: Op, entry: Converter) -> bool:
    """Whether an operator is no loop, branch or kernel call, and not stochastic."""
    return not op.blocks and not op.called and not entry.draws(op)
