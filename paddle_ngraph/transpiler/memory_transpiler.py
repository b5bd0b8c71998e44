"""The memory-optimization transpiler: rewrites a static program for a lower memory peak.

Operators are ordered so that memory is freed early: a weight is updated as soon as its gradient is
computed, and results with late readers are computed late. The hook runs the new program in that
order, in one thread, since Paddle's allocators per thread retain memory freed by other threads.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis import static_types
from paddle_ngraph.partitioning.analysis.block_view import dtype_name, mark_sequential, value_id
from paddle_ngraph.partitioning.block_report import summary
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.transpiler.memory.liveness import Lifetimes, MemoryStep
from paddle_ngraph.transpiler.memory.recompute import STATISTICS, is_batch_norm, recompute, us_of
from paddle_ngraph.transpiler.memory.schedule import schedule
from paddle_ngraph.utils import first_use

_MB = 2**20
_SUM = "pd_op.add_n"


@dataclass(frozen=True)
class Limits:
    """Limits and options of :func:`paddle_ngraph.optimize_memory`."""

    open_size: int = SETTINGS.typical_dimension_size
    recompute: float | None = None
    input_shapes: static_types.Shapes = field(default_factory=dict)

    def check(self) -> None:
        """Raises NgraphError if a limit is invalid."""
        if isinstance(self.open_size, bool) or not isinstance(self.open_size, int):
            raise NgraphError(f"open_size is {self.open_size!r}: give an integer, 1 or more")
        if self.open_size < 1:
            raise NgraphError(f"open_size is {self.open_size}: give an integer, 1 or more")
        budget = self.recompute
        is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
        if budget is not None and not (is_number and 0 <= budget < math.inf):
            raise NgraphError(f"recompute is {budget!r}: give a number of MB, 0 or more")


@dataclass(frozen=True)
class BlockMemory:
    """The changes of the transpiler to a block, and the memory before and after.

    Attributes:
        before, after: The predicted peak of the memory of results, in bytes.
        sums: The number of sums of several variables that were split, to add each when computed.
        moved: The number of operators that were moved.
        again: The types of the recomputed operators.
        again_us: The estimated time of these, in microseconds.
    """

    before: int
    after: int
    moved: int
    sums: int = 0
    again: Sequence[str] = ()
    again_us: float = 0.0


@dataclass(frozen=True)
class MemoryReport:
    """The changes to a program; ``str()`` is a readable report.

    Attributes:
        blocks: The global block first, then the blocks of control flow.
        open_size: The size assumed for dynamic dimensions.
    """

    blocks: list[BlockMemory]
    open_size: int

    @property
    def before(self) -> int:
        """The predicted peak memory of operators' results in the original program, in bytes."""
        return self.blocks[0].before

    @property
    def after(self) -> int:
        """The predicted peak memory of operators' results in the optimized program, in bytes."""
        return self.blocks[0].after

    def __str__(self) -> str:
        lines = [
            "Results of operators take at most "
            f"{_megabytes(self.before)} before, {_megabytes(self.after)} after "
            f"(predicted; dynamic dimensions are {self.open_size})."
        ]
        for number, block in enumerate(self.blocks):
            title = f"block {number}" if number else "global block"
            peaks = f"{_megabytes(block.before)} before, {_megabytes(block.after)} after"
            lines.append(f"{title}: {peaks}, {block.moved} operators moved")
            if block.sums:
                lines.append(f"  {block.sums} sums are split into sums of two")
            if block.again:
                lines.append(
                    f"  {len(block.again)} operators are recomputed, for about "
                    f"{block.again_us / 1000:.1f} ms: {summary(block.again)}"
                )
        return printable("\n".join(lines))


def optimize(
    program: Any, wanted: Sequence[Any], limits: Limits
) -> tuple[Program, list[Value], MemoryReport]:
    """Creates a program with a lower memory peak from a static program, which is not modified.

    Args:
        program: A static program, PIR or ProgramDesc.
        wanted: The fetch list: variables, or names of variables.
        limits: The options.

    Returns:
        The new program, the values in it that correspond to ``wanted``, and a report.

    Raises:
        NgraphError: As :func:`ngraph_transpiler.transpile`; or ``limits`` are invalid.
    """
    limits.check()
    given = ngraph_transpiler.static_program(program, "optimize_memory")
    copy, fetching = ngraph_transpiler.copied(given, wanted)
    report = rewrite(copy, limits)
    return copy, ngraph_transpiler.remove_fetches(copy, fetching), report


def rewrite(program: Program, limits: Limits) -> MemoryReport:
    """Optimizes a PIR program in place.

    Raises:
        NgraphError: ``limits`` do not match the program, which is then unmodified.
    """
    static_types.check(program, limits.input_shapes)
    found: dict[int, BlockMemory] = {}
    order = _rewrite_block(program.global_block(), limits, found)
    # Installs the patches by which Paddle's executor keeps the order of the program.
    first_use.begin()
    mark_sequential(program)
    return MemoryReport([found[number] for number in order], limits.open_size)


