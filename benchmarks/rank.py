"""One rank of a job that ``benchmarks.ranks`` starts; rank 0 writes the measurements.

A job measures either steps and all-reduces, or the parts of a step without the other ranks, since
Paddle gives all collectives of a process the gloo context that was used first. The ranks of a job
measure parts concurrently, so that they share caches and memory as in a step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

# A script finds modules in its own folder only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paddle

import paddle_ngraph
from benchmarks import paddle_models, works
from benchmarks.worker import PeerError
from demos.networks import Network
from paddle_ngraph import distributed
from paddle_ngraph.distributed import first_run, job
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.transpiler import cutting, distribution_transpiler
from paddle_ngraph.transpiler.training_program import ParameterGradient, TrainingProgram

BUCKET_MB = 5.0
SIZES = (2**12, 2**16, 2**20, 2**22, 10 * 2**20)  # bytes of an all-reduce
_CHAINED = 4  # all-reduces per run, which divides the overhead of a run
_SAMPLES = 5
_OPTIONS = distribution_transpiler.DistributionOptions(bucket_mb=BUCKET_MB)
Run = Callable[[], object]


def main(activity: str, folder: str, started: str, seconds: str, models: str) -> None:
    """Runs a rank.

    Args:
        activity: ``parts``; ``parts of a core``, in processor time; ``steps``; or ``steps only``,
            without all-reduces.
        folder: The folder in which rank 0 writes ``found.json``.
        started: Start time of the job, in seconds since the epoch.
        seconds: Duration of the measurement, divided about equally.
        models: Names in ``works.TRAINING``, separated by commas.
    """
    paddle.enable_static()
    distributed.init(seed=0)
    ranks = distributed.ranks()
    joined_s = time.time() - float(started)
    subjects, restart_s = {}, {}
    for name in models.split(","):
        start = time.perf_counter()
        subjects[name] = (Parts if activity.startswith("parts") else Steps)(name)
        restart_s[name] = joined_s + time.perf_counter() - start
    runs = {f"{n} {part}": run for n, each in subjects.items() for part, run in each.runs().items()}
    if activity == "steps" and ranks > 1:
        runs |= {f"all_reduce {size}": _all_reduce(size) for size in SIZES}
    before = paddle_ngraph.stats()["engine_runs"]
    clock = time.process_time if activity == "parts of a core" else time.perf_counter
    ms = _measured(runs, float(seconds), clock)
    if paddle_ngraph.stats()["engine_runs"] < before + len(subjects) * _SAMPLES:
        raise PeerError("the engine did not run")
    for name in ms:
        if name.startswith("all_reduce"):
            ms[name] = [each / _CHAINED for each in ms[name]]
    found = {
        "ms": ms,
        "restart_s": restart_s,
        "checkpoint_s": {n: each.checkpoint_s(Path(folder)) for n, each in subjects.items()},
        "bucket_bytes": {name: subject.bucket_bytes for name, subject in subjects.items()},
    }
    if distributed.rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    distributed.barrier()


def _measured(
    runs: dict[str, Run], seconds: float, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Returns milliseconds of alternating runs: other load on the machine slows down all of them.

    All ranks do the same number of runs: otherwise one would wait for another in a collective.
    """
    firsts = []
    for run in runs.values():
        run()
        firsts.append(_timed(run, clock))
    ms_of_sample = seconds * 1e3 / len(runs) / _SAMPLES
    wanted = json.dumps([max(2, min(200, round(ms_of_sample / first))) for first in firsts])
    counts = json.loads(job.current().exchange(wanted)[0])
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_SAMPLES):
        for (name, run), count in zip(runs.items(), counts):
            distributed.barrier()
            run()
            found[name] += [_timed(run, clock) for _ in range(count)]
    return found


def _timed(run: Run, clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return (clock() - start) * 1e3


def _all_reduce(size: int) -> Run:
    """Returns a run of consecutive all-reduces of ``size`` bytes, each of scaled data."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        data = paddle.zeros([size // 4])
        for _ in range(_CHAINED):
            data = data * 0.5  # as in a step: in other memory, which is not cached
            paddle.distributed.all_reduce(data)
        first = data[:1]
    executor = paddle.static.Executor(paddle.CPUPlace())
    return lambda: executor.run(program, fetch_list=[first])


class Steps:
    """A network that trains, as a rank of the job runs it.

    Args:
        name: Name in ``works.TRAINING``; the batch is that of each rank.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._alone = paddle_models.built(*paddle_models.trained(name))
        made = distribution_transpiler.transpile(
            self._alone.train, max(2, distributed.ranks()), [self._alone.loss], _OPTIONS
        )
        self._distributed, self._fetches = made.program, made.fetches
        self._scope, self._executor = paddle_models.started(self._alone.startup)
        (self._feed, *_) = works.TRAINING[name].feeds()
        paddle_ngraph.enable()
        self._prepare(made.startup)

    def _prepare(self, startup: Any) -> None:
        if distributed.ranks() > 1:
            self._executor.run(startup, scope=self._scope)
            distributed.prepare(
                self._executor, self._distributed, self._feed, self._fetches, self._scope
            )

    @property
    def bucket_bytes(self) -> list[int]:
        """Returns the bytes of each bucket of gradients."""
        return [sum(4 * prod(g.value.shape) for g in bucket) for bucket in self._buckets()]

    def _buckets(self) -> list[list[ParameterGradient]]:
        program: Any = self._alone.train
        training = TrainingProgram(program)
        return list(distribution_transpiler.gradient_buckets(training, _OPTIONS))

    def runs(self) -> dict[str, Run]:
        """Returns the runs to measure."""
        return {"step": self._running(*self._step)}

    def checkpoint_s(self, folder: Path) -> float:
        """Returns the seconds of a checkpoint."""
        start = time.perf_counter()
        distributed.checkpoint(self._step[0], 1, folder / self._name, self._scope)
        return time.perf_counter() - start

    @property
    def _step(self) -> tuple[Any, list[Any]]:
        """Returns the program of a rank, and its fetches."""
        if distributed.ranks() > 1:
            return self._distributed, self._fetches
        return self._alone.train, [self._alone.loss]

    def _running(self, program: Any, fetches: list[Any]) -> Run:
        return lambda: self._executor.run(
            program, feed=self._feed, fetch_list=fetches, scope=self._scope
        )


class Parts(Steps):
    """A network without other ranks: a step with and without buckets, and prefixes of the step."""

    def _prepare(self, startup: Any) -> None:
        """Does nothing: there is no communication with other ranks."""

    def runs(self) -> dict[str, Run]:
        network = self._alone
        complete = accumulate([[g.value for g in each] for each in self._buckets()], initial=[])
        beginnings = [_beginning(network, gradients) for gradients in complete]
        alone, fetches = first_run.single_rank_program(self._distributed, self._fetches)
        return {
            **{f"beginning {n}": self._running(*each) for n, each in enumerate(beginnings)},
            "whole": self._running(network.train, [network.loss]),
            "packed": self._running(alone, fetches),
        }


def _beginning(network: Network, gradients: list[Any]) -> tuple[Any, list[Any]]:
    """Returns the prefix of a program with the loss and some gradients, and its fetches."""
    program, fetching = ngraph_transpiler.copied(network.train, [network.loss, *gradients])
    cutting.keep(program.global_block(), cutting.ancestors(fetching))
    return program, ngraph_transpiler.remove_fetches(program, fetching)


if __name__ == "__main__":
    main(*sys.argv[1:])
