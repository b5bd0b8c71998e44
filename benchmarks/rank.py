"""One rank of the job that ``benchmarks.ranks`` starts: measures, and rank 0 writes what it found.

What is measured before the steps is measured by all ranks at once, on all cores of the machine, so
that they share its memory as they do in a step, and wait for each other only between measurements.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paddle

import paddle_ngraph
from benchmarks import paddle_models, works
from benchmarks.worker import PeerError
from demos.networks import Network
from paddle_ngraph import distributed
from paddle_ngraph.distributed import first_run, job
from paddle_ngraph.paddle_seam.names import make_gloo_context, new_store
from paddle_ngraph.transpiler import cutting, distribution_transpiler, ngraph_transpiler
from paddle_ngraph.transpiler.training_program import TrainingProgram

BUCKET_MB = 5.0
SIZES = (2**12, 2**16, 2**20, 2**22, 10 * 2**20)  # bytes of an all-reduce
_CHAINED = 4  # all-reduces of a run: what a run costs besides is divided by it
_OPTIONS = distribution_transpiler.Options(bucket_mb=BUCKET_MB)


def main(folder: str, started: str, cores: str, seconds: str, models: str) -> None:
    """A rank.

    Args:
        folder: Where rank 0 writes ``found.json``.
        started: When the job was started, in seconds since the epoch.
        cores: How many the machine has.
        seconds: How long each measurement is to take.
        models: Names in ``works.TRAINING``, with commas.
    """
    paddle.enable_static()
    distributed.init(seed=0)
    if distributed.ranks() == 1:  # a job of one rank has no gloo context of its own
        make_gloo_context(new_store("127.0.0.1", _free_port(), True, 0), str(job.ALONE), 0, 1)
    measure = Clock(float(seconds))
    found: dict[str, Any] = {"models": {}}
    for name in models.split(","):
        subject = Subject(name)
        found.setdefault("restart_s", time.time() - float(started))
        found["models"][name] = subject.measured(measure, int(cores), Path(folder))
    if distributed.ranks() > 1:
        found["all_reduce"] = {size: measure(_all_reduce(size)) / _CHAINED for size in SIZES}
    if distributed.rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    distributed.barrier()


class Clock:
    """Measures runs: the same number of them on each rank, or one would wait for another.

    Args:
        seconds: About how long a measurement takes.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def times(self, run: Callable[[], object]) -> list[float]:
        """The milliseconds of each of some runs."""
        run()
        first = _timed(run)
        wanted = max(5, min(500, round(self._seconds * 1e3 / first)))
        count = int(job.current().exchange(str(wanted))[0])
        return [_timed(run) for _ in range(count)]

    def __call__(self, run: Callable[[], object]) -> float:
        """The median milliseconds of a run."""
        return statistics.median(self.times(run))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _all_reduce(size: int) -> Callable[[], object]:
    """A run of some all-reduces of so many bytes, one after the other."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        data = paddle.zeros([size // 4])
        for _ in range(_CHAINED):
            paddle.distributed.all_reduce(data)
        first = data[:1]
    executor = paddle.static.Executor(paddle.CPUPlace())
    return lambda: executor.run(program, fetch_list=[first])


class Subject:
    """A network that trains.

    Args:
        name: Of ``works.TRAINING``; the batch is that of each rank.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        layout, inputs, make_optimizer = paddle_models.trained(name)
        self._alone = paddle_models.built(layout, inputs, make_optimizer)
        ranks = distributed.ranks()
        made = distribution_transpiler.transpile(
            self._alone.train, max(2, ranks), [self._alone.loss], _OPTIONS
        )
        self._distributed, self._fetches = made.program, made.fetches
        self._scope, self._executor = paddle_models.started(self._alone.startup)
        (self._feed, *_) = works.TRAINING[name].feeds()
        paddle_ngraph.enable()
        if ranks > 1:
            self._executor.run(made.startup, scope=self._scope)
            distributed.prepare(
                self._executor, self._distributed, self._feed, self._fetches, self._scope
            )

    def measured(self, measure: Clock, cores: int, folder: Path) -> dict[str, Any]:
        """What ``benchmarks.ranks`` needs of it."""
        found: dict[str, Any] = {}
        ranks = distributed.ranks()
        if ranks <= cores:
            found = self._intervals(measure)
        program, fetches = (
            (self._distributed, self._fetches)
            if ranks > 1
            else (self._alone.train, [self._alone.loss])
        )
        before = paddle_ngraph.stats()["engine_runs"]
        found["step_ms"] = measure(self._running(program, fetches))
        if paddle_ngraph.stats()["engine_runs"] == before:
            raise PeerError("the engine did not run")
        start = time.perf_counter()
        distributed.checkpoint(program, 1, folder / self._name, self._scope)
        found["checkpoint_s"] = time.perf_counter() - start
        return found

    def _intervals(self, measure: Clock) -> dict[str, Any]:
        """What a step takes up to the end of the forward pass, and of each bucket; and in all."""
        network: Network = self._alone
        program: Any = network.train
        training = TrainingProgram(program)
        buckets = list(distribution_transpiler.gradient_buckets(training, _OPTIONS))
        complete = accumulate([[g.value for g in bucket] for bucket in buckets], initial=[])
        beginnings = [_beginning(network, gradients) for gradients in complete]
        alone, mapping = first_run.alone(self._distributed)
        fetches = [mapping.look_up(value) for value in self._fetches]
        times = measure.times(self._running(network.train, [network.loss]))
        return {
            "bucket_bytes": [sum(4 * prod(g.value.shape) for g in bucket) for bucket in buckets],
            "beginnings_ms": [measure(self._running(*beginning)) for beginning in beginnings],
            "whole_ms": times,
            "packed_ms": measure(self._running(alone, fetches)),
        }

    def _running(self, program: Any, fetches: list[Any]) -> Callable[[], object]:
        return lambda: self._executor.run(
            program, feed=self._feed, fetch_list=fetches, scope=self._scope
        )


def _beginning(network: Network, gradients: list[Any]) -> tuple[Any, list[Any]]:
    """The part of a program that computes the loss and some gradients, and what it fetches."""
    program, fetching = ngraph_transpiler.copied(network.train, [network.loss, *gradients])
    cutting.keep(program.global_block(), cutting.ancestors(fetching))
    return program, ngraph_transpiler.taken_out(program, fetching)


if __name__ == "__main__":
    main(*sys.argv[1:])
