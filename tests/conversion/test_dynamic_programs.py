"""Random programs that branch on sizes, over many sizes, compared with plain Paddle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.programs import Program

# Thresholds and sizes; neither small powers of two nor neighbours of each other.
_THRESHOLDS = (3, 7, 11, 19, 26, 37, 58, 71, 113)

Step = Callable[[random.Random, Any], Any]
_STEPS: list[Step] = []


def step(function: Step) -> Step:
    """A random step of a program: a matrix to a matrix."""
    _STEPS.append(function)
    return function


def threshold(draw: random.Random) -> int:
    return draw.choice(_THRESHOLDS)


def columns(x: Any) -> Any:
    return paddle.shape(x)[1]


def bound(draw: random.Random, x: Any) -> Any:
    """An end of a slice: a constant, from the end, none, or computed from the size."""
    n = columns(x)
    return draw.choice(
        [
            None,
            threshold(draw),
            -threshold(draw),
            n // draw.choice([2, 3]),
            n - threshold(draw),
            n * 2 - threshold(draw),
        ]
    )


@step
def slices(draw: random.Random, x: Any) -> Any:
    part = x[:, bound(draw, x) : bound(draw, x)]
    return paddle.concat([x, part], 1) if draw.random() < 0.5 else part


@step
def strided(draw: random.Random, x: Any) -> Any:
    return x[:, :: draw.choice([2, 3, -1, -2])]


@step
def assigned(draw: random.Random, x: Any) -> Any:
    x = x * 1.0
    x[:, draw.choice([None, 2]) : draw.choice([threshold(draw), -threshold(draw)])] = 0.5
    return x


@step
def padded(draw: random.Random, x: Any) -> Any:
    frame = [draw.randint(0, 3), draw.choice([0, threshold(draw)])]
    return paddle.squeeze(F.pad(paddle.unsqueeze(x, 0), frame, data_format="NCL"), 0)


@step
def reshaped(draw: random.Random, x: Any) -> Any:
    rows, n = paddle.shape(x)[0], columns(x)
    wide = paddle.concat([x, x], 1)
    return draw.choice(
        [
            lambda: paddle.reshape(wide, [-1, n]),
            lambda: paddle.reshape(wide, [rows * 2, -1]),
            lambda: paddle.reshape(paddle.flatten(x), [n, -1]),
            lambda: paddle.reshape(wide, [0, -1]),
        ]
    )()


@step
def masked(draw: random.Random, x: Any) -> Any:
    places = paddle.arange(0, columns(x), draw.choice([1, 1, 2]), dtype="int64")
    places = paddle.concat([places, places])[: columns(x)]
    kept = draw.choice([places < threshold(draw), places // threshold(draw) == 0, places != 2])
    return x * paddle.cast(kept, "float32")


@step
def triangle(draw: random.Random, x: Any) -> Any:
    keep = draw.choice([paddle.tril, paddle.triu])
    return keep(x, draw.choice([0, threshold(draw), -threshold(draw), 1]))


@step
def repeated(draw: random.Random, x: Any) -> Any:
    one = paddle.mean(x, axis=draw.choice([0, 1]), keepdim=True)
    return draw.choice(
        [
            lambda: paddle.tile(x, [1, draw.choice([2, 3])]),
            lambda: x + paddle.expand(one, paddle.shape(x)),
            lambda: paddle.tile(x, [2, 1]) * 0.5,
        ]
    )()


@step
def split(draw: random.Random, x: Any) -> Any:
    count = threshold(draw)
    first, second = paddle.split(paddle.concat([x, x, x], 1), [-1, draw.choice([2, count])], 1)
    return paddle.concat([second, first], 1)


@step
def resized(draw: random.Random, x: Any) -> Any:
    picture = paddle.unsqueeze(x, [0, 1])
    kind = draw.choice(
        [
            {"scale_factor": 2, "mode": "nearest"},
            {"scale_factor": [1, 3], "mode": "nearest"},
            {"scale_factor": 2, "mode": "bilinear"},
            {"size": [4, 9], "mode": "bilinear"},
        ]
    )
    return paddle.squeeze(F.interpolate(picture, **kind), [0, 1])


@step
def gathered(draw: random.Random, x: Any) -> Any:
    places = paddle.arange(columns(x), dtype="int64") // draw.choice([2, 3])
    return x + paddle.index_select(x, places, axis=1)


@step
def attended(draw: random.Random, x: Any) -> Any:
    return paddle.matmul(F.softmax(paddle.matmul(x, x, transpose_y=True) * 0.1), x)


@step
def summed(draw: random.Random, x: Any) -> Any:
    return draw.choice(
        [
            lambda: paddle.cumsum(x, axis=1) * 0.1,
            lambda: x - paddle.max(x, axis=1, keepdim=True),
            lambda: x + paddle.cast(paddle.argmax(x, axis=1, keepdim=True), "float32"),
            lambda: paddle.mean(x, axis=0, keepdim=True) + paddle.cast(columns(x), "float32"),
        ]
    )()


@step
def windows(draw: random.Random, x: Any) -> Any:
    line = paddle.unsqueeze(x, [0, 1])
    return paddle.squeeze(
        draw.choice(
            [
                lambda: F.max_pool2d(line, [1, 2], 2, ceil_mode=draw.random() < 0.5),
                lambda: F.avg_pool2d(line, 3, 2, 1),
                lambda: F.conv2d(line, paddle.ones([1, 1, 3, 5]) * 0.1, stride=2, padding=2),
                lambda: F.conv2d(line, paddle.ones([1, 1, 3, 3]) * 0.1, padding="SAME", stride=2),
            ]
        )(),
        [0, 1],
    )


@step
def turned(draw: random.Random, x: Any) -> Any:
    return draw.choice(
        [
            lambda: paddle.transpose(x, [1, 0]),
            lambda: paddle.flip(x, [1]),
            lambda: paddle.roll(x, threshold(draw), 1),
        ]
    )()


@step
def differentiated(draw: random.Random, x: Any) -> Any:
    x = x * 1.0
    x.stop_gradient = False
    part = draw.choice([slices, strided, padded, triangle, repeated])(draw, x)
    (gradient,) = paddle.static.gradients([paddle.sum(part * part)], [x])
    return gradient


def build(seed: int) -> Callable[[], Any]:
    def program() -> Any:
        draw = random.Random(seed)
        x = paddle.static.data("x", [draw.choice([2, -1, -1]), -1], "float32")
        for _ in range(draw.randint(2, 4)):
            x = draw.choice(_STEPS)(draw, x) * 0.5
        return x

    return program


def sizes(seed: int, count: int = 30) -> list[tuple[int, int]]:
    """Rows and columns in random order: 0 and 1, and up to ten times the first."""
    draw = random.Random(seed)
    first = draw.randint(8, 16)
    lengths = [first, 0, 1, 10 * first, *(draw.randint(2, 10 * first) for _ in range(count - 4))]
    rest = lengths[1:]
    draw.shuffle(rest)
    rows = [2, 2, 3, 5, 9, 1] if build_has_open_rows(seed) else [2]
    return [(draw.choice(rows), length) for length in [first, *rest]]


def build_has_open_rows(seed: int) -> bool:
    return random.Random(seed).choice([2, -1, -1]) == -1


def attempt(program: Program, x: np.ndarray) -> Any:
    """Returns the results of plain Paddle, or ``None`` if it fails."""
    try:
        return program.run(engine=False, x=x)[0]
    except Exception:
        return None


def check(seed: int) -> tuple[int, int]:
    """Compares Paddle and the engine on one program; returns engine runs and builds."""
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    native, engine = Program(build(seed)), Program(build(seed))
    for rows, length in sizes(seed):
        x = np.random.default_rng(length).normal(size=(rows, length)).astype("float32")
        expected = attempt(native, x.copy())
        if expected is None:  # plain Paddle fails as well
            continue
        (found,) = engine.run(engine=True, x=x.copy())
        assert found.shape == expected.shape, f"{seed}: {rows}, {length}"
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4, err_msg=f"{seed}: {rows}, {length}")
    stats = paddle_ngraph.stats()
    # Paddle runs subgraphs with empty intermediate tensors at the request of the engine.
    assert stats["engine_runs"] + stats["native_runs"] > 0, "no engine operator ran"
    return int(stats["engine_runs"]), int(stats["functions_built"])


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("start", range(0, 16, 4))
def test_random_programs_at_random_sizes(start):
    found = [check(seed) for seed in range(start, start + 4)]
    assert sum(runs > 0 for runs, _ in found) >= 3, "the engine did not run"
    # Functions with dynamic shapes served sizes other than those of their builds.
    assert sum(built < runs / 2 for runs, built in found) >= 2
