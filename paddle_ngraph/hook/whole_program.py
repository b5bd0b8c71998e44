"""Programs that consist of one engine operator run without Paddle's interpreter.

For half a dozen operators that compute nothing, the interpreter takes longer than a small network;
and giving a program of dynamic mode its parameters takes Paddle longer than running it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paddle_ngraph import _core
from paddle_ngraph.dtypes import OF_NUMPY
from paddle_ngraph.hook import weight_writes
from paddle_ngraph.paddle_seam.names import maker_of
from paddle_ngraph.paddle_seam.protocols import Operation, Program, Scope, Tensor, Value
from paddle_ngraph.program.view import (
    FEEDS,
    FETCH,
    LISTS,
    SHADOW_OUTPUT,
    is_engine,
    is_fed,
    scope_name,
)

_PARAMETER = "builtin.parameter"
_AROUND = LISTS | FEEDS | {_PARAMETER}


class Fetched(list[Any]):
    """What a run returns, instead of Paddle's ``FetchList``."""

    def _move_to_list(self) -> list[Any]:
        return list(self)


class WholeProgram:
    """A program that consists of one engine operator. See :func:`find`."""

    def __init__(
        self, engine: Operation, feeds: list[Operation], fetches: list[int], scope: Scope
    ) -> None:
        sources = _sources(engine)
        names = [scope_name(op) for op in sources]
        self._feed_names = [name for op, name in zip(sources, names) if is_fed(op)]
        fits = all(_declared(engine.results()[number])[0] in OF_NUMPY for number in fetches)
        self._takes_arrays = fits and {scope_name(op) for op in feeds} == set(self._feed_names)
        self._program = _core.WholeProgram(
            engine.attrs()["graph"],
            engine.attrs()["interval"],
            [_tensor(scope, name) for name in names],
            [(i, *_declared(op.results()[0])) for i, op in enumerate(sources) if is_fed(op)],
            fetches,
        )

    def run(self) -> list[Any]:
        """Runs it on the contents of the scope, and consumes the feeds.

        Raises:
            What the engine operator raises.
        """
        return self._program.run()

    def run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Runs it on arrays, as ``PlannedProgram.run_on`` does."""
        if not self._takes_arrays or len(feed) != len(self._feed_names):
            return None
        arrays = [feed.get(name) for name in self._feed_names]
        return self._program.run_on(arrays)


class WholeLayer:
    """A forward program of dynamic mode that consists of one engine operator.

    See :func:`find_layer`.
    """

    def __init__(
        self, engine: Operation, given: Sequence[str], returned: Sequence[str], fetches: list[int]
    ) -> None:
        self._returned = list(returned)
        sources = _sources(engine)
        self._order = [given.index(scope_name(op)) for op in sources]
        self._program = _core.WholeProgram(
            engine.attrs()["graph"],
            engine.attrs()["interval"],
            [None for _ in sources],
            [(i, *_declared(op.results()[0])) for i, op in enumerate(sources)],
            fetches,
        )

    def run_on(self, given: Sequence[Any]) -> list[Any] | None:
        """Runs it on tensors: what the program takes, then its parameters.

        Returns:
            What it computes. ``None``, without having run anything, if a tensor is not what the
            program declares, or if something wants to see operators one by one.

        Raises:
            What the engine operator raises.
        """
        if _core.is_watched():
            return None
        tensors = [given[number] for number in self._order]
        return self._program.run_on_tensors(tensors, self._returned)


def find(program: Program, scope: Scope) -> WholeProgram | None:
    """The program as one engine operator.

    Args:
        program: A PIR program after the program pass.
        scope: Where its variables are.

    Returns:
        ``None`` if it computes or names anything besides what the operator computes, or if a
        variable does not exist.
    """
    found = _engine_of(program, FETCH)
    if found is None:
        return None
    engine, others = found
    fetches = _fetches(others, engine)
    if fetches is None or any(scope.find_var(scope_name(op)) is None for op in _sources(engine)):
        return None
    return WholeProgram(engine, [op for op in others if is_fed(op)], fetches, scope)


def find_layer(
    program: Program, given: Sequence[str], returned: Sequence[str]
) -> WholeLayer | None:
    """The forward program of dynamic mode as one engine operator.

    Args:
        program: A PIR program after the program pass, which writes none of its variables.
        given: The names of what it takes, and of its parameters.
        returned: The names of what it returns.

    Returns:
        ``None`` if it computes anything besides what the operator computes, or returns something
        that it was given.
    """
    found = _engine_of(program, SHADOW_OUTPUT)
    if found is None:
        return None
    engine, others = found
    outputs = {
        scope_name(op): _number(op.operand_source(0), engine)
        for op in others
        if op.name() == SHADOW_OUTPUT
    }
    fetches = [outputs.get(name) for name in returned]
    if None in fetches or not len(set(fetches)) == len(fetches) == len(outputs):
        return None
    if any(scope_name(op) not in given for op in _sources(engine)):
        return None
    return WholeLayer(engine, given, returned, fetches)  # type: ignore[arg-type]


def _engine_of(program: Program, end: str) -> tuple[Operation, list[Operation]] | None:
    """The only operator of a program that computes, and those around it.

    Args:
        end: The type of operator that names a result.
    """
    operators = program.global_block().ops
    engines = [op for op in operators if is_engine(op.name())]
    others = [op for op in operators if not is_engine(op.name())]
    if len(engines) != 1 or any(op.name() not in _AROUND | {end} for op in others):
        return None
    (engine,) = engines
    if any(op.name() not in FEEDS | {_PARAMETER} for op in _sources(engine)):
        return None
    return engine, others


def _tensor(scope: Scope, name: str) -> Tensor:
    variable = scope.find_var(name)
    assert variable is not None  # see find()
    return weight_writes.tensor_of(variable)


def _sources(engine: Operation) -> list[Operation]:
    return [maker_of(value) for value in _members(engine)]


def _members(engine: Operation) -> Iterator[Value]:
    """The variables that the operator reads: the members of its lists."""
    for operand in engine.operands_source():
        if operand.initialized():
            yield from maker_of(operand).operands_source()


def _fetches(operators: list[Operation], engine: Operation) -> list[int] | None:
    """The output of the operator for each column; ``None`` if something else is fetched."""
    columns = {
        op.attrs()["col"]: _number(op.operand_source(0), engine)
        for op in operators
        if op.name() == FETCH
    }
    fetches = [columns.get(column) for column in range(len(columns))]
    return None if None in fetches else fetches  # type: ignore[return-value]


def _number(value: Value, engine: Operation) -> int | None:
    """Which result of the operator a value is."""
    numbers = {result.id: number for number, result in enumerate(engine.results())}
    return numbers.get(value.id)


def _declared(value: Value) -> tuple[str, list[int]]:
    return str(value.dtype).rsplit(".", 1)[-1].lower(), list(value.shape)
