"""Checks of the runs that ``FLAGS_ngraph_verify`` selects, and the log of their results."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning import operator_lines
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.verification import reproducer
from paddle_ngraph.verification.bisection import (
    Located,
    in_order,
    locate,
    random_difference,
    reason_of,
)
from paddle_ngraph.verification.comparison import (
    Budget,
    Difference,
    Judge,
    Remembered,
    SubgraphRun,
    comparison,
)
from paddle_ngraph.verification.evaluation import Steps
from paddle_ngraph.verification.reproducer import Reproducer
from paddle_ngraph.warning_codes import WarningCode, warn

# Mismatches whose data is retained for a reproducer; later ones are only counted.
MAX_MISMATCHES = 4


@dataclass(frozen=True)
class Mismatch:
    """A subgraph, or a kernel outside of subgraphs, whose results by the engine are wrong.

    Attributes:
        differences: The wrong results; the first one is that of the first operator.
        located: The operator by which a result becomes wrong.
        run: The data of the run.
        results: Its results by the engine.
        line: File and line of the user's code that created the operator; empty if unknown.
    """

    differences: list[Difference]
    located: Located
    run: SubgraphRun
    results: list[Tensor] = field(default_factory=list, repr=False)
    line: str = ""

    @property
    def operator(self) -> str:
        """The type of the operator by which a result becomes wrong; empty if there is none."""
        return self.located.op.type if self.located.op is not None else ""

    @property
    def reproducer(self) -> Reproducer:
        """The run as others can run it again."""
        return reproducer.recorded(self.run, self.results)

    def summary(self, shapes_only: bool = False) -> str:
        """The sentence that tells what :meth:`save` would store."""
        return reproducer.summary(reproducer.contents(self.reproducer, shapes_only))

    def save(self, path: str | os.PathLike[str], shapes_only: bool = False) -> str:
        """Saves a reproducer for ``python -m paddle_ngraph replay``.

        Args:
            path: The file.
            shapes_only: Whether it holds shapes and ranges instead of inputs and results.

        Returns:
            The sentence that tells what the file holds: :meth:`summary`.

        Raises:
            NgraphError: The file would be too large, or cannot be written.
        """
        arrays = reproducer.contents(self.reproducer, shapes_only)
        reproducer.save(path, arrays)
        return reproducer.summary(arrays)

    def __str__(self) -> str:
        first = self.differences[0]
        size = f" of its subgraph ({len(self.run.graph.ops)} operators)"
        size = "" if self.run.kernel else size
        place = f"{self.located.text}, {self.line}" if self.line else self.located.text
        return printable(f"the engine is wrong at {place}; {first.name}{size}: {first.text}")


@dataclass
class Log:
    """The results of checks.

    Attributes:
        checked: Runs that were compared.
        wrong: Those of them whose results are wrong.
        unchecked: The reasons for which other runs could not be compared, with their numbers.
        mismatches: The first wrong runs, one for each subgraph.
    """

    checked: int = 0
    wrong: int = 0
    unchecked: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether runs were compared, and none was wrong."""
        return self.checked > 0 and not self.wrong

    def __str__(self) -> str:
        lines = [f"{self.checked} runs of subgraphs compared with Paddle, {self.wrong} wrong"]
        lines += [f"{count} not compared: {reason}" for reason, count in self.unchecked.items()]
        if not self.checked and not self.unchecked:
            lines.append("no function of the engine has run: see paddle_ngraph.explain")
        return "\n".join([*lines, *map(str, self.mismatches)])


_PAUSED = "differences whose judgement goes on in later runs, at the latest in verified_runs()"


