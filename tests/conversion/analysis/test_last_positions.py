"""Slices of the last position in loops move in front of operators of each position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph.conversion.analysis.last_positions import take_last_early
from tests.programs import Program, counted, fed_limit, floats, parameter
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WIDTH = 4

# Networks of growing rows [N, T, WIDTH], whose last position is [N, 1, WIDTH] or [N, WIDTH].
NETWORKS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda x, w: paddle.matmul(x, w)[:, -1:],
    "dropped axis": lambda x, w: paddle.unsqueeze((F.gelu(x) + w[0])[:, -1, :], 1),
    "transposed": lambda x, w: paddle.transpose(
        paddle.transpose(F.relu(x) * 0.5, [0, 2, 1])[:, :, -1:], [0, 2, 1]
    ),
    "normalized": lambda x, w: (F.layer_norm(x + paddle.matmul(x, w), [WIDTH]) * 0.3)[:, -1:],
    "softmax": lambda x, w: F.softmax(paddle.concat([x, x * 0.1], axis=2), axis=-1)[:, -1:][
        :, :, :WIDTH
    ],
    "convolution": lambda x, w: paddle.transpose(
        paddle.squeeze(
            F.conv2d(
                paddle.unsqueeze(paddle.transpose(x, [0, 2, 1]), 2),
                paddle.reshape(w, [WIDTH, WIDTH, 1, 1]),
            ),
            2,
        ),
        [0, 2, 1],
    )[:, -1:],
    "broadcast": lambda x, w: (x + paddle.mean(x, axis=1, keepdim=True))[:, -1:],
}
# Those that need all positions.
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax along": lambda x, w: F.softmax(x, axis=1)[:, -1:],
    "sums": lambda x, w: paddle.cumsum(x, axis=1)[:, -1:] * 0.1,
    "first": lambda x, w: paddle.tanh(x)[:, :1],
}


def program_of(network: Callable[[Any, Any], Any]) -> Program:
    def build() -> Any:
        x = paddle.static.data("x", [2, 2, WIDTH], "float32")
        weight = parameter(WIDTH, WIDTH)

        def step(i: Any, rows: Any) -> list[Any]:
            return [paddle.concat([rows, paddle.tanh(network(rows, weight))], axis=1)]

        return counted(step, x * 1.0, end=fed_limit())

    return Program(build)


@pytest.mark.parametrize("name", [*NETWORKS, *OTHERS])
def test_the_last_position_is_taken_early(name: str) -> None:
    program = program_of({**NETWORKS, **OTHERS}[name])
    (interval,) = paddle_ngraph.explain(program.main).intervals
    assert interval.graph is not None
    block = next(op for op in interval.graph.ops if op.blocks).blocks[0]
    moved = take_last_early(block)
    assert (moved is not block) == (name in NETWORKS)
    feed = {"x": floats(2, 2, WIDTH), "limit": np.array([4])}
    expected = program.run(engine=False, **feed)
    paddle_ngraph.reset_stats()
    found = program.run(**feed)
    assert paddle_ngraph.stats()["engine_runs"] == 1
    for one, other in zip_equal(expected, found):
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-6)


def test_a_result_with_another_reader_stays() -> None:
    def network(x: Any, w: Any) -> Any:
        logits = paddle.matmul(x, w)
        return logits[:, -1:] + paddle.mean(logits, axis=1, keepdim=True)

    (interval,) = paddle_ngraph.explain(program_of(network).main).intervals
    assert interval.graph is not None
    block = next(op for op in interval.graph.ops if op.blocks).blocks[0]
    assert take_last_early(block) is block
