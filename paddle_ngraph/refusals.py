"""Operators whose converters raised, and intervals that nGraph could not run.

They stay native, and the report says why.

A converter runs when a function is built. What it raises there is first a *suspicion*, because a
feed that Paddle refuses as well makes converters raise too; it becomes a *refusal* when Paddle
has run the interval, or when every shape was known beforehand.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress

from paddle_ngraph.errors import ConversionError, NgraphError
from paddle_ngraph.graph import Graph, Op, TensorSpec

_lock = threading.Lock()
_reasons: dict[str, dict[str, str]] = {}  # operator type -> kind of operator -> reason
_intervals: dict[str, str] = {}  # what an interval computes -> reason
_suspicions: dict[str, NgraphError] = {}
_graphs: set[str] = set()  # refused in a run, by their first lines
_number = 0  # of refusals in runs


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


def acquit(graph: str) -> None:
    """Called by the C++ engine: Paddle refused the run as well, so its data is to blame."""
    with _lock:
        _suspicions.pop(graph, None)


def refuse_graph(graph: str, reason: str) -> None:
    """Called by the C++ engine: Paddle ran what a function of ``graph`` could not be had for.

    Args:
        graph: The graph string.
        reason: What the engine said, where nobody was suspected before.
    """
    with _lock:
        error = _suspicions.pop(graph, None)
    if error is None:
        error = NgraphError(f"nGraph could not compile its interval: {' '.join(reason.split())}")
    refuse(graph, error)
    global _number
    with _lock:
        _graphs.add(_name(graph))
        _number += 1
    with suppress(Warning):  # an error by the user's filters: the run has succeeded
        warnings.warn(f"paddle_ngraph: Paddle runs {_what(graph, error)}", stacklevel=2)


class Watch:
    """Tells whether runs have refused one of these graphs: a look at a number in most cases."""

    def __init__(self, graphs: Sequence[str]) -> None:
        self._names = frozenset(map(_name, graphs))
        self._number = _number
        self._has_refused = False

    def has_refused(self) -> bool:
        """Whether a run has refused one of them."""
        if self._number != _number:
            with _lock:
                self._number = _number
                self._has_refused = not self._names.isdisjoint(_graphs)
        return self._has_refused


def _name(graph: str) -> str:
    return graph.partition("\n")[0]


def _what(graph: str, error: NgraphError) -> str:
    """What runs natively from now on, and why."""
    if isinstance(error, ConversionError):
        return f"{error.op.type} (operator {error.op.index}) from now on: {error.reason}"
    types = list(dict.fromkeys(op.type for op in Graph.from_string(graph).ops))
    names = ", ".join(types[:5]) + (", ..." if len(types) > 5 else "")
    return f"{names} from now on: {error}"


def forget(type: str) -> None:
    """Gives operators of ``type`` another chance: their converter has changed."""
    with _lock:
        known = _reasons.pop(type, None)
        if known is not None:
            _graphs.clear()
    core = sys.modules.get("paddle_ngraph._core")
    if known is not None and core is not None:
        core.try_again()


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
