"""Overwritten variables of loops and branches become carried values: random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.partitioning.analysis import single_assignment
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first, mark_sequential
from tests.ops.test_control_flow import graph_of, parameter, while_loop
from tests.programs import Program, floats
from tests.zips import zip_equal

WIDTH = 6


def in_place(program: Program) -> list[str]:
    """Returns the in-place operators that remain in a rewritten copy of the program."""
    copy = program.main.clone()
    single_assignment.to_single_assignment(copy)
    names = [op.name() for block in blocks_outermost_first(copy) for op in block.ops]
    return [name for name in names if name.endswith("_")]


def in_order(build: Callable) -> Program:
    """Runs operators in program order: Paddle's threads miss writes of an inner block."""
    program = Program(build)
    mark_sequential(program.main)
    return program


def count(counter: Any, step: int = 1) -> None:
    paddle.increment(counter, step)


def is_one_subgraph(program: Program) -> bool:
    report = paddle_ngraph.explain(program.main)
    (interval,) = report.intervals
    return not report.native and len(report.blocks) == 1 and "pd_op.while" in interval.types


class RandomLoops:
    """Loops whose bodies overwrite counters and a table, in branches and inner loops too."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.shape = [[], [1]][self.draw.integers(2)]
        self.kinds = list(self.draw.choice(KINDS, size=self.draw.integers(1, 5)))
        self.before, self.carries = (bool(self.draw.integers(2)) for _ in range(2))
        self.step = int(self.draw.integers(1, 3))
        self.dtype = str(self.draw.choice(["float32", "int64"]))

    def build(self) -> Any:
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        limit = paddle.static.data("limit", self.shape, "int64")
        self.x, self.weight = x, parameter(WIDTH, WIDTH, seed=1)
        self.i = paddle.full(self.shape, 0, "int64")
        self.total = paddle.full(self.shape, 0, self.dtype)
        self.table = paddle.zeros([4, WIDTH]) + paddle.mean(x)
        early = [self.table * 2.0, paddle.cast(self.total, "float32") + 1.0]
        if self.before:
            paddle.increment(self.total, 3)
            self.table[3] = paddle.mean(x, axis=0)

        def body(i: Any, h: Any) -> Any:
            for kind in self.kinds:
                h = self.part(str(kind), i, h)
            return [paddle.increment(i), h] if self.carries else [i, h]

        def body_of_all(i: Any, h: Any) -> Any:
            result = body(i, h)
            if not self.carries:
                paddle.increment(i)
            return result

        def goes_on(i: Any, _: Any) -> Any:  # a limit of int32 would be too many iterations
            return paddle.logical_and(i < limit, i < 1000)

        i, h = while_loop(goes_on, body_of_all, [self.i, x * 1.0])
        return [*early, i, h, self.total, self.table, self.table[1] + 1.0, self.total < 4]

    def part(self, kind: str, i: Any, h: Any) -> Any:
        if kind == "count":
            paddle.increment(self.total, self.step)
            return h + paddle.cast(self.total, "float32") * 0.01
        if kind == "write":
            self.table[1] = paddle.mean(paddle.tanh(h), axis=0)
            return h * 0.9 + self.table[1]
        if kind == "branch":
            mean = paddle.mean(h)

            def first() -> None:
                self.table[2] = paddle.mean(h, axis=0) + self.table[1]
                paddle.increment(self.total)

            def second() -> None:
                self.table[0] = self.table[2] * 0.5

            paddle.static.nn.cond(mean > 0.1, first, second)
            return h - self.table[2] * 0.3
        if kind == "lone branch":
            paddle.static.nn.cond(i > 1, lambda: count(self.total))
            return h + paddle.cast(self.total, "float32") * 0.02
        j = paddle.full(self.shape, 0, "int64")

        def inner(j: Any, g: Any) -> Any:
            self.table[1] = self.table[1] * 0.5 + paddle.mean(g, axis=0)
            paddle.increment(j)
            paddle.increment(self.total, 2)
            return [j, paddle.tanh(paddle.matmul(g, self.weight)) + self.table[1]]

        _, g = while_loop(lambda j, _: j < 2, inner, [j, h])
        return g + paddle.cast(j, "float32") * 0.1


KINDS = ["count", "write", "branch", "lone branch", "inner loop"]


@pytest.mark.parametrize("seed", range(16))
def test_a_random_loop_carries_overwritten_variables(seed: int) -> None:
    loops = RandomLoops(seed)
    program, reference = Program(loops.build), in_order(RandomLoops(seed).build)
    assert not in_place(program) and is_one_subgraph(program)
    for rows, limit in [(3, 2), (3, 0), (5, 4), (1, 1), (2, 7)]:
        fed = {"x": floats(rows, WIDTH, seed=rows), "limit": np.full(loops.shape, limit)}
        native = reference.run(engine=False, **fed)
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(2):
            for expected, found in zip_equal(native, program.run(**fed)):
                assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
                np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
        assert paddle_ngraph.stats()["engine_runs"] > before


def test_counters_and_a_recurrence_are_one_subgraph() -> None:
    """An RNN written as ``while``, which counts by ``increment`` and stores the count."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        limit = paddle.static.data("limit", [1], "int64")
        i, often = paddle.zeros([1], "int64"), paddle.zeros([1], "float32")
        weight = parameter(WIDTH, WIDTH)

        def body(i: Any, h: Any) -> Any:
            h = paddle.tanh(paddle.matmul(h, weight) + x)
            paddle.increment(i)
            paddle.static.nn.cond(i > 2, lambda: count(often))
            return [i, h]

        i, h = while_loop(lambda i, _: i < limit, body, [i, x * 0.5])
        return [i, h, often * 2.0]

    program, reference = Program(build), in_order(build)
    assert is_one_subgraph(program)
    for rows, limit in [(3, 5), (2, 0), (4, 1), (3, 5)]:
        fed = {"x": floats(rows, WIDTH, seed=rows), "limit": np.array([limit])}
        for expected, found in zip_equal(reference.run(engine=False, **fed), program.run(**fed)):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 4


