"""Sums that cancel, to zero in one computation and to a rounding in the other, before poles."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import paddle
import pytest

from paddle_ngraph.verification import checks
from tests.programs import Program, floats
from tests.verification.planted import negated, planted, scaled
from tests.verification.test_checks import verified

ROWS, COLUMNS = 7, 12


def _rotated(x: Any) -> Any:
    return paddle.concat([x[:, 1:], x[:, :1]], 1)


# Functions of x and y that are zero in exact arithmetic at some elements, or at all.
SUMS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: (x + y) - x - y,
    lambda x, y: (x * y + x * 3.0) - x * (y + 3.0),
    lambda x, y: paddle.sum(x, 1, keepdim=True) - paddle.sum(_rotated(x), 1, keepdim=True),
    lambda x, y: paddle.mean(x * y, 1, keepdim=True) - paddle.matmul(x, y.T)[:, :1] / COLUMNS,
    lambda x, y: paddle.matmul(paddle.concat([x, y], 1), paddle.concat([y, -x], 1).T)[:, :1],
    lambda x, y: (x / y) * y - x,
    lambda x, y: paddle.exp(paddle.log(paddle.abs(x))) - paddle.abs(x),
    lambda x, y: (x / y) * (y / x) - 1.0,
    lambda x, y: paddle.cumsum(x, 1) - paddle.cumsum(x, 1)[:, -1:],
    lambda x, y: paddle.sin(x) ** 2 + paddle.cos(x) ** 2 - 1.0,
]
# Functions with a pole or a branch point at zero.
POLES: list[Callable[[Any], Any]] = [
    lambda z: 1.0 / z,
    lambda z: paddle.log(paddle.abs(z)),
    lambda z: paddle.rsqrt(paddle.abs(z)),
    lambda z: paddle.rsqrt(z),
    lambda z: z / paddle.abs(z),
    lambda z: 1.0 / (z * z),
    lambda z: paddle.pow(z, -1.5),
    lambda z: paddle.tanh(paddle.log(paddle.abs(z)) * 0.1),
    lambda z: paddle.cast(paddle.clip(0.1 / z, -9.0, 9.0), "int32"),
    lambda z: paddle.argmax(1.0 / z, 1),
    lambda z: paddle.isfinite(1.0 / z),
]


def _build(sums: list[Callable[[Any, Any], Any]], poles: list[Callable[[Any], Any]]) -> list[Any]:
    x, y = (paddle.static.data(name, [ROWS, COLUMNS]) for name in "xy")
    found = []
    for each in sums:
        z = each(x, y) + 0 * x  # of the shape of x
        # Elements that cancel, alone and beside others.
        found += [z, *(pole(value) for pole in poles for value in (z, paddle.concat([z, x], 0)))]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_poles_at_cancelled_sums(seed: int) -> None:
    draws = random.Random(seed)
    sums, poles = draws.sample(SUMS, 3), draws.sample(POLES, 5)
    with verified():
        program = Program(lambda: _build(sums, poles))
        for _ in range(2):
            scale = 2.0 ** draws.randint(-6, 6)
            x, y = (scale * floats(ROWS, COLUMNS, seed=draws.randrange(99)) for _ in range(2))
            program.run(x=x.astype("float32"), y=y.astype("float32"))
    assert checks.log.checked == 2
    assert (checks.log.wrong, checks.log.unchecked) == (0, {}), str(checks.log)


@pytest.mark.parametrize(("name", "pole"), [("divide", 0), ("log", 1), ("argmax", 9)])
def test_faults_beside_cancelled_sums_are_found(name: str, pole: int) -> None:
    fault = scaled if name != "argmax" else negated
    with planted(f"pd_op.{name}", fault), verified(), pytest.warns(match=f"wrong at pd_op.{name},"):
        program = Program(lambda: _build(SUMS[:2], [POLES[pole]]))
        program.run(x=floats(ROWS, COLUMNS), y=floats(ROWS, COLUMNS, seed=1))


def test_differences_that_vanish_after_many_roundings() -> None:
    """Their zeros, and the signs of sums of thousands of elements, which few samples reach."""

    def build() -> list[Any]:
        x = paddle.static.data("x", [64, 96])
        y = paddle.nn.functional.gelu(x) - x * 0.5 * (1 + paddle.erf(x * 0.70710678))
        z = paddle.matmul(paddle.concat([x, -x], 1), paddle.ones([192, 8]))
        return [1 / y, z / paddle.abs(z)]

    with verified():
        program = Program(build)
        for seed in range(2):
            program.run(x=floats(64, 96, seed=seed))
    assert checks.log.checked == 2
    assert (checks.log.wrong, checks.log.unchecked) == (0, {}), str(checks.log)
