"""Runs one command of the Makefile: prints a line every ten seconds, and the remedy of a failure.

usage: step.py SENTENCE COMMAND ...

The whole output of the command is in build/step.log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LOG = Path("build", "step.log")
SECONDS_PER_LINE = 10
SHOWN_LINES = 40
PIP = r"^\s*(?:ERROR: |WARNING: |pip\._vendor\.urllib3\.exceptions\.)"
UNREACHABLE = (
    r"NewConnectionError|NameResolutionError|name resolution|ConnectionError|Timeout|timed out"
    r"|Connection (?:refused|reset|aborted|broken)|connection broken|Max retries exceeded"
)
# Errors of pip, compilers and Python without a known remedy, without those that repeat an earlier
# error.
OTHER_ERRORS = (
    r"^(?!.*(?:subprocess-exited-with-error|metadata-generation-failed))"
    r"(?:\s*ERROR: |.*\berror: |[\w.]*(?:Error|Exception): )"
)
# Lines in the output of a command that failed, and their remedies; the last of these lines counts.
CAUSES = {
    r"No space left on device|disk is full": "The disk is full: make room",
    r"^\s*ERROR: .*(?:from versions: none|No matching distribution)": (
        "pip found no release of a package: the package index cannot be reached (check the network,"
        " and pip's settings for it), or it has none for this platform or this Python"
    ),
    rf"{PIP}.*(?:{UNREACHABLE})": (
        "The package index cannot be reached: check the network, and pip's settings for it"
    ),
    r"ensurepip is not|No module named '?(venv|ensurepip)": (
        "Python cannot make environments: install its module venv (`apt install python3-venv`)"
    ),
    r"Killed signal|signal 9": "The compiler was killed for lack of memory: close other programs",
    OTHER_ERRORS: "",
}
SECONDS_TO_END = 10
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main(sentence: str, *command: str) -> int:
    if not (3, 9) <= sys.version_info < (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"Python {version} is not supported: name one of 3.9 to 3.13, PYTHON=python3.12 say.")
        return 1
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _exit)
    print(sentence, "...", flush=True)
    lines: list[str] = []
    try:
        code = run(command, lines)
    except SystemExit:  # a signal
        print("Interrupted: the next make goes on from here.")
        raise
    except OSError as error:  # there is no such command
        code = 1
        lines.append(f"{error}\n")
    try:
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        code = code or 1
        lines.append(f"{error}\n")
    if code:
        print(explanation(lines))
    return code


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def run(command: tuple[str, ...], lines: list[str]) -> int:
    """Returns the exit code of the command; appends its output to ``lines`` as it is written."""
    # No signal arrives before the command can be ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
    ) as process:
        ended = threading.Event()
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            threading.Thread(target=report, args=(lines, ended), daemon=True).start()
            assert process.stdout is not None
            lines.extend(process.stdout)
        except BaseException:
            _end_group(process)
            raise
        finally:
            ended.set()
    return process.returncode


def _end_group(process: subprocess.Popen[str]) -> None:
    """Ends the command and the processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def report(lines: list[str], ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(SECONDS_PER_LINE):
        last = lines[-1].strip()[:80] if lines else ""
        print(f"  {time.monotonic() - began:3.0f} s  {last}", flush=True)


def explanation(lines: list[str]) -> str:
    whole = f"The whole output is in {LOG}."
    matches = (
        remedy
        for line in reversed(lines)
        for cause, remedy in CAUSES.items()
        if re.search(cause, line)
    )
    remedy = next(matches, "")
    if remedy:
        return f"{remedy}, and run make again: it goes on from here. {whole}"
    return "".join(lines[-SHOWN_LINES:]).rstrip() + f"\n{whole}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
