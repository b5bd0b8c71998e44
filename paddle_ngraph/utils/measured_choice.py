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
from dataclasses import asdict, dataclass
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
        warmup_calls: The first calls of the challenger, whose times are discarded.
        max_slowdown: A call of the challenger that takes this many times as long as the incumbent
            ends the measurement without a decision.
        min_gain: The other side is preferred only if it is this many times as fast.
        max_unmeasured_calls: Calls of the challenger without a time, since it was not ready, after
            which it is left undecided.
        max_spread: Ratio of the quartiles of the pairs' ratios beyond which the machine is too busy
            to decide.
        recheck_seconds, recheck_calls: Age of a record at which it is measured again.
    """

    pairs: int = 5
    warmup_calls: int = 2
    max_slowdown: float = 2.0
    min_gain: float = 1.1
    max_unmeasured_calls: int = 8
    max_spread: float = 1.5
    recheck_seconds: float = 24 * 3600.0
    recheck_calls: int = 10_000


@dataclass(frozen=True)
class Record:
    """The result of a measurement.

    Attributes:
        uses_challenger: The side of the calls that follow.
        ratio: The median of the challenger's times over the incumbent's; 0: undecided.
        pairs: The number of pairs.
        date: Seconds since 1970.
    """

    uses_challenger: bool
    ratio: float
    pairs: int
    date: float

    @classmethod
    def of(cls, stored: Any) -> Record | None:
        """The record with these attributes; ``None`` if they are not those of a record."""
        types: dict[str, Any] = {
            "uses_challenger": bool,
            "ratio": (int, float),
            "pairs": int,
            "date": (int, float),
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
    """

    def __init__(
        self,
        policy: Policy,
        record: Record | None = None,
        store: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self._policy = policy
        self._record = record
        self._store = store
        self._lock = new_lock()
        self._is_impossible = False
        self._timed: TimedCall | None = None  # the call that is being timed
        self._calls = 0  # since the last decision
        self._warmed_up = 0
        self._unmeasured = 0  # calls of the challenger without a time
        self._times: dict[bool, list[float]] = {False: [], True: []}

    @property
    def record(self) -> Record | None:
        """The last result; ``None`` before the first one."""
        return self._record

    def next_call(self, is_ready: Callable[[], bool] = lambda: True) -> TimedCall:
        """The side of the next call. A timed call is to be followed by :meth:`end_call`.

        Args:
            is_ready: Returns whether the challenger may be tried now.
        """
        with self._lock:
            preferred = self._record is not None and self._record.uses_challenger
            self._calls += 1
            # One call is timed at a time; calls that overlap it are served as if nothing was
            # measured, and their times are not known.
            if self._is_impossible or self._timed is not None or not self._is_due():
                return TimedCall(preferred and not self._is_impossible, False)
            side = self._next_side()
            if side and not is_ready():
                return TimedCall(preferred, False)
            self._timed = TimedCall(side, True)
            return self._timed

    def end_call(self, call: TimedCall, seconds: float | None) -> None:
        """Ends a timed call; ``seconds``: ``None`` if its time is no measure of its side."""
        if not call.is_timed:
            return
        with self._lock:
            self._timed = None
            if seconds is None:
                self._unmeasured += call.is_challenger
                if self._unmeasured < self._policy.max_unmeasured_calls:
                    return
                found = Record(False, 0.0, 0, clock.date())
            elif call.is_challenger and self._warmed_up < self._policy.warmup_calls:
                self._warmed_up += 1
                return
            else:
                self._times[call.is_challenger].append(seconds)
                result = self._result()
                if result is None:
                    return
                found = result
            self._record, self._calls, self._warmed_up, self._unmeasured = found, 0, 0, 0
            self._times = {False: [], True: []}
        self._store(found)

    def give_up(self) -> None:
        """Has all later calls run by the incumbent: the challenger is impossible."""
        self._is_impossible = True
        self._timed = None

    def _is_due(self) -> bool:
        if self._record is None:
            return True
        age = clock.date() - self._record.date
        return self._calls > self._policy.recheck_calls or not (
            0 <= age < self._policy.recheck_seconds
        )

    def _next_side(self) -> bool:
        """Whether the challenger is next: the incumbent first, then pairs in alternating order."""
        incumbent, challenger = len(self._times[False]), len(self._times[True])
        if incumbent == 0:
            return False
        if self._warmed_up < self._policy.warmup_calls:
            return True
        if incumbent == challenger:
            return incumbent % 2 == 1
        return challenger < incumbent

    def _result(self) -> Record | None:
        incumbent, challenger = self._times[False], self._times[True]
        policy, now = self._policy, clock.date()
        kept = self._record is not None and self._record.uses_challenger
        if challenger and challenger[-1] > policy.max_slowdown * statistics.median(incumbent):
            return Record(False, 0.0, len(challenger), now)
        if min(len(incumbent), len(challenger)) < policy.pairs:
            return None
        ratios = [theirs / ours for ours, theirs in zip(incumbent, challenger) if ours > 0]
        low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [0.0, 1.0, 2.0]
        if low <= 0 or high / low > policy.max_spread:
            return Record(False, 0.0, len(ratios), now)
        uses = ratio < policy.min_gain if kept else ratio * policy.min_gain < 1
        return Record(uses, ratio, len(ratios), now)


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

    def write(self, key: str, record: Record) -> None:
        """Adds or replaces a record; does nothing where the file cannot be written."""
        records = self.read()
        if self._path is None or (key not in records and len(records) >= self.MAX_RECORDS):
            return
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