def _rewrite_block(block: Block, limits: Limits, found: dict[int, BlockMemory]) -> list[int]:
    """Optimizes a block after its sub-blocks; returns their keys in ``found``, its own first."""
    key = len(found)
    found[key] = BlockMemory(0, 0, 0)
    keys = [key]
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for op in block.ops:
        for inner in op.blocks() if op.num_regions() > 0 else ():
            number, *others = _rewrite_block(inner, limits, found)
            before[op.id()] = max(before.get(op.id(), 0), found[number].before)
            after[op.id()] = max(after.get(op.id(), 0), found[number].after)
            keys += [number, *others]
    types = static_types.types_in(block, limits.input_shapes, limits.open_size)
    given = Lifetimes.of(block, types, before)
    peak = given.peak(given.steps)
    if sums := _split_sums(block):
        types = static_types.types_in(block, limits.input_shapes, limits.open_size)
    lifetimes = Lifetimes.of(block, types, after)
    steps = schedule(lifetimes)
    moved = _moved(lifetimes.steps, steps)
    if limits.recompute is not None:
        steps = recompute(steps, lifetimes, int(limits.recompute * _MB))
    again = [step for step in steps if step.is_recompute]
    names, us = [step.node.type for step in again], sum(us_of(s, lifetimes) for s in again)
    found[key] = BlockMemory(peak, lifetimes.peak(steps), moved, sums, names, us)
    if moved or again:
        _arrange(block, steps, lifetimes)
    return keys


def _split_sums(block: Block) -> int:
    """Replaces sums of many variables by sums of two, in equal order, with equal results.

    A variable whose only reader is such a sum lives until all others are computed, such as the
    gradients of a weight with many uses. Returns the number of sums replaced.
    """
    sums = [op for op in block.ops if op.name() == _SUM and _can_be_split(op)]
    for op in sums:
        (result,), (list_of_all,) = op.results(), op.operands_source()
        combine = producer_of(list_of_all)
        total, *others = combine.operands_source()
        for other in others:
            (total,) = _core.insert_operator(op, "pd_op.add", [total, other], [result], {})
        result.replace_all_uses_with(total)
        block.remove_op(op)
        if list_of_all.use_empty():
            block.remove_op(combine)
    return len(sums)


def _can_be_split(op: Operation) -> bool:
    (result,), combine = op.results(), producer_of(op.operand_source(0))
    terms = combine.operands_source()
    if combine.name() != "builtin.combine" or len(terms) < 3 or result.persistable:
        return False
    return all(
        term.is_dense_tensor_type() and (term.dtype, term.shape) == (result.dtype, result.shape)
        for term in terms
    )


def _arrange(block: Block, steps: Sequence[MemoryStep], lifetimes: Lifetimes) -> None:
    """Puts the operators of a block into the order of ``steps``, with recomputed operators."""
    values: dict[str, Value] = {}
    allocated = {step.node: step.allocates for step in lifetimes.steps}
    for step in steps:
        op = step.node.op
        substitutes = {old: values[new] for old, new in step.substitutes.items()}
        if step.is_recompute:
            new_results = _append_recompute(block, step, substitutes)
            pairs = zip(op.results(), new_results)
            results = {value_id(old): new for old, new in pairs if old.initialized()}
            values.update(
                (new, results[old]) for new, old in zip(step.allocates, allocated[step.node])
            )
            continue
        for number, value in enumerate(op.operands_source()):
            if value.initialized() and value_id(value) in substitutes:
                op.operand(number).set_source(substitutes[value_id(value)])
        block.move_op_to_block_end(op)


def _append_recompute(
    block: Block, step: MemoryStep, substitutes: Mapping[str, Value]
) -> list[Value]:
    """Appends a copy of a step's operator to ``block``; returns the results of the copy."""
    op = step.node.op
    operands: list[Value | None] = []
    for name, value in zip(op.get_input_names(), op.operands_source()):
        if is_batch_norm(step.node) and name in STATISTICS:
            operands.append(_filled_like(block, value))
        else:
            operands.append(
                substitutes.get(value_id(value), value) if value.initialized() else None
            )
    attributes = _core.attributes_of(op)
    return _core.append_operator(block, op.name(), operands, _core.result_types(op), attributes)


def _filled_like(block: Block, value: Value) -> Value:
    dtype, shape = dtype_name(value.dtype), list(value.shape)
    attributes = [("shape", "ints", shape), ("dtype", "dtype", dtype), ("value", "float64", 0.0)]
    (filled,) = _core.append_operator(block, "pd_op.full", [], [(dtype, shape)], attributes)
    return filled


def _moved(before: Sequence[MemoryStep], after: Sequence[MemoryStep]) -> int:
    """The number of steps that must be moved, or added, to get from one order to the other."""
    position = {step: number for number, step in enumerate(before)}
    return len(after) - _longest_increasing(position[step] for step in after)


def _longest_increasing(numbers: Iterable[int]) -> int:
    """The length of the longest increasing subsequence of ``numbers``."""
    ends: list[int] = []
    for number in numbers:
        position = bisect_right(ends, number)
        ends[position : position + 1] = [number]
    return len(ends)


def _megabytes(count: int) -> str:
    return f"{count / _MB:.1f} MB"
