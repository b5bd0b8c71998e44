"""Subgraphs without a dynamic function that run on ever new shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.partitioning import fallback
from tests.programs import Program, at_once, counted, fed_limit, floats, parameter, strict_runs
from tests.zips import zip_equal

WIDTH = 6
OWN = 16  # number of first shapes that get functions


@pytest.fixture(autouse=True)
def fresh(small_intervals_pay: None) -> Iterator[None]:
    paddle_ngraph.clear_cache()
    yield
    paddle_ngraph.clear_cache()


def samples(h: Any, w: Any) -> Any:
    return paddle.matmul(h, w) + paddle.uniform([1], min=0.0, max=1.0) * 0.0


def sorts(h: Any, w: Any) -> Any:
    """The core's sort operator has a static size."""
    return paddle.sort(paddle.matmul(h, w), axis=1) * 0.5


def built(
    program: Program, native: list[np.ndarray] | None = None, **feed: np.ndarray
) -> tuple[int, int, int]:
    """Returns the counts of functions built, engine runs and fallback runs.

    ``native``: the results of plain Paddle for the same feed, if available.
    """
    native = native or program.run(engine=False, **feed)
    paddle_ngraph.reset_stats()
    found = program.run(**feed)
    for expected, actual in zip_equal(native, found):
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    stats = paddle_ngraph.stats()
    return stats["functions_built"], stats["engine_runs"], stats["native_runs"]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("reads", [samples, sorts])
def test_a_loop_that_falls_back_builds_few_functions(reads: Callable) -> None:
    program = growing(reads)
    iterations = 40
    feed = {"x": floats(2, 3, WIDTH), "limit": np.array([iterations])}
    native = program.run(engine=False, **feed)
    program.run(**feed)  # which may show which shapes fall back
    counts = []
    for _ in range(20):
        count, by_engine, by_paddle = built(program, native, **feed)
        assert by_engine + by_paddle >= iterations
        counts.append(count)
    assert max(counts[1:]) <= 8  # a few in each run, until all shapes have functions
    assert counts[-1] == 0 and by_paddle == 0
    assert any(op.type == "pd_op.while" for op in paddle_ngraph.explain(program.main).native)


def growing(reads: Callable) -> Program:
    """A loop that falls back, each iteration of which runs its subgraph on another shape."""

    def build() -> Any:
        x = paddle.static.data("x", [2, -1, WIDTH], "float32")
        w = parameter(WIDTH, WIDTH)

        def body(i: Any, h: Any) -> Any:
            h = paddle.tanh(reads(h, w))
            return [paddle.concat([h, paddle.mean(h, 1, True)], 1)]

        return counted(body, x * 1.0, end=fed_limit())

    return Program(build)


def of_one_subgraph(reads: Callable) -> Program:
    def build() -> Any:
        x = paddle.static.data("x", [2, -1, WIDTH], "float32")
        return paddle.tanh(reads(x, parameter(WIDTH, WIDTH)))

    return Program(build)


@pytest.mark.parametrize("reads", [samples, sorts])
def test_frequent_shapes_have_a_function(reads: Callable) -> None:
    program = of_one_subgraph(reads)
    for length in range(2, 2 + OWN):
        assert built(program, x=floats(2, length, WIDTH))[1:] == (1, 0)
    rare, often = floats(2, 100, WIDTH), floats(2, 101, WIDTH)
    assert built(program, x=rare) == (0, 0, 1)
    found = [built(program, x=often) for _ in range(8)]
    assert found[0] == (0, 0, 1) and found[-1] == (0, 1, 0)
    assert sum(count for count, _, _ in found) == 1
    assert built(program, x=floats(2, 3, WIDTH)) == (0, 1, 0)


