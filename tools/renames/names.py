"""Maps from old to new names of a file, and checks of their consistency."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import PurePosixPath
from typing import NamedTuple

from tools.renames.cpp_tokens import CppReader
from tools.renames.python_tokens import PythonReader
from tools.renames.tokens import (
    ANNOTATION,
    IMPORT,
    IMPORTED,
    INCLUDE,
    NAME,
    PYTHON,
    Statement,
    Token,
)

Names = Mapping[str, Sequence[str]]  # the new names of an old one


class Moves:
    """Paths of the files of one commit in another one."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)
        self.modules = {
            _module(old): _module(new) for old, new in files.items() if old.endswith(PYTHON)
        }
        self.stems = {(PurePosixPath(a).stem, PurePosixPath(b).stem) for a, b in files.items()}

    def module(self, name: str) -> str:
        """Returns a dotted name with its longest prefix that is a module replaced."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[:end])
            if module in self.modules:
                return ".".join([self.modules[module], *parts[end:]])
        return name

    def include(self, path: str) -> str:
        for old, new in self.files.items():
            folder = old[: -len(path)]
            if old.endswith("/" + path) and new.startswith(folder):
                return new[len(folder) :]
        return self.files.get(path, path)

    def text(self, text: str) -> str:
        """Returns a text with the names of moved files and modules replaced."""
        for old, new in sorted([*self.files.items(), *self.modules.items()], reverse=True):
            if old in text:
                text = re.sub(rf"(?<![\w./]){re.escape(old)}(?!\w)", new, text)
        return text


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


Key = tuple[str, str]  # scope and text of a name
Lines = tuple[int, int]


class FileNames:
    """The names of a file, in pairs of old and new."""

    def __init__(self, path: str, moves: Moves, given: Names | None) -> None:
        self.differences: list[Difference] = []
        self.strings: list[tuple[Token, Token]] = []
        self.path = path
        self._moves = moves
        self._given = given
        self._new: dict[Key, dict[Key, list[Lines]]] = defaultdict(lambda: defaultdict(list))
        self._old: dict[Key, dict[Key, list[Lines]]] = defaultdict(lambda: defaultdict(list))
        self._imports: list[tuple[Statement, Statement]] = []

    def pair(self, old: Statement, new: Statement) -> None:
        if _is_import(old):
            self._imports.append((old, new))
            return
        for a, b in zip(old, new):
            if a.shape == NAME:
                self._pair_names((a.scope, a.text), (b.scope, b.text), (a.line, b.line))
            elif a.text != b.text:
                self.strings.append((a, b))

    def _pair_names(self, old: Key, new: Key, lines: Lines) -> None:
        if not self._is_allowed(old[1], new[1]):
            self._differ(lines, f"{old[1]} -> {new[1]}")
            return
        self._new[old][new].append(lines)
        self._old[new][old].append(lines)

    def _is_allowed(self, old: str, new: str) -> bool:
        if old == new or self._given is None:
            return True
        return new in self._given.get(old, ()) or (old, new) in self._moves.stems

    def _differ(self, lines: Lines, reason: str = "") -> None:
        self.differences.append(Difference(self.path, *lines, reason))

    def finish(self) -> None:
        """Pairs the imports, by the names that the other statements use; then finds conflicts."""
        for old, new in self._imports:
            if old[0].shape == INCLUDE:
                self._pair_includes(old, new)
            else:
                self._pair_imports(old, new)
        for table, is_new in ((self._new, True), (self._old, False)):
            for key, others in table.items():
                self._find_conflicts(key, others, is_new)

    def _find_conflicts(self, key: Key, others: Mapping[Key, list[Lines]], is_new: bool) -> None:
        usual = max(others, key=lambda other: len(others[other]))
        for other, lines in others.items():
            is_local = key[0].isdigit() or other[0].isdigit()
            if other != usual and (is_local or not self._are_given(key[1], others, is_new)):
                verb = "became" if is_new else "was"
                reason = f"{key[1]} ({key[0]}) {verb} {usual[1]} ({usual[0]}) elsewhere"
                self._differ(lines[0], f"{reason}, {other[1]} ({other[0]}) here")

    def _are_given(self, name: str, others: Iterable[Key], is_new: bool) -> bool:
        pairs = [(name, other[1]) if is_new else (other[1], name) for other in others]
        return self._given is not None and all(b in self._given.get(a, ()) for a, b in pairs)

    def _pair_includes(self, old: Statement, new: Statement) -> None:
        moved = {self._moves.include(token.text): token.line for token in old}
        for text, line in moved.items():
            if text not in {token.text for token in new}:
                self._differ((line, new[0].line), f"{text} is no longer included")
        for token in new:
            if token.text not in moved:
                self._differ((old[0].line, token.line), f"{token.text} was not included")

    def _pair_imports(self, old: Statement, new: Statement) -> None:
        olds, news = list(old), list(new)
        for is_match in (self._is_same_import, self._is_renamed_import, self._is_of_same_module):
            for a in olds[:]:
                b = next((b for b in news if is_match(a, b)), None)
                if b is not None:
                    self._pair_import(a, b)
                    olds.remove(a)
                    news.remove(b)
        for a in olds:
            self._differ((a.line, new[0].line), f"{a.text} is no longer imported")
        for b in news:
            self._differ((old[0].line, b.line), f"{b.text} was not imported")

    def _new_name(self, token: Token) -> str:
        found = self._new.get((token.scope, token.bound))
        return max(found, key=lambda key: len(found[key]))[1] if found else token.bound

    def _is_same_import(self, old: Token, new: Token) -> bool:
        return new.text == self._moves.module(old.text) and new.bound == self._new_name(old)

    def _is_renamed_import(self, old: Token, new: Token) -> bool:
        return self._is_of_same_module(old, new) and new.bound == self._new_name(old)

    def _is_of_same_module(self, old: Token, new: Token) -> bool:
        moved = self._moves.module(old.text).rpartition(".")
        return moved[0] == new.text.rpartition(".")[0]

    def _pair_import(self, old: Token, new: Token) -> None:
        lines = (old.line, new.line)
        self._pair_names((old.scope, old.bound), (new.scope, new.bound), lines)
        moved, name = (text.rpartition(".")[2] for text in (self._moves.module(old.text), new.text))
        self._pair_names((IMPORTED, moved), (IMPORTED, name), lines)

    def changed(self) -> set[tuple[str, str]]:
        """Returns the pairs of names that differ."""
        pairs = {(old[1], new[1]) for old, found in self._new.items() for new in found}
        return {(old, new) for old, new in pairs if old != new}


def is_renamed_string(old: Token, new: Token, moves: Moves, names: Names) -> bool:
    """Returns whether two strings differ only in names of a map, and in paths of files."""
    if " " in old.text.strip() and old.shape != ANNOTATION:
        return _is_renamed_program(old.text, new.text, moves, names)
    words = [re.split(r"(\w+)", text) for text in (moves.text(old.text), new.text)]
    return len(words[0]) == len(words[1]) and all(
        a == b or b in names.get(a, ()) or (a, b) in moves.stems for a, b in zip(*words)
    )


def _is_renamed_program(old: str, new: str, moves: Moves, names: Names) -> bool:
    if "\n" not in old.strip():
        return False
    try:
        before, after = (read("program.py", text) for text in (old, new))
    except SyntaxError:
        return False
    found = compared("program.py", before, after, moves, names)
    return not found.differences and all(
        is_renamed_string(a, b, moves, names) for a, b in found.strings
    )


class Difference(NamedTuple):
    """Lines of both sides (0 where a side has none), and the reason if the lines do not show it."""

    path: str
    old_line: int
    new_line: int
    reason: str = ""


def read(path: str, text: str) -> list[Statement]:
    return (PythonReader if path.endswith(PYTHON) else CppReader)(path, text).statements


def _is_import(statement: Statement) -> bool:
    return statement[-1].shape in (IMPORT, INCLUDE)


def with_merged_imports(statements: Iterable[Statement]) -> list[Statement]:
    """Merges consecutive imports into one statement, since sorting depends on names."""
    merged: list[Statement] = []
    for statement in statements:
        if _is_import(statement):
            statement = tuple(token for token in statement if token.shape in (IMPORT, INCLUDE))
            if merged and _is_import(merged[-1]):
                merged[-1] += statement
                continue
        merged.append(statement)
    return merged


def shapes(statements: Sequence[Statement]) -> list[tuple[str, ...]]:
    return [
        (IMPORT,) if _is_import(each) else tuple(token.shape for token in each)
        for each in statements
    ]


def compared(
    path: str,
    old: Sequence[Statement],
    new: Sequence[Statement],
    moves: Moves,
    given: Names | None,
    merges_imports: bool = True,
) -> FileNames:
    """Pairs names and strings of two versions of a file; collects statements that differ."""
    names = FileNames(path, moves, given)
    if merges_imports:
        old, new = with_merged_imports(old), with_merged_imports(new)
    keys = shapes(old), shapes(new)
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        for a, b in zip(old[i1:i2], new[j1:j2]):
            if tag == "equal":
                names.pair(a, b)
            else:
                names.differences.append(Difference(path, *_first_lines(a, b)))
        for a in old[i1 + (j2 - j1) : i2]:
            names.differences.append(Difference(path, a[0].line, 0))
        for b in new[j1 + (i2 - i1) : j2]:
            names.differences.append(Difference(path, 0, b[0].line))
    names.finish()
    return names


def _first_lines(old: Statement, new: Statement) -> Lines:
    for a, b in zip(old, new):
        if a.shape != b.shape:
            return a.line, b.line
    return old[-1].line, new[-1].line
