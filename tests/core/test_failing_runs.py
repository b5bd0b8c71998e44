"""Runs that fail in their middle leave no state behind: later runs compute right results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle.tensor import array_length, array_read, array_write, create_array

import paddle_ngraph
from tests.programs import (
    Program,
    at_once,
    counted,
    counts_of_two_processes,
    floats,
    parameter,
)
from tests.zips import zip_equal

WIDTH, CLASSES = 6, 5
# A value in every sample; this value in one sample makes a run fail.
GOOD, BAD = (2, 3), CLASSES + 2
SIZES = [(2, 3), (3, 4), (2, 5), (4, 3), (2, 4), (5, 3)]


@pytest.fixture(autouse=True)
def fresh(small_intervals_pay: None) -> Any:
    paddle_ngraph.clear_cache()
    yield


def data() -> Any:
    return paddle.static.data("x", [-1, -1, WIDTH], "float32")


def number_of(x: Any) -> Any:
    """The value of each sample: computed, so that it is unknown before a run."""
    return paddle.cast(paddle.max(x, [1, 2]), "int64")


def looked_up(x: Any) -> Any:
    return F.embedding(number_of(x), parameter(CLASSES, WIDTH))


def gathered(x: Any) -> Any:
    return paddle.gather(parameter(CLASSES, WIDTH), number_of(x), 0)


def divided(x: Any) -> Any:
    """A bad value gives a divisor of 0."""
    divisor = paddle.cast(paddle.max(x, [1, 2]), "int32") - BAD
    return paddle.cast(paddle.floor_divide(paddle.full_like(divisor, 100), divisor), "float32")


def rest(x: Any) -> Any:
    divisor = paddle.cast(paddle.max(x, [1, 2]), "int32") - BAD
    return paddle.cast(paddle.remainder(paddle.full_like(divisor, 100), divisor), "float32")


def likely(x: Any) -> Any:
    good = paddle.clip(x / (BAD - 1.0), 0.0, 9.0)
    return F.binary_cross_entropy(good, paddle.zeros_like(good), reduction="none")


def appended(x: Any, iterations: Any) -> Any:
    """The second element of a TensorArray to which a loop appends."""
    array = create_array("float32")
    body = lambda i, h: [array_write(h, array_length(array), array), h * 0.5][1:]  # noqa: E731
    counted(body, x * 1.0, end=paddle.reshape(iterations, [1]))
    return array_read(array, paddle.full([1], 1, "int64"))


def no_element(x: Any) -> Any:
    """A bad value leaves the array empty."""
    return appended(x, BAD - paddle.max(number_of(x)))


def one_element(x: Any) -> Any:
    """A bad value leaves one element."""
    return appended(x, BAD + 1 - paddle.max(number_of(x)))


def found_in_an_iteration(x: Any) -> Any:
    """The second iteration looks up a result of the first one."""
    table, count = parameter(CLASSES, WIDTH), paddle.full([1], 3, "int64")

    def body(i: Any, h: Any) -> Any:
        return [paddle.gather(table, number_of(x), 0) + h * 0.5]

    return counted(body, paddle.mean(x, 1), end=count)[1]


CHECKS: list[Callable[[Any], Any]] = [
    *(looked_up, gathered, divided, rest, likely, no_element, one_element, found_in_an_iteration)
]


class RandomProgram:
    """A random operator that may fail, among others that depend on dynamic sizes."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._check = CHECKS[seed % len(CHECKS)]
        self._others = random.permutation(6)[: random.integers(2, 5)]

    def _other(self, number: int, x: Any) -> Any:
        h = paddle.tanh(paddle.matmul(x, parameter(WIDTH, WIDTH)))
        return [
            lambda: paddle.mean(h, 1),
            lambda: paddle.flip(h, [1]),
            lambda: paddle.cumsum(h, 1),
            lambda: F.softmax(paddle.matmul(h, h, transpose_y=True), -1),
            lambda: paddle.concat([h, h[:, -1:]], 1),
            lambda: paddle.reshape(h, [-1, WIDTH])[1:],
        ][number]()

    def build(self) -> Any:
        x = data()
        return [self._check(x), *(self._other(int(number), x) for number in self._others)]


