"""Removes operators from a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import drop_scheduler
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import SOURCES
from paddle_ngraph.transpiler.training_program import ParameterGradient, TrainingProgram


def remove_updates(
    program: Program, training: TrainingProgram, fetching: Sequence[Operation]
) -> None:
    """Removes the updates from a program, and keeps the forward and backward pass.

    Args:
        program: The program.
        training: The analysis of the program.
        fetching: The fetch operators at its end.

    Raises:
        NgraphError: As :func:`last_of_backward`.
    """
    last = last_of_backward(training, fetching)
    drop_scheduler(program)
    keep(
        program.global_block(),
        {op.id() for op in training.operators[: last + 1]} | ancestors(fetching),
    )


def last_of_backward(training: TrainingProgram, fetching: Sequence[Operation]) -> int:
    """The index of the last operator that computes a gradient; only updates come after it.

    Args:
        training: The program.
        fetching: The fetch operators at its end.

    Raises:
        NgraphError: A fetch depends on the updates, an update comes before the last gradient, or
            there are no gradients.
    """
    if not training.gradients:
        raise NgraphError(
            "no gradient depends on the feeds: there is nothing to accumulate or send"
        )
    last = max(gradient.index for gradient in training.gradients)
    _reject_updates_before(last, training.gradients)
    _reject_update_fetches(fetching, training.gradients)
    return last


def _reject_updates_before(last: int, gradients: Sequence[ParameterGradient]) -> None:
    for gradient in gradients:
        if gradient.first_reader <= last:
            raise NgraphError(
                f"the parameter {gradient.parameter!r} is updated before all gradients are "
                "available: "
                "gradients cannot be separated from updates"
            )


def _reject_update_fetches(
    fetching: Sequence[Operation], gradients: Sequence[ParameterGradient]
) -> None:
    after = descendants(op for gradient in gradients for op, _ in gradient.readers)
    for number, op in enumerate(fetching):
        if op.id() in after:
            raise NgraphError(
                f"fetch_list[{number}] is computed with the updates, which are not part of each "
                "run: fetch variables of the forward or backward pass"
            )


def ancestors(operators: Iterable[Operation]) -> set[int]:
    """The ids of ``operators``, and of all operators on which they depend."""
    pending, found = list(operators), set()
    while pending:
        op = pending.pop()
        if op.id() not in found:
            found.add(op.id())
            producers = (value.get_defining_op() for value in _operands(op))
            pending += [producer for producer in producers if producer is not None]
    return found


def _operands(op: Operation) -> Iterator[Value]:
    """The operands of an operator, and those of all operators in its blocks."""
    yield from (value for value in op.operands_source() if value.initialized())
    if op.num_regions() > 0:
        for block in op.blocks():
            for inner in block.ops:
                yield from _operands(inner)


def descendants(operators: Iterable[Operation]) -> set[int]:
    """The ids of ``operators``, and of all operators that depend on them."""
    pending, found = list(operators), set()
    while pending:
        op = pending.pop()
        if op.id() not in found:
            found.add(op.id())
            pending += [u for v in op.results() if v.initialized() for u in v.all_used_ops()]
    return found


def keep(block: Block, kept: set[int]) -> None:
    """Removes the operators of a block whose ids are not in ``kept``."""
    for op in reversed(block.ops):
        if op.id() not in kept:
            block.remove_op(op)


def drop_unread_sources(block: Block) -> None:
    """Removes operators that load a persistent variable without a reader, as optimizer states."""
    for op in block.ops:
        if op.name() in SOURCES and op.result(0).persistable and op.result(0).use_empty():
            block.remove_op(op)
