"""Measures workloads on alternating peers, checks their results, and creates rows of a table."""

from __future__ import annotations

import statistics
import tempfile
import time
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
    """Duration of a measurement, in which the peers alternate.

    Attributes:
        rounds: Number of samples of each peer.
        seconds: Duration of a sample.
    """

    rounds: int = 3
    seconds: float = 0.5


def milliseconds(run: Callable[[], Any], seconds: float) -> list[float]:
    """Calls ``run`` for ``seconds``, at least three times; returns the time of each call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


@dataclass
class Column:
    """Results of one peer for one workload.

    Attributes:
        turns_ms: The median step of each sample, in milliseconds.
        first_s: The first run, in seconds, including compilation.
        error: Difference of its results from plain Paddle's, relative to the tolerance.
        failed: Reason why there are no times.
        notes: Notes of the peer.
    """

    turns_ms: list[float] = field(default_factory=list)
    first_s: float | None = None
    error: float | None = None
    failed: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median_ms(self) -> float | None:
        """The median sample, in milliseconds; ``None`` if the peer failed."""
        return statistics.median(self.turns_ms) if self.turns_ms else None


@dataclass
class Row:
    """A workload, and the results of each peer, by the peer's name."""

    model: str
    name: str
    description: str
    batch: int
    columns: dict[str, Column]

    def milliseconds(self, peer: str) -> str:
        """Formats the median time of a peer."""
        value = self.columns.get(peer, Column()).median_ms
        if value is None:
            return "-"
        return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"

    def ratio(self, peer: str) -> float | None:
        """Returns the time of ``peer`` over that of the engine: the median over the samples."""
        theirs, ours = (self.columns.get(p, Column()).turns_ms for p in (peer, ENGINE))
        ratios = [a / b for a, b in zip(theirs, ours)]
        return statistics.median(ratios) if ratios else None

    def best_ratio(self, names: Sequence[str]) -> float | None:
        """Returns the ratio of the fastest of several peers."""
        ratios = [ratio for ratio in map(self.ratio, names) if ratio is not None]
        return min(ratios, default=None)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Row:
        """Returns the row of data from :meth:`to_json`."""
        names = [item.name for item in fields(Column)]
        columns = {
            name: Column(**{key: column[key] for key in names})
            for name, column in data["columns"].items()
        }
        return Row(**{**data, "columns": columns})

    def to_json(self) -> dict[str, Any]:
        """Returns JSON data, with ratios."""
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
    """Yields a row for each workload, as soon as it is measured.

    Each peer has a new process for each workload: earlier workloads in a process would change times
    by up to 50 % (state of the allocator, resident pages). The reference results are always those
    of plain Paddle.

    Args:
        works: The workloads.
        names: The peers.
        pace: Duration of the measurement.
        progress: Shows the progress.
        settings: Environment variables in addition to each peer's own.
        known: Plain Paddle's results by workload; missing ones are added.
    """
    results = {} if known is None else known
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            with ExitStack() as stack:
                processes = _Processes(stack, settings or {})
                row = _compare(work, names, pace, Path(folder), processes, progress, results)
            yield row


class _Processes:
    """The process of each peer, started lazily."""

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
    _alternate(work, columns, pace, processes, progress)
    return Row(work.model, work.name, work.description, work.batch, columns)


def _prepare(
    work: Work,
    columns: Mapping[str, Column],
    folder: Path,
    processes: _Processes,
    progress: Progress,
    known: dict[Work, Results],
) -> None:
    """Runs the first steps of each peer, and compares the results."""
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
        if not column.error <= 1:  # rejects NaN, too
            column.failed = f"wrong: off by {column.error:.2g} times the tolerance"


def _alternate(
    work: Work,
    columns: Mapping[str, Column],
    pace: Pace,
    processes: _Processes,
    progress: Progress,
) -> None:
    for number in range(pace.rounds):
        progress(f"{work.name}: round {number + 1} of {pace.rounds}")
        for name, column in columns.items():
            if column.failed is None:
                try:
                    seconds = processes.of(name).ask("measure", pace.seconds)
                except PeerError as error:  # e.g. killed for lack of memory
                    column.failed, column.turns_ms = str(error), []
                    processes.end(name)
                    continue
                column.turns_ms.append(1e3 * statistics.median(seconds))


def difference(work: Work, expected: Results, found: Results) -> float:
    """Returns the difference of results from the expected ones, relative to the tolerance."""
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
    return float(np.max(shares))  # NaN if any share is NaN


def _length(arrays: Mapping[str, Array]) -> float:
    squares = (float(np.square(array, dtype=np.float64).sum()) for array in arrays.values())
    return float(np.sqrt(sum(squares)))
