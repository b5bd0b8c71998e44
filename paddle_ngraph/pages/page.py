"""A report as one HTML file: figures, tables and drawings of graphs.

The file has all that it needs, and its content security policy lets it load nothing. Texts may
come from a model: all are escaped, in HTML and in the JSON that the script of the page draws.
Without the script the figures and tables are there; only drawings are not.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from paddle_ngraph.errors import printable
from paddle_ngraph.utils.once import once

# More operators than a browser lays out while a reader waits.
MAX_BOXES = 20_000
MAX_ROWS = 500
_ASSETS = Path(__file__).parent / "assets"
Details = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class BarPart:
    """A part of a bar.

    Attributes:
        name: Of the kind ``engine``, ``native`` or ``both``, which is also its colour.
        value: Its size, 0 or more.
        text: The size with a unit.
    """

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class Bar:
    """A quantity, divided into parts."""

    title: str
    parts: Sequence[BarPart]


@dataclass(frozen=True)
class TextTable:
    """A table; of more than ``MAX_ROWS`` rows the page shows the first ones and says so.

    Attributes:
        title: The heading.
        columns: The names of the columns.
        rows: One text for each column.
        note: A sentence below the heading.
        numbers: The indices of columns with numbers, which are aligned.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OperatorBox:
    """An operator of a drawing.

    Attributes:
        name: The text in its box.
        kind: ``engine``, ``kernel`` (Paddle's kernel in a function), ``native`` or ``other``.
        group: Index of its group in the drawing; -1: none.
        inputs: Positions in the drawing of the operators whose results it reads.
        details: Names and texts, shown when it is selected.
    """

    name: str
    kind: str
    group: int
    inputs: Sequence[int]
    details: Details


@dataclass(frozen=True)
class GroupBox:
    """A group of operators, which a reader can open and close."""

    name: str
    details: Details


@dataclass(frozen=True)
class Drawing:
    """A graph of operators, in program order."""

    title: str
    operators: Sequence[OperatorBox]
    groups: Sequence[GroupBox]


@dataclass(frozen=True)
class Page:
    """The contents of a page, in its order.

    Attributes:
        title: The heading.
        lines: Sentences below.
        bars, drawings, tables: As named; each may be empty.
    """

    title: str
    lines: Sequence[str]
    bars: Sequence[Bar] = ()
    drawings: Sequence[Drawing] = ()
    tables: Sequence[TextTable] = ()

    def html(self) -> str:
        """Returns the page as a complete HTML document."""
        licence = f"/* dagre\n{_asset('dagre.LICENSE.txt')} */"
        script = f"{licence}\n{_asset('dagre.min.js')}\n{_asset('page.js')}"
        boxed = [each for each in self.drawings if 0 < len(each.operators) <= MAX_BOXES]
        style = _asset("page.css")
        policy = (
            "default-src 'none'; base-uri 'none'; form-action 'none'; "
            f"script-src {_digest(script)}; style-src 'unsafe-inline'"
        )
        parts = [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(self.title)}</title><style>{style}</style></head><body>",
            f"<h1>{_text(self.title)}</h1>",
            *(f"<p>{_text(line)}</p>" for line in self.lines),
            *_bars(self.bars),
            *_drawings(self.drawings, bool(boxed)),
            *(part for table in self.tables for part in _table(table)),
        ]
        if boxed:
            data = json.dumps([_data(each) for each in boxed], separators=(",", ":"))
            parts += [
                f'<script type="application/json" id="data">{_in_script(data)}</script>',
                f"<script>{script}</script>",
            ]
        return "\n".join([*parts, "</body></html>\n"])

    def frame(self, height: int = 720) -> str:
        """Returns the page as a frame, for notebooks: its script cannot reach the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.html())}" '
            f'style="width: 100%; height: {height}px; border: 1px solid #ccc"></iframe>'
        )


def _text(text: str) -> str:
    return escape(printable(text))


def _in_script(text: str) -> str:
    """JSON that ends no script element, and begins no comment in one."""
    for each in "<>&\u2028\u2029":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@once
def _assets() -> dict[str, str]:
    return {file.name: file.read_text("utf-8") for file in _ASSETS.iterdir()}


def _asset(name: str) -> str:
    return _assets()[name].strip()


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    for bar in bars:
        total = sum(part.value for part in bar.parts)
        shares = [part.value / total if total else 0.0 for part in bar.parts]
        named = [
            f'<span class="{_text(part.name)}">{_text(part.name)} {share:.1%}</span>'
            f" ({_text(part.text)})"
            for part, share in zip(bar.parts, shares)
            if part.value
        ]
        filled = "".join(
            f'<i class="{_text(part.name)}" style="width: {100 * share:.2f}%"></i>'
            for part, share in zip(bar.parts, shares)
        )
        yield (
            f'<div class="bar"><b>{_text(bar.title)}</b><div>{filled}</div>'
            f"<small>{', '.join(named) or 'nothing'}</small></div>"
        )


def _drawings(drawings: Sequence[Drawing], has_graph: bool) -> Iterator[str]:
    if drawings:
        yield "<h2>Graph</h2>"
    for each in drawings:
        if len(each.operators) > MAX_BOXES:
            yield (
                f"<p>{_text(each.title)} has {len(each.operators):,} operators, more than the "
                f"{MAX_BOXES:,} that a page draws: the tables below have all of them.</p>"
            )
    if has_graph:
        yield (
            "<noscript><p>The drawing needs JavaScript; the tables below do not.</p></noscript>"
            '<div id="graph"></div>'
        )


def _table(table: TextTable) -> Iterator[str]:
    yield f"<h2>{_text(table.title)}</h2>"
    if table.note:
        yield f"<p>{_text(table.note)}</p>"
    if not table.rows:
        return
    heads = "".join(_cells("th", table.columns, table.numbers))
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>'
    for row in table.rows[:MAX_ROWS]:
        yield f"<tr>{''.join(_cells('td', row, table.numbers))}</tr>"
    yield "</tbody></table></div>"
    if len(table.rows) > MAX_ROWS:
        yield f"<p>The first {MAX_ROWS:,} of {len(table.rows):,} rows.</p>"


def _cells(tag: str, row: Sequence[str], numbers: frozenset[int]) -> Iterator[str]:
    for column, text in enumerate(row):
        kind = ' class="number"' if column in numbers else ""
        lines = "<br>".join(map(_text, text.split("\n")))
        yield f"<{tag}{kind}>{lines}</{tag}>"


def _data(drawing: Drawing) -> dict[str, object]:
    """A drawing as JSON, with each text once."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(printable(text), len(numbers))

    def listed(details: Details) -> list[int]:
        return [number(text) for pair in details for text in pair]

    return {
        "title": printable(drawing.title),
        "operators": [
            [number(o.name), number(o.kind), o.group, list(o.inputs), listed(o.details)]
            for o in drawing.operators
        ],
        "groups": [[number(g.name), listed(g.details)] for g in drawing.groups],
        "texts": list(numbers),
    }
