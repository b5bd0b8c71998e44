"""Mended faults that are put back: what a commit changed in the package is reverted alone."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.tiers.checkouts import Checkout, git
from tools.tiers.measuring import Line, Measured
from tools.tiers.state import State
from tools.tiers.trials import trial, tried_until

STEP = "revert"
CONFLICT = "conflict"
MISSED = "missed"  # by the tests of the changed lines
COUNT = 12
SAYS_SO = re.compile(
    r"\b(mend|fix(es|ed)?\b|repair|wrong|fault|bugs?\b|crash|hangs?\b|leak|races?\b|los(t|es)\b|"
    r"fail|broke|no longer|NaN|infinit)",
    re.IGNORECASE,
)
# Drawn once there are no others.
HINTS = re.compile(
    r"\b(correct|never|not|no|instead|again|differ|refus|stay|surviv)", re.IGNORECASE
)
AUTHOR = ("-c", "user.name=tiers", "-c", "user.email=tiers@localhost")


class Mend(NamedTuple):
    commit: str
    subject: str
    says_so: bool


def candidates(log: str) -> list[Mend]:
    """Commits whose message tells of a fault, and that change the package and its tests."""
    found = []
    for entry in log.split("\0")[1:]:
        commit, subject, rest = entry.split("\1")
        body, _, files = rest.partition("\2")
        paths = files.split()
        sources = any(re.match(r"paddle_ngraph/.*\.(py|cc|h)$", path) for path in paths)
        tests = any(re.match(r"tests/.*\.py$", path) for path in paths)
        says_so = bool(SAYS_SO.search(f"{subject}\n{body}"))
        if sources and tests and (says_so or HINTS.search(subject)):
            found.append(Mend(commit, subject, says_so))
    return found


def drawn(commit: str) -> list[Mend]:
    log = git("log", "--no-merges", "--name-only", "--format=%x00%H%x01%s%x01%b%x02", commit)
    found = candidates(log)
    Random(f"{commit} reverts").shuffle(found)
    return sorted(found, key=lambda mend: not mend.says_so)


def revert(checkout: Checkout, commit: str) -> bool:
    """Takes back what a commit changed in the package; False where that conflicts, or is gone."""
    part = _of_package(checkout.path, commit)
    try:
        git(*AUTHOR, "revert", "--no-commit", part, cwd=checkout.path)
    except RuntimeError:
        return False
    return bool(git("diff", "--name-only", "HEAD", cwd=checkout.path))


def _of_package(repository: Path, commit: str) -> str:
    """A commit of what another one changes in the package alone."""
    with tempfile.TemporaryDirectory() as folder:
        index = {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        staged = partial(git, cwd=repository, env=index)
        staged("read-tree", f"{commit}^")
        staged("rm", "-rfq", "--cached", "--ignore-unmatch", "paddle_ngraph")
        staged("read-tree", "--prefix=paddle_ngraph/", f"{commit}:paddle_ngraph")
        tree = staged("write-tree")
    new = ("commit-tree", tree, "-p", f"{commit}^", "-m", "the package alone")
    return git(*AUTHOR, *new, cwd=repository)


def changed_lines(diff: str) -> Iterator[Line]:
    """The lines that a diff without context replaces, or adds something between."""
    file = ""
    for text in diff.splitlines():
        if text.startswith("--- "):
            file = text[6:]
        elif match := re.match(r"@@ -(\d+)(?:,(\d+))? ", text):
            first, count = int(match[1]), int(match[2] or 1)
            numbers = range(first, first + count) if count else (first, first + 1)
            yield from (Line(file, number) for number in numbers)


def run_all(
    checkouts: Sequence[Checkout],
    measured: Measured,
    state: State,
    count: int,
    tests: Sequence[str],
    jobs: int,
) -> None:
    """First the tests of the changed lines, which take minutes; then whole tiers, for the rest."""

    def attempt(checkout: Checkout, mend: Mend) -> bool:
        if known := state.get(STEP, mend.commit):
            return known["outcome"] != CONFLICT
        outcome, test = _of_changed_lines(checkout, measured, state, mend)
        state.add(STEP, mend.commit, subject=mend.subject, outcome=outcome, test=test)
        return outcome != CONFLICT

    tried_until(count, drawn(checkouts[0].commit), attempt, checkouts, "reverts")
    for result in state.of(STEP):
        if result["outcome"] == MISSED:
            outcome, test = _of_whole_tiers(checkouts[0], state, result["name"], tests, jobs)
            state.add(STEP, result["name"], subject=result["subject"], outcome=outcome, test=test)


def _compiles(lines: Sequence[Line]) -> bool:
    return any(line.file.endswith((".cc", ".h")) for line in lines)


def _changed(checkout: Checkout, commit: str) -> list[Line]:
    """The lines that a revert changes; none where it conflicts."""
    reverted = revert(checkout, commit)
    diff = git("diff", "-U0", "HEAD", cwd=checkout.path) if reverted else ""
    checkout.restore()
    return list(changed_lines(diff))


def _of_changed_lines(
    checkout: Checkout, measured: Measured, state: State, mend: Mend
) -> tuple[str, str | None]:
    lines = _changed(checkout, mend.commit)
    if not lines:
        return CONFLICT, None
    change = partial(revert, checkout, mend.commit)
    with trial(checkout, state, change, _compiles(lines)) as made:
        if not made.begin() or not checkout.imports():
            return CONFLICT, None
        test = made.first_failing(measured.units(lines, quick=True))
    return ("test" if test else MISSED), test


def _of_whole_tiers(
    checkout: Checkout, state: State, commit: str, tests: Sequence[str], jobs: int
) -> tuple[str, str | None]:
    compiled = _compiles(_changed(checkout, commit))
    with trial(checkout, state, partial(revert, checkout, commit), compiled) as made:
        for tier in ("test", "all"):
            if not made.is_changed:
                made.begin()
            if test := made.first_failing_of_tier(tier, tests, jobs):
                return tier, test
    return "survived", None
