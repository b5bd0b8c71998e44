"""Compares this checkout with another one: alternating runs of the same workloads.

Each checkout has a separate process. The cost of a change is smaller than the effect of other
virtual machines on times; so only ratios of consecutive samples are used. Where a process places
its memory makes some workloads a few percent faster or slower for as long as the process lives; so
each workload is measured in several pairs of processes.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import peers, report, small_programs, works
from benchmarks.options import Progress, chosen
from benchmarks.peers import Assets
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Work

BATCHES = (1, 8)
PROCESS_PAIRS = 3  # per workload
SECONDS = 0.4
SMALL_SECONDS = 0.03
EXPLANATION = """\
Medians over the samples of the median step of a sample, the engine of this checkout beside that of
another one. The ratio is the time of this checkout by that of the other in two consecutive samples,
in the median (above 1: this checkout is slower); *95 %* is the confidence interval of this median,
by the ranks of a sign test. The samples of a row come from three pairs of processes."""
T = TypeVar("T")


@dataclass(frozen=True)
class Comparison:
    """A workload, and the times of its samples in milliseconds."""

    name: str
    here: list[float]
    before: list[float]

    @property
    def ratios(self) -> list[float]:
        """The time of this checkout over that of the other one, for each pair of samples."""
        return [mine / theirs for mine, theirs in zip(self.here, self.before)]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    def cells(self) -> list[str]:
        """Returns a row of the table."""
        lower, upper = interval_of_median(self.ratios)
        milliseconds = [f"{statistics.median(times):.3f}" for times in (self.here, self.before)]
        return [self.name, *milliseconds, f"{self.ratio:.3f}", f"{lower:.3f} to {upper:.3f}"]

    def to_json(self) -> dict[str, Any]:
        """Returns JSON data."""
        return {"name": self.name, "ms": self.here, "before_ms": self.before, "ratio": self.ratio}


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a median, or the whole range if values are few.

    A value is below the median with probability 1/2, so the ranks of the bounds follow from the
    binomial distribution (Conover, Practical Nonparametric Statistics, 1999, section 3.2).
    """
    ordered, count = sorted(values), len(values)
    below, left_out = 0.5**count, 0
    while below <= 0.025:
        left_out += 1
        below += math.comb(count, left_out) * 0.5**count
    index = max(left_out - 1, 0)
    return ordered[index], ordered[-1 - index]


def measure(options: Namespace) -> None:
    """Measures all workloads; writes ``revisions.md``, ``.json`` and ``.png``.

    Raises:
        PeerError: No other checkout is given, or the path is no checkout.
    """
    if options.before is None or not (options.before / "benchmarks").is_dir():
        raise PeerError("--before has to name another checkout of this repository")
    wanted = [
        *(works.inference(m, b) for m in chosen(options, works.INFERENCE_MODELS) for b in BATCHES),
        *(works.TRAINING[m] for m in chosen(options, works.TRAINING)),
    ]
    small = [] if options.models else list(small_programs.PROGRAMS)
    samples = 1 if options.quick else options.rounds
    found: list[Comparison] = []
    with (
        tempfile.TemporaryDirectory() as models,
        Progress("revisions", len(wanted) + bool(small)) as progress,
    ):
        for work in wanted:
            progress.say(work.name)
            found.append(_work(work, Path(models), options.before.resolve(), samples))
            progress.done(" ".join(found[-1].cells()))
            _write(found, options)
        if small:
            found += _small(options.before.resolve(), samples)
            progress.done("small programs")
            _write(found, options)


def _work(work: Work, models: Path, before: Path, samples: int) -> Comparison:
    times = _in_process_pairs(
        before,
        samples,
        lambda side: side.hold(peers.start, work, Assets(models), peers.ENGINE),
        lambda side: statistics.median(_step_seconds(side)),
    )
    name = f"{work.model}, training" if work.trains else work.name
    return Comparison(name, *([1e3 * second for second in seconds] for seconds in times))


def _in_process_pairs(
    before: Path, samples: int, start: Callable[[Worker], None], step: Callable[[Worker], T]
) -> tuple[list[T], list[T]]:
    """Returns the results of ``step`` here and there, ``samples`` of each pair of processes."""
    found: tuple[list[T], list[T]] = ([], [])
    for _ in range(PROCESS_PAIRS):
        with Worker({}) as mine, Worker({}, checkout=before) as other:
            sides = (mine, other)
            for side in sides:
                start(side)
                step(side)  # compiles
            for sample in range(samples):
                for index in (0, 1) if sample % 2 else (1, 0):
                    found[index].append(step(sides[index]))
    return found


def _step_seconds(side: Worker) -> list[float]:
    """Returns the seconds of steps; the method of older checkouts is named ``turn``."""
    try:
        return side.ask("measure", SECONDS)
    except PeerError:
        return side.ask("turn", SECONDS)


def _small(before: Path, samples: int) -> list[Comparison]:
    found = _in_process_pairs(
        before,
        samples,
        lambda side: side.hold(small_programs.Prepared),
        lambda side: side.ask("medians_us", SMALL_SECONDS),
    )
    return [
        Comparison(name, *([1e-3 * sample[name] for sample in side] for side in found))
        for name in small_programs.PROGRAMS
    ]


def _write(found: list[Comparison], options: Namespace) -> None:
    mean = statistics.geometric_mean([item.ratio for item in found])
    body = [*(item.cells() for item in found), ["geometric mean", "", "", f"{mean:.3f}", ""]]
    header = ["", "here (ms)", "before (ms)", "ratio", "95 %"]
    data = {"rows": [item.to_json() for item in found]}
    sections = [EXPLANATION, report.table(header, body)]
    label = "time here, measured by the time before"
    ratios = {"ratio": [item.ratio for item in found]}
    report.bars(
        report.picture(options.output, "revisions"),
        "Beside another revision",
        label,
        [item.name for item in found],
        ratios,
    )
    beside = report.column(header, body, "ratio")
    report.write(options.output, "revisions", "Beside another revision", sections, data, beside)
