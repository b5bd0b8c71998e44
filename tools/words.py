"""``python -m tools.words``: checks names against the glossary. ``--count`` measures prose.

Reports, in Python, C++ and Markdown, the identifiers and file names that docs/reference/glossary.md
retires, and docstrings that begin with a pronoun. Each line of the output names a location, the
retired word and its replacement; the output of one run is an allow list for later ones
(``--allow FILE``).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tools.renames.cpp_tokens import cpp_pieces
from tools.renames.tokens import CPP, PYTHON

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

# `old`, or `old` → new, in the last column of a table of the glossary.
RETIRED = re.compile(r"`([^`]+)`(?: → ([^,|]+))?")
CONTRACTS = "## Contracts"  # names in the first column of its table are allowed
# Parts of an identifier: SomeHTTPName, some_name, SOME_NAME.
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
OPENING = re.compile(
    r"(What|Whatever|Who|Whom|Whose|Whoever|It|Its|They|Them|Those|These|The same|That of"
    r"|Whether (?:it|they|this|that|those|these|what|who|somebody|anybody|nobody))\b"
)
NAMED_OPENING = "a noun, or a verb: Returns, Raises, Whether the operator ..."
FOLDER_DEPTH = 2
MARKDOWN = (".md",)
# The glossary itself, and pages about the past.
UNCHECKED = re.compile(r".*glossary\.md|CHANGELOG\.md|benchmarks/results/.*")


class Prose(NamedTuple):
    """A docstring or comment."""

    line: int
    text: str
    is_docstring: bool


class Name(NamedTuple):
    """An identifier, at its first definition (Python) or use (C++) in a file."""

    text: str
    line: int


class Finding(NamedTuple):
    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} → {self.instead}"


# -- sources --------------------------------------------------------------------------------------


def python_prose(text: str) -> Iterator[Prose]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield Prose(node.body[0].lineno, docstring, True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(token.start[0], token.string.lstrip("#: "), False)


def cpp_prose(text: str) -> Iterator[Prose]:
    """Yields the comments of a file; a block of lines is treated as a docstring."""
    begins_line, follows_comment = True, False
    for kind, piece, line in cpp_pieces(text):
        if kind == "comment":
            yield Prose(line, piece.strip("/* \n"), begins_line and not follows_comment)
            follows_comment = True
        elif kind == "newline":
            begins_line = True
        elif kind != "space":
            begins_line = follows_comment = False


def _defined(node: ast.AST) -> Iterable[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (node.name,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return (node.id,)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return (node.attr,)
    if isinstance(node, ast.alias) and node.asname:
        return (node.asname,)
    return ()


def python_names(text: str) -> Iterator[Name]:
    for node in ast.walk(ast.parse(text)):
        for name in _defined(node):
            yield Name(name, getattr(node, "lineno", 1))


def cpp_names(text: str) -> Iterator[Name]:
    for kind, piece, line in cpp_pieces(text):
        if kind == "name":
            yield Name(piece, line)


def markdown_names(text: str) -> Iterator[Name]:
    """Yields the identifiers, and the names of files, that a page shows as code.

    The results of ``make tiers`` name tests as they were in the measured commit.
    """
    results = re.search(r"<!-- tiers:begin -->.*<!-- tiers:end -->", text, re.DOTALL)
    if results:
        text = text.replace(results[0], "\n" * results[0].count("\n"))
    for line, content in enumerate(text.splitlines(), 1):
        for code in re.findall(r"`([^`]+)`", content):
            for name in re.findall(r"[\w.]*\w", code):
                yield Name(name, line)
                yield from (Name(part, line) for part in name.split(".")[1:])


def first_of_each(names: Iterable[Name]) -> list[Name]:
    lines: dict[str, int] = {}
    for name in names:
        lines[name.text] = min(name.line, lines.get(name.text, name.line))
    return [Name(text, line) for text, line in lines.items()]


# -- the glossary ---------------------------------------------------------------------------------


def _rows(text: str) -> Iterator[list[str]]:
    """Yields the cells of each row of the tables."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


