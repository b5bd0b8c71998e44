"""The denylist: operators whose converters raised, and subgraphs that nGraph could not run.

They fall back, and the report gives the reason.

A converter runs when a function is built. An error that it raises there is at first a *provisional
failure*, because converters also raise on a feed that Paddle would reject. The operator or subgraph
is denylisted when Paddle has run the subgraph, or at once if every shape was known beforehand.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.errors import SENTENCES, ErrorCode, NgraphError, printable, summarized
from paddle_ngraph.ir.graph import CPU, Graph, Op, TensorSpec
from paddle_ngraph.ir.reasons import FallbackReason
from paddle_ngraph.utils.change_counter import ChangeCounter
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.warning_codes import WarningCode, warn

# Maximum number of entries of each table. If an entry is evicted, the engine tries its operator or
# subgraph again.
_MAX_ENTRIES = 1024
_OPERATOR_KEY = "type, digest of attributes and specs, and device of the operator"

_denied_operators: LRUCache[tuple[str, str, str], str] = process_cache(
    __name__,
    "denied_operators",
    "reasons why operators fall back",
    key=_OPERATOR_KEY,
    bound=_MAX_ENTRIES,
)
# Operators whose overflow check is denied: the engine still runs them where an overflow is ruled
# out.
_denied_checks: LRUCache[tuple[str, str, str], str] = process_cache(
    __name__,
    "denied_overflow_checks",
    "reasons why operators fall back whose checked integers overflowed int32",
    key=_OPERATOR_KEY,
    bound=_MAX_ENTRIES,
)
_denied_subgraphs: LRUCache[str, str] = process_cache(
    __name__,
    "denied_subgraphs",
    "reasons why subgraphs fall back",
    key="digest of the subgraph without its requested outputs",
    bound=_MAX_ENTRIES,
)
_provisional_failures: LRUCache[str, NgraphError] = process_cache(
    __name__,
    "provisional_failures",
    "errors of builds, until Paddle has run the subgraph",
    key="graph header",
    bound=_MAX_ENTRIES,
)
_reasons_by_graph: LRUCache[str, str] = process_cache(
    __name__,
    "denial_reasons",
    "reasons that runs have added",
    key="graph header",
    bound=_MAX_ENTRIES,
)
_TABLES: tuple[LRUCache, ...] = (
    _denied_operators,
    _denied_checks,
    _denied_subgraphs,
    _provisional_failures,
    _reasons_by_graph,
)

_lock = new_lock()
# Number of entries that failures in runs, not in builds, have added to the denylist.
_denials_in_runs = 0
_changes = ChangeCounter()


def denial_reason(op: Op, device: str = CPU) -> str | None:
    """The reason in the denylist why Paddle runs ``op``; ``None`` if the operator is not listed.

    An entry holds for operators with equal type, attributes and specs, on one device: that for
    which functions are compiled, usually the CPU.
    """
    return (
        _denied_operators.get((op.type, _operator_key(op), device)) if _denied_operators else None
    )


def is_overflow_check_denied(op: Op, device: str = CPU) -> bool:
    """Whether the denylist has ``op`` for its overflow check, since too many runs failed it.

    Such an operator is converted only if its integers certainly fit into int32.
    """
    return bool(_denied_checks) and (op.type, _operator_key(op), device) in _denied_checks


def subgraph_denial_reason(graph: Graph) -> str | None:
    """The reason why a whole subgraph falls back; ``None`` if it is not on the denylist."""
    return _denied_subgraphs.get(subgraph_key(graph)) if _denied_subgraphs else None


def is_empty() -> bool:
    """Whether neither builds nor runs have denied anything."""
    return not any(map(len, _TABLES))


def deny(graph: str, error: NgraphError) -> None:
    """Adds the source of ``error`` to the denylist: an operator, or the subgraph of ``graph``."""
    if isinstance(error, ConversionError):
        deny_operator(error)
    else:
        _denied_subgraphs.put(subgraph_key(Graph.from_string(graph)), str(error))
        _changes.count()


def deny_operator(error: ConversionError) -> str:
    """Denies the operator whose converter raised, and all that are equal to it. Returns the reason.

    If runs had to check the integers of the operator for overflow, only operators that need the
    check are denied.
    """
    reason = FallbackReason(
        f"its converter raised: {error.reason}", "a converter that does not raise: report the error"
    )
    is_overflow = error.code == ErrorCode.INT32_OVERFLOW
    table = _denied_checks if error.op.checked and is_overflow else _denied_operators
    table.put((error.op.type, _operator_key(error.op), error.device), reason)
    _changes.count()
    return reason


def record_provisional_failure(graph: str, error: NgraphError) -> None:
    """Records the error of a build until it is known whether the data is the cause."""
    _provisional_failures.put(_graph_key(graph), error)


def clear_failure(graph: str) -> None:
    """Drops the recorded error of a build: Paddle rejected the run too, so the data is the cause.

    Called by the C++ engine.
    """
    _provisional_failures.pop(_graph_key(graph))


def refuse_graph(graph: str, message: str, code: int, op_id: int) -> None:
    """Called by the C++ engine: Paddle ran a subgraph whose function could not be built.

    Args:
        graph: The graph string.
        message, code, op_id: The engine's error, used if there was no provisional failure before.
    """
    error = _provisional_failures.pop(_graph_key(graph))
    if error is None and code == ErrorCode.INT32_OVERFLOW:
        error = _operator_error(graph, op_id, SENTENCES["frequent_int32_overflow"], code)
    if error is None and code == ErrorCode.KERNEL_FAILED:
        error = _operator_error(graph, op_id, summarized(message), code)
    if error is None:
        error = NgraphError(f"nGraph could not compile its interval: {summarized(message)}")
    deny(graph, error)
    _reasons_by_graph.put(_graph_key(graph), str(error))
    global _denials_in_runs
    with _lock:
        _denials_in_runs += 1
    denial = printable(_described_denial(graph, error))
    # If the user's filters turn the warning into an error, it is dropped: the run has succeeded.
    with suppress(Warning):
        warn(WarningCode.DENIED, f"paddle_ngraph: Paddle runs {denial}")


def _operator_error(graph: str, op_id: int, reason: str, code: int) -> ConversionError | None:
    """The error of an operator that has failed in many runs."""
    parsed = Graph.from_string(graph)
    ops = list(parsed.all_ops())
    if not 0 <= op_id < len(ops):
        return None
    return ConversionError(ops[op_id], reason, parsed.compiled_for, ErrorCode(code))


class DenialWatcher:
    """Watches whether a run denies one of these graphs; a query usually compares two integers."""

    def __init__(self, graphs: Sequence[str]) -> None:
        self._names = frozenset(map(_graph_key, graphs))
        self._denials_seen = _denials_in_runs
        self._has_new_denials = False

    def has_new_denials(self) -> bool:
        """Whether runs have put one of these subgraphs on the denylist."""
        if self._denials_seen != _denials_in_runs:
            self._denials_seen = _denials_in_runs
            self._has_new_denials = any(name in _reasons_by_graph for name in self._names)
        return self._has_new_denials


def _graph_key(graph: str) -> str:
    return graph.partition("\n")[0]


def _described_denial(graph: str, error: NgraphError) -> str:
    """Text for a message: the operators of a denylisted graph that fall back, and the reason."""
    if isinstance(error, ConversionError):
        return f"{error.op.type} (operator {error.op.index}) from now on: {error.reason}"
    types = list(dict.fromkeys(op.type for op in Graph.from_string(graph).ops))
    names = ", ".join(types[:5]) + (", ..." if len(types) > 5 else "")
    return f"{names} from now on: {error}"


def forget(type: str) -> None:
    """Removes entries for operators of ``type``, because their converter has changed."""
    if [t for t in (_denied_operators, _denied_checks) if t.remove(lambda key: key[0] == type)]:
        _reasons_by_graph.clear()
        _retry_denied_graphs()
        _changes.count()


def generation() -> int:
    """A number that is another one after a change of the denylist."""
    return _changes.value


def clear() -> None:
    """Removes all entries of the denylist, and all provisional failures."""
    for table in _TABLES:
        table.clear()
    _retry_denied_graphs()
    _changes.count()


def count() -> int:
    """Number of denylist entries and provisional failures in this process, in total."""
    return sum(map(len, _TABLES))


def _retry_denied_graphs() -> None:
    """Has the engines try graphs again whose runs fell back to Paddle."""
    if (core := sys.modules.get("paddle_ngraph._core")) is not None:
        core.reset_denylist()


def _operator_key(op: Op) -> str:
    """The key in the denylist: equal for operators that a converter cannot distinguish."""
    sides = [{n: _tensors(s) for n, s in side.items()} for side in (op.inputs, op.outputs)]
    return _digest([op.attrs, *sides, [_without_checks(block.described()) for block in op.blocks]])


def _without_checks(block: dict[str, Any]) -> dict[str, Any]:
    """A block's description without ``checked``, which depends on integer ranges."""
    ops = []
    for op in block["ops"]:
        fields = {name: value for name, value in op.items() if name != "checked"}
        if "blocks" in op:
            fields["blocks"] = list(map(_without_checks, op["blocks"]))
        ops.append(fields)
    return {**block, "ops": ops}


def subgraph_key(graph: Graph) -> str:
    """A key of the subgraph that does not depend on which of its results the program fetches."""
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
