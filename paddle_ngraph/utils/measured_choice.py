"""Choices between two ways to compute the same results, by the times of real calls.

The *incumbent* is the side that a rule prefers, the *challenger* the other one. Real calls run by
both in turn, until the median ratio of their times decides. The decision is a record that can be
stored, and is measured again when it is old.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.own_files import open_own, open_unlinked

# The numbers of a record are smaller, also its date.
_MAX_NUMBER = 2**53


@dataclass(frozen=True)
class Policy:
    """When a choice measures, and how it decides.

    Attributes:
        pairs: Pairs of timed calls, one of each side.
        burst: Consecutive timed calls of one side. With bursts, the first call after one of the
            other side is not timed, and sums decide of which the longest call is left out, since
            calls of one side may differ: only some have a backward pass.
        warmup_calls: The first calls of the challenger, whose times are discarded.
        max_slowdown: A call of the challenger that takes this many times as long as the incumbent
            ends the measurement without a decision.
        min_gain: The other side is preferred only if it is this many times as fast.
        max_unmeasured_calls: Consecutive calls of the challenger without a time, since it was not
            ready, after which it is left undecided.
        max_spread: Ratio of the quartiles of the pairs' ratios beyond which the machine is too busy
            to decide.
        recheck_seconds, recheck_calls: Age of a record at which it is measured again.
        first_recheck_calls: The age in calls of the first record; that of each later one is four
            times as long, up to ``recheck_calls``.
        max_drift, drift_calls: A record is also measured again once the median of this many calls
            has changed by this factor, or after a change (:meth:`MeasuredChoice.note_change`); not
            before ``first_recheck_calls``.
        max_changes, pause_seconds: A choice that has changed this often is the incumbent for so
            long.
    """

    pairs: int = 5
    burst: int = 1
    warmup_calls: int = 2
    max_slowdown: float = 2.0
    min_gain: float = 1.1
    max_unmeasured_calls: int = 8
    max_spread: float = 1.5
    recheck_seconds: float = 24 * 3600.0
    recheck_calls: int = 10_000
    first_recheck_calls: int = 10_000
    max_drift: float = 2.0
    drift_calls: int = 50
    max_changes: int = 3
    pause_seconds: float = 3600.0


@dataclass(frozen=True)
class Record:
    """The result of a measurement.

    Attributes:
        uses_challenger: The side of the calls that follow.
        ratio: The median of the challenger's times over the incumbent's; 0: undecided.
        pairs: The number of pairs.
        date: Seconds since 1970.
        seconds: The median time of a call of that side; 0: unknown.
    """

    uses_challenger: bool
    ratio: float
    pairs: int
    date: float
    seconds: float = 0.0

    @classmethod
    def of(cls, stored: Any) -> Record | None:
        """The record with these attributes; ``None`` if they are not those of a record."""
        types: dict[str, Any] = {
            "uses_challenger": bool,
            "ratio": (int, float),
            "pairs": int,
            "date": (int, float),
            "seconds": (int, float),
        }
        is_valid = (
            isinstance(stored, dict)
            and stored.keys() == types.keys()
            and all(isinstance(stored[name], of_type) for name, of_type in types.items())
            # JSON has integers that are no float, and NaN.
            and all(0 <= stored[name] < _MAX_NUMBER for name in types)
        )
        return cls(**stored) if is_valid else None


class TimedCall(NamedTuple):
    """A call: its side, and whether its time is wanted."""

    is_challenger: bool
    is_timed: bool


class MeasuredChoice:
    """The choice between incumbent and challenger, for calls of similar cost. Thread-safe.

    Args:
        policy: When to measure, and how to decide.
        record: An earlier result, as of another process.
        store: Called with each new result, without a lock.
        first_check: The number of calls after which that record is measured again.

    Attributes:
        incumbent_seconds: The median time of recent calls of the incumbent; ``None`` before one.
    """

    def __init__(
        self,
        policy: Policy,
        record: Record | None = None,
        store: Callable[[Record], object] = lambda _: None,
        first_check: int | None = None,
    ) -> None:
        self._policy = policy
        self._record = record
        self._store = store
        self._lock = new_lock()
        self._is_impossible = False
        self._next_check = min(policy.first_recheck_calls, policy.recheck_calls)
        if record is not None and first_check is not None:
            self._next_check = first_check
        self._has_changed = False
        self._num_changes = 0  # of the preferred side
        self._paused_until = 0.0
        self._calls = 0  # since the last decision
        # Of a call of the preferred side.
        self._usual_seconds = record.seconds or None if record is not None else None
        self._recent: list[float] = []  # times of the preferred side
        self.incumbent_seconds: float | None = None
        self.restart()

    def restart(self) -> None:
        """Discards the times of a measurement in progress."""
        with self._lock:
            self._timed: TimedCall | None = None  # the call that is being timed
            self._side: bool | None = None  # of the last timed call
            self._warmed_up = 0
            self._unmeasured = 0  # consecutive calls of the challenger without a time
            self._times: dict[bool, list[float]] = {False: [], True: []}

    @property
    def record(self) -> Record | None:
        """The last result; ``None`` before the first one."""
        return self._record

    @property
    def is_measuring(self) -> bool:
        """Whether timed calls have begun that have not decided yet."""
        return self._side is not None

    @property
    def is_challenged(self) -> bool:
        """Whether timed calls of the challenger have begun that have not decided yet."""
        return self._side is True or bool(self._times[True])

    def next_call(self, is_ready: Callable[[bool], bool] = lambda _: True) -> TimedCall:
        """The side of the next call. A timed call is to be followed by :meth:`end_call`.

        Args:
            is_ready: Returns whether a call of the challenger, or of the incumbent (``False``), may
                be timed now.
        """
        with self._lock:
            preferred = (
                self._record is not None
                and self._record.uses_challenger
                and not self._is_impossible
            )
            self._calls += 1
            # One call is timed at a time; calls that overlap it are served as if nothing was
            # measured, and their times are not known.
            if self._is_impossible or self._timed is not None or not self._is_due():
                return TimedCall(preferred, False)
            side = self._next_side()
            if not is_ready(side):
                return TimedCall(preferred, False)
            self._timed = TimedCall(side, True)
            return self._timed

    def end_call(self, call: TimedCall, seconds: float | None) -> None:
        """Ends a call; ``seconds``: ``None`` if its time is no measure of its side."""
        if not call.is_timed:
            if seconds is not None:
                self._observe(call.is_challenger, seconds)
            return
        with self._lock:
            if self._timed is not call:  # restarted meanwhile
                return
            self._timed = None
            found = self._result_with(call.is_challenger, seconds)
            if found is None:
                return
            self._decide(found)
        self._store(found)

    def stays_incumbent(self, calls: int) -> bool:
        """Whether so many more calls are all the incumbent's, and none of them is to be timed."""
        with self._lock:
            is_decided = self._record is not None and not self._record.uses_challenger
            return is_decided and self._timed is None and not self._is_due(calls)

    def skip(self, calls: int) -> None:
        """Counts calls of the preferred side that :meth:`next_call` is not asked for."""
        self._calls += calls

    def give_up(self) -> None:
        """Has all later calls run by the incumbent: the challenger is impossible."""
        self._is_impossible = True
        self._timed = None

    def note_change(self) -> None:
        """Has the record measured again, since calls are others than those that were timed."""
        self._has_changed = True

    def _observe(self, is_challenger: bool, seconds: float) -> None:
        """Notes the time of a call that is part of no measurement."""
        recent = self._recent
        recent.append(seconds)
        if len(recent) < self._policy.drift_calls:
            return
        self._recent = []
        found = statistics.median(recent)
        if not is_challenger:
            self.incumbent_seconds = found
        usual = self._usual_seconds
        if usual is None:
            self._usual_seconds = found
        elif not usual <= found * self._policy.max_drift <= usual * self._policy.max_drift**2:
            self._has_changed = True

    def _is_due(self, ahead: int = 0) -> bool:
        """Whether a measurement is due after so many more calls."""
        if self._record is None:
            return True
        calls = self._calls + ahead
        now = clock.date()
        if now < self._paused_until:
            return False
        is_old = not 0 <= now - self._record.date < self._policy.recheck_seconds
        may_be_wrong = self._has_changed and calls > self._policy.first_recheck_calls
        return is_old or may_be_wrong or calls > self._next_check

    def _next_side(self) -> bool:
        """Whether the challenger is next: the incumbent first, then bursts in alternating order."""
        burst = self._policy.burst
        incumbent, challenger = len(self._times[False]), len(self._times[True])
        if incumbent < burst:
            return False
        if self._warmed_up < self._policy.warmup_calls or challenger % burst:
            return True
        if incumbent == challenger:
            return incumbent // burst % 2 == 1
        return challenger < incumbent and incumbent % burst == 0

    def _result_with(self, is_challenger: bool, seconds: float | None) -> Record | None:
        """The result of the measurement with another timed call; ``None`` before it ends."""
        is_cold = self._policy.burst > 1 and self._side != is_challenger
        self._side = is_challenger
        if seconds is None:
            self._unmeasured += is_challenger
            if self._unmeasured < self._policy.max_unmeasured_calls:
                return None
            return Record(False, 0.0, 0, clock.date())
        if is_challenger:
            self._unmeasured = 0
            if self._warmed_up < self._policy.warmup_calls:
                self._warmed_up += 1
                return None
        if is_cold:
            return None
        self._times[is_challenger].append(seconds)
        if not is_challenger:
            self.incumbent_seconds = statistics.median(self._times[False])
        return self._result()

    def _result(self) -> Record | None:
        incumbent, challenger = self._times[False], self._times[True]
        policy, now = self._policy, clock.date()
        kept = self._record is not None and self._record.uses_challenger
        if challenger and challenger[-1] > policy.max_slowdown * statistics.median(incumbent):
            return Record(False, 0.0, len(challenger), now)
        pairs = min(len(incumbent), len(challenger))
        if pairs < policy.pairs:
            return None
        ratio = (
            _ratio_of_sums(incumbent, challenger)
            if policy.burst > 1
            else _ratio_of_pairs(incumbent, challenger, policy.max_spread)
        )
        uses = ratio < policy.min_gain if kept else ratio * policy.min_gain < 1
        is_better = uses and ratio > 0
        seconds = statistics.median(challenger if is_better else incumbent)
        return Record(is_better, ratio, pairs, now, seconds)

    def _decide(self, found: Record) -> None:
        before, policy = self._record, self._policy
        if before is not None and before.uses_challenger != found.uses_challenger:
            self._num_changes += 1
            if self._num_changes >= policy.max_changes:
                found = replace(found, uses_challenger=False)
                self._num_changes = 0
                self._paused_until = found.date + policy.pause_seconds
        if before is not None:
            longer = max(4 * self._next_check, policy.first_recheck_calls)
            self._next_check = min(longer, policy.recheck_calls)
        self._record = found
        self._calls, self._has_changed = 0, False
        self._recent, self._usual_seconds = [], None  # of timed calls, which may be cold
        self.restart()


