"""Programs of nothing but one engine operator run without Paddle's interpreter.

To walk through half a dozen operators that compute nothing takes it longer than a small network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.program_view import ENGINE_PREFIX, LISTS

_FEEDS = frozenset({"pd_op.data", "pd_op.feed"})
_PARAMETER = "builtin.parameter"
_FETCH = "pd_op.fetch"


class Fetched(list[Any]):
    """What a run returns, in the place of Paddle's ``FetchList``."""

    def _move_to_list(self) -> list[Any]:
        return self


def find(program: Any, scope: Any) -> _core.WholeProgram | None:
    """The program as one engine operator.

    Args:
        program: A PIR program after the program pass.
        scope: Its variables; those that are not there yet are made.

    Returns:
        ``None`` where it computes or names anything beside what the operator computes.
    """
    operators = program.global_block().ops
    engines = [op for op in operators if op.name().startswith(ENGINE_PREFIX)]
    around = LISTS | _FEEDS | {_PARAMETER, _FETCH}
    if len(engines) != 1 or any(op.name() not in around for op in operators if op not in engines):
        return None
    (engine,) = engines
    sources = [value.get_defining_op() for value in _members(engine)]
    fetches = _fetches(operators, engine)
    if fetches is None or any(op.name() not in _FEEDS | {_PARAMETER} for op in sources):
        return None
    attrs = engine.attrs()
    tensors = [_variable(scope, _name(op)).get_tensor() for op in sources]
    feeds = [i for i, op in enumerate(sources) if op.name() in _FEEDS and not _is_kept(op)]
    return _core.WholeProgram(attrs["graph"], attrs["interval"], tensors, feeds, fetches)


def _members(engine: Any) -> Iterator[Any]:
    """What the operator reads: the members of its lists."""
    for operand in engine.operands_source():
        if operand.initialized():
            yield from operand.get_defining_op().operands_source()


def _fetches(operators: list[Any], engine: Any) -> list[int] | None:
    """The output of the operator for each column; ``None`` if something else is fetched."""
    numbers = {value.id: number for number, value in enumerate(engine.results())}
    columns = {}
    for op in operators:
        if op.name() == _FETCH:
            columns[op.attrs()["col"]] = numbers.get(op.operand_source(0).id)
    fetches = [columns.get(column) for column in range(len(columns))]
    return None if None in fetches else fetches  # type: ignore[return-value]


def _name(op: Any) -> str:
    return str(op.attrs()["parameter_name" if op.name() == _PARAMETER else "name"])


def _is_kept(op: Any) -> bool:
    """Whether a variable outlives a run."""
    return any(op.attrs().get("persistable", ()))


def _variable(scope: Any, name: str) -> Any:
    found = scope.find_var(name)
    return scope.var(name) if found is None else found
