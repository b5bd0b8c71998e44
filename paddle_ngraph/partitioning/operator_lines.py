"""The lines of user code that created the operators of subgraphs, by graph string.

A graph string has no lines: programs of equal operators share functions, wherever they come from.
Of such programs, the lines are those of the last one. The lines of calls that a trace defers are
noted while a profile is measured, or runs are verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from paddle_ngraph.ir.graph import plain_type
from paddle_ngraph.paddle_private import call_stacks
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

_stacks: LRUCache[str, dict[int, int]] = process_cache(
    __name__,
    "operator_call_stacks",
    "handles of the call stacks of the operators of subgraphs",
    key="digest of the graph string",
    bound=256,
)
_noted: LRUCache[str, Mapping[int, str]] = process_cache(
    __name__,
    "lines_of_deferred_calls",
    "lines of user code of the last deferred calls that a subgraph has computed",
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
_native_stacks: LRUCache[str, list[int]] = process_cache(
    __name__,
    "native_operator_call_stacks",
    "handles of the call stacks of operators that fall back",
    key="type of the operator",
    bound=256,
)
_MAX_NATIVE_LINES = 3
T = TypeVar("T")


def _digest(text: str) -> str:
    return text.split(" ", 3)[2]


def remember(text: str, stacks: Mapping[int, int]) -> None:
    """Notes the call stacks of the operators of a graph string, by index."""
    found = {index: stack for index, stack in stacks.items() if stack}
    if found:
        _stacks.put(_digest(text), found)


def remember_native(op_type: str, stack: int) -> None:
    """Notes the call stack of an operator that falls back."""
    if stack:
        _add_last(_native_stacks.get_or_create(plain_type(op_type), list), stack)


def note_calls(text: str, lines: Mapping[int, str]) -> None:
    """Notes the lines of the deferred calls, by number, that a graph string computes."""
    _noted.put(_digest(text), lines)


def note_native_line(op_type: str, line: str) -> None:
    """Notes the line of an operator that Paddle's kernels compute."""
    if line:
        _add_last(_native_lines.get_or_create(plain_type(op_type), list), line)


def note_native_call(function: str) -> None:
    """Called by the core while a profile is measured: Paddle computes a call of a function now."""
    note_native_line(function.strip("_"), call_stacks.calling_line())


def of(text: str) -> Mapping[int, str]:
    """The lines of the operators of a graph string that are known, by index."""
    noted = _noted.get(_digest(text)) or {}
    found = {}
    for index, stack in (_stacks.get(_digest(text)) or {}).items():
        number = call_stacks.call_of(stack)
        line = call_stacks.user_line(stack) if number is None else noted.get(number)
        if line:
            found[index] = line
    return found


def of_native(op_type: str) -> list[str]:
    """The last lines of operators of a type that fall back, in any program."""
    name = plain_type(op_type)
    of_programs = map(call_stacks.user_line, _native_stacks.get(name) or ())
    lines = [*of_programs, *(_native_lines.get(name) or ())]
    return [line for line in dict.fromkeys(lines) if line][-_MAX_NATIVE_LINES:]


def _add_last(items: list[T], item: T) -> None:
    """Adds an item as the last one of a short list."""
    if item in items:
        items.remove(item)
    items.append(item)
    del items[:-_MAX_NATIVE_LINES]