def _ratio_of_pairs(incumbent: list[float], challenger: list[float], max_spread: float) -> float:
    """The median of the ratios of pairs; 0 if they differ too much to tell."""
    ratios = [theirs / ours for ours, theirs in zip(incumbent, challenger) if ours > 0]
    low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [0.0, 1.0, 2.0]
    return 0.0 if low <= 0 or high / low > max_spread else ratio


def _ratio_of_sums(incumbent: list[float], challenger: list[float]) -> float:
    """The ratio of the sums of equally many times, of each of which the longest is left out."""
    number = min(len(incumbent), len(challenger))
    ours, theirs = (
        sum(times) - (max(times) if number > 1 else 0.0)
        for times in (incumbent[-number:], challenger[-number:])
    )
    return max(theirs, 0.0) / ours if ours > 0 else 0.0


class RecordFile:
    """The records of one program, by the sizes of its inputs, in a file of this user.

    Args:
        path: The file; ``None``: records are not stored.
    """

    # A file with more records is not extended: sizes that never recur would let it grow.
    MAX_RECORDS = 256

    def __init__(self, path: str | None) -> None:
        self._path = path

    def read(self) -> dict[str, Record]:
        """All valid records, by key."""
        if self._path is None:
            return {}
        with signals.own_errors():
            try:
                with open(self._path, encoding="utf-8", opener=open_unlinked) as file:
                    stored = json.load(file)
            except (
                OSError,
                ValueError,
                RecursionError,
            ):  # the last one for lists in lists in lists
                return {}
        found = stored.items() if isinstance(stored, dict) else ()
        records = {key: Record.of(each) for key, each in found}
        return {key: record for key, record in records.items() if record is not None}

    def write(self, key: str, record: Record) -> bool:
        """Adds or replaces a record; returns whether the file could be written, and is not full."""
        records = self.read()
        if self._path is None or (key not in records and len(records) >= self.MAX_RECORDS):
            return False
        records[key] = record
        text = json.dumps({key: asdict(each) for key, each in records.items()}, indent=1)
        temporary = f"{self._path}.{os.getpid()}.{threading.get_ident()}"
        # Without the file, another process measures again.
        with signals.own_errors(), suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(temporary, "w", encoding="utf-8", opener=open_own) as file:
                file.truncate()
                file.write(text)
            os.replace(temporary, self._path)
            return True
        with signals.own_errors(), suppress(OSError):
            os.unlink(temporary)
        return False
