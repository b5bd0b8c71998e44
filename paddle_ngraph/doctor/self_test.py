"""A self-test of two seconds: small programs by the engine, compared with native Paddle."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import api, flags
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils import clock

# Float32 results of few operators with values near 1.
_TOLERANCE = 1e-4
_PAIRS = 9
_SEED = 7
_BATCH = 8


@dataclass(frozen=True)
class SelfTest:
    """One program of the self-test.

    Attributes:
        name: The kind of program.
        engine_runs: Runs of the engine in it; 0 is a failure.
        difference: The largest difference of a result from native Paddle's.
        native_ms, engine_ms: Median times of a run, in alternating pairs.
    """

    name: str
    engine_runs: int
    difference: float
    native_ms: float
    engine_ms: float

    @property
    def passed(self) -> bool:
        """Whether the engine ran, and its results are native Paddle's within rounding."""
        return self.engine_runs > 0 and self.difference <= _TOLERANCE

    def as_dict(self) -> dict[str, Any]:
        """Returns the outcome as data for JSON."""
        return {**asdict(self), "passed": self.passed}


def self_tests() -> list[SelfTest]:
    """Runs the programs: convolutions, a recurrent layer, attention, and a training step."""
    return [_tested(name, *make()) for name, make in _PROGRAMS.items()]


Program = tuple[Any, Any, dict[str, np.ndarray], list[Any]]


def _program(shape: Sequence[int], build: Callable[[Any], Any], trains: bool = False) -> Program:
    """A program with one input, its startup program, its feed, and its results."""
    with paddle.pir_utils.IrGuard():
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", list(shape), "float32")
            result = build(x)
            if trains:
                result = result.mean()
                paddle.optimizer.SGD(0.01).minimize(result)
    feed = {"x": np.random.default_rng(_SEED).standard_normal(shape).astype("float32")}
    return main, startup, feed, [result]


def _convolutions(x: Any) -> Any:
    for channels in (16, 32, 32):
        x = paddle.nn.functional.relu(paddle.nn.Conv2D(x.shape[1], channels, 3, padding=1)(x))
    return x.mean([2, 3])


def _recurrent(x: Any) -> Any:
    return paddle.nn.LSTM(x.shape[-1], 64)(x)[0]


def _attention(x: Any) -> Any:
    width = x.shape[-1]
    query, key, value = (paddle.nn.Linear(width, width)(x) for _ in range(3))
    scores = paddle.matmul(query, key, transpose_y=True) / width**0.5
    return paddle.matmul(paddle.nn.functional.softmax(scores), value)


def _perceptron(x: Any) -> Any:
    hidden = paddle.nn.functional.relu(paddle.nn.Linear(x.shape[-1], 256)(x))
    return paddle.nn.Linear(256, 1)(hidden) ** 2


_PROGRAMS: dict[str, Callable[[], Program]] = {
    "convolutions": partial(_program, [_BATCH, 3, 32, 32], _convolutions),
    "recurrent layer": partial(_program, [_BATCH, 25, 64], _recurrent),
    "attention": partial(_program, [_BATCH, 64, 128], _attention),
    "training step": partial(_program, [64, 256], _perceptron, trains=True),
}


def _tested(
    name: str, main: Any, startup: Any, feed: dict[str, np.ndarray], fetches: list[Any]
) -> SelfTest:
    """Runs a program on two scopes with equal parameters: natively, and by the engine."""
    executor = paddle.static.Executor(paddle.CPUPlace())
    scopes = {engine: paddle.static.Scope() for engine in (False, True)}
    results: dict[bool, list[np.ndarray]] = {False: [], True: []}
    times: dict[bool, list[float]] = {False: [], True: []}
    state = paddle.get_rng_state()

    def run(engine: bool) -> None:
        with api.use_ngraph(engine), paddle.pir_utils.IrGuard():
            begin = clock.now()
            found = executor.run(main, feed=feed, fetch_list=fetches, scope=scopes[engine])
            times[engine].append(clock.now() - begin)
            results[engine].append(found[0])

    interval = flags.get("ngraph_min_interval_us")
    try:
        flags.set("ngraph_min_interval_us", 0)
        for scope in scopes.values():
            paddle.seed(_SEED)
            with api.use_ngraph(False), paddle.pir_utils.IrGuard():
                executor.run(startup, scope=scope)
        before = api.stats()["engine_runs"]
        with background_compile.compile_synchronously():
            for number in range(2 * _PAIRS):
                run(engine=bool(number % 2))
        runs = api.stats()["engine_runs"] - before
    finally:
        flags.set("ngraph_min_interval_us", interval)
        paddle.set_rng_state(state)
    difference = max(float(np.abs(a - b).max()) for a, b in zip(results[False], results[True]))
    # The first pair compiles.
    native, engine = (1e3 * statistics.median(times[each][1:]) for each in (False, True))
    return SelfTest(name, runs, difference, round(native, 3), round(engine, 3))