def fed(size: tuple[int, int], fails: bool, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = np.clip(floats(*size, WIDTH, seed=seed), -2, 1)
    x[:, 0, 0] = random.choice(GOOD, size[0])
    if fails:
        x[random.integers(size[0]), 0, 0] = BAD
    return x


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(
        one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5)
        for one, other in zip_equal(found, expected)
    )


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("seed", range(2 * len(CHECKS)))
def test_runs_after_one_that_fails(seed: int) -> None:
    """Earlier sizes return after other sizes, for which a run has failed."""
    program = Program(RandomProgram(seed).build)
    random = np.random.default_rng(seed)
    counts = {"engine": 0, "failed": 0}
    for number in range(50):
        size = SIZES[int(random.integers(2 if number % 2 else len(SIZES)))]
        fails = number > 5 and bool(random.random() < 0.4)
        x = fed(size, fails, number)
        paddle_ngraph.reset_stats()
        if fails:
            with pytest.raises(Exception):  # noqa: B017 - each operator has its own
                program.run(x=x)
            counts["failed"] += 1
            continue
        found = program.run(x=x)
        assert close(found, program.run(engine=False, x=x)), (number, size)
        counts["engine"] += paddle_ngraph.stats()["engine_runs"]
    assert counts["failed"] > 10 and counts["engine"] >= 50 - counts["failed"]


@pytest.mark.slow("runs several threads for a while")
@pytest.mark.parametrize("check", [looked_up, divided, no_element, one_element])
def test_concurrent_runs_some_of_which_fail(check: Callable) -> None:
    """Threads share a function: the error belongs to the run that caused it."""
    build = lambda: (lambda x: [check(x), paddle.cumsum(x, 1), paddle.mean(x, 1)])(data())  # noqa: E731
    program = Program(build)
    scopes = [paddle.static.Scope() for _ in range(8)]
    with paddle_ngraph.use_ngraph(False):
        for scope in scopes:
            program.executor.run(program.startup, scope=scope)
    for number, size in enumerate(SIZES):  # until there is a function for all sizes
        program.run(x=fed(size, False, number))
    feeds = {
        (size, fails, seed): fed(size, fails, seed)
        for size in SIZES
        for fails in (False, True)
        for seed in range(3)
    }
    expected = {key: program.run(engine=False, x=x) for key, x in feeds.items() if not key[1]}
    executors = [paddle.static.Executor(paddle.CPUPlace()) for _ in range(8)]
    right = [0] * 8

    def work(thread: int) -> None:
        random = np.random.default_rng(thread)
        for _ in range(40):
            size, fails = SIZES[int(random.integers(len(SIZES)))], bool(random.random() < 0.3)
            key = size, fails and thread % 2 == 0, int(random.integers(3))
            try:
                found = executors[thread].run(
                    program.main,
                    feed={"x": feeds[key]},
                    fetch_list=program.fetches,
                    scope=scopes[thread],
                )
            except Exception:
                assert key[1], "the error of another run"
                right[thread] += 1
                continue
            right[thread] += not key[1] and close(found, expected[key])

    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph(True):
        at_once(work, 8)
    assert right == [40] * 8
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] > 200 and stats["native_runs"] == 0


def once_on_disk() -> None:
    """Runs the program in this and in another process."""
    for seed in range(len(CHECKS)):
        program = Program(RandomProgram(seed).build)
        for number in range(24):
            x = fed(SIZES[number % 3], number > 5 and number % 4 == 2, number)
            try:
                found = program.run(x=x)
            except Exception:
                assert number > 5 and number % 4 == 2
                continue
            assert close(found, program.run(engine=False, x=x))
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] >= 19 * len(CHECKS) and stats["native_runs"] == 0
    print("counts", stats["functions_built"], stats["functions_loaded"])


@pytest.mark.slow("starts a process")
def test_functions_from_disk_raise_deferred_errors(tmp_path: Path) -> None:
    counts = counts_of_two_processes("tests.core.test_failing_runs", tmp_path, 300)
    assert counts[0][0] > len(CHECKS) and counts[1][1] > len(CHECKS)
