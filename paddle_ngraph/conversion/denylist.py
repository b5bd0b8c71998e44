"""Operators whose converters raised, and intervals that nGraph could not run.

They stay native, and the report says why.

A converter runs when a function is built. An error that it raises there is at first a *suspicion*,
because converters also raise on a feed that Paddle would refuse. It becomes a *refusal* when Paddle
has run the interval, or if every shape was known beforehand.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.errors import INT32_OVERFLOW, NgraphError, summarized
from paddle_ngraph.ir.graph import CPU, Graph, Op, TensorSpec
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache

# What is dropped is tried again.
_MAX_ENTRIES = 1024

_NEEDS_64_BITS = "its whole numbers need 64 bits"

# By type and kind of operator, and what its function was built for.
_denied_operators: LRUCache[tuple[str, str, str], str] = LRUCache(_MAX_ENTRIES)
# The same: those whose whole numbers did not fit. They stay the engine's where they certainly fit.
_denied_checks: LRUCache[tuple[str, str, str], str] = LRUCache(_MAX_ENTRIES)
_denied_subgraphs: LRUCache[str, str] = LRUCache(
    _MAX_ENTRIES
)  # reasons, by what an interval computes
_provisional_failures: LRUCache[str, NgraphError] = LRUCache(_MAX_ENTRIES)  # by graph
_reasons_by_graph: LRUCache[str, str] = LRUCache(
    _MAX_ENTRIES
)  # what was said of those refused in a run
_TABLES: tuple[LRUCache, ...] = (
    _denied_operators,
    _denied_checks,
    _denied_subgraphs,
    _provisional_failures,
    _reasons_by_graph,
)

_lock = new_lock()
_denials_in_runs = 0  # of refusals in runs


def denial_reason(op: Op, device: str = CPU) -> str | None:
    """Why an operator like ``op`` is left native on a device, or ``None``."""
    return (
        _denied_operators.get((op.type, _operator_key(op), device)) if _denied_operators else None
    )


def is_overflow_check_denied(op: Op, device: str = CPU) -> bool:
    """Whether runs do not check operators like ``op`` on a device: too many did not fit."""
    return bool(_denied_checks) and (op.type, _operator_key(op), device) in _denied_checks


def subgraph_denial_reason(graph: Graph) -> str | None:
    """Why the operators of an interval are left native, or ``None``."""
    return _denied_subgraphs.get(subgraph_key(graph)) if _denied_subgraphs else None


def deny(graph: str, error: NgraphError) -> None:
    """Leaves native what ``error`` came from: similar operators, or the interval of ``graph``."""
    if isinstance(error, ConversionError):
        deny_operator(error)
    else:
        _denied_subgraphs.put(subgraph_key(Graph.from_string(graph)), str(error))


def deny_operator(error: ConversionError) -> str:
    """Leaves native all operators similar to the one whose converter raised. Returns the reason.

    If a run had to check whether its whole numbers fit, only those of which that is not certain.
    """
    reason = f"its converter raised: {error.reason}"
    is_too_wide = any(words in error.reason for words in (INT32_OVERFLOW, _NEEDS_64_BITS))
    table = _denied_checks if error.op.checked and is_too_wide else _denied_operators
    return table.put((error.op.type, _operator_key(error.op), error.device), reason)


def record_provisional_failure(graph: str, error: NgraphError) -> None:
    """Records that ``error`` was raised while a function of ``graph`` was built."""
    _provisional_failures.put(_graph_key(graph), error)


def acquit(graph: str) -> None:
    """Called by the C++ engine: Paddle refused the run too, so the data is to blame."""
    _provisional_failures.pop(_graph_key(graph))


def refuse_graph(graph: str, reason: str) -> None:
    """Called by the C++ engine: Paddle ran an interval whose function could not be built.

    Args:
        graph: The graph string.
        reason: The engine's error, used if there was no suspicion before.
    """
    error = _provisional_failures.pop(_graph_key(graph))
    if error is None and INT32_OVERFLOW in reason:
        error = _overflow_error(graph, reason)
    if error is None:
        error = NgraphError(f"nGraph could not compile its interval: {summarized(reason)}")
    deny(graph, error)
    _reasons_by_graph.put(_graph_key(graph), str(error))
    global _denials_in_runs
    with _lock:
        _denials_in_runs += 1
    with suppress(Warning):  # an error by the user's filters: the run has succeeded
        warnings.warn(f"paddle_ngraph: Paddle runs {_described_denial(graph, error)}", stacklevel=2)


def _overflow_error(graph: str, reason: str) -> ConversionError | None:
    """What is to be said of the operator that has made whole numbers of 64 bits in many runs."""
    parsed = Graph.from_string(graph)
    for op in parsed.all_ops():
        if f"{op.type} (operator {op.index}): " in reason:
            return ConversionError(op, _NEEDS_64_BITS, parsed.compiled_for)
    return None


class DenialWatcher:
    """Whether one of these graphs was refused in a run; usually costs one comparison of numbers."""

    def __init__(self, graphs: Sequence[str]) -> None:
        self._names = frozenset(map(_graph_key, graphs))
        self._denials_seen = _denials_in_runs
        self._has_new_denials = False

    def has_new_denials(self) -> bool:
        """Whether one of them was refused in a run."""
        if self._denials_seen != _denials_in_runs:
            self._denials_seen = _denials_in_runs
            self._has_new_denials = any(name in _reasons_by_graph for name in self._names)
        return self._has_new_denials


def _graph_key(graph: str) -> str:
    return graph.partition("\n")[0]


def _described_denial(graph: str, error: NgraphError) -> str:
    """The operators that run natively from now on, and why."""
    if isinstance(error, ConversionError):
        return f"{error.op.type} (operator {error.op.index}) from now on: {error.reason}"
    types = list(dict.fromkeys(op.type for op in Graph.from_string(graph).ops))
    names = ", ".join(types[:5]) + (", ..." if len(types) > 5 else "")
    return f"{names} from now on: {error}"


def forget(type: str) -> None:
    """Gives operators of ``type`` another chance, because their converter has changed."""
    if [t for t in (_denied_operators, _denied_checks) if t.remove(lambda key: key[0] == type)]:
        _reasons_by_graph.clear()
        _retry_denied_graphs()


def clear() -> None:
    """Gives everything another chance."""
    for table in _TABLES:
        table.clear()
    _retry_denied_graphs()


def count() -> int:
    """How many refusals and suspicions are remembered."""
    return sum(map(len, _TABLES))


def _retry_denied_graphs() -> None:
    """Makes engines forget that they have left a graph to Paddle."""
    if (core := sys.modules.get("paddle_ngraph._core")) is not None:
        core.reset_denylist()


def _operator_key(op: Op) -> str:
    """A key that is the same for operators that a converter cannot tell apart."""
    sides = [{n: _tensors(s) for n, s in side.items()} for side in (op.inputs, op.outputs)]
    return _digest([op.attrs, *sides, [_without_checks(block.described()) for block in op.blocks]])


def _without_checks(block: dict[str, Any]) -> dict[str, Any]:
    """A block as it was before anything was known of its integers."""
    ops = []
    for op in block["ops"]:
        left = {name: value for name, value in op.items() if name != "checked"}
        if "blocks" in op:
            left["blocks"] = list(map(_without_checks, op["blocks"]))
        ops.append(left)
    return {**block, "ops": ops}


def subgraph_key(graph: Graph) -> str:
    """A key that is the same whichever results of the interval a program asks for."""
    return graph.compiled_for + _digest(
        [
            [
                *(op.type, op.index, op.attrs, {n: _tensors(s) for n, s in op.inputs.items()}),
                [block.described() for block in op.blocks],
            ]
            for op in graph.ops
        ]
    )


def _digest(description: object) -> str:
    text = json.dumps(description, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _tensors(specs: Sequence[TensorSpec | None]) -> list[tuple[str, tuple[int, ...]] | None]:
    return [None if spec is None else (spec.dtype, spec.shape) for spec in specs]