class Judgement:
    """The judgement of a run, which pauses when the time of a run is up.

    Args:
        differences: Finds the wrong results.
        record: Records these.
        is_disturbed: Whether another thread may have sampled from the random generator during
            Paddle's run; ``None`` if that does not matter.
    """

    def __init__(
        self,
        differences: Steps[list[Difference]],
        record: Callable[[list[Difference]], None],
        is_disturbed: bool | None,
    ) -> None:
        self._differences, self._record = differences, record
        self._is_disturbed = is_disturbed
        self._log: Log | None = None  # which counts it as not compared while it pauses

    def go_on(self) -> bool:
        """Continues; returns whether the run is judged.

        Raises:
            NgraphError: It cannot be judged.
        """
        self._pause(None)
        changes = _core.generator_changes_of_other_threads()
        try:
            next(self._differences)
            found = None
        except StopIteration as end:
            found = cast("list[Difference]", end.value)
        if self._is_disturbed is not None:
            self._is_disturbed |= changes != _core.generator_changes_of_other_threads()
        if found is None:
            self._pause(log)
            return False
        if found and self._is_disturbed:
            raise NgraphError("another thread has sampled from the same random generator")
        self._record(found)
        return True

    def _pause(self, counting: Log | None) -> None:
        with _lock:
            for each, change in ((self._log, -1), (counting, 1)):
                if each is not None:
                    each.unchecked[_PAUSED] = each.unchecked.get(_PAUSED, 0) + change
                    if not each.unchecked[_PAUSED]:
                        del each.unchecked[_PAUSED]
            self._log = counting


@dataclass
class Subject:
    """A graph whose runs are checked, or a kernel outside of subgraphs.

    Attributes:
        graph: The graph, by which Paddle computes the results; ``None``: by a call.
        text: The graph string.
        remembered, budget: See :class:`Judge`.
        is_wrong: Whether a run of it was wrong: then it is not searched again.
    """

    graph: Graph | None = None
    text: str = ""
    remembered: dict[int, Remembered] = field(default_factory=dict)
    budget: Budget = field(default_factory=lambda: _new_budget())
    is_wrong: bool = False
    _idle: list[Judge] = field(default_factory=list)
    _paused: list[Judgement] = field(default_factory=list)

    def natively(self, run: SubgraphRun) -> tuple[list[Tensor], Any]:
        """The results by Paddle and the random generator after it; begins the time for judgements.

        Raises:
            NgraphError: Paddle cannot run the graph.
        """
        start = clock.now()
        found = run.natively()
        self.budget.begin_run(clock.now() - start)
        return found

    def differences(
        self, run: SubgraphRun, found: list[Tensor], native: list[Tensor]
    ) -> Steps[list[Difference]]:
        """The wrong results of a run.

        Raises:
            PostponedError: Another judgement pauses.
        """
        try:
            judge = self._idle.pop()
        except IndexError:  # no run has ended, or all judges are in use
            judge = Judge(run.graph, self.remembered, self.budget)
        try:
            return (yield from comparison(run, found, native, judge))
        finally:
            self._idle.append(judge)

    def judge(self, judgement: Judgement | None = None) -> None:
        """Continues what pauses, then begins a judgement, until the time of the run is up."""
        while self._paused:
            try:
                earlier = self._paused.pop()
            except IndexError:  # another thread continues it
                break
            check(partial(self._go_on, earlier))
            if earlier in self._paused:
                break
        if judgement is not None:
            self._go_on(judgement)

    def _go_on(self, judgement: Judgement) -> None:
        try:
            if not judgement.go_on():
                self._paused.append(judgement)
        finally:
            self.budget.is_waiting = bool(self._paused)
            with _lock:
                _waiting.pop(id(self), None)
                if self._paused:
                    _waiting[id(self)] = self


log = Log()
_is_thorough = False
_lock = new_lock()
subjects: LRUCache[str, Subject] = process_cache(
    __name__,
    "verified_graphs",
    "graphs of verified runs, with the rounding of their results",
    key="graph string, or the name of a kernel with shapes and attributes",
    bound=256,
)

# Those with judgements that pause, which outlive the cache: it is bounded, and may be emptied.
_waiting: dict[int, Subject] = {}


def _new_budget() -> Budget:
    return Budget(math.inf if _is_thorough else SETTINGS.max_judgement_time_ratio)


def finish() -> None:
    """Finishes all judgements that pause."""
    for subject in list(_waiting.values()):
        subject.budget.end_limit()
        subject.judge()


# A script that ends while a judgement pauses hears of it all the same.
atexit.register(finish)


def reset() -> None:
    """Empties the log."""
    global log
    with _lock:
        log = Log()


