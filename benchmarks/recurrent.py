"""Recurrent layers of Paddle, of this package and of PyTorch, which run in turns.

Each framework has a process of its own, which loads no other: its OpenMP threads wait for the next
loop by spinning, and two runtimes in one process slowed each other by up to a hundred times.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.worker import Worker

FRAMEWORKS = ("benchmarks.recurrent_paddle", "benchmarks.recurrent_torch")
VARIANTS = ("forward", "training")
WARM_RUNS = 2
# OpenMP threads spin for 0.2 s after a loop (KMP_BLOCKTIME).
PAUSE = 0.25


@dataclass(frozen=True)
class Case:
    """A network and its input."""

    title: str
    kind: str
    input: int
    hidden: int
    layers: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Contestant:
    """An implementation of the network: a forward pass, and a forward and backward pass."""

    name: str
    infer: Callable[[], Any]
    train: Callable[[], Any]


class Times(NamedTuple):
    """Milliseconds of a run, by the clock and of all threads."""

    clock: float
    processor: float


class Peer:
    """The contestants of one framework, made and run in the process of a :class:`Worker`.

    Args:
        framework: One of ``FRAMEWORKS``: a module of contestants.
        threads: Their number.
        names: The contestants to run; all, if empty.
    """

    def __init__(self, framework: str, threads: int, names: Collection[str] = ()) -> None:
        self._module = importlib.import_module(framework)
        self._module.set_threads(threads)
        self._names = names
        self._contestants: list[Contestant] = []

    def prepare(self, case: Case) -> None:
        """Makes the contestants of a case, in place of those of an earlier one.

        Raises:
            ValueError: A contestant has another output than the first.
        """
        self._contestants = []  # their memory is free before that of the next
        x = np.random.default_rng(0).standard_normal((case.steps, case.batch, case.input))
        made = self._module.contestants(case, x.astype(np.float32))
        _compare(made)
        self._contestants = [each for each in made if not self._names or each.name in self._names]

    def sample(self, variant: str, runs: int) -> dict[str, Times]:
        """The times of each contestant: the medians of several runs, after others."""
        found = {}
        for each in self._contestants:
            run = each.infer if variant == "forward" else each.train
            times = [_timed(run) for _ in range(WARM_RUNS + runs)][WARM_RUNS:]
            found[each.name] = Times(*map(statistics.median, zip(*times)))
        return found


def _timed(run: Callable[[], Any]) -> Times:
    start, processor = time.perf_counter(), time.process_time()
    run()
    return Times(1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - processor))


def _compare(contestants: Sequence[Contestant]) -> None:
    outputs = [(each.name, each.infer().numpy()) for each in contestants]
    for name, found in outputs:
        if not np.isfinite(found).all() or np.abs(found - outputs[0][1]).max() > 1e-5:
            raise ValueError(f"{name}: another result than {outputs[0][0]}'s")


class Alternation:
    """Runs of the frameworks in turns.

    Args:
        threads: Their number.
        rounds: Their number.
        runs: The runs of a contestant in a round.
        names: The contestants to run; all, if empty.
    """

    def __init__(self, threads: int, rounds: int, runs: int, names: Collection[str] = ()) -> None:
        self._rounds, self._runs = rounds, runs
        self._pause = 0.0 if threads == 1 else PAUSE
        self._workers = [Worker({}) for _ in FRAMEWORKS]
        for worker, framework in zip(self._workers, FRAMEWORKS):
            worker.hold(Peer, framework, threads, names)

    def __enter__(self) -> Alternation:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()

    def of(self, case: Case) -> dict[str, list[dict[str, Times]]]:
        """The times of a case: for each variant the rounds, by contestant."""
        for worker in self._workers:
            worker.ask("prepare", case)
        return {
            variant: [*map(partial(self._one_round, variant), range(self._rounds))]
            for variant in VARIANTS
        }

    def _one_round(self, variant: str, number: int) -> dict[str, Times]:
        """One round; every other one begins with the last framework."""
        found: dict[str, Times] = {}
        for worker in self._workers[:: -1 if number % 2 else 1]:
            time.sleep(self._pause)
            found |= worker.ask("sample", variant, self._runs)
        return {name: found[name] for name in sorted(found, key=_place)}


def _place(name: str) -> tuple[bool, bool, str]:
    """Paddle, the packed layers, PyTorch."""
    return name == "PyTorch", name != "Paddle", name


def milliseconds(rounds: Sequence[dict[str, Times]], threads: int) -> list[dict[str, float]]:
    """Rounds of one number by contestant: on one thread processor time, which others disturb less.

    Args:
        rounds: The rounds of a variant.
        threads: The number of threads that they had.
    """
    index = Times._fields.index("processor" if threads == 1 else "clock")
    return [{name: times[index] for name, times in each.items()} for each in rounds]


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The medians of rounds by contestant."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
