"""The files of two commits, in pairs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

WORKTREE = (".", "WORKTREE")
SIMILARITY = "-M30%"  # minimum for a moved file

Pair = tuple["str | None", "str | None"]  # None: no such file


class Commits:
    """An old and a new commit; the new one may be the working tree, with files not yet added."""

    def __init__(self, folder: str, old: str, new: str) -> None:
        self.folder = Path(folder)
        self.folder = Path(self._git("rev-parse", "--show-toplevel").strip())
        self.old = old
        self.new = None if new in WORKTREE else new

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def changed(self, paths: Sequence[str], finds_moves: bool) -> list[Pair]:
        """Returns the old and the new path of each file that differs."""
        sides = [self.old] if self.new is None else [self.old, self.new]
        moves = (SIMILARITY, "-l0") if finds_moves else ("--no-renames",)
        pairs = list(_pairs(self._git("diff", "--name-status", "-z", *moves, *sides)))
        if self.new is None:
            others = self._git("ls-files", "-oz", "--exclude-standard")
            pairs += [(None, path) for path in others.split("\0")[:-1]]
        return [pair for pair in pairs if any(path and _is_in(path, paths) for path in pair)]

    def texts(self, paths: Sequence[str | None], is_new: bool) -> list[str]:
        """Returns the texts of files, empty for missing ones."""
        commit = self.new if is_new else self.old
        if commit is None:
            return [(self.folder / path).read_text() if path else "" for path in paths]
        command = ["git", "-C", str(self.folder), "cat-file", "--batch"]
        names = "".join(f"{commit}:{path}\n" for path in paths if path).encode()
        output = subprocess.run(command, input=names, capture_output=True, check=True).stdout
        blobs = _blobs(output)
        return [next(blobs).decode() if path else "" for path in paths]


def _blobs(output: bytes) -> Iterator[bytes]:
    while output:
        header, _, output = output.partition(b"\n")
        size = int(header.split()[-1])
        yield output[:size]
        output = output[size + 1 :]


def _pairs(output: str) -> Iterator[Pair]:
    fields = iter(output.split("\0")[:-1])
    for status in fields:
        path = next(fields)
        if status[0] == "R":
            yield path, next(fields)
        else:
            yield (None if status == "A" else path, None if status == "D" else path)


def _is_in(path: str, folders: Sequence[str]) -> bool:
    folders = [folder.rstrip("/") for folder in folders]
    return not folders or any(
        folder == "." or path == folder or path.startswith(folder + "/") for folder in folders
    )
