"""Operators whose converters raised, and intervals that nGraph could not run.

They stay native, and the report says why.

A converter runs when a function is built. What it raises there is first a *suspicion*, because a
feed that Paddle refuses as well makes converters raise too; it becomes a *refusal* when Paddle
could run the operator, or when every shape was known beforehand.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence

from paddle_ngraph.errors import ConversionError, NgraphError
from paddle_ngraph.graph import Graph, Op, TensorSpec

_lock = threading.Lock()
_reasons: dict[str, dict[str, str]] = {}  # operator type -> kind of operator -> reason
_intervals: dict[str, str] = {}  # what an interval computes -> reason
_suspicions: dict[str, NgraphError] = {}


def reason_against(op: Op) -> str | None:
    """Why an operator like ``op`` is left native, or ``None``."""
    if op.type not in _reasons:
        return None
    with _lock:
        return _reasons.get(op.type, {}).get(_kind(op))


def reason_against_interval(graph: Graph) -> str | None:
    """Why the operators of an interval are left native, or ``None``."""
    if not _intervals:
        return None
    with _lock:
        return _intervals.get(_interval(graph))


def refuse(graph: str, error: NgraphError) -> None:
    """Leaves native what ``error`` came from: like operators, or the interval of ``graph``."""
    if isinstance(error, ConversionError):
        refuse_operator(error)
        return
    interval = _interval(Graph.from_string(graph))
    with _lock:
        _intervals[interval] = str(error)


def refuse_operator(error: ConversionError) -> str:
    """Leaves native every operator like the one whose converter raised. Returns the reason."""
    reason = f"its converter raised: {error.reason}"
    with _lock:
        _reasons.setdefault(error.op.type, {})[_kind(error.op)] = reason
    return reason


def suspect(graph: str, error: NgraphError) -> None:
    """Remembers that ``error`` came up while a function of ``graph`` was built."""
    with _lock:
        _suspicions[graph] = error


def suspect_interval(graph: str, text: str) -> None:
    """Called by the C++ engine: nGraph could not compile a function of ``graph``."""
    words = " ".join(text.split())
    suspect(graph, NgraphError(f"nGraph could not compile its interval: {words}"))


def suspicions(graphs: Iterable[str]) -> dict[str, NgraphError]:
    """Takes what came up while functions of ``graphs`` were built, by graph."""
    with _lock:
        return {graph: _suspicions.pop(graph) for graph in graphs if graph in _suspicions}


def forget(type: str) -> None:
    """Gives operators of ``type`` another chance: their converter has changed."""
    with _lock:
        _reasons.pop(type, None)


def _kind(op: Op) -> str:
    """The same for operators that a converter cannot tell apart."""
    sides = [{n: _tensors(s) for n, s in side.items()} for side in (op.inputs, op.outputs)]
    return json.dumps([op.attrs, *sides], sort_keys=True)


def _interval(graph: Graph) -> str:
    """The same whichever results of the interval a program asks for."""
    return json.dumps(
        [
            [op.type, op.index, op.attrs, {n: _tensors(s) for n, s in op.inputs.items()}]
            for op in graph.ops
        ]
    )


def _tensors(specs: Sequence[TensorSpec | None]) -> list[tuple[str, tuple[int, ...]] | None]:
    return [None if spec is None else (spec.dtype, spec.shape) for spec in specs]