def samples_twice(h: Any, w: Any) -> Any:
    return samples(h, w) + paddle.uniform([1])


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("step", ["made", "run"])
@pytest.mark.parametrize("reads", [samples_twice, sorts])
def test_shapes_that_paddle_cannot_run_are_built(reads: Callable, step: str, monkeypatch) -> None:
    """Shapes that occur for the first time run in the engine as well."""
    program = of_one_subgraph(reads)
    for length in range(2, 2 + OWN):
        program.run(x=floats(2, length, WIDTH))

    def counts() -> tuple[int, int, int]:
        stats = paddle_ngraph.stats()
        return stats["functions_built"], stats["engine_runs"], stats["native_runs"]

    def fail(*_: Any) -> None:
        paddle.base.core.default_cpu_generator().random()
        raise RuntimeError("no such kernel")

    x = floats(2, 100, WIDTH)
    paddle.seed(5)
    expected = [program.run(engine=False, x=x)[0] for _ in range(2)]
    method = {"made": "__init__", "run": "run"}[step]
    with monkeypatch.context() as patch:
        patch.setattr(fallback.FallbackProgram, method, fail)
        fallback._idle_programs.clear()
        paddle_ngraph.reset_stats()
        paddle.seed(5)
        for values in expected:
            np.testing.assert_allclose(program.run(x=x)[0], values, rtol=2e-5, atol=1e-5)
    assert counts() == (1, 2, 0)
    program.run(x=floats(2, 101, WIDTH))
    assert counts() == (1, 2, 1)


@pytest.mark.slow("compiles many or large functions")
def test_shapes_of_one_function_never_fall_back() -> None:
    program = of_one_subgraph(lambda h, w: paddle.matmul(h, w))
    for length in range(2, 60):
        assert built(program, x=floats(2, length, WIDTH))[1:] == (1, 0)


@pytest.mark.slow("compiles many or large functions")
def test_a_strict_run_builds_its_function() -> None:
    program = of_one_subgraph(sorts)
    with strict_runs():
        for length in range(2, 8 + OWN):
            assert built(program, x=floats(2, length, WIDTH)) == (1, 1, 0)


@pytest.mark.slow("compiles many or large functions")
def test_strictness_is_read_at_the_start_of_a_run() -> None:
    """Another thread sets the flag."""
    program = of_one_subgraph(sorts)
    for length in range(2, 2 + OWN):
        program.run(x=floats(2, length, WIDTH))
    x = floats(2, 100, WIDTH)
    expected = program.run(engine=False, x=x)[0]

    def work(number: int) -> None:
        if number == 0:
            np.testing.assert_allclose(program.run(x=x)[0], expected, rtol=2e-5, atol=1e-5)
            return
        try:
            until = time.monotonic() + 60
            while _core.num_blocked_threads() == 0 and time.monotonic() < until:
                time.sleep(0.01)
            assert _core.num_blocked_threads() == 1
            paddle.set_flags({"FLAGS_ngraph_strict": False})
        finally:
            _core.fail_at("")

    _core.fail_at("data", blocks=True)
    paddle_ngraph.reset_stats()
    with strict_runs():
        at_once(work, 2)
    assert paddle_ngraph.stats()["native_runs"] == 1


@pytest.mark.slow("compiles many or large functions")
def test_shapes_with_unchecked_indices_are_built() -> None:
    """Paddle's kernel writes out of bounds for such indices."""

    def build() -> Any:
        x = paddle.static.data("x", [2, -1, WIDTH], "float32")
        place = paddle.static.data("place", [1], "int64")
        found = sorts(x, parameter(WIDTH, WIDTH))
        return paddle.index_put(found, (place,), paddle.mean(found, 0))

    program = Program(build)
    for length in range(2, 8 + OWN):
        feed = {"x": floats(2, length, WIDTH), "place": np.array([1])}
        assert built(program, **feed) == (1, 1, 0)


