"""Measures works on several peers in turns, checks what they compute, and makes rows of it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.peers import ENGINE, PEERS, REFERENCE, Assets, Results
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array, Work

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Pace:
    """How long is measured.

    Attributes:
        rounds: Turns of each peer.
        seconds: The length of a turn.
    """

    rounds: int = 3
    seconds: float = 0.5


@dataclass
class Column:
    """What one peer did with one work.

    Attributes:
        turns_ms: The median step of each turn, in milliseconds.
        first_s: The first run, in seconds, compilation included.
        error: How far its results are from native Paddle's, as a share of what is tolerated.
        failed: Why there are no times.
        notes: What the peer told.
    """

    turns_ms: list[float] = field(default_factory=list)
    first_s: float | None = None
    error: float | None = None
    failed: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median_ms(self) -> float | None:
        """The median turn; ``None`` where it failed."""
        return statistics.median(self.turns_ms) if self.turns_ms else None


@dataclass
class Row:
    """A work and what each peer did with it, by the peer's name."""

    model: str
    name: str
    description: str
    batch: int
    columns: dict[str, Column]

    def milliseconds(self, peer: str) -> str:
        """The median time of a peer, for people."""
        value = self.columns.get(peer, Column()).median_ms
        if value is None:
            return "-"
        return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"

    def ratio(self, peer: str) -> float | None:
        """How many times as long as the engine ``peer`` takes: the median over the turns."""
        theirs, ours = (self.columns.get(p, Column()).turns_ms for p in (peer, ENGINE))
        ratios = [a / b for a, b in zip(theirs, ours)]
        return statistics.median(ratios) if ratios else None

    def best_ratio(self, names: Sequence[str]) -> float | None:
        """The ratio of the fastest of several peers."""
        ratios = [ratio for ratio in map(self.ratio, names) if ratio is not None]
        return min(ratios, default=None)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Row:
        """What :meth:`to_json` made plain data of."""
        names = [item.name for item in fields(Column)]
        columns = {
            name: Column(**{key: column[key] for key in names})
            for name, column in data["columns"].items()
        }
        return Row(**{**data, "columns": columns})

    def to_json(self) -> dict[str, Any]:
        """Plain data, with ratios."""
        data = asdict(self)
        for name, column in self.columns.items():
            data["columns"][name]["median_ms"] = column.median_ms
            data["columns"][name]["ratio"] = self.ratio(name)
        return data


def compare(
    works: Sequence[Work],
    names: Sequence[str],
    pace: Pace,
    progress: Progress,
    settings: Mapping[str, str] | None = None,
    known: dict[Work, Results] | None = None,
) -> Iterator[Row]:
    """One row for each work, as soon as it is measured.

    Each peer has a new process for each work: what ran there before decides what the next work
    takes (how the C library gives memory back, which pages there are), by up to half as much again.
    Native Paddle always computes what is compared against.

    Args:
        works: What to measure.
        names: The peers.
        pace: For how long.
        progress: Is told what goes on.
        settings: Environment variables on top of each peer's own.
        known: What native Paddle computes of works; what is not there is put there.
    """
    results = {} if known is None else known
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            with ExitStack() as stack:
                processes = _Processes(stack, settings or {})
                row = _compare(work, names, pace, Path(folder), processes, progress, results)
            yield row


class _Processes:
    """The process of each peer, started when it is first needed."""

    def __init__(self, stack: ExitStack, settings: Mapping[str, str]) -> None:
        self._stack = stack
        self._settings = settings
        self._workers: dict[str, Worker] = {}

    def of(self, peer: str) -> Worker:
        if peer not in self._workers:
            settings = {**PEERS[peer].settings, **self._settings}
            self._workers[peer] = self._stack.enter_context(Worker(settings))
        return self._workers[peer]

    def end(self, peer: str) -> None:
        self._workers.pop(peer).close()


def _compare(
    work: Work,
    names: Sequence[str],
    pace: Pace,
    folder: Path,
    processes: _Processes,
    progress: Progress,
    known: dict[Work, Results],
) -> Row:
    columns = {name: Column() for name in names}
    _prepare(work, columns, folder, processes, progress, known)
    _take_turns(work, columns, pace, processes, progress)
    return Row(work.model, work.name, work.description, work.batch, columns)


def _prepare(
    work: Work,
    columns: Mapping[str, Column],
    folder: Path,
    processes: _Processes,
    progress: Progress,
    known: dict[Work, Results],
) -> None:
    """Has each peer do its first steps, and compares what they compute."""
    needs_weights = any(name.startswith("torch") for name in columns)
    weights = processes.of(REFERENCE).call(peers.weights, work) if needs_weights else []
    expected = known.get(work)
    for name in dict.fromkeys([*([] if expected else [REFERENCE]), *columns]):
        progress(f"{work.name}: preparing {PEERS[name].title}")
        column = columns.get(name, Column())
        assets = Assets(folder, weights if name.startswith("torch") else [])
        try:
            processes.of(name).hold(peers.start, work, assets, name)
            results = processes.of(name).ask("results")
        except PeerError as error:
            if expected is None:
                raise
            column.failed = str(error)
            processes.end(name)
            continue
        expected = known.setdefault(work, results)
        column.first_s, column.notes = results.first_seconds, results.notes
        column.error = difference(work, expected, results)
        if not column.error <= 1:  # NaN is wrong too
            column.failed = f"wrong: off by {column.error:.2g} times the tolerance"


def _take_turns(
    work: Work,
    columns: Mapping[str, Column],
    pace: Pace,
    processes: _Processes,
    progress: Progress,
) -> None:
    for number in range(pace.rounds):
        progress(f"{work.name}: turn {number + 1} of {pace.rounds}")
        for name, column in columns.items():
            if column.failed is None:
                try:
                    seconds = processes.of(name).ask("turn", pace.seconds)
                except PeerError as error:  # the system ends one of many when memory is short
                    column.failed, column.turns_ms = str(error), []
                    processes.end(name)
                    continue
                column.turns_ms.append(1e3 * statistics.median(seconds))


def difference(work: Work, expected: Results, found: Results) -> float:
    """How far results are from the expected ones, as a share of what ``work`` tolerates."""
    size = abs(float(expected.values[0])) if work.trains else 0.0
    shares = [0.0]
    for ours, theirs in zip(found.values, expected.values):
        if ours.shape != theirs.shape:
            return float("inf")
        scale = size or float(np.abs(theirs).max())
        shares.append(float(np.abs(ours - theirs).max()) / scale / work.tolerance)
    if found.changes:
        apart = {name: found.changes[name] - way for name, way in expected.changes.items()}
        shares.append(_length(apart) / _length(expected.changes) / work.drift)
    return float(np.max(shares))  # NaN, where there is one


def _length(arrays: Mapping[str, Array]) -> float:
    squares = (float(np.square(array, dtype=np.float64).sum()) for array in arrays.values())
    return float(np.sqrt(sum(squares)))
