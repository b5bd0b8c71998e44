"""Values computed from weights alone, and weights with several kinds of readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.programs import Program, floats


def weight(name: str, *shape: int) -> Any:
    initial = paddle.nn.initializer.Assign(floats(*shape, seed=len(name)))
    return paddle.static.create_parameter(shape, "float32", name, default_initializer=initial)


def data(*shape: int) -> Any:
    return paddle.static.data("x", shape, "float32")


def check(build: Callable[[], Any], *shape: int) -> None:
    """Compares every run with Paddle, and asserts that functions keep the weights."""
    program = Program(build)
    for seed in range(4):
        program.both(x=floats(*shape, seed=seed))
    assert paddle_ngraph.stats()["functions_with_weights"] > 0


COMPUTED = {
    "convolution": lambda: F.conv2d(weight("a", 1, 2, 6, 5), weight("bc", 3, 2, 1, 1)),
    "transposed": lambda: F.conv2d_transpose(weight("a", 1, 2, 6, 5), weight("bc", 2, 3, 1, 1)),
    "elu": lambda: F.elu(weight("a", 1, 3, 6, 5)),
    "roll": lambda: paddle.roll(weight("a", 1, 3, 6, 5), 1, 2),
    "pooling": lambda: F.avg_pool2d(weight("a", 1, 3, 12, 10), 2),
    "softsign": lambda: F.softsign(weight("a", 1, 3, 6, 5) * 2.0),
    "normalized": lambda: F.layer_norm(F.elu(weight("a", 1, 3, 6, 5)), [5]),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_value_of_weights_alone(name: str) -> None:
    def build() -> Any:
        value = COMPUTED[name]()
        return paddle.reshape(value * data(5) + data(5), [3, 30])

    check(build, 5)


def test_gradient_by_values_of_weights_alone() -> None:
    """The deviation, its inverse and the normalized values: one is computed from the other."""

    def build() -> Any:
        value = weight("a", 3, 4, 4, 3)
        normal = F.instance_norm(F.avg_pool2d(value, 2, 1), eps=1e-3)
        return [normal, *paddle.static.gradients([normal], [value], [data(3, 4, 3, 2)])]

    check(build, 3, 4, 3, 2)


def test_fetched_value_of_weights_alone() -> None:
    def build() -> list[Any]:
        value = COMPUTED["convolution"]()
        inner = F.elu(value)
        return [value, inner * data(5), inner + data(5)]

    check(build, 5)


def test_value_of_program_constants_alone() -> None:
    def build() -> Any:
        return F.elu(paddle.arange(5, dtype="float32") - 2.5) * data(5)

    program = Program(build)
    for seed in range(3):
        program.both(x=floats(5, seed=seed))


def test_one_square_matrix_and_its_transpose() -> None:
    def build() -> list[Any]:
        w = weight("w", 8, 8)
        return [paddle.matmul(data(3, 8), w), paddle.matmul(data(3, 8), w, transpose_y=True)]

    check(build, 3, 8)


DERIVED = {
    "scaled": lambda w: w * 2.0,
    "tanh": paddle.tanh,
    "joined": lambda w: paddle.concat([w[:4], w[4:]]),
    "flipped": lambda w: paddle.flip(w, [0]),
    "selected": lambda w: paddle.index_select(w, paddle.to_tensor([3, 1, 0, 2, 7, 6, 5, 4])),
    "tiled": lambda w: paddle.tile(w[:4], [2, 1]),
}


@pytest.mark.parametrize("name", DERIVED)
def test_values_of_a_matrix_and_its_transpose(name: str) -> None:
    def build() -> list[Any]:
        x, made = data(3, 8), DERIVED[name](weight("w", 8, 8))
        turned = paddle.transpose(made, [1, 0])
        return [
            paddle.matmul(x, made),
            paddle.matmul(x, made, transpose_y=True),
            paddle.matmul(x, turned) + 1.0,
        ]

    check(build, 3, 8)


def test_views_of_square_matrices() -> None:
    def build() -> list[Any]:
        w, x = weight("w", 64), data(2, 8)
        square = paddle.reshape(w, [8, 8])
        other = paddle.reshape(paddle.unsqueeze(w, 0), [8, 8])
        return [
            paddle.matmul(x, square),
            paddle.matmul(x, paddle.transpose(square, [1, 0])),
            paddle.matmul(x, other, transpose_y=True),
            paddle.matmul(x, square) + 1.0,
        ]

    check(build, 2, 8)


def test_autoencoder_with_tied_square_weights() -> None:
    def build() -> Any:
        w = weight("w", 16, 16)
        code = F.tanh(paddle.matmul(data(4, 16), w))
        return paddle.matmul(code, w, transpose_y=True)

    check(build, 4, 16)


def test_sums_of_products_of_a_square_matrix() -> None:
    def build() -> list[Any]:
        w, x = weight("w", 5, 5), data(3, 5)
        x.stop_gradient = False
        out = paddle.einsum("ij,jk->ki", x, w)
        return [out, *paddle.static.gradients([out], [x])]

    check(build, 3, 5)


def test_one_filter_of_a_convolution_and_a_transposed_one() -> None:
    def build() -> list[Any]:
        w = weight("w", 4, 4, 3, 3)
        x = data(2, 4, 6, 6)
        return [F.conv2d(x, w, padding=1), F.conv2d_transpose(x, w, padding=1)]

    check(build, 2, 4, 6, 6)


def test_gradient_through_a_square_matrix() -> None:
    def build() -> list[Any]:
        w, x = weight("w", 6, 6), data(3, 6)
        x.stop_gradient = False
        out = F.sigmoid(paddle.matmul(x, w))
        return [out, *paddle.static.gradients([out], [x])]

    check(build, 3, 6)


def test_dynamic_shapes() -> None:
    def build() -> list[Any]:
        w, x = weight("w", 8, 8), data(-1, 8)
        value = F.elu(paddle.matmul(w, w))
        return [paddle.matmul(x, w), paddle.matmul(x, w, transpose_y=True), x * value[0]]

    program = Program(build)
    for rows in (2, 3, 4, 5, 2, 5, 7, 7, 9):
        program.both(x=floats(rows, 8, seed=rows))
    assert np.isfinite(program.run(x=floats(3, 8))[0]).all()


# -- sums with constants ---------------------------------------------------------------------------

SUMS = {
    "masked": lambda mask: (1.0 - mask) * -1e9,
    "kept": lambda mask: (mask - 1.0) * 1e4,
    "divided": lambda mask: (mask - 1.0) / 3e-9,
    "of both": lambda mask: (1.0 - mask * (1.0 - mask)) * -7e6 + 7e6,
    "added": lambda mask: (mask + 1e8) - 1e8,
    "twice": lambda mask: ((mask + 3.0) * -1e5 + 4e5) * 1e3,
    "with axes": lambda mask: paddle.unsqueeze(1.0 - mask, [1, 2]) * -1e9,
    "transposed": lambda mask: paddle.transpose(mask - 1.0, [1, 0]) * 1e9,
    "expanded": lambda mask: paddle.multiply(
        paddle.subtract(paddle.expand(paddle.ones([1, 1]), [4, 4]), mask),
        paddle.expand(paddle.full([1], -1e9), [4, 4]),
    ),
    "at the end": lambda mask: paddle.reshape((1.0 - mask) * -1e9, [4, 1, 4]),
    "of pairs": lambda mask: (1.0 - paddle.matmul(mask[:, :1], mask[:1])) * -1e9,
    "looked up": lambda mask: (1.0 - paddle.matmul(mask, paddle.eye(4))) * -1e9,
    "convolved": lambda mask: (
        (F.conv1d(paddle.unsqueeze(mask, 1), paddle.ones([1, 1, 1])).squeeze(1) - 1.0) * 1e9
    ),
}


@pytest.mark.parametrize("small", ["number", "weight"])
@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_exact_values_with_constants(name: str, dtype: str, small: str) -> None:
    """The plugin would add the constants first, and lose small values next to them."""

    def build() -> Any:
        mask = paddle.static.data("mask", [-1, 4], dtype).astype("float32")
        return SUMS[name](mask) + (weight("bias", 4, 4) if small == "weight" else 0.123)

    program = Program(build)
    rows = np.arange(16).reshape(4, 4) % 3 > 0
    for mask in (rows, rows[::-1], np.ones_like(rows), rows):
        found, expected = (
            program.run(engine=engine, mask=mask.astype(dtype))[0] for engine in (True, False)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] > 0