@pytest.mark.slow("runs several threads for a while")
def test_concurrent_runs_use_the_function_of_a_single_run() -> None:
    """Without a function for runs that share the threads, no run falls back."""
    width = 128

    def build() -> Any:
        h = paddle.static.data("x", [1, -1, width], "float32")
        for number in range(3):
            h = paddle.tanh(paddle.matmul(h, parameter(width, width, seed=number)) * 0.1)
        return paddle.sort(h, axis=1)

    program = Program(build)
    feeds = [floats(1, length, width, seed=length) for length in range(200, 200 + OWN)]
    expected = [program.run(engine=False, x=x)[0] for x in feeds]
    for x in feeds:
        assert built(program, x=x) == (1, 1, 0)
    scopes = [paddle.static.Scope() for _ in range(8)]
    with paddle_ngraph.use_ngraph(False):
        for scope in scopes:
            program.executor.run(program.startup, scope=scope)
    executors = [paddle.static.Executor(paddle.CPUPlace()) for _ in scopes]

    def work(number: int) -> None:
        for place in np.random.default_rng(number).permutation(OWN * 3) % OWN:
            (found,) = executors[number].run(
                program.main, {"x": feeds[place]}, program.fetches, scope=scopes[number]
            )
            np.testing.assert_allclose(found, expected[place], rtol=1e-4, atol=1e-5)

    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph(True):
        at_once(work, len(scopes))
    stats = paddle_ngraph.stats()
    assert (stats["engine_runs"], stats["native_runs"]) == (len(scopes) * OWN * 3, 0)


@pytest.mark.slow("compiles many or large functions")
def test_functions_beyond_the_limit_are_not_loaded_in_each_run(tmp_path: Path) -> None:
    """Functions on disk are loaded as shapes come, once; then shapes have to recur often."""
    tmp_path.chmod(0o700)
    names = ("cache_dir", "cache_min_ms", "cache_size")
    before = paddle.get_flags([f"FLAGS_ngraph_{name}" for name in names])
    iterations, room = 32, 16
    program = growing(lambda h, w: paddle.sort(h, axis=1) * 0.5)
    feed = {"x": floats(2, 3, WIDTH), "limit": np.array([iterations])}
    native = program.run(engine=False, **feed)
    try:
        paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path), "FLAGS_ngraph_cache_min_ms": 0})
        for _ in range(2 * iterations):
            if built(program, native, **feed)[2] == 0:
                break  # all have been built
        paddle_ngraph.clear_cache()
        paddle.set_flags({"FLAGS_ngraph_cache_size": room})
        loaded, by_engine = [], []
        for _ in range(12):
            count, by_functions, _ = built(program, native, **feed)
            loaded.append(count + paddle_ngraph.stats()["functions_loaded"])
            by_engine.append(by_functions)
        assert max(loaded[:3]) >= iterations - room  # as many on disk as shapes
        assert max(loaded[3:]) <= 8 and min(by_engine) > 0
    finally:
        paddle.set_flags(before)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("shapes, room", [(14, 8), (6, 4), (3, 1), (40, 20)])
@pytest.mark.parametrize("reads", [samples, sorts])
def test_functions_beyond_the_limit_are_not_built_in_each_run(reads, shapes, room):
    """Even for few shapes: alternating ones would evict each other forever."""
    program = of_one_subgraph(reads)
    before = paddle.get_flags("FLAGS_ngraph_cache_size")
    paddle.set_flags({"FLAGS_ngraph_cache_size": room})
    try:
        counts, by_engine = [], []
        feeds = [floats(2, length, WIDTH) for length in range(2, 2 + shapes)]
        natives = [program.run(engine=False, x=x) for x in feeds]
        for _ in range(24):
            runs = [built(program, native, x=x) for native, x in zip(natives, feeds)]
            counts.append(sum(count for count, _, _ in runs))
            by_engine.append(sum(count for _, count, _ in runs))
    finally:
        paddle.set_flags(before)
    assert min(counts[0], OWN) == min(shapes, OWN)
    assert sum(counts[12:]) <= 12 * shapes / 3 and sum(by_engine[12:]) > 0
