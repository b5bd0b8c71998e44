"""Trials: changes of the sources that tests should detect, one per checkout at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from queue import Queue
from typing import TypeVar

from tqdm import tqdm

from tools.tiers.checkouts import Checkout, TestRun
from tools.tiers.measuring import TIMEOUT, Unit, parallel
from tools.tiers.state import State

START = 120.0  # seconds until the first test runs, at most
ATTEMPTS = 3  # at a run without a change, which memory or time may not suffice for
UNRELIABLE = "unreliable"
Candidate = TypeVar("Candidate")


class Trial:
    """A change that is applied to a checkout from :meth:`begin` on.

    A test is treated as failed only if it passes without the change.
    """

    def __init__(
        self, checkout: Checkout, state: State, change: Callable[[], bool], compiled: bool
    ) -> None:
        self.checkout, self.state, self.change, self.compiled = checkout, state, change, compiled
        self.is_changed = False

    def begin(self) -> bool:
        """Applies the change; returns whether it applies and compiles."""
        self.is_changed = True
        return self.change() and (not self.compiled or self.checkout.build())

    def end(self) -> None:
        if self.is_changed:
            self.is_changed = False
            self.checkout.restore()
            if self.compiled and not self.checkout.build():
                raise RuntimeError("the sources of the commit do not compile")

    def first_failing(self, units: Sequence[Unit]) -> str | None:
        """Returns the first of these tests that fails, crashes or hangs, or ``None``."""
        limit = START + 3 * sum(unit.seconds for unit in units)
        return self._first_failing(
            lambda left_out: self.checkout.pytest_of(
                [test for unit in units for test in unit.tests if test not in left_out], limit
            )
        )

    def first_failing_of_tier(self, tier: str, tests: Sequence[str], jobs: int) -> str | None:
        def run(left_out: set[str]) -> TestRun:
            options = [f"--deselect={name}" for name in sorted(left_out)]
            arguments = ("-x", "--tier", tier, *parallel(jobs), *options, *tests)
            return self.checkout.pytest(*arguments, timeout=TIMEOUT)

        return self._first_failing(run)

    def _first_failing(self, run: Callable[[set[str]], TestRun]) -> str | None:
        while True:
            left_out = {result["name"] for result in self.state.of(UNRELIABLE)}
            done = run(left_out)
            if _passed(done):
                return None
            culprits = done.culprits[:3]
            if culprits:
                unreliable = self._failing_without_change(culprits)
            else:
                unreliable = self._failing_of_unchanged(run, left_out)
            if not unreliable:
                return culprits[0] if culprits else "(tests cannot be collected)"
            for name in unreliable:
                self.state.add(UNRELIABLE, name)
            if not self.begin():
                raise RuntimeError("a change that was made before cannot be made")

    def _failing_of_unchanged(
        self, run: Callable[[set[str]], TestRun], left_out: set[str]
    ) -> list[str]:
        """Runs the tests without the change, since a run that failed names no test."""
        self.end()
        for _ in range(ATTEMPTS):
            done = run(left_out)
            if _passed(done):
                return []
            if done.culprits:
                return done.culprits[:3]
        raise RuntimeError(f"the tests do not run without a change either:\n{done.output[-2000:]}")

    def _failing_without_change(self, culprits: Sequence[str]) -> list[str]:
        self.end()
        return [name for name in culprits if not self.checkout.pytest_of([name], 10 * START).passed]


def _passed(run: TestRun) -> bool:
    return run.passed or run.status == 5  # no test is left


@contextmanager
def trial(
    checkout: Checkout, state: State, change: Callable[[], bool], compiled: bool
) -> Iterator[Trial]:
    made = Trial(checkout, state, change, compiled)
    try:
        yield made
    finally:
        made.end()


def tried_until(
    count: int,
    candidates: Iterable[Candidate],
    attempt: Callable[[Checkout, Candidate], bool],
    checkouts: Sequence[Checkout],
    title: str,
) -> None:
    """Tries candidates in order, one per checkout concurrently, until ``count`` were fit."""
    free: Queue[Checkout] = Queue()
    for checkout in checkouts:
        free.put(checkout)

    def attempt_one(candidate: Candidate) -> bool:
        checkout = free.get()
        try:
            is_fit = attempt(checkout, candidate)
        finally:
            free.put(checkout)
        progress.update(is_fit)
        return is_fit

    left = iter(candidates)
    with tqdm(total=count, desc=title) as progress, ThreadPoolExecutor(len(checkouts)) as pool:
        missing = count
        while missing and (batch := list(islice(left, missing))):
            missing -= sum(pool.map(attempt_one, batch))


def outcome_of(
    made: Trial, quick: Sequence[Unit], others: Callable[[], Sequence[Unit]]
) -> tuple[str, str | None]:
    """Returns the tier that detects the change, or "survived", and the failing test."""
    if quick and (name := made.first_failing(quick)):
        return "test", name
    rest = others()
    if rest and (made.is_changed or made.begin()) and (name := made.first_failing(rest)):
        return "all", name
    return "survived", None
