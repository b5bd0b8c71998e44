"""Loops that end by a flag before their values grow: as ``break`` in front of a concatenation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first
from tests.conversion.test_growing_loops import agree
from tests.programs import Program, fed_limit, floats
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WIDTH = 4
cond = paddle.static.nn.cond


def loop(grow: Callable[..., list[Any]], start: list[Any], first: Any, stops: Any = False) -> Any:
    """A loop that ends before step ``at``, which is fed, or after ``limit`` steps.

    Args:
        grow: Returns the values of the next iteration, for the counter and the values.
        start: The initial values.
        first: The initial value of the counter.
        stops: The initial value of the flag.
    """
    at, limit = paddle.static.data("at", [1], "float32"), fed_limit()

    def body(i: Any, flag: Any, steps: Any, *values: Any) -> list[Any]:
        flag = paddle.cast(steps, "float32") == at
        grown = cond(flag, lambda: list(values), lambda: grow(steps, *values))
        i = cond(flag, lambda: i, lambda: i + 1)
        return [i, flag, steps + 1, *grown]

    def goes_on(i: Any, flag: Any, steps: Any, *values: Any) -> Any:
        return paddle.logical_and(steps < limit, paddle.logical_not(flag))

    begin = [first, paddle.full([1], stops, "bool"), paddle.full([1], 0, "int64")]
    return paddle.static.nn.while_loop(goes_on, body, [*begin, *start])


def rows(steps: Any, kept: Any, sums: Any) -> list[Any]:
    """A row is appended, and one is written to."""
    new = paddle.tanh(paddle.mean(kept, axis=1, keepdim=True)) + 0.1
    return [paddle.concat([kept, new], axis=1), sums * 0.5 + new[:, 0]]


def two_columns(steps: Any, kept: Any, sums: Any) -> list[Any]:
    """Two columns are appended, and one to another value."""
    new = paddle.mean(kept, axis=2, keepdim=True)
    pair = paddle.concat([new, new * 0.5], axis=2)
    return [paddle.concat([kept, pair], axis=2), paddle.concat([sums, sums[:, :1]], axis=1)]


def build(grow: Callable[..., list[Any]], stops: bool = False) -> list[Any]:
    x = paddle.static.data("x", [-1, 2, WIDTH], "float32")
    first = paddle.full([1], 0, "int64")
    results = loop(grow, [x * 1.0, x[:, 0] * 1.0], first, stops)
    # Readers of the values behind the loop.
    return [*results, paddle.mean(results[3], axis=1), paddle.sum(results[3]) + results[0]]


@pytest.mark.parametrize("grow", [rows, two_columns])
def test_a_loop_ends_before_its_values_grow(grow: Callable) -> None:
    program = Program(lambda: build(grow))
    report = paddle_ngraph.explain(program.main)
    assert len(report.intervals) == 1 and not report.native, report
    sizes = set()
    for at, limit in [(2, 5), (1, 5), (0, 5), (9, 5), (4, 5), (5, 5), (0, 1), (9, 0)]:
        feed = {"x": floats(2, 2, WIDTH), "at": np.array([at], "float32")}
        feed["limit"] = np.array([limit])
        sizes.add(agree(program, atol=1e-6, **feed)[3].shape)
    assert len(sizes) > 3


def test_the_exit_is_known_where_nothing_behind_the_loop_reads_it() -> None:
    program = Program(lambda: build(rows)[3:5])
    for at in (2, 0, 9):
        feed = {"x": floats(2, 2, WIDTH), "at": np.array([at], "float32")}
        agree(program, atol=1e-6, **feed, limit=np.array([4]))


def test_a_slice_is_empty_only_where_no_iteration_adds_a_row() -> None:
    program = Program(lambda: (lambda found: [found[3][:, 2:] * 2.0, found[4]])(build(rows)))
    for at, limit in [(2, 4), (9, 3), (1, 4), (0, 4)]:
        feed = {"x": floats(2, 2, WIDTH), "at": np.array([at], "float32")}
        feed["limit"] = np.array([limit])
        if at:
            agree(program, atol=1e-6, **feed)
            continue
        paddle_ngraph.reset_stats()
        assert program.run(**feed)[0].shape == (2, 0, WIDTH)
        assert paddle_ngraph.stats()["native_runs"] == 1


def test_a_loop_that_has_stopped_before_it_starts_keeps_its_values() -> None:
    program = Program(lambda: build(rows, stops=True))
    feed = {"x": floats(2, 2, WIDTH), "at": np.array([1], "float32"), "limit": np.array([3])}
    for one, other in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-6)


def two_exits() -> list[Any]:
    """Either of two values misses the last row, or both do: lengths differ behind the loop."""
    x, limit = paddle.static.data("x", [-1, 2, WIDTH], "float32"), fed_limit()
    at = [paddle.static.data(f"at{n}", [1], "float32") for n in range(2)]

    def body(one: Any, other: Any, i: Any, *values: Any) -> list[Any]:
        flags = [paddle.cast(i, "float32") == each for each in at]
        new = paddle.tanh(paddle.mean(values[0], axis=1, keepdim=True)) + 0.1
        grown = [
            cond(flag, lambda kept=kept: kept, lambda kept=kept: paddle.concat([kept, new], axis=1))
            for flag, kept in zip(flags, values)
        ]
        return [*flags, i + 1, *grown]

    def goes_on(one: Any, other: Any, i: Any, *values: Any) -> Any:
        return paddle.logical_and(i < limit, ~paddle.logical_or(one, other))

    flags = [paddle.full([1], False, "bool") for _ in range(2)]
    start = [*flags, paddle.full([1], 0, "int64"), x * 1.0, x * 2.0]
    results = paddle.static.nn.while_loop(goes_on, body, start)
    return [*results, *(paddle.zeros(paddle.shape(each)) + 1.0 for each in results[3:])]


def test_values_that_different_exits_skip_have_different_lengths() -> None:
    program = Program(two_exits)
    for one, other in [(1, 9), (9, 1), (2, 2), (9, 9)]:
        feed = {"x": floats(2, 2, WIDTH), "limit": np.array([4])}
        feed.update(at0=np.array([one], "float32"), at1=np.array([other], "float32"))
        agree(program, atol=1e-6, **feed)


def prepended(steps: Any, kept: Any, sums: Any) -> list[Any]:
    new = paddle.mean(kept, axis=1, keepdim=True)
    return [paddle.concat([new, kept], axis=1), sums]


def test_a_value_that_begins_with_new_rows_falls_back() -> None:
    """Without its last row, it would not be the value of the iteration before."""
    program = Program(lambda: build(prepended))
    for at in (2, 9):
        feed = {"x": floats(2, 2, WIDTH), "at": np.array([at], "float32")}
        feed["limit"] = np.array([4])
        for one, other in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-6)
    native = [op for op in paddle_ngraph.explain(program.main).native if op.type == "pd_op.while"]
    assert native and "inside, if runs natively" in native[0].reason


def counted_in_float32() -> list[Any]:
    """``paddle.full([], 0)`` counts in float32; its limit decides how long slices are."""
    x = paddle.static.data("x", [-1, 2, WIDTH], "float32")
    at = paddle.static.data("at", [1], "float32")

    def body(i: Any, flag: Any, kept: Any) -> list[Any]:
        last = kept[:, -12:]
        kept = paddle.concat([last, paddle.mean(last, axis=1, keepdim=True)], axis=1)
        flag = paddle.mean(paddle.cast(paddle.shape(kept)[1], "float32")) == at
        return [cond(flag, lambda: i, lambda: i + 1), flag, kept]

    def goes_on(i: Any, flag: Any, kept: Any) -> Any:
        return paddle.logical_and(i < paddle.cast(paddle.full([1], 9), "float32"), ~flag)

    start = [paddle.full([1], 0.0), paddle.full([1], False, "bool"), x * 1.0]
    return paddle.static.nn.while_loop(goes_on, body, start)


def test_a_counter_of_float32_bounds_sizes() -> None:
    program = Program(counted_in_float32)
    for at in (5, 99):
        feed = {"x": floats(2, 2, WIDTH), "at": np.array([at], "float32")}
        agree(program, atol=1e-6, **feed)


def natively_looped(seed: int) -> list[Any]:
    """A loop that Paddle runs, with branches in subgraphs of its body.

    Some values start without a row, and are read; each may miss rows by either of two exits.
    """
    draw = np.random.default_rng(seed)
    x, limit = paddle.static.data("x", [2, 2, WIDTH], "float32"), fed_limit()
    at = [paddle.static.data(f"at{n}", [1], "float32") for n in range(2)]
    exits = [int(draw.integers(2)) for _ in range(3)]
    starts = [0, int(draw.integers(3)), int(draw.integers(2))]

    def body(one: Any, other: Any, i: Any, *values: Any) -> list[Any]:
        first = paddle.cast(i, "float32") == at[0]
        flags = [first, paddle.logical_or(first, paddle.cast(i, "float32") == at[1])]
        grown = []
        for number, (value, flag) in enumerate(zip(values, (flags[n] for n in exits))):
            new = paddle.tanh(x[:, :1] * 0.5) + 0.1 * number
            both = lambda value=value, new=new: paddle.concat([value, new], axis=1)  # noqa: E731
            grown.append(cond(flag, lambda value=value: value, both))
        return [*flags, i + 1, *grown]

    def goes_on(one: Any, other: Any, i: Any, *values: Any) -> Any:
        return paddle.logical_and(i < limit, ~paddle.logical_or(one, other))

    flags = [paddle.full([1], False, "bool") for _ in range(2)]
    empty = [x[:, :count] * 1.0 if count else paddle.zeros([2, 0, WIDTH]) for count in starts]
    start = [*flags, paddle.full([1], 0, "int64"), *empty]
    results = paddle.static.nn.while_loop(goes_on, body, start)
    return [*results, *(paddle.zeros(paddle.shape(each)) + 1.0 for each in results[3:])]


def test_concatenations_in_branches_have_the_sizes_of_all_iterations() -> None:
    """Paddle declares them as in the first iteration; Paddle would run them in all others."""
    program = Program(lambda: natively_looped(0)).main.clone()
    program_pass.canonicalize(program)
    blocks = blocks_outermost_first(program)
    joined = [op for block in blocks for op in block.ops if op.name() == "pd_op.concat"]
    assert [list(op.result(0).shape) for op in joined] == [[2, -1, WIDTH]] * 3


@pytest.mark.parametrize("seed", range(2))
def test_values_without_rows_stay_empty_after_runs_with_rows(seed: int) -> None:
    """Paddle's own ``if`` retains the tensor of the run before."""
    program = Program(lambda: natively_looped(seed))
    assert any(op.type == "pd_op.while" for op in paddle_ngraph.explain(program.main).native)
    paddle_ngraph.reset_stats()
    sizes = set()
    draw = np.random.default_rng(seed)
    sampled = [
        (one, other, 4) for one, other in draw.permutation(np.indices((3, 3)).reshape(2, -1).T)[:4]
    ]
    for one, other, limit in [(9, 9, 1), (0, 9, 3), *sampled, (9, 9, 0), (9, 0, 3)]:
        feed = {"x": floats(2, 2, WIDTH), "limit": np.array([limit])}
        feed.update(at0=np.array([one], "float32"), at1=np.array([other], "float32"))
        for expected, found in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
            assert expected.shape == found.shape
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
            sizes.add(expected.shape)
    assert paddle_ngraph.stats()["engine_runs"] > 0 and (2, 0, WIDTH) in sizes and len(sizes) > 2
