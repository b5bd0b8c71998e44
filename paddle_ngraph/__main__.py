"""``paddle-ngraph``, or ``python -m paddle_ngraph``: run scripts, explain and save models."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paddle_ngraph.commands import (
    checking,
    explaining,
    running,
    saving,
    simulating,
    transpiling,
    verifying,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.utils import child_process
from paddle_ngraph.version import __version__

_PROGRAM = "paddle-ngraph"  # the entry point in pyproject.toml

# In the order of the help.
_COMMANDS = (
    running.add_run,
    running.add_launch,
    explaining.add_explain,
    verifying.add_verification,
    saving.add_save,
    saving.add_warm_up,
    transpiling.add_transpile,
    transpiling.add_codegen,
    simulating.add_simulate,
    explaining.add_operators,
    checking.add_cache,
    checking.add_doctor,
    checking.add_info,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command of the command line, and returns the exit status."""
    options = _parser().parse_args(arguments)
    # Errors of a script, and of Python code that calls this, are for them.
    is_own = arguments is None and options.command is not running.run_script
    try:
        # Not where Python code calls this: the process may have threads, which no child has.
        if arguments is None and "runs_in_child" in options:
            return _in_child(options)
        status = int(options.command(options) or 0)
        if is_own:
            sys.stdout.flush()  # fails on a full disk, and where the reader has gone
        return status
    except NgraphError as error:
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if not is_own:
            raise
        # Else Python would try to write the rest of the output when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        return 2


def _in_child(options: argparse.Namespace) -> int:
    """Runs a command on a file of others in a child process, which a kernel may crash.

    Raises:
        NgraphError: A signal has ended the child.
    """
    child = multiprocessing.get_context("fork").Process(target=_exit, args=(options,))
    child.start()
    child.join()
    status = child.exitcode or 0
    if status < 0:
        name = child_process.name_of(-status)
        raise NgraphError(f"a kernel that runs {options.file} has ended its process by {name}")
    return status


def _exit(options: argparse.Namespace) -> None:
    try:
        sys.exit(options.command(options))
    except NgraphError as error:
        print(f"paddle_ngraph: {error}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM if Path(sys.argv[0]).name == _PROGRAM else "python -m paddle_ngraph",
        description="Makes PaddlePaddle programs faster on the CPU.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True)
    for add in _COMMANDS:
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
