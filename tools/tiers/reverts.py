"""Reverts of bug fixes: the changes of a commit in the package, without those of its tests."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.renames.__main__ import Comparison
from tools.renames.commits import Commits
from tools.tiers.checkouts import Checkout, git
from tools.tiers.measuring import Line, Measured
from tools.tiers.state import State
from tools.tiers.trials import Trial, outcome_of, trial, tried_until

STEP = "revert"
CONFLICT = "conflict"
NO_CODE = "changes no code"
COUNT = 12
SAYS_SO = re.compile(
    r"\b(mend|fix(es|ed)?\b|repair|wrong|fault|bugs?\b|crash|hangs?\b|leak|races?\b|los(t|es)\b|"
    r"fail|broke|no longer|NaN|infinit)",
    re.IGNORECASE,
)
# Candidates after those of SAYS_SO.
HINTS = re.compile(
    r"\b(correct|never|not|no|instead|again|differ|refus|stay|surviv)", re.IGNORECASE
)
AUTHOR = ("-c", "user.name=tiers", "-c", "user.email=tiers@localhost")


class Mend(NamedTuple):
    commit: str
    subject: str
    says_so: bool


def candidates(log: str) -> list[Mend]:
    """Returns commits whose message mentions a bug, and that change the package and its tests."""
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
    """Reverts a commit in the package; False if that conflicts, or changes nothing."""
    part = _of_package(checkout.path, commit)
    try:
        git(*AUTHOR, "revert", "--no-commit", part, cwd=checkout.path)
    except RuntimeError:
        return False
    return bool(git("diff", "--name-only", "HEAD", cwd=checkout.path))


def changes_code(repository: Path) -> bool:
    """Whether the working tree differs from its commit in more than comments, docstrings, pages."""
    commits = Commits(str(repository), "HEAD", ".")
    changed = (a or b or "" for a, b in commits.changed(["paddle_ngraph"], finds_moves=False))
    paths = [path for path in changed if not path.endswith(".md")]
    found = Comparison(commits, paths, {}, is_prose=True) if paths else None
    return bool(found and (found.differences or found.others))


def _of_package(repository: Path, commit: str) -> str:
    """Creates a commit with the changes of another one in the package only."""
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
    """Yields the old lines that a diff without context replaces, or inserts lines between."""
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
    def attempt(checkout: Checkout, mend: Mend) -> bool:
        known = state.get(STEP, mend.commit)
        outcome = known["outcome"] if known else run(checkout, mend)
        return outcome != CONFLICT

    def run(checkout: Checkout, mend: Mend) -> str:
        outcome, test = _outcome(checkout, measured, state, mend, tests, jobs)
        state.add(STEP, mend.commit, subject=mend.subject, outcome=outcome, test=test)
        return outcome

    tried_until(count, drawn(checkouts[0].commit), attempt, checkouts, "reverts")


def _outcome(
    checkout: Checkout,
    measured: Measured,
    state: State,
    mend: Mend,
    tests: Sequence[str],
    jobs: int,
) -> tuple[str, str | None]:
    if not revert(checkout, mend.commit):
        checkout.restore()
        return CONFLICT, None
    if not changes_code(checkout.path):
        checkout.restore()
        return CONFLICT, NO_CODE
    lines = list(changed_lines(git("diff", "-U0", "HEAD", cwd=checkout.path)))
    compiled = any(line.file.endswith((".cc", ".h")) for line in lines)
    checkout.restore()
    with trial(checkout, state, lambda: revert(checkout, mend.commit), compiled) as made:
        if not made.begin() or not checkout.imports():
            return CONFLICT, None
        return _noticed(made, measured, lines, tests, jobs)


def _noticed(
    made: Trial, measured: Measured, lines: Sequence[Line], tests: Sequence[str], jobs: int
) -> tuple[str, str | None]:
    """Runs first the tests of the changed lines, which are quick, then the whole tier."""
    name = made.first_failing(measured.units(lines, quick=True))
    name = name or made.first_failing_of_tier("test", tests, jobs)
    if name:
        return "test", name
    outcome, name = outcome_of(made, (), lambda: measured.units(lines, quick=False))
    if name is None and (name := made.first_failing_of_tier("all", tests, jobs)):
        outcome = "all"
    return outcome, name
