"""Programs that consist of one engine operator: what it reads, and where its results go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Operation, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    FEEDS,
    FETCH,
    LISTS,
    is_engine,
    is_fed,
    scope_name,
)

_PARAMETER = "builtin.parameter"
_BOOKKEEPING = LISTS | FEEDS | {_PARAMETER}


class Source(NamedTuple):
    """A variable of the scope that the operator reads.

    Attributes:
        name: Its name in the scope.
        is_fed: Whether each run gives it new contents.
        dtype, shape: What the program declares; -1 is a size that it leaves open.
    """

    name: str
    is_fed: bool
    dtype: str
    shape: list[int]


class Target(NamedTuple):
    """Where a result of the operator goes.

    Attributes:
        name: Of the variable of the scope, or of what is fetched.
        column: Its place among what is fetched; 0 if nothing is.
        output: Which result it is.
        dtype: What the program declares.
    """

    name: str
    column: int
    output: int
    dtype: str


class Whole(NamedTuple):
    """A program of one engine operator. See :func:`find_whole_program`.

    Attributes:
        graph, interval: The attributes of the operator.
        sources: What it reads, in its order.
        targets: Where its results go; what is fetched, by column.
        fed: The names of all that is fed.
    """

    graph: str
    interval: list[int]
    sources: list[Source]
    targets: list[Target]
    fed: frozenset[str]


def find_whole_program(operators: Sequence[Operation], end: str) -> Whole | None:
    """What the operators of a block are, if one of them is an engine and the others only name.

    Args:
        operators: Of the only block of a program, after the program pass.
        end: The type of those that take its results.

    Returns:
        ``None`` if they compute, or take, anything besides what the engine operator computes.
    """
    engines = [op for op in operators if is_engine(op.name())]
    others = [op for op in operators if not is_engine(op.name())]
    if len(engines) != 1 or any(op.name() not in _BOOKKEEPING | {end} for op in others):
        return None
    (engine,) = engines
    makers = [producer_of(value) for value in _members(engine)]
    if any(op.name() not in FEEDS | {_PARAMETER} for op in makers):
        return None
    targets = [_target(op, engine) for op in others if op.name() == end]
    known = sorted((each for each in targets if each is not None), key=lambda each: each.column)
    if len(known) < len(targets):
        return None
    attributes = engine.attrs()
    return Whole(
        attributes["graph"],
        attributes["interval"],
        [Source(scope_name(op), is_fed(op), *_declared(op.results()[0])) for op in makers],
        known,
        frozenset(scope_name(op) for op in others if is_fed(op)),
    )


def _members(engine: Operation) -> Iterator[Value]:
    """The variables that the operator reads: the members of its lists."""
    for operand in engine.operands_source():
        if operand.initialized():
            yield from producer_of(operand).operands_source()


def _target(op: Operation, engine: Operation) -> Target | None:
    """Where an operator takes a result of the engine operator; ``None`` if it takes another one."""
    value = op.operand_source(0)
    outputs = {result.id: number for number, result in enumerate(engine.results())}
    if value.id not in outputs:
        return None
    column = op.attrs()["col"] if op.name() == FETCH else 0
    return Target(scope_name(op), column, outputs[value.id], _declared(value)[0])


def _declared(value: Value) -> tuple[str, list[int]]:
    return str(value.dtype).rsplit(".", 1)[-1].lower(), list(value.shape)
