"""Runs one command of the Makefile: prints a line every ten seconds, and the remedy of a failure.

usage: step.py SENTENCE COMMAND ...

The whole output of the command is in build/step.log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

LOG = Path("build", "step.log")
SECONDS_PER_LINE = 10
SHOWN_LINES = 40
# Text in the output of a command that failed, and the remedy.
CAUSES = {
    r"No space left on device|disk is full": "The disk is full: make room",
    r"name resolution|NewConnectionError|Timeout|Retrying \(Retry|from versions: none": (
        "The package index cannot be reached: check the network, and pip's settings for it"
    ),
    r"ensurepip is not|No module named '?(venv|ensurepip)": (
        "Python cannot make environments: install its module venv (`apt install python3-venv`)"
    ),
    r"Killed signal|signal 9": "The compiler was killed for lack of memory: close other programs",
}


def main(sentence: str, *command: str) -> int:
    if not (3, 9) <= sys.version_info < (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"Python {version} is not supported: name one of 3.9 to 3.13, PYTHON=python3.12 say.")
        return 1
    print(sentence, "...", flush=True)
    lines: list[str] = []
    try:
        code = run(command, lines)
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text("".join(lines))
    except KeyboardInterrupt:
        print("Interrupted: the next make goes on from here.")
        return 1
    except OSError as error:
        code = 1
        lines.append(f"{error}\n")
    if code:
        print(explanation(lines))
    return code


def run(command: tuple[str, ...], lines: list[str]) -> int:
    """Returns the exit code of the command; appends its output to ``lines`` as it is written."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        ended = threading.Event()
        threading.Thread(target=report, args=(lines, ended), daemon=True).start()
        assert process.stdout is not None
        lines.extend(process.stdout)
        ended.set()
    return process.returncode


def report(lines: list[str], ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(SECONDS_PER_LINE):
        last = lines[-1].strip()[:80] if lines else ""
        print(f"  {time.monotonic() - began:3.0f} s  {last}", flush=True)


def explanation(lines: list[str]) -> str:
    output = "".join(lines)
    for cause, remedy in CAUSES.items():
        if re.search(cause, output):
            return f"{remedy}, and run make again: it goes on from here."
    return "".join(lines[-SHOWN_LINES:]).rstrip()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
