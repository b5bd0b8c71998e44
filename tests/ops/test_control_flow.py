"""Loops and branches inside a subgraph: random programs, and cases that fall back."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass
from tests.programs import Program, floats, parameter
from tests.zips import zip_equal

ROOT = Path(__file__).parents[2]
WIDTH, WORDS = 6, 11


def while_loop(goes_on: Callable, body: Callable, start: list[Any]) -> list[Any]:
    found = paddle.static.nn.while_loop(goes_on, body, start)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def is_one_operator(program: Program, loops: int = 1) -> bool:
    """Whether the program is one subgraph, loops and branches included."""
    report = paddle_ngraph.explain(program.main)
    (interval,) = report.intervals
    kinds = [kind for kind in interval.types if kind in ("pd_op.while", "pd_op.if")]
    return not report.native and len(report.blocks) == 1 and len(kinds) == loops


def agree(
    program: Program, runs: int = 1, natively: Program | None = None, **feed: np.ndarray
) -> list[np.ndarray]:
    """Compares Paddle and the engine, which has to be called exactly ``runs`` times.

    Args:
        natively: A program for Paddle to run instead, with equal results.
    """
    native = (natively or program).run(engine=False, **feed)
    for _ in range(2):
        before = paddle_ngraph.stats()
        found = program.run(**feed)
        after = paddle_ngraph.stats()
        assert after["engine_runs"] - before["engine_runs"] == runs
        assert after["native_runs"] == before["native_runs"]
        for expected, actual in zip_equal(native, found):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    return native


# -- random loops ----------------------------------------------------------------------------------


class RandomLoop:
    """A random loop: its counter, its condition and its body depend on a seed.

    Invariant inputs include parameters. Loop-carried are a matrix [rows, WIDTH], the number of
    events, token ids (int64), and possibly more.
    """

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.counter = self.draw.choice(["int64", "int32", "float32"])
        self.scalar = bool(self.draw.integers(2))
        self.ending = self.draw.choice(["constant", "fed", "data", "both"])
        self.most = int(self.draw.choice([3, 9, 40]))
        self.has_cond = bool(self.draw.integers(2))
        self.steps = [str(kind) for kind in self.draw.choice(KINDS, size=self.draw.integers(1, 5))]
        self.swaps, self.keeps = (bool(self.draw.integers(2)) for _ in range(2))

    def build(self) -> Any:
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        limit = paddle.static.data("limit", [], self.counter)
        shape = [] if self.scalar else [1]
        self.x, self.outside = x, paddle.exp(x * 0.1)
        self.weights = [parameter(WIDTH, WIDTH, seed=n) for n in range(3)]
        self.words = parameter(WORDS, WIDTH, seed=7)
        self.limit = limit
        self.end = paddle.full(shape, self.most, self.counter)
        word = paddle.argmax(paddle.matmul(x, parameter(WIDTH, WORDS, seed=8)), axis=1)
        start = [paddle.full(shape, 0, self.counter), x * 1.0, paddle.tanh(x), word]
        start += [self.outside * 2.0] if self.keeps else []
        ends = while_loop(self.goes_on, self.body, start)
        return [*ends, ends[1] * 2.0 + self.outside, ends[3] < 4]

    def goes_on(self, i: Any, h: Any, *_: Any) -> Any:
        by_data = paddle.sum(paddle.abs(h)) < 60.0
        return {
            "constant": lambda: i < self.end,
            "fed": lambda: paddle.logical_and(i < self.end, i < self.limit),
            "data": lambda: paddle.logical_and(self.end > i, by_data),
            "both": lambda: paddle.logical_and(
                by_data, paddle.logical_and(i <= self.end, i < self.limit)
            ),
        }[self.ending]()

    def body(self, i: Any, h: Any, g: Any, word: Any, *kept: Any) -> Any:
        for number, kind in enumerate(self.steps):
            h = self.step(kind, self.weights[number % 3], i, h, word)
        if self.has_cond:
            before = h
            h = paddle.static.nn.cond(
                paddle.mean(before) > 0.1,
                lambda: paddle.tanh(before) + self.outside,
                lambda: before * 0.5,
            )
        word = paddle.argmax(paddle.matmul(h, self.words, transpose_y=True), axis=1)
        h, g = (g, h) if self.swaps else (h, g * 0.9)
        return [i + 1, h, g, word, *kept]

    def step(self, kind: str, weight: Any, i: Any, h: Any, word: Any) -> Any:
        if kind == "product":
            return paddle.matmul(h, weight)
        if kind == "outside":
            return h + self.outside * 0.1
        if kind == "count":
            return h + paddle.cast(i, "float32") * 0.01
        if kind == "word":
            return h + paddle.nn.functional.embedding(word, self.words)
        if kind == "shape":
            rows = paddle.shape(h)[0]
            return h + paddle.reshape(paddle.cast(rows, "float32"), [1, 1]) * 0.01
        if kind == "flat":
            flat = paddle.reshape(h, [-1])
            return paddle.reshape(paddle.concat([flat[1:], flat[:1]]), [-1, WIDTH])
        if kind == "normal":
            return paddle.nn.functional.softmax(h, axis=-1) - 0.1
        return paddle.where(h > 0, h * 1.2, h + 0.05)


KINDS = ["product", "outside", "count", "word", "shape", "flat", "normal", "where"]


@pytest.mark.parametrize("seed", range(24))
def test_a_random_loop_is_one_operator(seed: int) -> None:
    loop = RandomLoop(seed)
    program = Program(loop.build)
    assert is_one_operator(program)
    for rows, limit in [(3, 0), (3, 1), (5, 4), (2, 100), (7, 2), (1, 3)]:
        fed = np.array(limit, loop.counter)
        agree(program, x=floats(rows, WIDTH, seed=rows), limit=fed)
    assert paddle_ngraph.stats()["functions_built"] <= 4


def passed_around_by(seed: int) -> Callable:
    """A loop that carries values of several types, each computed from values of its own type."""
    draw = np.random.default_rng(seed)
    types = [
        (
            str(draw.choice(["float32", "int32", "int64", "bool"])),
            SHAPES[draw.integers(len(SHAPES))],
        )
        for _ in range(3)
    ]
    places = [types[draw.integers(3)] for _ in range(7)]
    chosen = [
        (int(draw.choice([p for p, kind in enumerate(places) if kind == each])), draw.integers(6))
        for each in places
    ]

    # Paddle drops values that do not change, and then reads out of bounds if others take their
    # values.
    chosen = [
        (place, 5 if place == number and how < 2 else int(how))
        for number, (place, how) in enumerate(chosen)
    ]

    def made(value: Any, how: int) -> Any:
        """Returns the value, a view of it, a result computed from it, or an unrelated value."""
        if how < 2:
            return value
        if how == 2:
            return paddle.reshape(paddle.unsqueeze(value, 0), value.shape)
        if how == 3:
            return paddle.full(value.shape, 1, dtype_of(value))
        if dtype_of(value) == "bool":
            return paddle.logical_not(value)
        return value * 0 + 3 if "int" in dtype_of(value) else paddle.tanh(value) + 1.0

    def build() -> Any:
        x = data(-1, name="x")
        limit = paddle.static.data("limit", [1], "int64")
        starts = [
            paddle.cast(paddle.reshape(paddle.sum(x) * (n + 1), [1]) + paddle.zeros(shape), dtype)
            if shape
            else paddle.cast(paddle.sum(x) * (n + 1), dtype)
            for n, (dtype, shape) in enumerate(places)
        ]
        starts = [
            paddle.clip(start, -9, 9) if "int" in dtype_of(start) else start for start in starts
        ]
        return counted(lambda i, *h: [made(h[p], how) for p, how in chosen], *starts, end=limit)

    return build


SHAPES: list[list[int]] = [[], [1], [2, 3]]


def dtype_of(value: Any) -> str:
    return str(value.dtype).rpartition(".")[2].lower()


@pytest.mark.parametrize("seed", range(12))
def test_loops_carry_values_of_all_types(seed: int) -> None:
    program = Program(passed_around_by(seed))
    report = paddle_ngraph.explain(program.main)
    assert any("pd_op.while" in interval.types for interval in report.intervals), str(report)
    for limit in (0, 1, 2, 3, 4):
        x, limit = floats(3, seed=seed) * 5, np.array([limit])
        native = program.run(engine=False, x=x, limit=limit)
        for _ in range(2):
            for one, other in zip_equal(native, program.run(x=x, limit=limit)):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] > 0 and stats["native_runs"] == 0


# -- variants of loops and branches ----------------------------------------------------------------


def data(*shape: int, name: str = "x", dtype: str = "float32") -> Any:
    return paddle.static.data(name, list(shape), dtype)


def counted(body: Callable, *start: Any, end: Any = 3) -> list[Any]:
    """A counting loop: ``body`` takes the counter first, and returns all but the counter."""
    first = paddle.full([1], 0, "int64")
    return while_loop(lambda i, *_: i < end, lambda i, *h: [i + 1, *body(i, *h)], [first, *start])


def nested() -> Any:
    """A nested loop with initial values and inputs from the outer counter."""
    x = data(-1, WIDTH)
    weight = parameter(WIDTH, WIDTH)

    def body(i: Any, h: Any, total: Any) -> Any:
        inner = while_loop(
            lambda j, *_: j < i,
            lambda j, g: [j + 1, paddle.tanh(paddle.matmul(g, weight)) + x],
            [paddle.full([1], 0, "int64"), h * 0.5],
        )
        return [inner[1], total + paddle.cast(inner[0], "float32")]

    return counted(body, x, paddle.full([1], 0.0, "float32"), end=4)


def branches() -> Any:
    """Nested branches, a branch in a loop, and a loop in a branch."""
    x = data(-1, WIDTH)

    def body(i: Any, h: Any) -> Any:
        mean = paddle.mean(h)
        return [
            paddle.static.nn.cond(
                mean > 0,
                lambda: paddle.static.nn.cond(mean > 0.5, lambda: h * 0.5, lambda: h * 2.0 + x),
                lambda: counted(lambda j, g: [g + 0.3], h, end=2)[1],
            )
        ]

    return counted(body, x, end=9)


def carried_unread() -> Any:
    """Carried values that are unread, unchanged, swapped, or computed from constants alone."""
    x = data(-1, WIDTH)
    kept, other = paddle.exp(x), x * 2.0
    seven = paddle.full([2], 7.0, "float32")
    return counted(
        lambda i, a, b, c, d, e: [a, c, b, paddle.full([2], 1.0, "float32"), x + 1.0],
        *(kept, x * 3.0, other, seven, paddle.tanh(x)),
        end=paddle.static.data("limit", [1], "int64"),
    )


def passed_around() -> Any:
    """Carried values that become others, views of others, or others after identity nodes."""
    x = data(-1, WIDTH)

    def view(h: Any) -> Any:
        return paddle.reshape(paddle.reshape(h, [-1]), [-1, WIDTH])

    def body(i: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
        (first,) = paddle.split(paddle.scale(a, 1.0, 0.0), 1, axis=1)
        return [paddle.tanh(b), first, view(b), c[:, :WIDTH], f, e + 0.0, paddle.concat([d], 0)]

    starts = [x * float(n) for n in range(1, 8)]
    return counted(body, *starts, end=paddle.static.data("limit", [1], "int64"))


def swapped() -> Any:
    """Carried values swapped in pairs and rotated among three, without any computation."""
    x = data(-1, WIDTH)
    starts = [x * float(n) for n in range(1, 6)]
    return counted(
        lambda i, a, b, c, d, e: [b, a, d, e, c],
        *starts,
        end=paddle.static.data("limit", [1], "int64"),
    )


def the_same_twice() -> Any:
    """Two initial values that are one value, two equal results, and an invariant input."""
    x = data(-1, WIDTH)
    twice = x + 1.0

    def body(i: Any, a: Any, b: Any, c: Any) -> Any:
        one = paddle.tanh(a + b)
        return [one, one, twice]

    return counted(body, twice, twice, x, end=paddle.static.data("limit", [1], "int64"))


def without_a_count() -> Any:
    """A condition in float32 without a counter, unread results, and a carried bool."""
    x = data(-1, WIDTH)
    h, _, found = while_loop(
        lambda h, g, found: paddle.logical_not(found),
        lambda h, g, found: [h * 1.5, g, paddle.reshape(paddle.sum(h * h) > 50.0, [1])],
        [x * 1.0, paddle.exp(x), paddle.full([1], False, "bool")],
    )
    return h + 1.0, found


def written_in_place() -> Any:
    """Views and in-place operators in the body, which overwrite no value outside."""
    x = data(-1, WIDTH)

    def body(i: Any, h: Any) -> Any:
        g = paddle.scale(h, 0.5)
        paddle.nn.functional.relu_(g)
        return [g + x]

    return counted(body, x)


def picks_a_row() -> Any:
    x, table = data(-1, WIDTH), parameter(4, WIDTH)
    return counted(lambda i, h: [h + table[i]], x)


def without_iterations() -> Any:
    """Loops without iterations in any build, both outermost and nested."""
    x = data(-1, WIDTH)

    def body(i: Any, h: Any) -> Any:
        return [h * 0.5 + counted(lambda j, g, k: [k * 3.0, g], h, x, end=0)[2]]

    return [
        *counted(body, x * 1.0),
        *counted(lambda i, h, g: [g, h], x * 1.0, x * 2.0, end=0),
    ]


def iterations_by_size() -> Any:
    """Loops over rows, which in some builds are known to have no iterations."""
    x = data(-1, WIDTH)
    rows = paddle.cast(paddle.shape(x)[0], "int32")
    start = [paddle.full([], 0, "int32"), x * 1.0]
    return while_loop(lambda i, h: i < rows - 2, lambda i, h: [i + 1, h * 1.5 + x], start)


def adds_words() -> Any:
    x = data(4, WIDTH)
    start = paddle.full([4], 0, "int64")
    return counted(lambda i, h, w: [h * 0.9, w + paddle.argmax(h, axis=1)], x, start)


def overwritten_by_two_names() -> Any:
    """A value that the body computes, overwrites, reads by both names and carries, also twice."""
    x = data(4, WIDTH)

    def body(i: Any, a: Any, b: Any, c: Any) -> Any:
        made = paddle.tanh(a + x)
        before = made * 2.0
        made[:, i] = before[:, 0]
        early = made * 1.0
        paddle.nn.functional.relu_(made)
        branch = paddle.static.nn.cond(paddle.sum(made) > 2.0, lambda: overwritten(b), lambda: b)
        return [made + early, branch, made]

    def overwritten(b: Any) -> Any:
        inside = b * 0.5
        inside[1:3] = 1.5
        return inside

    return counted(body, x * 1.0, x * 2.0, x * 3.0, end=WIDTH)


def swapped_by_a_branch() -> Any:
    """The counter is known, and a branch that a build resolves yields another input's value."""
    x = data(-1, WIDTH)

    def body(i: Any, a: Any, b: Any) -> Any:
        return [b, paddle.static.nn.cond(paddle.shape(x)[0] > 2, lambda: a, lambda: x + 1.0)]

    return counted(body, x * 1.0, x * 2.0)