@contextmanager
def collected() -> Iterator[Log]:
    """Has checks add to a log of their own inside ``with``, of subgraphs as if they were new.

    However long it takes, all runs are judged.
    """
    global log, _is_thorough
    finish()
    with _lock:
        before, log, _is_thorough = log, Log(), True
        found = log
    try:
        subjects.clear()
        yield found
    finally:
        with _lock:
            log, _is_thorough = before, False
        subjects.clear()


def skip(reason: str) -> None:
    """Records that a run could not be compared. Called by the C++ engine, too."""
    with _lock:
        log.unchecked[reason] = log.unchecked.get(reason, 0) + 1


def check(compared: Callable[[], None]) -> None:
    """Calls a function that compares a run, and records the reason if it cannot."""
    with signals.own_errors():
        try:
            compared()
        except Exception as error:  # the user's run has succeeded, and goes on
            skip(reason_of(error))


def check_run(
    text: str,
    given: list[Tensor],
    found: list[Tensor],
    random: Any,
    other_changes: int,
    weights: list[str],
) -> None:
    """Compares a run of a function with Paddle's kernels. Called by the C++ engine.

    Args:
        text: The graph string.
        given: Copies of inputs and states before the run.
        found: Copies of outputs and new states.
        random: The random generator before the run.
        other_changes: Changes of the generator by other threads before the run, or -1.
        weights: Digests of the weights that the function may have as constants.
    """

    def compared() -> None:
        subject = subjects.get_or_create(text, lambda: Subject(Graph.from_string(text), text))
        assert subject.graph is not None
        run = SubgraphRun(subject.graph, given, random, text)

        def mismatch(differences: list[Difference]) -> Mismatch:
            first, *others = in_order(run.graph, differences)
            located = locate(run, first, _outdated_weights(run, weights))
            index = -1 if located.op is None else located.op.index
            line = operator_lines.of(text).get(index, "")
            return Mismatch([first, *others], located, run, found, line)

        judge(subject, run, found, mismatch, other_changes)

    check(compared)


def judge(
    subject: Subject,
    run: SubgraphRun,
    found: list[Tensor],
    mismatch: Callable[[list[Difference]], Mismatch],
    other_changes: int | None = None,
) -> None:
    """Compares a run, and records the result: now, or in a later run if it takes too long.

    Args:
        subject: The graph or kernel.
        run: The run.
        found: Its results by the engine.
        mismatch: Finds the operator of wrong results.
        other_changes: Changes of the random generator by other threads before the run, or -1;
            ``None``: the run leaves the generator as it is.

    Raises:
        NgraphError: Paddle cannot run the graph, or another judgement pauses.
    """
    after = _core.RandomState()
    native, stream = subject.natively(run)
    is_sampling = other_changes is not None and run.is_stochastic
    is_other_stream = is_sampling and after != stream
    changes = _core.generator_changes_of_other_threads()

    def recorded(differences: list[Difference]) -> None:
        record(subject, differences, lambda: mismatch(differences))

    def differences() -> Steps[list[Difference]]:
        found_wrong = yield from subject.differences(run, found, native)
        return [*found_wrong, *([random_difference()] if is_other_stream else [])]

    is_disturbed = other_changes in (-1, None) or changes != other_changes
    subject.judge(Judgement(differences(), recorded, is_disturbed if is_sampling else None))


def _outdated_weights(run: SubgraphRun, digests: Sequence[str]) -> list[int]:
    """The ids of the weights whose contents are others than those with these digests."""
    indices = zip(run.graph.weights, digests)
    return [
        run.graph.inputs[index].id
        for index, digest in indices
        if _core.digest_of(run.given[index]) != digest
    ]


def record(
    subject: Subject, differences: Sequence[Difference], mismatch: Callable[[], Mismatch]
) -> None:
    """Records a comparison, and warns of the first wrong one.

    Args:
        subject: The graph or kernel.
        differences: The wrong results.
        mismatch: Finds the operator of these.
    """
    with _lock:
        log.checked += 1
        log.wrong += bool(differences)
        is_new = bool(differences) and not subject.is_wrong
        subject.is_wrong |= bool(differences)
        is_retained = len(log.mismatches) < MAX_MISMATCHES
    if not is_new:
        return
    found = mismatch()
    with _lock:
        if is_retained:
            log.mismatches.append(found)
    warn(WarningCode.WRONG_RESULT, str(found))
