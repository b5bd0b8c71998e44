"""Memory of processes that do everything at once, for a long time.

python -m tests.soak --minutes 60 --processes 4 --output docs/operations/soak.svg

Each process trains, infers, creates and drops programs, predictors and layers, with 2,000 sizes,
more functions than the cache holds, models that are swapped, forked children, and a server of
forked workers. In the end its resident memory, and the bytes of the engine's pool, are at most a
tenth above those after the first tenth of the time. What Paddle itself never frees is freed: the
call stacks of all operators of programs, and the interpreters of programs of ``to_static``
(``tests/paddle_faults/``).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import paddle
from paddle import nn

import paddle_ngraph
from tests import freed_call_stacks, leaks
from tests.programs import Program, floats, parameter

SIZES = 2000
MODELS = 8
CACHED_FUNCTIONS = 24
GROWTH = 1.10
SAMPLE_SECONDS = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")
# Bytes by which the allocator and Python may vary, whatever the duration.
SLACK = 24 << 20

Step = Callable[[random.Random], None]


@dataclass(frozen=True)
class Sample:
    """A measurement of a process.

    Attributes:
        seconds: Since its start.
        resident: Resident memory in bytes.
        live: Bytes of the engine's pool that are in use.
        steps: Steps of all activities so far.
        engine_runs: Runs of the engine so far.
    """

    seconds: float
    resident: int
    live: int
    steps: int
    engine_runs: int


def _sample(begin: float, steps: int) -> Sample:
    stats = paddle_ngraph.stats()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    seconds = round(time.monotonic() - begin, 2)
    return Sample(seconds, resident, stats["pool_bytes_live"], steps, stats["engine_runs"])


# -- activities ----------------------------------------------------------------------------------


def _convolution() -> Any:
    x = paddle.static.data("x", [-1, 4, -1], "float32")
    return nn.functional.relu(nn.functional.conv1d(x, parameter(8, 4, 3))).mean([2])


def _training() -> Step:
    program = Program(lambda: leaks._training_network(1.0))
    return lambda draw: program.run_as_is(x=floats(draw.choice([1, 8, 64]), 8))


def _sizes() -> Step:
    program = Program(_convolution)

    def step(draw: random.Random) -> None:
        length = 3 + draw.randrange(SIZES)
        program.run_as_is(x=floats(draw.choice([1, 2]), 4, length))

    return step


def _swapped_models(folder: Path) -> Step:
    paths = [str(folder / f"model{number}") for number in range(MODELS)]
    for number, path in enumerate(paths):
        leaks.save(path, 1.0 + number)

    def step(draw: random.Random) -> None:
        leaks.predict(draw.choice(paths), runs=1)

    return step


def _forked(work: Callable[[], object]) -> int:
    """The id of a forked process that does some work, and ends."""
    gc.freeze()  # or a collection in the child would drop executors of the parent, and crash
    child = os.fork()
    if child != 0:
        gc.unfreeze()
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def _require_end(child: int) -> None:
    _, ended = os.waitpid(child, 0)
    assert ended == 0, f"a forked process has ended with {ended}"


def _forks() -> Step:
    program = Program(lambda: leaks._network(3.0))
    program.run_as_is(x=floats(3, 8))

    def step(_draw: random.Random) -> None:
        _require_end(_forked(lambda: program.run_as_is(x=floats(3, 8))))

    return step


class _Server:
    """Forked workers that answer requests until each has answered some, as prefork servers do."""

    WORKERS = 2
    REQUESTS_OF_A_WORKER = 40

    def __init__(self) -> None:
        self.program = Program(lambda: leaks._network(5.0))
        self.program.run_as_is(x=floats(3, 8))
        self.workers: list[tuple[int, Connection, int]] = []

    def _answer(self, requests: Connection) -> None:
        for _ in range(self.REQUESTS_OF_A_WORKER):
            requests.send(self.program.run_as_is(x=requests.recv())[0].tolist())

    def _fork(self) -> tuple[int, Connection, int]:
        ours, theirs = Pipe()
        others = [connection for _, connection, _ in self.workers]

        def work() -> None:
            for connection in (*others, ours):
                connection.close()
            with contextlib.suppress(EOFError):  # the server has ended
                self._answer(theirs)

        child = _forked(work)
        theirs.close()
        return child, ours, self.REQUESTS_OF_A_WORKER

    def request(self, draw: random.Random) -> None:
        """Sends a request to one of the workers, and compares its answer with the parent's own."""
        if len(self.workers) < self.WORKERS:
            self.workers.append(self._fork())
        child, connection, left = self.workers.pop(draw.randrange(len(self.workers)))
        x = floats(1 + draw.randrange(64), 8)
        try:
            connection.send(x)
            answer = connection.recv()
        except (EOFError, BrokenPipeError):
            _require_end(child)
            raise
        np.testing.assert_allclose(answer, self.program.run_as_is(x=x)[0], rtol=1e-5)
        if left > 1:
            self.workers.append((child, connection, left - 1))
            return
        connection.close()
        _require_end(child)

    def close(self) -> None:
        """Ends the workers."""
        for child, connection, _ in self.workers:
            connection.close()
            _require_end(child)
        self.workers.clear()


def _dynamic_layers() -> Step:
    layer = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = paddle.optimizer.SGD(0.01, parameters=layer.parameters())

    def step(draw: random.Random) -> None:
        x = paddle.to_tensor(floats(1 + draw.randrange(200), 8))
        if draw.random() < 0.5:
            with paddle.no_grad():
                layer(x)
            return
        layer(x).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def _life(kind: str, number: list[int]) -> Step:
    def step(_draw: random.Random) -> None:
        number[0] += 1
        leaks.LIVES[kind](True, number[0] % 64)

    return step


