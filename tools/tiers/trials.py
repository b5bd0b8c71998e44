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
            done = run({result["name"] for result in self.state.of(UNRELIABLE)})
            if done.passed or done.status == 5:  # no test is left
                return None
            culprits = done.culprits[:3]
            unreliable = self._failing_without_change(culprits)
            if not culprits:
                return "(tests cannot be collected)"
            if not unreliable:
                return culprits[0]
            for name in unreliable:
                self.state.add(UNRELIABLE, name)
            if not self.begin():
                raise RuntimeError("a change that was made before cannot be made")

    def _failing_without_change(self, culprits: Sequence[str]) -> list[str]:
        self.end()
        return [name for name in culprits if not self.checkout.pytest_of([name], 10 * START).passed]


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
