"""Feeds belong to the caller: the engine only reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base import core

import paddle_ngraph
from tests.programs import Program, floats


def data() -> Any:
    return paddle.static.data("x", [-1, 48], "float32")


def incremented() -> Any:
    step = paddle.static.data("step", [1], "float32")
    paddle.increment(step)
    return data() * step


def assigned() -> Any:
    x = data()
    paddle.assign(x * 2.0, output=x)
    return x + 1.0


def set_item() -> Any:
    x = data()
    x = paddle.static.setitem(x, (slice(0, 1),), 5.0)
    return x * 2.0


def reshaped() -> Any:
    return paddle.reshape(data(), [-1, 24]) * 1.0


def same() -> Any:
    return paddle.assign(data())


def flattened_and_used() -> Any:
    x = data()
    return paddle.flatten(x), x + 1.0


BUILDS = [incremented, assigned, set_item, reshaped, same, flattened_and_used]
# Rows: the smaller feeds are copied, the larger are not.
ROWS = [2, 64, 1500]


def strided(rows: int) -> np.ndarray:
    return floats(rows, 96)[:, ::2]


def read_only(rows: int) -> np.ndarray:
    array = floats(rows, 48)
    array.flags.writeable = False
    return array


ARRAYS = [lambda rows: floats(rows, 48), strided, read_only]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", ARRAYS, ids=["plain", "strided", "read only"])
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_arrays_are_left_as_they_are(
    build: Callable[[], Any], make: Callable[[int], np.ndarray], rows: int
) -> None:
    native, engine = Program(build), Program(build)
    x, step = make(rows), np.full(1, 3.0, "float32")
    feed = {"x": x, "step": step} if build is incremented else {"x": x}
    before = {name: array.copy() for name, array in feed.items()}
    kept = []
    for _ in range(6):
        expected = native.run(engine=False, **feed)
        runs = paddle_ngraph.stats()["engine_runs"]
        results = engine.run(**feed)
        assert paddle_ngraph.stats()["engine_runs"] == runs + 1, "the engine did not run"
        for result, array in zip(results, expected):
            np.testing.assert_allclose(result, array, rtol=1e-6)
            assert not any(np.shares_memory(result, fed) for fed in feed.values())
            result += 1.0  # the user's as well
        kept.append((results, expected))
        for name, array in feed.items():
            np.testing.assert_array_equal(array, before[name])
    for results, expected in kept:
        for result, array in zip(results, expected):
            np.testing.assert_allclose(result, array + 1.0, rtol=1e-6)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("build", [assigned, set_item], ids=lambda build: build.__name__)
def test_memory_of_arrays_that_are_gone_is_left_alone(build: Callable[[], Any], rows: int) -> None:
    program = Program(build)
    others = []
    before = paddle_ngraph.stats()["engine_runs"]
    for number in range(40):
        program.run(x=np.full((rows, 48), float(number), "float32"))
        others.append(np.full((rows, 48), -7.0, "float32"))  # likely where the fed array was
    assert paddle_ngraph.stats()["engine_runs"] == before + 40
    assert all((array == -7.0).all() for array in others)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("build", [assigned, reshaped], ids=lambda build: build.__name__)
def test_a_fed_tensor_ends_up_as_in_plain_paddle(build: Callable[[], Any], rows: int) -> None:
    contents = {}
    for engine in (False, True):
        program = Program(build)
        tensor = core.DenseTensor()
        tensor.set(floats(rows, 48), paddle.CPUPlace())
        found = []
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(4):
            (result,) = program.run(engine=engine, x=tensor)
            found += [np.array(tensor), result]
        assert paddle_ngraph.stats()["engine_runs"] == before + 4 * engine
        contents[engine] = found
    for native, ours in zip(contents[False], contents[True]):
        np.testing.assert_allclose(ours, native, rtol=1e-6)