# -- a process -----------------------------------------------------------------------------------


def soak(seconds: float, seed: int, write: Callable[[Sample], None]) -> None:
    """Does all activities in random order, and passes a sample on every second."""
    paddle.set_flags(
        {"FLAGS_ngraph_cache_size": CACHED_FUNCTIONS, "FLAGS_ngraph_min_interval_us": 0}
    )
    freed_call_stacks.install()
    faulthandler.enable()  # after the import of Paddle, which has handlers of its own
    draw, number = random.Random(seed), [0]
    with tempfile.TemporaryDirectory() as folder:
        paddle.enable_static()
        paddle_ngraph.enable(dynamic="training")
        server = _Server()
        static = [_training(), _sizes(), _sizes(), _swapped_models(Path(folder)), _forks()]
        static += [server.request, server.request]
        static += [_life(kind, number) for kind in sorted(leaks.PROGRAMS)]
        paddle.disable_static()
        dynamic = [_dynamic_layers()] * 4
        dynamic += [_life(kind, number) for kind in leaks.LIVES if kind not in leaks.PROGRAMS]
        begin = time.monotonic()
        steps, next_sample = 0, 0.0
        while time.monotonic() - begin < seconds:
            paddle.enable_static() if draw.random() < 0.6 else paddle.disable_static()
            activities = dynamic if paddle.in_dynamic_mode() else static
            for _ in range(8):
                draw.choice(activities)(draw)
                steps += 1
            if time.monotonic() - begin >= next_sample:
                next_sample = time.monotonic() - begin + SAMPLE_SECONDS
                gc.collect()
                paddle.base.core.clear_executor_cache()
                write(_sample(begin, steps))
        server.close()


# -- all processes -------------------------------------------------------------------------------


def growth(samples: Sequence[Sample], quantity: Callable[[Sample], float]) -> float:
    """A quantity in the last tenth of the time, relative to its level after the first tenth."""
    end = samples[-1].seconds
    early = [quantity(each) for each in samples if 0.1 * end <= each.seconds <= 0.2 * end]
    late = [quantity(each) for each in samples if each.seconds >= 0.9 * end]
    return median(late) / max(1.0, median(early))


def problems(samples: Sequence[Sample]) -> list[str]:
    """The sentences about a process whose memory grew, or in which the engine did not run."""
    found = []
    if samples[-1].engine_runs == 0:
        found.append("the engine did not run")
    for name, quantity in (
        ("resident memory", lambda each: float(each.resident)),
        ("live bytes of the pool", lambda each: float(each.live)),
    ):
        ratio = growth(samples, lambda each, quantity=quantity: quantity(each) + SLACK)
        if ratio > GROWTH:
            found.append(f"{name} grew {ratio:.2f} times after the first tenth of the time")
    return found


def picture(runs: Sequence[Sequence[Sample]], path: str) -> None:
    """Draws the memory of all processes over time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "soak"
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(8, 5))
    for number, samples in enumerate(runs):
        minutes = np.array([each.seconds for each in samples]) / 60
        upper.plot(minutes, [each.resident / 2**20 for each in samples], label=f"process {number}")
        lower.plot(minutes, [each.live / 2**20 for each in samples])
    upper.set(ylabel="resident memory, MB", ylim=(0, None))
    lower.set(ylabel="live in the pool, MB", xlabel="minutes", ylim=(0, None))
    upper.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def run(minutes: float, processes: int, seed: int = 1) -> list[list[Sample]]:
    """Runs the processes, and returns their samples.

    Raises:
        RuntimeError: One of them has failed.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.soak", "--minutes", str(minutes)]
    with tempfile.TemporaryDirectory() as folder:
        # Files, as a pipe that nobody reads would stop a process when it is full.
        outputs = [Path(folder) / str(number) for number in range(processes)]
        started = []
        for number, output in enumerate(outputs):
            with output.open("w") as file:
                worker = [*command, "--worker", str(seed + number)]
                started.append(subprocess.Popen(worker, stdout=file))
        for number, process in enumerate(started):
            if process.wait() != 0:
                raise RuntimeError(f"process {number} has ended with {process.returncode}")
        return [_samples(output.read_text()) for output in outputs]


def _samples(text: str) -> list[Sample]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [Sample(**json.loads(line)) for line in lines]


def main() -> int:
    """Runs the processes, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--output", help="a picture (.svg)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=int, help="be a process, with this seed")
    options = parser.parse_args()
    if options.worker is not None:
        write = lambda sample: print(json.dumps(vars(sample)), flush=True)  # noqa: E731
        soak(60 * options.minutes, options.worker, write)
        return 0
    runs = run(options.minutes, options.processes, options.seed)
    status = 0
    for number, samples in enumerate(runs):
        last = samples[-1]
        print(
            f"process {number}: {last.steps} steps, {last.engine_runs} runs of the engine, "
            f"{last.resident / 2**20:.0f} MB resident "
            f"({growth(samples, lambda each: each.resident):.3f} of that after the first tenth), "
            f"{last.live / 2**20:.1f} MB live in the pool"
        )
        for sentence in problems(samples):
            status = 1
            print(f"  {sentence}")
    if options.output:
        picture(runs, options.output)
    return status


if __name__ == "__main__":
    sys.exit(main())
