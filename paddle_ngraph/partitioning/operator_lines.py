"""The lines of user code that created the operators of subgraphs, by graph string.

A graph string has no lines: programs of equal operators share functions, wherever they come from.
Of such programs, the lines are those of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paddle_ngraph.ir.graph import plain_type
from paddle_ngraph.partitioning.operator_reports import OperatorReport
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

_lines: LRUCache[str, dict[int, str]] = process_cache(
    __name__,
    "operator_lines",
    "lines of user code of the operators of subgraphs",
    key="digest of the graph string",
    bound=256,
)
# Of operators that fall back, by type without dialect.
_native_lines: LRUCache[str, list[str]] = process_cache(
    __name__,
    "native_operator_lines",
    "lines of user code of operators that fall back",
    key="type of the operator",
    bound=256,
)
_MAX_NATIVE_LINES = 3


def _digest(text: str) -> str:
    return text.split(" ", 3)[2]


def remember(text: str, operators: Iterable[OperatorReport], indices: Iterable[int]) -> None:
    """Notes the lines of the operators with these indices, which are those of a graph string."""
    inside = set(indices)
    found = {each.index: each.line for each in operators if each.line and each.index in inside}
    if found:
        _lines.put(_digest(text), found)


def remember_native(operators: Iterable[OperatorReport], indices: Iterable[int]) -> None:
    """Notes the lines of the operators with these indices, which fall back."""
    native = set(indices)
    for each in operators:
        if each.line and each.index in native:
            known = _native_lines.get_or_create(plain_type(each.type), list)
            if each.line not in known:
                known.append(each.line)
                del known[:-_MAX_NATIVE_LINES]


def of(text: str) -> Mapping[int, str]:
    """The lines of the operators of a graph string that are known, by index."""
    return _lines.get(_digest(text)) or {}


def of_native(op_type: str) -> list[str]:
    """The last lines of operators of a type that fall back, in any program."""
    return list(_native_lines.get(plain_type(op_type)) or ())
