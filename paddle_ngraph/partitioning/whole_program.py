"""Programs that consist of one engine operator: its inputs, and the targets of its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Block, Operation, Value
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
        name: The name of the variable in the scope.
        is_fed: Whether each run feeds it.
        dtype, shape: As the program declares them; -1 is a dynamic dimension.
    """

    name: str
    is_fed: bool
    dtype: str
    shape: list[int]


class Target(NamedTuple):
    """Where a result of the engine operator goes: a variable of the scope, or a fetch.

    Attributes:
        name: Name of the variable of the scope, or of the fetch.
        column: The index in the fetch list; 0 for a variable of the scope.
        output: The index of the result.
        dtype: The dtype that the program declares.
    """

    name: str
    column: int
    output: int
    dtype: str


class Whole(NamedTuple):
    """A program of one engine operator. See :func:`find_whole_program`.

    Attributes:
        graph, interval: The attributes of the operator.
        sources: The inputs of the engine operator, in operand order.
        targets: The targets of its results, sorted by fetch column.
        fed: The names of all feeds.
    """

    graph: str
    interval: list[int]
    sources: list[Source]
    targets: list[Target]
    fed: frozenset[str]


def find_whole_program(block: Block, end: str) -> Whole | None:
    """Finds a program that is one engine operator, next to which others only name variables.

    Args:
        block: The only block of a program, after the program pass.
        end: The type of the operators that read its results, such as ``pd_op.fetch``.

    Returns:
        ``None`` if other operators compute something, or read values of another origin.
    """
    operators = block.ops
    engines = [op for op in operators if is_engine(op.name())]
    others = [op for op in operators if not is_engine(op.name())]
    if len(engines) != 1 or any(op.name() not in _BOOKKEEPING | {end} for op in others):
        return None
    (engine,) = engines
    arguments = {value.id: name for name, value in block.kwargs().items()}
    sources = [_source(value, arguments) for value in _members(engine)]
    found = [each for each in sources if each is not None]
    if len(found) < len(sources):
        return None
    targets = [_target(op, engine) for op in others if op.name() == end]
    known = sorted((each for each in targets if each is not None), key=lambda each: each.column)
    if len(known) < len(targets):
        return None
    attributes = engine.attrs()
    return Whole(
        attributes["graph"],
        attributes["interval"],
        found,
        known,
        frozenset(scope_name(op) for op in others if is_fed(op)),
    )


def _source(value: Value, arguments: dict[int, str]) -> Source | None:
    """The variable that holds a value before the run; ``None`` for a value of another origin."""
    if value.id in arguments:
        return Source(arguments[value.id], True, *_declared(value))
    op = producer_of(value)
    if op.name() not in FEEDS | {_PARAMETER}:
        return None
    return Source(scope_name(op), is_fed(op), *_declared(op.results()[0]))


def _members(engine: Operation) -> Iterator[Value]:
    """The variables that an engine operator reads, which are members of its list operands."""
    for operand in engine.operands_source():
        if operand.initialized():
            yield from producer_of(operand).operands_source()


def _target(op: Operation, engine: Operation) -> Target | None:
    """The target of an engine operator's result: the variable or fetch column that ``op`` names.

    ``None`` if ``op`` reads no result of the engine operator.
    """
    value = op.operand_source(0)
    outputs = {result.id: index for index, result in enumerate(engine.results())}
    if value.id not in outputs:
        return None
    column = op.attrs()["col"] if op.name() == FETCH else 0
    return Target(scope_name(op), column, outputs[value.id], _declared(value)[0])


def _declared(value: Value) -> tuple[str, list[int]]:
    return str(value.dtype).rsplit(".", 1)[-1].lower(), list(value.shape)
