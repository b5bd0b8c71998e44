"""``make compatibility``: tries pairs of Paddle and OpenVINO; writes a page of docs/reference.

Each pair is tried with one Python: each Python occurs, and each release of Paddle has three. A pair
that was tried before is skipped, so an interrupted run continues; ``--again`` tries it again. The
results are in docs/reference/compatibility.json; ``--page`` only writes the page from them, and
``--only "3.2.2 2026"`` tries the pairs that begin so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools import canary, wheels

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "reference" / "compatibility.json"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
REASONS = 3  # shown for a pair
LENGTH = 200  # of a reason


class Pair(NamedTuple):
    """Releases that are tried together."""

    paddlepaddle: str
    openvino: str
    python: str

    @property
    def key(self) -> str:
        return " ".join(self)


# OpenVINO for Python 3.9 ends with 2025.3.
PAIRS = (
    Pair("3.3.1", "2026.4.1", "3.11"),
    Pair("3.3.1", "2026.1.0", "3.10"),
    Pair("3.3.1", "2025.3.0", "3.9"),
    Pair("3.3.0", "2026.4.1", "3.13"),
    Pair("3.3.0", "2026.1.0", "3.12"),
    Pair("3.3.0", "2025.3.0", "3.11"),
    Pair("3.2.2", "2026.4.1", "3.12"),
    Pair("3.2.2", "2026.1.0", "3.11"),
    Pair("3.2.2", "2025.3.0", "3.13"),
    Pair("3.1.1", "2026.4.1", "3.10"),
    Pair("3.1.1", "2026.1.0", "3.13"),
    Pair("3.1.1", "2025.3.0", "3.12"),
)
# Steps of the canary -> columns of the page.
COLUMNS = {"environment": "installs", "build": "builds", "tests": "`make check-tests`"}


def main() -> int:
    """Runs the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="try pairs that were tried before")
    parser.add_argument("--only", metavar="PAIR", default="", help="only what begins with PAIR")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--page", action="store_true", help="write the page only")
    options = parser.parse_args()
    results = read()
    PAGE.write_text(page(results))  # a test of the pair compares it
    for pair in () if options.page else PAIRS:
        if pair.key.startswith(options.only) and (options.again or pair.key not in results):
            results[pair.key] = tried(pair, options.keep)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
            PAGE.write_text(page(results))
    return 0


def read() -> dict[str, Any]:
    """Returns the results so far, by the key of their pair."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.is_file() else {}


def tried(pair: Pair, keeps: bool) -> dict[str, Any]:
    """Installs, builds and tests a pair, in a copy of the sources; the first failure ends it."""
    print(f"Paddle {pair.paddlepaddle}, OpenVINO {pair.openvino}, Python {pair.python}", flush=True)
    interpreter = wheels.find_interpreter(pair.python)
    if interpreter is None:
        raise SystemExit(f"There is no CPython {pair.python} on PATH or under ~/.pyenv.")
    releases = canary.Releases(pair.paddlepaddle, pair.openvino)
    tree = ROOT / "build" / "compatibility" / "-".join(pair) / "tree"
    commit = _commit()
    canary.copy_sources(tree, releases)
    done: list[canary.Step] = []
    for step in canary.steps(tree, (), interpreter, "check-tests"):
        done.append(step)
        if step.status and step.name in ("environment", "build"):
            break
    if not keeps:
        shutil.rmtree(tree, ignore_errors=True)
    return {**result(done), "commit": commit, "date": time.strftime("%Y-%m-%d")}


def result(done: Sequence[canary.Step]) -> dict[str, Any]:
    """Returns the outcome of each step, and the reasons of failures."""
    outcomes = {step.name: "passed" if step.status == 0 else "failed" for step in done}
    tests = next((step for step in done if step.name == "tests"), None)
    counts = [line for line in canary.summaries(tests.output) if "passed" in line] if tests else []
    return {
        "steps": {name: outcomes.get(name, "not reached") for name in COLUMNS},
        "seconds": {step.name: round(step.seconds) for step in done},
        "tests": re.sub(r" in [\d.]+s.*", "", counts[-1]) if counts else "",
        "reasons": [reason for step in done for reason in reasons(step)],
    }


def reasons(step: canary.Step) -> list[str]:
    """Returns the reasons of a failed step, without paths of this machine, most frequent first."""
    if step.name == "private names":
        return [f"private name: {name}" for name in canary.private_names(step.output)]
    if step.status == 0:
        return []
    tests = canary.failures(step.output)
    found = [f"{len(of)} x {reason}" for reason, of in tests.items()]
    found += canary.errors(step.output) or re.findall(r"^\s*(ERROR: .+)$", step.output, re.M)
    last = step.output.strip().splitlines()[-1:]
    return [re.sub(r"(?<!\w)/\S*/", "", reason)[:LENGTH] for reason in found or last]


def page(results: dict[str, Any]) -> str:
    """Returns the page in Markdown."""
    header = ["Paddle", "OpenVINO", "Python", *COLUMNS.values(), "reasons"]
    rows = [header, ["---"] * len(header), *(_row(pair, results.get(pair.key)) for pair in PAIRS)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{INTRODUCTION}\n{table}\n"


INTRODUCTION = """# Releases of Paddle and OpenVINO

Written by `make compatibility` (`tools/compatibility.py`) from `compatibility.json` beside it; a
test fails when this page is out of date. Each pair of releases is installed in an environment of
its own, the core is compiled against it, and `make check-tests` runs one case for each converter
and the tests that compile nothing. Where tests failed, the package works except for the reasons
listed; where private names of Paddle are missing, it leaves all programs to Paddle, with the
[warning](warnings.md) NG101. A published wheel is for the releases that it names only:
[porting](../development/porting.md) describes how to support another one.
"""


def _row(pair: Pair, found: dict[str, Any] | None) -> list[str]:
    releases = [pair.paddlepaddle, pair.openvino, pair.python]
    if found is None:
        return [*releases, *["not measured"] * len(COLUMNS), ""]
    outcomes = [found["steps"][name] for name in COLUMNS]
    if found["tests"]:
        outcomes[-1] = found["tests"]
    more = len(found["reasons"]) - REASONS
    shown = [canary._plain(reason.replace("|", "\\|")) for reason in found["reasons"][:REASONS]]
    return [*releases, *outcomes, "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])]


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
