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
from tools.tiers.trials import trial, tried_until

STEP = "revert"
CONFLICT = "conflict"
MISSED = "missed"  # by the tests of the changed lines
COUNT = 12
BUG_WORDS = re.compile(
    r"\b(mend|fix(es|ed)?\b|repair|wrong|fault|bugs?\b|crash|hangs?\b|leak|races?\b|los(t|es)\b|"
    r"fail|broke|no longer|NaN|infinit)",
    re.IGNORECASE,
)
# Candidates after those of BUG_WORDS.
HINTS = re.compile(
    r"\b(correct|never|not|no|instead|again|differ|refus|stay|surviv)", re.IGNORECASE
)
AUTHOR = ("-c", "user.name=tiers", "-c", "user.email=tiers@localhost")


class BugFix(NamedTuple):
    commit: str
    subject: str
    mentions_bug: bool


def candidates(log: str) -> list[BugFix]:
    """Returns commits whose message mentions a bug, and that change the package and its tests."""
    found = []
    for entry in log.split("\0")[1:]:
        commit, subject, rest = entry.split("\1")
        body, _, files = rest.partition("\2")
        paths = files.split()
        sources = any(re.match(r"paddle_ngraph/.*\.(py|cc|h)$", path) for path in paths)
        tests = any(re.match(r"tests/.*\.py$", path) for path in paths)
        mentions_bug = bool(BUG_WORDS.search(f"{subject}\n{body}"))
        if sources and tests and (mentions_bug or HINTS.search(subject)):
            found.append(BugFix(commit, subject, mentions_bug))
    return found


def shuffled(commit: str) -> list[BugFix]:
    log = git("log", "--no-merges", "--name-only", "--format=%x00%H%x01%s%x01%b%x02", commit)
    found = candidates(log)
    Random(f"{commit} reverts").shuffle(found)
    return sorted(found, key=lambda fix: not fix.mentions_bug)


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
    """First the tests of the changed lines, which take minutes; then whole tiers, for the rest."""

    def attempt(checkout: Checkout, fix: BugFix) -> bool:
        if known := state.get(STEP, fix.commit):
            return known["outcome"] != CONFLICT
        outcome, test = _of_changed_lines(checkout, measured, state, fix)
        state.add(STEP, fix.commit, subject=fix.subject, outcome=outcome, test=test)
        return outcome != CONFLICT

    tried_until(count, shuffled(checkouts[0].commit), attempt, checkouts, "reverts")
    for result in state.of(STEP):
        if result["outcome"] == MISSED:
            outcome, test = _of_whole_tiers(checkouts[0], state, result["name"], tests, jobs)
            state.add(STEP, result["name"], subject=result["subject"], outcome=outcome, test=test)


def _compiles(lines: Sequence[Line]) -> bool:
    return any(line.file.endswith((".cc", ".h")) for line in lines)


def _changed(checkout: Checkout, commit: str) -> list[Line]:
    """The lines that a revert changes; none where it conflicts, or changes only prose."""
    is_fit = revert(checkout, commit) and changes_code(checkout.path)
    diff = git("diff", "-U0", "HEAD", cwd=checkout.path) if is_fit else ""
    checkout.restore()
    return list(changed_lines(diff))


def _of_changed_lines(
    checkout: Checkout, measured: Measured, state: State, fix: BugFix
) -> tuple[str, str | None]:
    lines = _changed(checkout, fix.commit)
    if not lines:
        return CONFLICT, None
    change = partial(revert, checkout, fix.commit)
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
