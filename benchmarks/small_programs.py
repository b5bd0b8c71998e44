"""Programs so small that dispatch overhead dominates; runs inside a worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.static import Program

import paddle_ngraph
from benchmarks import functions
from benchmarks.works import Array, Feed
from paddle_ngraph import _core, flags

CHAIN = 32
ELEMENTS = 64
OFTEN = 100  # runs after which the engine takes any program, however small
Variable = Any


def _data(name: str, *shape: int, dtype: str = "float32") -> Variable:
    return paddle.static.data(name, list(shape), dtype)


def _sgd(loss: Variable) -> Variable:
    paddle.optimizer.SGD(0.01).minimize(loss)
    return loss


def _regression_training() -> Variable:
    predicted = nn.Linear(13, 1)(_data("x", 20, 13))
    return _sgd(F.mse_loss(predicted, _data("y", 20, 1)))


def _classifier_training() -> Variable:
    hidden = F.relu(nn.Linear(16, 32)(_data("x", 32, 16)))
    return _sgd(F.cross_entropy(nn.Linear(32, 4)(hidden), _data("label", 32, 1, dtype="int64")))


def _convolution_training() -> Variable:
    maps = F.relu(nn.Conv2D(1, 4, 3)(_data("x", 4, 1, 8, 8)))
    logits = nn.Linear(4, 4)(maps.mean([2, 3]))
    return _sgd(F.cross_entropy(logits, _data("label", 4, 1, dtype="int64")))


def _attention() -> Variable:
    x = _data("x", 1, 8, 16)
    return paddle.matmul(F.softmax(paddle.matmul(x, x, transpose_y=True)), x)


def _normalized_picture() -> Variable:
    x = _data("x", 1, 3, 32, 32)
    return (x / 255.0 - 0.5) / 0.5


def _gated() -> Variable:
    x, h = _data("x", 1, 32), _data("h", 1, 32)
    gate = F.sigmoid(nn.Linear(32, 32)(x) + nn.Linear(32, 32)(h))
    return gate * h + (1 - gate) * paddle.tanh(nn.Linear(32, 32)(x))


PROGRAMS: dict[str, Callable[[], Variable]] = {
    "relu, 64 numbers": lambda: F.relu(_data("x", 64)),
    "sum of two, 10 numbers": lambda: _data("x", 10) + _data("y", 10),
    "scale and shift, 1000 numbers": lambda: _data("x", 1000) * 2.0 + 1.0,
    "softmax, 1 x 10": lambda: F.softmax(_data("x", 1, 10)),
    "mean, 32 x 32": lambda: paddle.mean(_data("x", 32, 32)),
    "argmax, 1 x 1000": lambda: paddle.argmax(_data("x", 1, 1000), axis=1),
    "concat, 2 x 64": lambda: paddle.concat([_data("x", 64), _data("y", 64)]),
    "transpose, 16 x 16": lambda: paddle.transpose(_data("x", 16, 16), [1, 0]),
    "matmul, 8 x 8": lambda: paddle.matmul(_data("x", 8, 8), _data("y", 8, 8)),
    "linear layer, 1 x 13": lambda: nn.Linear(13, 1)(_data("x", 1, 13)),
    "two layers, 1 x 32": lambda: nn.Linear(64, 10)(F.relu(nn.Linear(32, 64)(_data("x", 1, 32)))),
    "layer norm, 4 x 64": lambda: nn.LayerNorm(64)(_data("x", 4, 64)),
    "embedding, 1 x 8": lambda: nn.Embedding(100, 16)(_data("ids", 1, 8, dtype="int64")),
    "convolution, 1 x 8 x 8": lambda: nn.Conv2D(1, 4, 3)(_data("x", 1, 1, 8, 8)),
    "attention, 8 x 16": _attention,
    "normalized picture, 3 x 32 x 32": _normalized_picture,
    "gated unit, 1 x 32": _gated,
    "training, linear regression": _regression_training,
    "training, two layers": _classifier_training,
    "training, convolution": _convolution_training,
}


class _Runnable:
    """A program with a scope for each variant, both initialized from one seed."""

    def __init__(self, build: Callable[[], Variable]) -> None:
        self.program, startup = Program(), Program()
        with paddle.static.program_guard(self.program, startup), paddle.utils.unique_name.guard():
            self._fetch = build()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._scopes = {}
        for engine in (False, True):
            paddle.seed(0)
            self._scopes[engine] = paddle.static.Scope()
            with paddle_ngraph.use_ngraph(False):
                self._executor.run(startup, scope=self._scopes[engine])
        self._feed = _feed(self.program)

    def run(self, engine: bool) -> Array:
        (result,) = self._executor.run(
            self.program,
            feed=self._feed,
            fetch_list=[self._fetch],
            scope=self._scopes[engine],
        )
        return np.asarray(result)

    def median_us(self, engine: bool, seconds: float) -> float:
        times: list[float] = []
        with paddle_ngraph.use_ngraph(engine):
            self.run(engine)
            while sum(times) < seconds:
                start = time.perf_counter()
                self.run(engine)
                times.append(time.perf_counter() - start)
        return 1e6 * statistics.median(times)


def _feed(program: Any) -> Feed:
    generator = np.random.default_rng(0)
    feed: Feed = {}
    for op in program.global_block().ops:
        if op.name() == "pd_op.data" and not any(op.attrs().get("persistable", ())):
            value = op.results()[0]
            if "int" in str(value.dtype).lower():
                feed[op.attrs()["name"]] = generator.integers(0, 4, value.shape)
            else:
                feed[op.attrs()["name"]] = generator.standard_normal(value.shape, "float32")
    return feed


class Prepared:
    """All of ``PROGRAMS``, after enough runs that the engine has taken over its operators."""

    def __init__(self) -> None:
        paddle.enable_static()
        self._runnables = {name: _Runnable(build) for name, build in PROGRAMS.items()}
        with paddle_ngraph.use_ngraph(True):
            for runnable in self._runnables.values():
                for _ in range(OFTEN):
                    runnable.run(True)

    def medians_us(self, seconds: float) -> dict[str, float]:
        """Returns the engine's time of one run, in microseconds, by program."""
        return {name: each.median_us(True, seconds) for name, each in self._runnables.items()}


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Times each of ``PROGRAMS``, by Paddle and through the engine in alternation.

    Raises:
        ValueError: Their results differ.
    """
    paddle.enable_static()
    return [_measure(name, _Runnable(build), rounds, seconds) for name, build in PROGRAMS.items()]


def _measure(name: str, runnable: _Runnable, rounds: int, seconds: float) -> dict[str, Any]:
    with paddle_ngraph.use_ngraph(False):
        expected = runnable.run(False)
    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph(True):
        found = runnable.run(True)
    if not np.allclose(found, expected, rtol=1e-4, atol=1e-5):
        raise ValueError(f"{name}: the engine's result is wrong")
    in_first = paddle_ngraph.stats()["engine_runs"]
    samples = [
        (runnable.median_us(False, seconds), runnable.median_us(True, seconds))
        for _ in range(rounds)
    ]
    return {
        "name": name,
        "native_us": statistics.median(native for native, _ in samples),
        "engine_us": statistics.median(engine for _, engine in samples),
        "ratio": statistics.median(native / engine for native, engine in samples),
        "engine_in_first_run": in_first > 0,
        "engine_runs": paddle_ngraph.stats()["engine_runs"],
    }


def engine_operator(repeats: int) -> dict[str, float]:
    """Returns microseconds of an engine operator, its function and event, and one of Paddle."""
    paddle.enable_static()
    flags.set("ngraph_min_interval_us", 0)  # otherwise a single operator falls back to Paddle
    native = [_Chain(length, None) for length in (1, CHAIN + 1)]
    function = functions.only_function(native[0].run, None, native[0].feed, False)
    engine = [_Chain(length, function.graph) for length in (1, CHAIN + 1)]
    request = function.request()
    times: dict[str, list[float]] = {"operator_us": [], "native_us": [], "function_us": []}
    # The chain contains engine operators already; run it in this thread, as the hook does.
    in_this_thread = _core.FlagOverride("enable_pir_in_executor_trace_run")
    with paddle_ngraph.use_ngraph(False), in_this_thread:
        for _ in range(repeats):
            times["operator_us"].append(_seconds_each(*engine))
            times["native_us"].append(_seconds_each(*native))
            times["function_us"].append(_seconds(lambda: _repeat(request.infer)) / CHAIN)
    event_ns = min(_core.measure_event_ns(1_000_000) for _ in range(5))
    return {
        **{name: 1e6 * statistics.median(seconds) for name, seconds in times.items()},
        "event_us": event_ns / 1e3,
    }


class _Chain:
    """A chain of equal operators: relu, or the engine operator of a ``graph``."""

    def __init__(self, length: int, graph: str | None) -> None:
        self.feed = {"x": np.ones(ELEMENTS, "float32")}
        self._program = Program()
        with paddle.static.program_guard(self._program, Program()):
            value = _data("x", ELEMENTS)
            like = F.relu(value) if graph else None
            for _ in range(length):
                value = self._engine_operator(value, like, graph) if graph else F.relu(value)
        self._fetch = value
        self._executor = paddle.static.Executor(paddle.CPUPlace())

    def _engine_operator(self, value: Variable, like: Variable, graph: str) -> Variable:
        block = self._program.global_block()
        return _core.insert_ngraph_engine(block, None, [value], [], [like], graph, [0, 1])[0]

    def run(self, feed: Feed) -> Array:
        (result,) = self._executor.run(self._program, feed=feed, fetch_list=[self._fetch])
        return np.asarray(result)


def _seconds_each(one: _Chain, many: _Chain) -> float:
    """Returns the seconds per operator, from the difference of a long and a short chain."""
    long = _seconds(lambda: many.run(many.feed))
    return (long - _seconds(lambda: one.run(one.feed))) / CHAIN


def _repeat(function: Callable[[], Any]) -> None:
    for _ in range(CHAIN):
        function()


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
