"""Lines of a shell: run in this process where that is possible, or checked for their names."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from paddle_ngraph import flags
from paddle_ngraph.__main__ import main
from tests.docs.blocks import ROOT, Block

PYTHON = re.compile(r"(?:\.venv/bin/)?python")
ASSIGNMENT = re.compile(r"[A-Z_a-z]+=.*")
TARGETS = re.compile(r"^([\w.-]+):.*##|^\$\(VENV\)/(\.built):", re.MULTILINE)


class Command(NamedTuple):
    """A command of a line: its environment variables and its words."""

    variables: dict[str, str]
    words: list[str]

    @property
    def module(self) -> str | None:
        """The module of ``python -m MODULE``."""
        is_module = PYTHON.fullmatch(self.words[0]) and self.words[1:2] == ["-m"]
        return self.words[2] if is_module else None

    @property
    def script(self) -> str | None:
        """The file of ``python FILE``."""
        is_script = PYTHON.fullmatch(self.words[0]) and self.words[1].endswith(".py")
        return self.words[1] if is_script else None


def commands(block: Block) -> Iterator[Command]:
    """Yields the commands of a block."""
    for line in block.code.replace("\\\n", " ").split("\n"):
        for part in line.split(" && "):
            words = shlex.split(part, comments=True)
            count = next(
                (index for index, word in enumerate(words) if not ASSIGNMENT.fullmatch(word)), 0
            )
            pairs = (word.partition("=") for word in words[:count])
            if words:
                yield Command({name: value for name, _, value in pairs}, words[count:])


@contextmanager
def _flags(variables: dict[str, str]) -> Iterator[None]:
    """Sets the flags that the environment of a process would set."""
    names = {name: name[len("FLAGS_") :] for name in variables}
    before = {name: flags.get(name) for name in names.values()}
    try:
        for key, name in names.items():
            flags.set(name, flags._parse(flags.FLAGS[name], variables[key]))
        yield
    finally:
        for name, value in before.items():
            flags.set(name, value)


def run(command: Command) -> None:
    """Runs a command in the current folder."""
    with _flags(command.variables), patch("sys.argv", list(sys.argv)):
        if command.module == "paddle_ngraph":
            assert main(command.words[3:]) == 0, command
        elif command.module or command.script:
            sys.argv[1:] = command.words[3 if command.module else 2 :]
            runner = runpy.run_module if command.module else runpy.run_path
            try:
                runner(command.module or command.script, run_name="__main__")
            except SystemExit as ended:
                assert not ended.code, command
        elif command.words[0] == "make":
            own = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
            line = ["make", "-n", *command.words[1:]]
            done = subprocess.run(line, cwd=ROOT, env=own, capture_output=True)
            assert done.returncode == 0, done.stderr
        else:
            raise AssertionError(f"{command.words}: give the block a mark: tests/docs/blocks.py")


def check_names(command: Command, known_files: set[str]) -> None:
    """Checks that the targets, modules, files and options of a command exist."""
    if command.words[0] == "make":
        text = (ROOT / "Makefile").read_text()
        targets = {name for found in TARGETS.findall(text) for name in found if name}
        named = [word for word in command.words[1:] if not ASSIGNMENT.fullmatch(word)]
        assert {Path(name).name for name in named} <= targets, command
    elif module := command.module:
        found = importlib.util.find_spec(module)
        assert found and found.origin, module
        files = [ROOT / word for word in command.words if word.startswith(("tests/", "demos/"))]
        assert all(file.exists() for file in files), command
        if Path(found.origin).is_relative_to(ROOT):
            _check_options(command.words, [Path(found.origin), *files])
    elif script := command.script:
        assert (ROOT / script).is_file() or script in known_files, script
        if (ROOT / script).is_file():
            _check_options(command.words, [ROOT / script])


def _check_options(words: list[str], programs: list[Path]) -> None:
    folders = {program.parent for program in programs} | {ROOT / "demos"}
    folders |= {folder / "commands" for folder in folders}
    sources = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    for word in words:
        option = word.partition("=")[0]
        is_option = option.startswith("--") and option != "--help"
        named = rf"[\"'-]{option[2:]}\b"
        assert not is_option or re.search(named, sources), (programs, option)
