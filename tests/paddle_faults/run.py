"""Runs the scripts of this folder, or those that are named, each in a forked process.

Prints a line for each: its name, and FAULT with the symptom, or OK. Paddle is imported once.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import paddle  # noqa: F401 - before the forks

FOLDER = Path(__file__).parent
HELPERS = {"__init__", "endings", "run", "saved_program", "test_faults"}


def names() -> list[str]:
    """The names of the scripts."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)


def main(wanted: list[str]) -> None:
    """Runs scripts one after another."""
    for name in wanted or names():
        print(f"{name}: ", end="", flush=True)
        child = os.fork()
        if child == 0:
            try:
                runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
                sys.stdout.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert "paddle_ngraph" not in sys.modules, "the faults would not be Paddle's own"


if __name__ == "__main__":
    main(sys.argv[1:])