@pytest.mark.parametrize(
    ("start", "step", "most", "is_bounded"),
    [
        (0, 2147483, 1000, True),
        (0, 2147484, 1000, False),
        (648, 2147483, 1000, False),
        (-5, -2147483, 1000, True),
        (-5, -2147484, 1000, False),
        (0, 1, 2**31 - 1, True),
        (1, 1, 2**31 - 1, False),
    ],
)
def test_a_sum_is_bounded_by_the_number_of_iterations(
    start: int, step: int, most: int, is_bounded: bool
) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [4, WIDTH], "float32")
        limit = paddle.static.data("limit", [1], "int64")
        i, total = paddle.zeros([1], "int64"), paddle.full([1], start, "int64")

        def body(i: Any, h: Any) -> Any:
            paddle.static.nn.cond(paddle.mean(h) > -2, lambda: count(total, step))
            return [i + 1, paddle.tanh(h)]

        def goes_on(i: Any, _: Any) -> Any:
            return paddle.logical_and(i < limit, i < most)

        return [*while_loop(goes_on, body, [i, x * 1.0]), total]

    program = Program(build)
    assert not paddle_ngraph.explain(program.main).native
    types = [op.type for op in graph_of(build).all_ops() if op.checked]
    assert bool(types) == (not is_bounded), "runs look at sums that no number of turns bounds"
    for limit in (0, 3, 1000):
        before = paddle_ngraph.stats()["engine_runs"]
        _, _, total = program.run(x=floats(4, WIDTH), limit=np.array([limit]))
        assert total == start + limit * step
        fits = abs(start + limit * step) < 2**31
        assert paddle_ngraph.stats()["engine_runs"] - before == (1 if fits else 0)


