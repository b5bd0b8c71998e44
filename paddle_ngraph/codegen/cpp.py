"""C++ literals of Python values, and wrapping of long lines of C++ code."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 100


def text(value: str) -> str:
    """A string literal: plain ASCII, other bytes of UTF-8 as octal escapes.

    A question mark is escaped, since two of them may begin a trigraph.
    """
    plain = (c if 32 <= c < 127 and c not in b'"\\?' else None for c in value.encode())
    pairs = zip(plain, value.encode())
    return '"' + "".join(chr(c) if c is not None else f"\\{byte:03o}" for c, byte in pairs) + '"'


def integer(value: int) -> str:
    """The C++ literal of a 64-bit integer."""
    # In C++ the sign of the lowest int64 is an operator on a literal that is too large.
    return f"({value + 1} - 1)" if value == -(2**63) else str(value)


def number(value: float) -> str:
    """The C++ literal of a double."""
    given = float(value)
    if given != given:
        return "std::numeric_limits<double>::quiet_NaN()"
    if given in (float("inf"), float("-inf")):
        return f"{'-' if given < 0 else ''}std::numeric_limits<double>::infinity()"
    return repr(given)


def truth(value: bool) -> str:
    """The C++ literal of a bool."""
    return "true" if value else "false"


def wrapped(begin: str, items: Sequence[str], end: str, indent: str = "   ") -> list[str]:
    """Lines of C++: ``begin``, the items with commas, ``end``; one line if it is short enough."""
    if len(begin) + len(", ".join(items)) + len(end) <= _WIDTH:
        return [begin + ", ".join(items) + end]
    lines, line = [begin], indent
    for number, item in enumerate(items):
        word = f" {item}{',' if number + 1 < len(items) else end}"
        if len(line) + len(word) > _WIDTH:
            lines.append(line)
            line = indent
        line += word
    return [*lines, line]


def braced(items: Sequence[str]) -> list[str]:
    """``items``, C++ expressions, with "{" before the first and "}" after the last one."""
    if not items:
        return ["{}"]
    marked = list(items)
    marked[0] = f"{{{marked[0]}"
    marked[-1] += "}"
    return marked
