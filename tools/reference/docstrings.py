"""Google-style docstrings, and signatures, as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

_SECTION = re.compile(r"(Args|Returns|Raises|Attributes|Example):(:?)$")
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_ENTRY = re.compile(r"(\*{0,2}\w[\w.]*(?:, \*{0,2}\w+)*): (.*)", re.DOTALL)
_PAGE = re.compile(r"\bdocs/(\w+)/(\w+)\.md")
# Examples that need other processes; all others run in a process with a program.
_NEEDS_RANKS = re.compile(r"distributed\.|_ngraph\.distribute\(|_ngraph\.ray\.")


class Docstring(NamedTuple):
    """A docstring: its text, with examples, and its sections by name."""

    text: list[str]
    sections: dict[str, list[str]]


def parsed(owner: Any) -> Docstring:
    """Returns the docstring of a function or class, in pieces."""
    lines = (inspect.getdoc(owner) or "").split("\n")
    found = Docstring([], {})
    target = found.text
    for line in lines:
        if section := _SECTION.match(line):
            target = found.sections.setdefault(section[1], [])
        elif line and not line[0].isspace() and target is not found.text:
            target = found.text  # a paragraph after a section
            target += ["", line]
        else:
            target.append(line)
    return found


def inline(text: str, known: Callable[[str], str | None]) -> str:
    """Converts marks within a line; ``known`` returns the anchor of a name."""

    def link(found: re.Match[str]) -> str:
        anchor = known(found[1])
        name = f"`{found[1]}`"
        return f"[{name}](#{anchor})" if anchor else name

    text = _PAGE.sub(lambda page: f"[{page[2].replace('_', ' ')}](../{page[1]}/{page[2]}.md)", text)
    return re.sub(r"``([^`]+)``", r"`\1`", _ROLE.sub(link, text))


def _blocks(lines: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Yields paragraphs and examples (``True``): the indented lines after a ``::``."""
    for block in re.split(r"\n\n(?=\S)", "\n".join(lines).strip("\n")):
        text, colons, code = block.partition("::\n\n")
        if text.strip():
            yield False, text + (":" if colons and text.strip() else "")
        if colons:
            yield True, textwrap.dedent(code).strip("\n")


def example(code: str) -> str:
    """Returns a fenced block of Python, with the mark by which the tests run it."""
    mark = "not run: needs a launcher" if _NEEDS_RANKS.search(code) else "given program"
    mark += " slow: measures plans" if "automatic_plan(" in code else ""
    return f"```python {mark}\n{code}\n```"


def entries(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the names and texts of a section such as Args."""
    found: list[tuple[str, str]] = []
    for item in re.split(r"\n(?=\S)", textwrap.dedent("\n".join(lines)).strip("\n")):
        text = " ".join(item.split())
        entry = _ENTRY.match(text)
        found.append((entry[1], entry[2]) if entry else ("", text))
    return found


def markdown(owner: Any, known: Callable[[str], str | None]) -> list[str]:
    """Returns the paragraphs of a function's or class's documentation."""
    doc = parsed(owner)
    made = []
    for is_code, text in _blocks(doc.text):
        made.append(example(text) if is_code else inline(text, known))
    for lines in [doc.sections["Example"]] if "Example" in doc.sections else []:
        made.append(example(textwrap.dedent("\n".join(lines)).strip("\n")))
    for name in ("Args", "Attributes"):
        if name in doc.sections:
            rows = [
                f"- `{key}`: {inline(text, known)}" for key, text in entries(doc.sections[name])
            ]
            made.append("\n".join(rows))
    if "Returns" in doc.sections:
        text = " ".join("\n".join(doc.sections["Returns"]).split())
        made.append(f"**Returns** {inline(text, known)}")
    for error, text in entries(doc.sections.get("Raises", [])) if "Raises" in doc.sections else []:
        made.append(f"**Raises** `{error}`: {inline(text, known)}")
    return made


def signature(function: Any) -> str:
    """Returns the parameters of a function in parentheses, with annotations and defaults."""
    try:
        given = inspect.signature(function)
    except ValueError:  # a class of the core
        return ""
    shown, is_keyword_only = [], False
    for parameter in given.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            shown.append("*")
        is_list = parameter.kind is parameter.VAR_POSITIONAL
        stars = 1 if is_list else 2 if parameter.kind is parameter.VAR_KEYWORD else 0
        text = "*" * stars + parameter.name + _annotation(": ", parameter.annotation)
        if parameter.default is not parameter.empty:
            text += f" = {'...' if callable(parameter.default) else repr(parameter.default)}"
        shown.append(text)
        is_keyword_only = is_keyword_only or is_list
    returned = "" if inspect.isclass(function) else _annotation(" -> ", given.return_annotation)
    return f"({', '.join(shown)}){returned}"


def _annotation(before: str, annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return before + (annotation if isinstance(annotation, str) else str(annotation))
