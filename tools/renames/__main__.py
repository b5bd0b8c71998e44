"""Shows that two commits differ in names, prose and paths of files only.

Compares the code of two commits (NEW may be "." or "WORKTREE") without comments and docstrings:
Python by syntax trees, C++ by tokens. Names may differ by a map that is consistent in a file, or in
their scope for local names of Python. The map is given or else inferred. Strings have to be equal
except for annotations, Python programs, and names and paths of renamed or moved objects. Prints the
map and every difference beyond it, and exits with status 1 if there is one. Files of other
languages are only counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.renames.commits import Commits, Pair
from tools.renames.names import (
    Difference,
    FileNames,
    Moves,
    compared,
    is_renamed_string,
    read,
    shapes,
)
from tools.renames.tokens import CPP, PYTHON


def _path(pair: Pair) -> str:
    return pair[1] or pair[0] or ""


class Comparison:
    """The differences of two commits, and the map between their names."""

    def __init__(
        self,
        commits: Commits,
        paths: Sequence[str],
        given: Mapping[str, Sequence[str]] | None,
        is_prose: bool,
    ) -> None:
        self.map: dict[str, Counter[str]] = {}
        self.differences: list[Difference] = []
        changed = commits.changed(paths, finds_moves=not is_prose)
        self.pairs = [pair for pair in changed if _path(pair).endswith(PYTHON + CPP)]
        self.others = len(changed) - len(self.pairs)
        old = commits.texts([pair[0] for pair in self.pairs], is_new=False)
        new = commits.texts([pair[1] for pair in self.pairs], is_new=True)
        self.texts = dict(zip(map(_path, self.pairs), zip(old, new)))
        if not is_prose:
            self._join_moved()
        self.moves = Moves({a: b for a, b in self.pairs if a and b and a != b})
        files = [self._compared(pair, given, is_prose) for pair in self.pairs]
        self._check_strings([file for file in files if file], given)

    def _join_moved(self) -> None:
        """Joins a deleted and an added file that git does not pair, if only names differ."""
        added = {_shape(b, self.texts[b][1]): b for a, b in self.pairs if a is None and b}
        for a in [a for a, b in self.pairs if a and b is None]:
            b = added.pop(_shape(a, self.texts[a][0]), None)
            if b and _shape(b, self.texts[b][1]):
                self.pairs = [p for p in self.pairs if p not in ((a, None), (None, b))] + [(a, b)]
                self.texts[b] = self.texts.pop(a)[0], self.texts[b][1]

    def _compared(
        self, pair: Pair, given: Mapping[str, Sequence[str]] | None, is_prose: bool
    ) -> FileNames | None:
        path = _path(pair)
        try:
            old, new = (read(side or path, text) for side, text in zip(pair, self.texts[path]))
        except SyntaxError as error:
            self.differences.append(Difference(path, 0, error.lineno or 0, str(error.msg)))
            return None
        if None in pair:
            if _has_code(old) or _has_code(new):
                reason = "added" if pair[0] is None else "deleted"
                self.differences.append(Difference(path, 0, 0, reason))
            return None
        file = compared(path, old, new, self.moves, given, merges_imports=not is_prose)
        self.differences += file.differences
        for a, b in file.changed():
            self.map.setdefault(a, Counter())[b] += 1
        return file

    def _check_strings(
        self, files: Sequence[FileNames], given: Mapping[str, Sequence[str]] | None
    ) -> None:
        names = {old: list(new) for old, new in self.map.items()} if given is None else given
        self.differences += [
            Difference(file.path, old.line, new.line)
            for file in files
            for old, new in file.strings
            if not is_renamed_string(old, new, self.moves, names)
        ]

    def shown(self) -> list[str]:
        """Returns the differences as text, in the order of the files."""
        return [self._shown(each) for each in sorted(set(self.differences))]

    def _shown(self, difference: Difference) -> str:
        path, *lines, reason = difference
        shown = [f"{path}: {reason}"] if reason else []
        for mark, text, line in zip("-+", self.texts[path], lines):
            if line:
                shown.append(f"{path}:{line}: {mark} {text.splitlines()[line - 1].strip()}")
        return "\n".join(shown)


def _has_code(statements: Sequence[object]) -> bool:
    return len(statements) > 2  # the begin and end of an empty file


def _shape(path: str, text: str) -> tuple[object, ...]:
    try:
        statements = read(path, text)
    except SyntaxError:
        return ()
    return tuple(shapes(statements)) if _has_code(statements) else ()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "tools.renames", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prose", action="store_true", help="names have to be equal, too")
    parser.add_argument("--map", type=Path, help='JSON: {"old": "new"}, or a list of new names')
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the map as JSON")
    parser.add_argument("-C", dest="folder", default=".", help="a folder of the repository")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("paths", nargs="*", help="files and folders, from the repository's root")
    options = parser.parse_args(arguments)
    given: dict[str, list[str]] | None = {} if options.prose else None
    if options.map:
        content = json.loads(options.map.read_text()).items()
        given = {old: [new] if isinstance(new, str) else new for old, new in content}
    commits = Commits(options.folder, options.old, options.new)
    found = Comparison(commits, options.paths, given, options.prose)
    if options.save:
        options.save.write_text(json.dumps({k: sorted(v) for k, v in found.map.items()}, indent=2))
    for old, new in sorted(found.moves.files.items()):
        print(f"{old} -> {new}")
    for name, names in sorted(found.map.items()):
        files = ", ".join(f"{other} ({count} files)" for other, count in names.most_common())
        print(f"{name} -> {files}")
    shown = found.shown()
    print(*shown, sep="\n", end="\n" if shown else "")
    beyond = "prose" if options.prose else "names"
    print(f"{len(found.pairs)} files of code differ, {len(shown)} differences beyond {beyond}")
    if found.others:
        print(f"{found.others} other files are not compared")
    return bool(found.differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
