"""Operators whose converters raised: they stay native, and the report says why.

A converter runs when a function is built. What it raises there is first a *suspicion*, because a
feed that Paddle refuses as well makes converters raise too; it becomes a *refusal* when Paddle
could run the operator, or when every shape was known beforehand.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from paddle_ngraph.errors import ConversionError

if TYPE_CHECKING:
    from paddle_ngraph.graph import Op, TensorSpec

_lock = threading.Lock()
_reasons: dict[str, dict[str, str]] = {}  # operator type -> kind of operator -> reason
_suspicions: dict[str, ConversionError] = {}


def reason_against(op: Op) -> str | None:
    """Why an operator like ``op`` is left native, or ``None``."""
    if op.type not in _reasons:
        return None
    with _lock:
        return _reasons.get(op.type, {}).get(_kind(op))


def refuse(error: ConversionError) -> str:
    """Leaves operators like ``error.op`` native from now on; returns the reason."""
    reason = f"its converter raised: {error.reason}"
    with _lock:
        _reasons.setdefault(error.op.type, {})[_kind(error.op)] = reason
    return reason


def suspect(graph: str, error: ConversionError) -> None:
    """Remembers that ``error`` came up while a function of ``graph`` was built."""
    with _lock:
        _suspicions[graph] = error


def suspicions(graphs: Iterable[str]) -> dict[str, ConversionError]:
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


def _tensors(specs: Sequence[TensorSpec | None]) -> list[tuple[str, tuple[int, ...]] | None]:
    return [None if spec is None else (spec.dtype, spec.shape) for spec in specs]