class Retired:
    """The retired names of a glossary, each with its replacement.

    ``name.py`` is a file, ``*name*`` a component of any identifier, and ``name`` an identifier.
    """

    def __init__(self, glossary: str) -> None:
        self.files: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.names: dict[str, str] = {}
        terms, _, contracts = glossary.partition(CONTRACTS)
        self.free = {name for row in _rows(contracts) for name in re.findall(r"`(\w+)`", row[0])}
        for row in _rows(terms):
            for word, instead in RETIRED.findall(row[-1]):
                self._add(word, (instead or row[0]).replace("`", "").strip())

    def _add(self, word: str, instead: str) -> None:
        if word.endswith(PYTHON + CPP):
            self.files[word] = instead
        elif word.startswith("*"):
            self.parts[word.strip("*")] = instead
        else:
            self.names[word] = instead

    def in_name(self, name: str) -> tuple[str, str] | None:
        if name in self.free:
            return None
        if name in self.names:
            return name, self.names[name]
        for part in PART.findall(name):
            if part.lower() in self.parts:
                return name, self.parts[part.lower()]
        return None

    def in_path(self, path: str) -> tuple[str, str] | None:
        for word, instead in self.files.items():
            if PurePosixPath(path).match(word):
                return word, instead
        return None


def findings(path: str, text: str, retired: Retired) -> Iterator[Finding]:
    """Yields the retired words of a file."""
    found = retired.in_path(path)
    if found:
        yield Finding(path, 1, *found)
    is_python = path.endswith(PYTHON)
    is_page = path.endswith(MARKDOWN)
    names = python_names if is_python else markdown_names if is_page else cpp_names
    for name in first_of_each(names(text)):
        found = retired.in_name(name.text) or (retired.in_path(name.text) if is_page else None)
        if found:
            yield Finding(path, name.line, *found)
    for prose in () if is_page else (python_prose if is_python else cpp_prose)(text):
        opening = OPENING.match(prose.text)
        if prose.is_docstring and opening:
            yield Finding(path, prose.line, f'"{opening[0]} ..."', NAMED_OPENING)


def allowed(lines: Iterable[str]) -> set[tuple[str, str]]:
    """Returns file and word of each line of an allow list, without line numbers."""
    matches = (re.match(r"(.+?):\d+: (.+) → ", line) for line in lines)
    return {(match[1], match[2]) for match in matches if match}


# -- counts ---------------------------------------------------------------------------------------


def counted(texts: Iterable[tuple[str, str]]) -> str:
    """Returns a table of the frequency of "what" in 1,000 words of prose, by folder."""
    words: Counter[str] = Counter()
    whats: Counter[str] = Counter()
    for path, text in texts:
        folder = "/".join(PurePosixPath(path).parent.parts[:FOLDER_DEPTH]) or "."
        for prose in (python_prose if path.endswith(PYTHON) else cpp_prose)(text):
            found = re.findall(r"[a-z']+", prose.text.lower())
            for each in (folder, "all"):
                words[each] += len(found)
                whats[each] += found.count("what")
    rows = [
        f"{1000 * whats[f] / max(1, words[f]):6.1f} {whats[f]:6} {words[f]:8}  {f}" for f in words
    ]
    return "\n".join(["  what/1,000   words  folder", *sorted(rows, key=lambda row: row[22:])])


def sources(
    root: Path, paths: Sequence[str], suffixes: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yields the paths and texts of files, except pages that have retired names on purpose."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--", *paths]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for path in sorted(set(output.split("\0"))):
        if path.endswith(suffixes) and (root / path).exists() and not UNCHECKED.fullmatch(path):
            yield path, (root / path).read_text()


def main(arguments: Sequence[str], show: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser("python -m tools.words", description=__doc__)
    parser.add_argument("--count", action="store_true", help='"what" in 1,000 words, by folder')
    parser.add_argument("--allow", type=Path, metavar="FILE", help="the output of an earlier run")
    parser.add_argument("-C", dest="root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args(arguments)
    kinds = PYTHON + CPP + (() if options.count else MARKDOWN)
    texts = sources(options.root, options.paths, kinds)
    if options.count:
        show(counted(texts))
        return 0
    retired = Retired(GLOSSARY.read_text())
    known = allowed(options.allow.read_text().splitlines()) if options.allow else set()
    found = [
        each
        for path, text in texts
        for each in findings(path, text, retired)
        if (each.path, each.word) not in known
    ]
    for each in found:
        show(str(each))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
