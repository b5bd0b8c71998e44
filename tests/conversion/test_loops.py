"""Initial values of loops remain valid for other readers: compared with NumPy, as Paddle races."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.programs import Program, floats
from tests.zips import zip_equal


def iterate(start: Any, count: int = 3) -> Any:
    first = paddle.full([1], 0, "int64")
    return paddle.static.nn.while_loop(
        lambda i, _: i < count, lambda i, h: [i + 1, paddle.tanh(h) * 0.5], [first, start]
    )[1]


def iterated(start: np.ndarray, count: int = 3) -> np.ndarray:
    for _ in range(count):
        start = np.tanh(start) * 0.5
    return start


@pytest.fixture(autouse=True)
def every_subgraph_pays():
    before = paddle.get_flags(["FLAGS_ngraph_min_interval_us"])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    yield
    paddle.set_flags(before)


def read_elsewhere():
    x = paddle.static.data("x", [-1, 7], "float32")
    h = paddle.exp(x * 0.25)
    before = h * 2.0
    last = iterate(h)
    return last, before, paddle.square(h) + 1.0


def two_loops_from_one_start():
    x = paddle.static.data("x", [-1, 7], "float32")
    h = paddle.exp(x * 0.25)
    return iterate(h), iterate(h, 2), h * 3.0


@pytest.mark.parametrize("rows", [5, 2, 11])
def test_an_initial_value_has_other_readers(rows):
    program, x = Program(read_elsewhere), floats(rows, 7)
    h = np.exp(x * 0.25)
    for _ in range(3):
        found = program.run(engine=True, x=x)
        for expected, actual in zip((iterated(h), h * 2.0, h * h + 1.0), found):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_two_loops_share_an_initial_value():
    program, x = Program(two_loops_from_one_start), floats(4, 7)
    h = np.exp(x * 0.25)
    found = program.run(engine=True, x=x)
    for expected, actual in zip((iterated(h), iterated(h, 2), h * 3.0), found):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def counted_from_one_constant():
    """Two loops count from one 0 that has other readers; a third starts from it inside."""
    x = paddle.static.data("x", [-1, 7], "float32")
    first, h = paddle.full([1], 0, "int64"), paddle.exp(x * 0.25)

    def tanh_times(count: int, value: Any) -> Any:
        return paddle.static.nn.while_loop(
            lambda i, _: i < count, lambda i, g: [i + 1, paddle.tanh(g) * 0.5], [first, value]
        )

    def outer(i: Any, value: Any) -> Any:
        return [i + 1, tanh_times(2, value)[1] + 1.0]

    ends = [*tanh_times(3, h), *tanh_times(2, h * 1.0)]
    ends += paddle.static.nn.while_loop(lambda i, _: i < 3, outer, [first, x * 1.0])
    return [*ends, first + 5]


def test_loops_share_an_initial_constant():
    program, x = Program(counted_from_one_constant), floats(4, 7)
    h, value = np.exp(x * 0.25), x
    for _ in range(3):
        value = iterated(value, 2) + 1.0
    expected = [[3], iterated(h), [2], iterated(h, 2), [3], value, [5]]
    for _ in range(3):
        for wanted, found in zip_equal(expected, program.run(engine=True, x=x)):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0
