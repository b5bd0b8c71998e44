"""docs/operators.md: every Paddle operator that has a converter, and the converter's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from paddle_ngraph.function.registry import ABSENT, Converter, Role, all_converters

_HEADER = """\
# Operators

Every Paddle operator that nGraph can run, by family; a family is one file of `paddle_ngraph/ops/`.
An operator that is not here, of another dtype or past a limit, stays native: the program gives the
same result, and `paddle_ngraph.explain(program)` says why. An operator of your own can be added:
see [adding an operator](adding_an_operator.md).

`_grad` is the gradient, a trailing `_` the form that overwrites its input. *dtypes* are those of
the inputs; *positions* may be int32 or int64, *known* inputs (axes, shapes) are read while a
function is built, whatever their dtype. int64 results are computed where they surely fit into 32
bits or are used as positions only. float16 and bfloat16 stay native, and so do the casts to them:
the CPU plugin keeps such numbers in float32 from operator to operator, which leaves roundings out.

Made by `python -m paddle_ngraph operators`; a test fails when this page is out of date.
"""


def markdown() -> str:
    """The page, as Markdown."""
    entries = sorted(all_converters().values(), key=lambda entry: (_family(entry), entry.type))
    lines = [_HEADER.rstrip(), "", f"{len(entries)} operators.", ""]
    for family, members in groupby(entries, key=_family):
        lines += [
            f"## {family}",
            "",
            "| operator | dtypes | stays native when |",
            "| --- | --- | --- |",
        ]
        lines += [f"| {names} | {limits} |" for names, limits in _rows(members)]
        lines.append("")
    lines += ["## Without a converter", "", "| operator | why |", "| --- | --- |"]
    lines += [f"| `{_short(type)}` | {why} |" for type, why in sorted(ABSENT.items())]
    return "\n".join([*lines, ""])


def _family(entry: Converter) -> str:
    return entry.function.__module__.rpartition(".")[2]


def _rows(entries: Iterable[Converter]) -> Iterator[tuple[str, str]]:
    """(operators, description): forms of one operator with the same description share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        rows.setdefault((_stem(entry.type), _columns(entry)), []).append(entry.type)
    for (_, columns), types in rows.items():
        yield ", ".join(f"`{_short(type)}`" for type in types), columns


def _short(type: str) -> str:
    return type.removeprefix("pd_op.")


def _stem(type: str) -> str:
    return type.rstrip("_").removesuffix("_grad").rstrip("_")


def _columns(entry: Converter) -> str:
    dtypes = [", ".join(sorted(entry.dtypes))]
    for title, role in (("positions", Role.INDEX), ("known", Role.CONSTANT)):
        if names := entry.named(role):
            dtypes.append(f"{title}: {', '.join(sorted(names))}")
    limits = [limit.text for limit in entry.limits]
    if omitted := entry.named(Role.OMITTED):
        limits.append(f"output {' or '.join(sorted(omitted))} is used")
    return f"{'; '.join(dtypes)} | {'; '.join(limits).replace('|', chr(92) + '|')}"
