"""``cond`` and ``while_loop``: one operator, or, trained, blocks that the engine runs."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.models import zoo
from tests.models.comparing import compare

WIDTH = 16
# Control flow itself, and the counter of the loop, which has 64 bits.
NATIVE = {"pd_op.if", "pd_op.while", "pd_op.less_than", "pd_op.scale"}
NATIVE |= {"pd_op.assign"}  # copies of initial values of a loop with other readers
NATIVE |= {"cf.stack_create", "cf.tuple_push", "cf.tuple_pop", "cf.has_elements"}


def branching(trains: bool) -> zoo.Model:
    """One of two layers, as the sum of the numbers says; both outcomes occur."""

    def build() -> zoo.Variable:
        x = paddle.static.data("x", [-1, WIDTH])
        first, second = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, WIDTH)
        hidden = paddle.tanh(paddle.nn.Linear(WIDTH, WIDTH)(x))
        chosen = paddle.static.nn.cond(
            paddle.sum(x) > 0,
            lambda: paddle.nn.functional.relu(first(hidden)) + 1.0,
            lambda: paddle.nn.functional.softmax(second(hidden)) * 2.0,
        )
        loss = paddle.mean(paddle.square(chosen))
        return zoo.trained(loss, paddle.optimizer.Momentum(0.1, 0.9)) if trains else chosen

    signs = [1, -1, -1, 1, 1]
    feeds = [{"x": np.float32(sign) + zoo.floats(4, WIDTH, seed=i)} for i, sign in enumerate(signs)]
    return zoo.Model("branch", build, feeds, trains)


def looping(trains: bool) -> zoo.Model:
    """A layer applied five times."""

    def build() -> zoo.Variable:
        x = paddle.static.data("x", [4, WIDTH])
        before, layer = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, WIDTH)
        limit = paddle.full([1], 5, "int64")

        def goes_on(step: zoo.Variable, state: zoo.Variable) -> zoo.Variable:
            return step < limit

        def body(step: zoo.Variable, state: zoo.Variable) -> list[zoo.Variable]:
            return [step + 1, paddle.tanh(layer(state)) + 0.5 * state]

        first = paddle.zeros([1], "int64")
        _, last = paddle.static.nn.while_loop(goes_on, body, [first, before(x)])
        loss = paddle.mean(paddle.square(last))
        return zoo.trained(loss, paddle.optimizer.Momentum(0.1, 0.9)) if trains else last

    feeds = [{"x": zoo.floats(4, WIDTH, seed=i)} for i in range(4)]
    return zoo.Model("loop", build, feeds, trains)


def growing(trains: bool = False) -> zoo.Model:
    """Doubled until the sum is above 1,000: how often, the feed decides."""

    def build() -> zoo.Variable:
        x = paddle.static.data("x", [4, WIDTH])
        (last,) = paddle.static.nn.while_loop(
            lambda state: paddle.sum(state) < 1000,
            lambda state: [paddle.nn.functional.softplus(state) * 2.0 + paddle.exp(-state)],
            [x],
        )
        return last

    feeds = [{"x": zoo.floats(4, WIDTH, seed=i) * np.float32(10.0**i)} for i in range(3)]
    return zoo.Model("growing loop", build, feeds, trains)


CASES = [(branching, False), (branching, True), (looping, False), (looping, True), (growing, False)]


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("make, trains", CASES)
def test_control_flow(make, trains):
    """In inference it is an operator of an interval; in training its blocks hold intervals."""
    outcome = compare(make(trains))
    inner = outcome.report.blocks[1:]
    assert outcome.engine_runs > 0
    if trains:
        assert inner and all(block.intervals for block in inner), outcome.report
        assert any("matmul_grad" in str(block) for block in inner)
    else:
        (interval,) = outcome.report.intervals
        assert not inner and {"pd_op.if", "pd_op.while"} & set(interval.types)
    assert {op.type for op in outcome.report.native} <= NATIVE
    assert not outcome.wrong()
