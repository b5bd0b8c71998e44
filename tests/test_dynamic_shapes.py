"""One function for many shapes: the same numbers, and no function more than needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.function.dynamic_shapes import OWN_FUNCTIONS
from tests.programs import Program, floats

SIZES = [(2, 32), (3, 48), (2, 20), (4, 33), (5, 21), (2, 63), (3, 40)]


def run_all(
    build: Callable[[], Any], feed: Callable[[int, int], dict[str, np.ndarray]], sizes: Any = SIZES
) -> Program:
    """Runs a program at every size; ``Program.both`` asserts engine and agreement."""
    paddle_ngraph.clear_cache()
    program = Program(build)
    for batch, size in sizes:
        program.both(**feed(batch, size))
    return program


def built() -> int:
    return int(paddle_ngraph.stats()["functions_built"])


def pictures() -> Any:
    x = paddle.static.data("x", [-1, 3, 16, -1], "float32")
    x = paddle.nn.functional.relu(paddle.nn.BatchNorm2D(8)(paddle.nn.Conv2D(3, 8, 3, 2, 1)(x)))
    small = paddle.nn.functional.interpolate(x, scale_factor=2)
    gate = paddle.nn.functional.sigmoid(paddle.nn.AdaptiveAvgPool2D(1)(x))
    columns = paddle.transpose(paddle.flatten(x * gate, 1, 2), [0, 2, 1])
    scores = paddle.nn.functional.softmax(paddle.nn.Linear(64, 10)(columns))
    return scores, paddle.mean(small)


def picture(batch: int, width: int) -> dict[str, np.ndarray]:
    return {"x": floats(batch, 3, 16, width)}


def words() -> Any:
    ids = paddle.static.data("ids", [-1, -1], "int64")
    x = paddle.nn.Embedding(50, 16)(ids)
    query = paddle.reshape(paddle.nn.Linear(16, 16)(x), [0, 0, 4, 4]).transpose([0, 2, 1, 3])
    weights = paddle.nn.functional.softmax(paddle.matmul(query, query, transpose_y=True))
    mixed = paddle.matmul(weights, query).transpose([0, 2, 1, 3])
    mixed = paddle.reshape(mixed, [paddle.shape(ids)[0], paddle.shape(ids)[1], 16])
    return paddle.nn.LayerNorm(16)(x + mixed).mean(axis=1)


def text(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(length).integers(0, 50, (batch, length))}


def characters() -> Any:
    """Rows of as many classes as text recognizers have."""
    ids = paddle.static.data("ids", [-1, -1], "int64")
    return paddle.nn.functional.softmax(paddle.nn.Embedding(50, 4096)(ids))


@pytest.mark.parametrize(
    ("build", "feed"), [(pictures, picture), (words, text), (characters, text)]
)
def test_many_shapes_share_a_function(build, feed):
    run_all(build, feed)
    assert built() == OWN_FUNCTIONS + 1


def test_training_steps_of_many_batch_sizes_share_a_function():
    def step() -> Any:
        x = paddle.static.data("x", [-1, 8], "float32")
        loss = paddle.sum(paddle.nn.Linear(8, 4)(paddle.nn.functional.gelu(x)) ** 2)
        paddle.optimizer.Momentum(1e-3).minimize(loss)
        return loss

    paddle_ngraph.clear_cache()
    losses = {}
    for engine in (False, True):
        program = Program(step)
        losses[engine] = [
            program.run(engine=engine, x=floats(batch, 8, seed=batch))[0]
            for batch in (4, 7, 9, 16, 5, 30)
        ]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 6
    assert built() == OWN_FUNCTIONS + 1


def test_padding_that_depends_on_a_remainder_keeps_functions_apart():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 3, 16, -1], "float32")
        return paddle.nn.functional.max_pool2d(paddle.exp(x), 2, 2, ceil_mode=True) + 0.5

    run_all(build, picture)
    assert built() == len(SIZES)


def test_a_smaller_shape_than_those_tried_is_computed_right():
    run_all(pictures, picture, [*SIZES, (1, 20), (2, 9), (1, 1)])


def test_an_id_out_of_range_is_refused_at_any_shape():
    program = run_all(words, text)
    with pytest.raises(ValueError, match=r"(?s)embedding.* 50\b"):
        program.run(ids=np.full((3, 37), 50))
    program.both(**text(3, 37))
    assert built() == OWN_FUNCTIONS + 1


def test_new_weights_are_seen_at_any_shape():
    program = run_all(words, text)
    weight = program.scope.find_var("embedding_0.w_0").get_tensor()
    weight.set(floats(50, 16, seed=3), paddle.CPUPlace())
    program.both(**text(3, 37))


def test_many_shapes_need_one_place_in_the_cache():
    run_all(pictures, picture)
    assert paddle_ngraph.cache_info().currsize == OWN_FUNCTIONS + 1