LIMITS = [0, 1, 2, 5]
FORMS = [nested, branches, without_a_count, written_in_place, picks_a_row]
FORMS += [iterations_by_size, swapped_by_a_branch]
OF_FOUR_ROWS = [adds_words, overwritten_by_two_names]


@pytest.mark.parametrize("build", FORMS)
def test_a_variant_is_one_operator(build: Callable) -> None:
    program = Program(build)
    assert is_one_operator(program)
    for rows in (3, 5, 2, 8, 1, 5):
        agree(program, x=floats(rows, WIDTH, seed=rows))


@pytest.mark.parametrize("build", OF_FOUR_ROWS)
def test_a_variant_of_four_rows_is_one_operator(build: Callable) -> None:
    program = Program(build)
    assert is_one_operator(program)
    for seed in range(6):
        agree(program, x=2.0 * floats(4, WIDTH, seed=seed))


class BeamSearch:
    """A random beam search: a decoder that keeps the best of all continuations."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.samples, self.beams = int(draw.integers(1, 4)), int(draw.integers(1, 5))
        self.words, self.steps = int(draw.integers(5, 30)), int(draw.integers(1, 12))
        self.dtype = str(draw.choice(["int64", "int32"]))
        self.writes = str(draw.choice(["slice", "index", "where"]))
        self.ends = bool(draw.integers(2))

    def build(self) -> Any:
        x = data(self.samples, WIDTH)
        self.embedding = paddle.nn.Embedding(self.words, WIDTH)
        self.cell, self.head = paddle.nn.GRUCell(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, self.words)
        rows = self.samples * self.beams
        self.first = paddle.arange(self.samples, dtype="int64").unsqueeze(1) * self.beams
        state = paddle.tile(paddle.unsqueeze(x, 1), [1, self.beams, 1]).reshape([rows, WIDTH])
        best = paddle.full([self.samples, 1], 0.0, "float32")
        others = paddle.full([self.samples, self.beams - 1], -1e9, "float32")
        start = [
            paddle.full([1], 0, "int64"),
            paddle.full([rows, self.steps], 0, self.dtype),
            paddle.full([rows], 1, self.dtype),
            paddle.concat([best, others], 1) if self.beams > 1 else best,
            state,
        ]
        return while_loop(self.goes_on, self.body, start)

    def goes_on(self, i: Any, found: Any, word: Any, *_: Any) -> Any:
        more = i < self.steps
        return paddle.logical_and(more, paddle.any(word != 0)) if self.ends else more

    def body(self, i: Any, found: Any, word: Any, score: Any, state: Any) -> Any:
        _, state = self.cell(self.embedding(word), state)
        scores = paddle.nn.functional.log_softmax(self.head(state), -1)
        scores = scores.reshape([self.samples, self.beams, self.words]) + score.unsqueeze(2)
        score, place = paddle.topk(scores.reshape([self.samples, -1]), self.beams, -1)
        parent = paddle.reshape(place // self.words + self.first, [-1])
        word = paddle.cast(paddle.reshape(place % self.words, [-1]), self.dtype)
        found = self.written(i, paddle.index_select(found, parent, 0), word)
        return [i + 1, found, word, score, paddle.index_select(state, parent, 0)]

    def written(self, i: Any, found: Any, word: Any) -> Any:
        if self.writes == "where":
            is_next = paddle.arange(self.steps, dtype="int64") == i
            return paddle.where(is_next.unsqueeze(0), word.unsqueeze(1), found)
        if self.writes == "index":
            return paddle.index_put(found.T, (i,), word).T
        found[:, i] = word
        return found


@pytest.mark.parametrize("seed", range(16))
def test_a_beam_search_is_one_operator(seed: int) -> None:
    program = Program(BeamSearch(seed).build)
    assert is_one_operator(program)
    for number in range(3):
        native = agree(program, x=3.0 * floats(*program_shape(program), seed=number))
        assert native[1].any()


def program_shape(program: Program) -> list[int]:
    """The declared shape of the feed ``x``."""
    (op,) = (op for op in program.main.global_block().ops if op.name() == "pd_op.data")
    return list(op.result(0).shape)


@pytest.mark.parametrize("build", [carried_unread, passed_around, swapped, the_same_twice])
def test_loop_invariant_values_remain_after_the_loop(build: Callable) -> None:
    program = Program(build)
    assert is_one_operator(program)
    for rows in (3, 5, 8, 1):
        for limit in LIMITS:
            agree(program, x=floats(rows, WIDTH, seed=rows), limit=np.array([limit]))


def test_loops_known_to_have_no_iterations() -> None:
    """Without iterations every result is its initial value."""
    program = Program(without_iterations)
    assert is_one_operator(program, loops=2)
    for rows in (3, 5, 2, 1):
        agree(program, x=floats(rows, WIDTH, seed=rows))


@pytest.mark.parametrize("shape", [(2, WIDTH), (-1, WIDTH)], ids=str)
def test_both_branches_are_taken(shape: tuple[int, int]) -> None:
    def build() -> Any:
        x = data(*shape)
        layers = [paddle.nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        return paddle.static.nn.cond(
            paddle.sum(x) > 0,
            lambda: (paddle.nn.functional.relu(layers[0](x)), x),
            lambda: (layers[1](x) * 2.0, paddle.exp(x)),
        )

    program = Program(build)
    assert is_one_operator(program)
    for number in range(6):
        sign = np.float32((-1) ** number)
        agree(program, x=sign + floats(shape[0] if shape[0] > 0 else 2 + number, WIDTH))


# -- integers --------------------------------------------------------------------------------------


def counts(first: int, step: int, end: int, goes_on: Callable, dtype: str = "int64") -> Callable:
    def build() -> Any:
        x = data(2, 3)
        limit = paddle.full([1], end, dtype)
        ends = while_loop(
            lambda i, h: goes_on(i, limit),
            lambda i, h: [i + step, h + 1.0],
            [paddle.full([1], first, dtype), x * 1.0],
        )
        return ends

    return build


MOST = 2**31 - 1


@pytest.mark.parametrize(
    "build, fits",
    [
        (counts(MOST - 4, 1, MOST, lambda i, end: i < end), True),
        (counts(MOST - 4, 1, MOST, lambda i, end: i <= end), "no run"),
        (counts(MOST - 9, 5, MOST, lambda i, end: i < end), "no run"),
        (counts(-5, 1, 0, lambda i, end: end > i), True),
        (counts(4 - MOST, -1, -MOST, lambda i, end: i > end), True),
        (counts(4 - MOST, -1, -MOST - 1, lambda i, end: end < i), True),
        (counts(4 - MOST, -2, -MOST - 2, lambda i, end: end < i), False),
        (counts(0, 1, 4, lambda i, end: paddle.logical_and(i >= 0, i < end)), True),
        (counts(0, 1, 4, lambda i, end: paddle.logical_or(i < 0, i < end)), True),
        (counts(0, 1, 4, lambda i, end: i != end), True),
        (counts(2**40, 1, 2**40 + 3, lambda i, end: i < end), False),
        (counts(0, 1, 4, lambda i, end: paddle.reshape(paddle.assign(i), [1]) < end), True),
        (counts(0, 1, 4, lambda i, end: i * 2 < end), True),
        (counts(0, 1, 4, lambda i, end: i < end, "int32"), True),
        (counts(0, 1, 4, lambda i, end: i != end, "int32"), True),
    ],
)
def test_a_loop_counts_within_int32(build: Callable, fits: bool | str) -> None:
    """Loops that may exceed int32 are checked, and runs that exceed it fall back."""
    program = Program(build)
    assert is_one_operator(program) if fits else not_converted(program)
    native = program.run(engine=False, x=floats(2, 3))
    for one, other in zip_equal(native, program.run(x=floats(2, 3))):
        np.testing.assert_array_equal(one, other)
    stats = paddle_ngraph.stats()
    if fits:
        assert (stats["engine_runs"], stats["native_runs"]) == ((1, 0) if fits is True else (0, 1))
    assert native[1].max() > 2.0, "there were several turns"


def not_converted(program: Program) -> bool:
    """Whether a loop or branch of the program falls back."""
    return any(
        op.type in ("pd_op.while", "pd_op.if") for op in paddle_ngraph.explain(program.main).native
    )


@pytest.mark.parametrize("most", [4, MOST])
def test_a_fed_count_is_limited_to_int32(most: int) -> None:
    """A run with a larger value falls back."""

    def build() -> Any:
        x = data(2, 3)
        limit = paddle.static.data("limit", [1], "int64")
        return while_loop(
            lambda i, h: paddle.logical_and(i < limit, paddle.sum(h) < 40.0),
            lambda i, h: [i + 1, h + 1.0],
            [paddle.full([1], 0, "int64"), x * 0.0],
        )

    program = Program(build)
    assert is_one_operator(program)
    x = floats(2, 3)
    agree(program, x=x, limit=np.array([most]))
    for limit in (2**31, 2**32, 2**32 + 1, -(2**40)):
        expected = program.run(engine=False, x=x, limit=np.array([limit]))
        before = paddle_ngraph.stats()["native_runs"]
        for one, other in zip_equal(expected, program.run(x=x, limit=np.array([limit]))):
            np.testing.assert_array_equal(one, other)
        assert paddle_ngraph.stats()["native_runs"] == before + 1
    agree(program, x=x, limit=np.array([most]))


# -- fallback --------------------------------------------------------------------------------------


def drops() -> Any:
    return counted(lambda i, h: [paddle.nn.functional.dropout(h, 0.5)], data(4, WIDTH))


def prints() -> Any:
    return counted(lambda i, h: [paddle.static.Print(h, message="turn") + 1.0], data(4, WIDTH))


def sums_words() -> Any:
    x = data(4, WIDTH)
    start = paddle.full([4], 0, "int64")
    return counted(lambda i, h, w: [h * 0.9, w * 3 + paddle.argmax(h, axis=1)], x, start)


def test_sums_of_ids_are_checked() -> None:
    program = Program(sums_words)
    assert is_one_operator(program)
    for number in range(3):
        agree(program, x=floats(4, WIDTH, seed=number))


def repeats_counter_times() -> Any:
    def body(i: Any, h: Any) -> Any:
        return [h + paddle.sum(paddle.tile(h, [i + 1, 1]), axis=0)]

    return counted(body, data(4, WIDTH))


def has_no_converter() -> Any:
    return counted(lambda i, h: [paddle.lgamma(paddle.abs(h) + 1.0)], data(4, WIDTH))


def does_nothing() -> Any:
    """Paddle leaves such a branch in the program, with empty blocks."""
    x = data(4, WIDTH)
    paddle.static.nn.cond(paddle.mean(x) > 0.0, lambda: None, lambda: None)
    return x * 2.0


@pytest.mark.parametrize(
    "build",
    [drops, prints, repeats_counter_times, has_no_converter, does_nothing],
)
def test_loops_that_fall_back_give_equal_results(build: Callable, capfd: Any) -> None:
    program = Program(build)
    assert not_converted(program)
    for number in range(3):
        x, found = floats(4, WIDTH, seed=number), []
        for engine in (False, True):
            paddle.seed(number)
            found.append((program.run(engine, x=x), capfd.readouterr().out.count("turn")))
        assert found[0][1] == found[1][1]
        for one, other in zip_equal(found[0][0], found[1][0]):
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)


def doubles() -> Any:
    x = data(-1, WIDTH)
    return counted(lambda i, h: [paddle.concat([h, h * 2.0], 0)], x, end=4)


def has_results_of_two_shapes() -> Any:
    x = data(-1, WIDTH)
    return paddle.static.nn.cond(paddle.sum(x) > 0, lambda: x[:2] * 2.0, lambda: x + 1.0)


@pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs")
@pytest.mark.parametrize("build", [doubles, has_results_of_two_shapes])
def test_shapes_that_differ_fall_back(build: Callable) -> None:
    program = Program(build)
    for number in range(6):
        x = (-1.0) ** number + floats(3 + number % 3, WIDTH, seed=number)
        x = x.astype("float32")
        native = program.run(engine=False, x=x)
        for one, other in zip_equal(native, program.run(x=x)):
            assert one.shape == other.shape
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    assert not_converted(program)
    assert paddle_ngraph.stats()["native_runs"] == 1


def test_gradients_of_loops_fall_back() -> None:
    def build() -> Any:
        x = data(4, WIDTH)
        layer = paddle.nn.Linear(WIDTH, WIDTH)
        loss = paddle.mean(counted(lambda i, h: [paddle.tanh(layer(h))], layer(x))[1])
        paddle.optimizer.SGD(0.5).minimize(loss)
        return loss

    losses = []
    for engine in (False, True):
        program = Program(build)
        losses.append([program.run(engine, x=floats(4, WIDTH))[0] for _ in range(4)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_indices_are_checked_in_loops() -> None:
    """Where an iteration looks up an index out of range, the run falls back or raises Paddle's
    error.
    """

    def build() -> Any:
        x = data(2, 3)
        table = parameter(WORDS, 3)
        ids = paddle.static.data("ids", [2], "int64")
        return counted(lambda i, h: [h + paddle.nn.functional.embedding(ids, table)], x)

    program = Program(build)
    assert is_one_operator(program)
    agree(program, x=floats(2, 3), ids=np.array([1, 10]))
    with pytest.raises(Exception, match=r"(?i)out of range|less than|expected"):
        program.run(x=floats(2, 3), ids=np.array([1, WORDS]))
    agree(program, x=floats(2, 3), ids=np.array([1, 10]))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", ["gather", "index_select", "embedding"])
def test_a_count_beyond_the_rows_is_rejected(kind: str, rows: int) -> None:
    """Covers a single row too, for which the index has no effect."""

    def take(rows: Any, i: Any) -> Any:
        if kind == "embedding":
            return paddle.nn.functional.embedding(i, rows)
        return getattr(paddle, kind)(rows, i)

    def build() -> Any:
        x, limit = data(rows, 3), paddle.static.data("limit", [1], "int64")
        table = parameter(rows, 3) if kind == "embedding" else paddle.exp(x)
        return counted(lambda i, h: [h + take(table, i)], x, end=limit)

    program = Program(build)
    assert is_one_operator(program)
    x = floats(rows, 3)
    agree(program, x=x, limit=np.array([rows]))
    for engine in (False, True):
        with pytest.raises(Exception, match=r"(?i)index|out of range|less than|expected"):
            program.run(engine, x=x, limit=np.array([rows + 1]))
    agree(program, x=x, limit=np.array([rows]))


# -- graph strings, and functions on disk ----------------------------------------------------------


def graph_of(build: Callable) -> Graph:
    main = Program(build).main.clone()
    program_pass.apply(main)
    (node,) = (op for op in main.global_block().ops if op.name().startswith("custom_op.ngraph"))
    return Graph.from_string(node.attrs()["graph"])


def test_a_graph_string_contains_inner_blocks() -> None:
    graph = graph_of(branches)
    again = Graph.from_string(graph.to_string())
    assert again == graph
    (loop,) = (op for op in graph.ops if op.type == "pd_op.while")
    inside = [op.type for op in loop.blocks[0].all_ops()]
    assert inside.count("pd_op.if") == 2 and inside.count("pd_op.while") == 1


def first_loop(graph: Graph) -> Any:
    return next(op for op in graph.ops if op.type == "pd_op.while")


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "no blocks": lambda op: op.blocks.clear(),
    "two blocks": lambda op: op.blocks.append(op.blocks[0]),
    "too few results": lambda op: op.blocks[0].outputs.pop(),
    "too few inputs": lambda op: op.blocks[0].inputs.pop(),
    "another dtype": lambda op: op.blocks[0].outputs.reverse(),
    "an operator is missing": lambda op: op.blocks[0].ops.pop(0),
    "no condition": lambda op: op.inputs.update(cond=()),
    "another input": lambda op: op.inputs.update(more=()),
    "starts from too little": lambda op: op.inputs.update(inputs=op.inputs["inputs"][:1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_inner_blocks_of_a_graph_string_are_validated(damage: str) -> None:
    graph = graph_of(branches)
    DAMAGES[damage](first_loop(graph))
    with pytest.raises(NgraphError, match="malformed"):
        Graph.from_string(graph.to_string())


SCRIPT = textwrap.dedent(
    """
    import paddle
    import paddle_ngraph
    from tests.ops.test_control_flow import RandomLoop, floats, np
    from tests.programs import Program
    from tests.zips import zip_equal

    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    loop = RandomLoop(3)
    program = Program(loop.build)
    for rows, limit in [(3, 0), (3, 4), (5, 4), (2, 100)]:
        feed = {"x": floats(rows, 6, seed=rows), "limit": np.array(limit, loop.counter)}
        found = program.run(**feed)
        for one, other in zip_equal(program.run(engine=False, **feed), found):
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] == 4, stats
    print("counts", stats["functions_built"], stats["functions_loaded"])
    """
)


@pytest.mark.slow("starts a process")
def test_another_process_loads_the_loop(tmp_path: Path) -> None:
    settings = {"FLAGS_ngraph_cache_dir": str(tmp_path), "FLAGS_ngraph_cache_min_ms": "0"}
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT],
            env={**os.environ, **settings},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        counts.append(list(map(int, done.stdout.rpartition("counts")[2].split())))
    assert counts[0] == [3, 0] and counts[1] == [0, 3]


@pytest.mark.usefixtures("small_intervals_pay")
def test_branches_with_results_of_several_shapes_fall_back() -> None:
    def build() -> Any:
        x = data(2, WIDTH)
        weight = parameter(WIDTH, WIDTH)
        return paddle.static.nn.cond(
            paddle.sum(x) > 0,
            lambda: paddle.tanh(paddle.matmul(x, weight)),
            lambda: paddle.matmul(x[:1], weight),
        )

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    (kept,) = [op for op in report.native if op.type == "pd_op.if"]
    assert kept.reason == "its branches have results of several shapes"
    for sign in (1, -1):
        x = sign * np.abs(floats(2, WIDTH))
        (native,) = program.run(engine=False, x=x)
        paddle_ngraph.reset_stats()
        np.testing.assert_allclose(program.run(x=x)[0], native, rtol=1e-5, atol=1e-6)
        stats = paddle_ngraph.stats()
        assert stats["engine_runs"] > 0 and stats["native_runs"] == 0
