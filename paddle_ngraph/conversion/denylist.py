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
from paddle_ngraph.errors import TOO_WIDE, NgraphError, in_short
from paddle_ngraph.ir.graph import CPU, Graph, Op, TensorSpec
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import Latest

# What is dropped is tried again.
_MOST = 1024

_NEVER_FITS = "its whole numbers need 64 bits"

# By type and kind of operator, and what its function was built for.
_reasons: Latest[tuple[str, str, str], str] = Latest(_MOST)
# The same: those whose whole numbers did not fit. They stay the engine's where they certainly fit.
_checks: Latest[tuple[str, str, str], str] = Latest(_MOST)
_intervals: Latest[str, str] = Latest(_MOST)  # reasons, by what an interval computes
_suspicions: Latest[str, NgraphError] = Latest(_MOST)  # by graph
_graphs: Latest[str, str] = Latest(_MOST)  # what was said of those refused in a run
_TABLES: tuple[Latest, ...] = (_reasons, _checks, _intervals, _suspicions, _graphs)

_lock = new_lock()
_number = 0  # of refusals in runs


def reason_against(op: Op, device: str = CPU) -> str | None:
    """Why an operator like ``op`` is left native on a device, or ``None``."""
    return _reasons.get((op.type, _kind(op), device)) if _reasons else None


def has_left_32_bits(op: Op, device: str = CPU) -> bool:
    """Whether runs do not check operators like ``op`` on a device: too many did not fit."""
    return bool(_checks) and (op.type, _kind(op), device) in _checks


def reason_against_interval(graph: Graph) -> str | None:
    """Why the operators of an interval are left native, or ``None``."""
    return _intervals.get(interval_key(graph)) if _intervals else None


def refuse(graph: str, error: NgraphError) -> None:
    """Leaves native what ``error`` came from: similar operators, or the interval of ``graph``."""
    if isinstance(error, ConversionError):
        refuse_operator(error)
    else:
        _intervals.put(interval_key(Graph.from_string(graph)), str(error))


def refuse_operator(error: ConversionError) -> str:
    """Leaves native all operators similar to the one whose converter raised. Returns the reason.

    If a run had to check whether its whole numbers fit, only those of which that is not certain.
    """
    reason = f"its converter raised: {error.reason}"
    is_too_wide = any(words in error.reason for words in (TOO_WIDE, _NEVER_FITS))
    table = _checks if error.op.checked and is_too_wide else _reasons
    return table.put((error.op.type, _kind(error.op), error.device), reason)


def suspect(graph: str, error: NgraphError) -> None:
    """Records that ``error`` was raised while a function of ``graph`` was built."""
    _suspicions.put(_name(graph), error)


def acquit(graph: str) -> None:
    """Called by the C++ engine: Paddle refused the run too, so the data is to blame."""
    _suspicions.pop(_name(graph))


def refuse_graph(graph: str, reason: str) -> None:
    """Called by the C++ engine: Paddle ran an interval whose function could not be built.

    Args:
        graph: The graph string.
        reason: The engine's error, used if there was no suspicion before.
    """
    error = _suspicions.pop(_name(graph))
    if error is None and TOO_WIDE in reason:
        error = _of_wide_numbers(graph, reason)
    if error is None:
        error = NgraphError(f"nGraph could not compile its interval: {in_short(reason)}")
    refuse(graph, error)
    _graphs.put(_name(graph), str(error))
    global _number
    with _lock:
        _number += 1
    with suppress(Warning):  # an error by the user's filters: the run has succeeded
        warnings.warn(f"paddle_ngraph: Paddle runs {_what(graph, error)}", stacklevel=2)


def _of_wide_numbers(graph: str, reason: str) -> ConversionError | None:
    """What is to be said of the operator that has made whole numbers of 64 bits in many runs."""
    parsed = Graph.from_string(graph)
    for op in parsed.all_ops():
        if f"{op.type} (operator {op.index}): " in reason:
            return ConversionError(op, _NEVER_FITS, parsed.compiled_for)
    return None


class Watch:
    """Whether one of these graphs was refused in a run; usually costs one comparison of numbers."""

    def __init__(self, graphs: Sequence[str]) -> None:
        self._names = frozenset(map(_name, graphs))
        self._number = _number
        self._has_refused = False

    def has_refused(self) -> bool:
        """Whether one of them was refused in a run."""
        if self._number != _number:
            self._number = _number
            self._has_refused = any(name in _graphs for name in self._names)
        return self._has_refused


def _name(graph: str) -> str:
    return graph.partition("\n")[0]


def _what(graph: str, error: NgraphError) -> str:
    """The operators that run natively from now on, and why."""
    if isinstance(error, ConversionError):
        return f"{error.op.type} (operator {error.op.index}) from now on: {error.reason}"
    types = list(dict.fromkeys(op.type for op in Graph.from_string(graph).ops))
    names = ", ".join(types[:5]) + (", ..." if len(types) > 5 else "")
    return f"{names} from now on: {error}"


def forget(type: str) -> None:
    """Gives operators of ``type`` another chance, because their converter has changed."""
    if [t for t in (_reasons, _checks) if t.remove(lambda key: key[0] == type)]:
        _graphs.clear()
        _try_again()


def clear() -> None:
    """Gives everything another chance."""
    for table in _TABLES:
        table.clear()
    _try_again()


def count() -> int:
    """How many refusals and suspicions are remembered."""
    return sum(map(len, _TABLES))


def _try_again() -> None:
    """Makes engines forget that they have left a graph to Paddle."""
    if (core := sys.modules.get("paddle_ngraph._core")) is not None:
        core.reset_denylist()


def _kind(op: Op) -> str:
    """A key that is the same for operators that a converter cannot tell apart."""
    sides = [{n: _tensors(s) for n, s in side.items()} for side in (op.inputs, op.outputs)]
    return _digest([op.attrs, *sides, [_unchecked(block.described()) for block in op.blocks]])


def _unchecked(block: dict[str, Any]) -> dict[str, Any]:
    """A block as it was before anything was known of its integers."""
    ops = []
    for op in block["ops"]:
        left = {name: value for name, value in op.items() if name != "checked"}
        if "blocks" in op:
            left["blocks"] = list(map(_unchecked, op["blocks"]))
        ops.append(left)
    return {**block, "ops": ops}


def interval_key(graph: Graph) -> str:
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