def test_assigned_variables_are_carried() -> None:
    def build() -> Any:
        x, total = paddle.static.data("x", [4, WIDTH], "float32"), paddle.zeros([1])

        def body(i: Any, h: Any) -> Any:
            paddle.assign(total + 1.0, total)
            return [i + 1, h + total]

        start = [paddle.zeros([1], "int64"), x * 1.0]
        return [*while_loop(lambda i, _: i < 3, body, start), total]

    program = Program(build)
    assert is_one_subgraph(program)
    for seed in range(3):
        x = floats(4, WIDTH, seed=seed)
        for expected, found in zip_equal(([3], x + 6.0, [3.0]), program.run(x=x)):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def bound_of_a_loop() -> Any:
    x, most = paddle.static.data("x", [4, WIDTH], "float32"), paddle.to_tensor(5)
    start = [paddle.zeros([], "int64"), x * 1.0]
    return while_loop(lambda i, _: i < most + 1, lambda i, h: [i + 1, paddle.tanh(h)], start)


def size() -> Any:
    x = paddle.static.data("x", [4, WIDTH], "float32")
    return paddle.exp(x).reshape([paddle.to_tensor(8), -1]) * 2.0


def read_before_and_after() -> Any:
    x, number = paddle.static.data("x", [4, WIDTH], "float32"), paddle.full([1], 2, "int64")
    found = [number + 1]
    for value in (7, -(2**31) + 1):
        paddle.assign(np.array([value], "int64"), output=number)
        found.append(number + 1)
    return [*found, paddle.cast(number, "float32") * x]


def inside_a_loop() -> Any:
    x, total = paddle.static.data("x", [4, WIDTH], "float32"), paddle.zeros([1])

    def body(i: Any, h: Any) -> Any:
        h = h + total
        paddle.assign(np.array([2.0], "float32"), output=total)
        return [i + 1, h * total]

    start = [paddle.zeros([1], "int64"), x * 1.0]
    return [*while_loop(lambda i, _: i < 3, body, start), total + 1.0]


@pytest.mark.parametrize("build", [bound_of_a_loop, size, read_before_and_after, inside_a_loop])
def test_assigned_constants_have_ranges(build: Callable) -> None:
    """Covers scalars of ``paddle.to_tensor`` in a program."""
    program, x = in_order(build), floats(4, WIDTH)
    assert not paddle_ngraph.explain(program.main).native
    assert in_place(program) == []
    for expected, found in zip_equal(program.run(engine=False, x=x), program.run(x=x)):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 1


def assigned_feed() -> Any:
    number = paddle.static.data("i", [1], "int64")
    paddle.assign(np.array([3], "int64"), output=number)
    return paddle.static.data("x", [-1, WIDTH], "float32") * paddle.cast(number, "float32")


def assigned_parameter() -> Any:
    kept = parameter(1, seed=1)
    result = paddle.static.data("x", [-1, WIDTH], "float32") * kept
    paddle.assign(np.array([3.0], "float32"), output=kept)
    return result


@pytest.mark.parametrize("build", [assigned_feed, assigned_parameter])
def test_feeds_and_parameters_are_assigned_in_place(build: Callable) -> None:
    assert "pd_op.assign_value_" in in_place(Program(build))


def of_a_feed() -> Any:
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    i = paddle.static.data("i", [1], "int64")
    return while_loop(
        lambda i, _: i < 4, lambda i, h: [paddle.increment(i), paddle.tanh(h)], [i, x * 1.0]
    )[1]


def of_a_parameter() -> Any:
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    kept = paddle.static.create_parameter(
        [1], "float32", default_initializer=paddle.nn.initializer.Constant(0.0)
    )
    kept.stop_gradient = True
    h = while_loop(
        lambda i, _: i < 4,
        lambda i, h: [i + 1, paddle.tanh(h) + paddle.increment(kept)],
        [paddle.zeros([1], "int64"), x * 1.0],
    )[1]
    return h, kept + 0.0


def next_to_print() -> Any:
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    i = paddle.zeros([1], "int64")

    def body(i: Any, h: Any) -> Any:
        paddle.static.Print(h, summarize=1)
        paddle.increment(i)
        return [i, paddle.tanh(h)]

    return while_loop(lambda i, _: i < 2, body, [i, x * 1.0])[1]


@pytest.mark.parametrize("build", [of_a_feed, of_a_parameter, next_to_print])
def test_variables_that_keep_their_memory(build: Callable) -> None:
    assert "pd_op.increment_" in in_place(Program(build))
