"""``python -m tools.renames --prose OLD NEW [PATH ...]``: shows that only prose differs.

Compares two commits (NEW may be ``.``, the working tree) without comments and docstrings: Python by
syntax trees, C++ by tokens. Prints every difference, and exits with status 1 if there is one. Files
of other languages are only counted.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

PYTHON = (".py", ".pyi")
CPP = (".cc", ".cpp", ".h", ".hpp", ".c")
WORKTREE = (".", "WORKTREE")


class Token(NamedTuple):
    """A piece of code: ``shape`` is compared exactly, ``text`` is a name or a string."""

    shape: str
    line: int
    text: str = ""


Statement = tuple[Token, ...]


class Difference(NamedTuple):
    """Lines of both sides; 0 where a side has none."""

    path: str
    old_line: int
    new_line: int


# -- Python ---------------------------------------------------------------------------------------


def _is_prose(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


class PythonReader:
    """Flattens the syntax tree of a file into statements of tokens."""

    def __init__(self, text: str) -> None:
        self.statements: list[Statement] = []
        self._tokens: list[Token] = []
        self._line = 1
        self._block("body", ast.parse(text).body)

    def _emit(self, shape: str, text: str = "") -> None:
        self._tokens.append(Token(shape, self._line, text))

    def _end(self) -> None:
        if self._tokens:
            self.statements.append(tuple(self._tokens))
        self._tokens = []

    def _block(self, field: str, statements: Iterable[ast.stmt]) -> None:
        self._emit(f"{field} {{")
        self._end()
        for statement in statements:
            if not _is_prose(statement):
                self._node(statement)
                self._end()
        self._emit("}")
        self._end()

    def _node(self, node: ast.AST) -> None:
        self._line = getattr(node, "lineno", self._line)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self._emit("string", node.value)
            else:
                self._emit(repr(node.value))
            return
        self._emit(type(node).__name__)
        for field, value in ast.iter_fields(node):
            self._field(field, value)

    def _field(self, field: str, value: object) -> None:
        if isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                self._block(field, value)
                return
            self._emit("[")
            for item in value:
                self._field(field, item)
            self._emit("]")
        elif isinstance(value, ast.AST):
            self._node(value)
        elif isinstance(value, str):
            self._emit("name", value)
        else:
            self._emit(repr(value))


# -- C++ ------------------------------------------------------------------------------------------

CPP_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
      |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
  | (?P<character>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:[eEpP][+-]|'[0-9a-zA-Z]|[0-9a-zA-Z_.])*)
  | (?P<name>[A-Za-z_$][\w$]*)
  | (?P<continued>\\\n)
  | (?P<newline>\n)
  | (?P<space>[^\S\n]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def cpp_pieces(text: str) -> Iterator[tuple[str, str, int]]:
    """The kind, text and line of each token of a C++ file, comments and white space included."""
    line = 1
    for match in CPP_TOKEN.finditer(text):
        kind = match.lastgroup or ""  # the group that was closed last, so never "mark"
        yield kind, match[0], line
        line += match[0].count("\n")


class CppReader:
    """Splits a file into statements of tokens: up to ``;``, a brace, or the end of a directive."""

    def __init__(self, text: str) -> None:
        self.statements: list[Statement] = []
        self._tokens: list[Token] = []
        directive = False
        for kind, piece, line in cpp_pieces(text):
            if kind == "newline" and directive:
                directive = False
                self._end()
            elif kind == "other" and piece == "#" and not directive:
                self._end()
                directive = True
            if kind in ("comment", "newline", "space", "continued"):
                continue
            self._add(kind, piece, line)
            if piece in ";{}" and not directive:
                self._end()
        self._end()

    def _add(self, kind: str, piece: str, line: int) -> None:
        if kind == "string" and self._tokens and self._tokens[-1].shape == "string":
            last = self._tokens[-1]
            if last.text.endswith('"') and piece.startswith('"'):  # split over lines
                self._tokens[-1] = last._replace(text=last.text[:-1] + piece[1:])
                return
        named = kind in ("string", "name")
        self._tokens.append(Token(kind if named else piece, line, piece if named else ""))

    def _end(self) -> None:
        if self._tokens:
            self.statements.append(tuple(self._tokens))
        self._tokens = []


def read(path: str, text: str) -> list[Statement]:
    return (PythonReader if path.endswith(PYTHON) else CppReader)(text).statements


# -- comparison -----------------------------------------------------------------------------------


def _line(statements: Sequence[Statement], number: int) -> int:
    return statements[number][0].line if number < len(statements) else 0


def _keys(statements: Sequence[Statement]) -> list[tuple[tuple[str, str], ...]]:
    return [tuple((token.shape, token.text) for token in each) for each in statements]


def compared(path: str, old: Sequence[Statement], new: Sequence[Statement]) -> list[Difference]:
    """The statements that differ, in order."""
    found: list[Difference] = []
    matcher = SequenceMatcher(None, _keys(old), _keys(new), autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        for i in range(max(i2 - i1, j2 - j1)):
            sides = (old[i1:i2][i : i + 1], new[j1:j2][i : i + 1])
            found.append(Difference(path, *(_first_line(*sides))))
    return found


def _first_line(old: Sequence[Statement], new: Sequence[Statement]) -> tuple[int, int]:
    if not old or not new:
        return (old[0][0].line if old else 0, new[0][0].line if new else 0)
    for a, b in zip(old[0], new[0]):
        if (a.shape, a.text) != (b.shape, b.text):
            return a.line, b.line
    return old[0][-1].line, new[0][-1].line


# -- files ----------------------------------------------------------------------------------------


class Repository:
    def __init__(self, folder: str, old: str, new: str) -> None:
        self.folder = Path(folder)
        self.folder = Path(self.git("rev-parse", "--show-toplevel").strip())
        self.old = old
        self.new: str | None = None if new in WORKTREE else new

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def changed(self, paths: Sequence[str]) -> list[tuple[str | None, str | None]]:
        """The old and new path of each file that differs."""
        commits = [self.old] if self.new is None else [self.old, self.new]
        output = self.git("diff", "--name-status", "-z", "--no-renames", *commits, "--", *paths)
        fields = output.split("\0")[:-1]
        pairs: list[tuple[str | None, str | None]] = []
        for status, path in zip(fields[::2], fields[1::2]):
            pairs.append((None if status == "A" else path, None if status == "D" else path))
        if self.new is None:
            others = self.git("ls-files", "-oz", "--exclude-standard", "--", *paths)
            pairs += [(None, path) for path in others.split("\0")[:-1]]
        return pairs

    def text(self, path: str | None, is_new: bool) -> str:
        if path is None:
            return ""
        if is_new and self.new is None:
            return (self.folder / path).read_text()
        return self.git("show", f"{self.new if is_new else self.old}:{path}")


def _shown(repository: Repository, paths: tuple[str | None, str | None]) -> list[str]:
    old, new = (repository.text(path, is_new) for path, is_new in zip(paths, (False, True)))
    path = paths[1] or paths[0] or ""
    if None in paths and (read(path, old) or read(path, new)):
        return [f"{path}: {'added' if paths[0] is None else 'deleted'}"]
    try:
        found = compared(path, read(path, old), read(path, new))
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: {error.msg}"]
    sides = (old.splitlines(), new.splitlines())
    return [
        f"{path}:{d.old_line}: - {_source(sides[0], d.old_line)}\n"
        f"{path}:{d.new_line}: + {_source(sides[1], d.new_line)}"
        for d in found
    ]


def _source(lines: Sequence[str], number: int) -> str:
    return lines[number - 1].strip() if 0 < number <= len(lines) else "(nothing)"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("tools.renames", description=__doc__)
    parser.add_argument("--prose", action="store_true", help="names must be the same, too")
    parser.add_argument("-C", dest="folder", default=".", help="a folder of the repository")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args(arguments)
    repository = Repository(options.folder, options.old, options.new)
    pairs = repository.changed(options.paths)
    code = [pair for pair in pairs if (pair[1] or pair[0] or "").endswith(PYTHON + CPP)]
    shown = [text for pair in code for text in _shown(repository, pair)]
    print(*shown, sep="\n", end="\n" if shown else "")
    print(f"{len(code)} files of code differ, {len(shown)} differences beyond prose")
    if len(code) < len(pairs):
        print(f"{len(pairs) - len(code)} other files are not compared")
    return bool(shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
