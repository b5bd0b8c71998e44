"""Slices that begin at an iteration index: ``ids[:, i] = words`` is in one subgraph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.ops.test_control_flow import parameter, while_loop
from tests.partitioning.analysis.test_single_assignment import WIDTH, in_order, is_one_subgraph
from tests.programs import Program, floats
from tests.zips import zip_equal

LONGEST = 8


def decoder(shape: list[int], back: int = 0) -> Callable:
    """A greedy decoder that stops when all rows have 0, or at a limit that is fed."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        limit = paddle.static.data("limit", shape, "int64")
        weight, words = parameter(WIDTH, WIDTH, seed=1), parameter(WIDTH, WIDTH, seed=2)
        ids = paddle.full([paddle.shape(x)[0], LONGEST], 1, "int64")
        scores = paddle.zeros([LONGEST, WIDTH])
        i, said = paddle.full(shape, 0, "int64"), paddle.full(shape, 0, "int64")

        def body(i: Any, h: Any, _: Any) -> Any:
            h = paddle.tanh(paddle.matmul(h, weight) + x)
            ids[:, i - back] = paddle.argmax(h, axis=-1)
            scores[i - back] = paddle.mean(h, axis=0)
            last = ids[:, i - back]
            embedded = paddle.nn.functional.embedding(last, words).reshape([-1, WIDTH])
            paddle.increment(i)
            paddle.increment(said, 2)
            return [i, h * 0.5 + embedded, paddle.any(last != 0)]

        def goes_on(i: Any, _: Any, is_open: Any) -> Any:
            few = paddle.logical_and(i < limit, i < 1000)
            return paddle.logical_and(few, is_open)

        start = [i, x * 1.0, paddle.full([], True, "bool")]
        i, h, _ = while_loop(goes_on, body, start)
        return [i, h, ids, scores, said]

    return build


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("shape", [[], [1]], ids=str)
def test_a_greedy_decoder_is_one_subgraph(shape: list[int]) -> None:
    program, reference = Program(decoder(shape)), in_order(decoder(shape))
    assert is_one_subgraph(program)
    for rows, limit in [(3, 4), (2, LONGEST), (1, 1), (3, 0), (5, 7), (3, 4)]:
        fed = {"x": floats(rows, WIDTH, seed=rows), "limit": np.full(shape, limit)}
        native = reference.run(engine=False, **fed)
        before = paddle_ngraph.stats()
        for expected, found in zip_equal(native, program.run(**fed)):
            assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
        after = paddle_ngraph.stats()
        assert after["engine_runs"] > before["engine_runs"]
        assert after["native_runs"] == before["native_runs"]


@pytest.mark.parametrize(("back", "limit"), [(1, 3), (0, LONGEST + 1)])
def test_indices_out_of_range_behave_as_in_paddle(back: int, limit: int) -> None:
    """-1 is the last index; Paddle rejects or ignores indices beyond the end."""
    program, reference = Program(decoder([], back)), in_order(decoder([], back))
    assert is_one_subgraph(program)
    fed = {"x": floats(2, WIDTH), "limit": np.array(limit)}
    found: list[Any] = []
    for each, engine in ((reference, False), (program, True)):
        try:
            found.append(each.run(engine, **fed))
        except Exception as error:
            found.append(type(error))
    if isinstance(found[0], type):
        assert found[1] is found[0]
        return
    for expected, actual in zip_equal(*found):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
