"""Loops with carried values that grow: tokens and attention over them, caches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph.conversion import denylist, size_rules
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.transpiler import generate_native
from tests.programs import (
    Program,
    counted,
    counts_of_two_processes,
    fed_limit,
    floats,
    parameter,
)
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WIDTH, WORDS = 6, 11


def agree(program: Program, atol: float = 1e-5, **feed: np.ndarray) -> list[np.ndarray]:
    """Compares Paddle and the engine, which has to run the program in one call."""
    native = program.run(engine=False, **feed)
    for _ in range(2):
        paddle_ngraph.reset_stats()
        found = program.run(**feed)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (1, 0)
        for expected, actual in zip_equal(native, found):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=atol)
    return native


def is_one_operator(program: Program) -> bool:
    """Whether the program is one subgraph."""
    report = paddle_ngraph.explain(program.main)
    return len(report.intervals) == 1 and not report.native


# -- random loops ----------------------------------------------------------------------------------


def attention(new: Any, kept: Any, weight: Any) -> Any:
    scores = paddle.matmul(paddle.matmul(new, weight), kept, transpose_y=True)
    return paddle.matmul(F.softmax(scores * 0.3, axis=-1), kept)


def causal(new: Any, kept: Any, weight: Any) -> Any:
    """Causal attention over all rows, of which the last result is used."""
    rows = paddle.matmul(kept, weight)
    length = paddle.shape(kept)[1]
    place = paddle.arange(length)
    mask = paddle.cast(paddle.unsqueeze(place, 1) < paddle.unsqueeze(place, 0), "float32")
    scores = paddle.matmul(rows, kept, transpose_y=True) * 0.3 - 1e9 * mask
    return paddle.matmul(F.softmax(scores, axis=-1), kept)[:, -1:]


def several_heads(new: Any, kept: Any, weight: Any) -> Any:
    def heads(x: Any) -> Any:
        return paddle.transpose(paddle.reshape(x, [0, 0, 2, WIDTH // 2]), [0, 2, 1, 3])

    scores = paddle.matmul(heads(paddle.matmul(new, weight)), heads(kept), transpose_y=True)
    found = paddle.matmul(F.softmax(scores, axis=-1), heads(kept))
    return paddle.reshape(paddle.transpose(found, [0, 2, 1, 3]), [0, 0, WIDTH])


def branch(new: Any, kept: Any, weight: Any) -> Any:
    return paddle.static.nn.cond(
        paddle.mean(kept) > 0.05,
        lambda: paddle.mean(kept, axis=1, keepdim=True),
        lambda: new + kept[:, -1:],
    )


def inner_loop(new: Any, kept: Any, weight: Any) -> Any:
    """An inner loop with the growing value as invariant input."""

    def body(i: Any, h: Any) -> Any:
        return [paddle.tanh(paddle.matmul(h, weight)) + paddle.mean(kept, 1, True)]

    return counted(body, new * 1.0, end=paddle.full([1], 2, "int64"))[1]


def inner_growth(new: Any, kept: Any, weight: Any) -> Any:
    """An inner loop in which the growing value of the outer loop grows further."""

    def body(i: Any, h: Any, rows: Any) -> Any:
        h = paddle.tanh(paddle.matmul(h, weight)) + paddle.mean(rows, 1, True)
        return [h, paddle.concat([rows, h], axis=1)]

    start = new * 1.0, kept * 1.0
    _, h, rows = counted(body, *start, end=paddle.full([1], 2, "int64"))
    return h + attention(h, rows, weight)


READERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "attention": attention,
    "causal": causal,
    "heads": several_heads,
    "branch": branch,
    "loop": inner_loop,
    "growth inside": inner_growth,
    "mean": lambda new, kept, w: paddle.mean(kept, axis=1, keepdim=True),
    "max": lambda new, kept, w: paddle.max(kept, axis=1, keepdim=True),
    "last": lambda new, kept, w: kept[:, -1:],
    "first": lambda new, kept, w: kept[:, :1],
    "flip": lambda new, kept, w: paddle.flip(kept, [1])[:, :1],
    "sums": lambda new, kept, w: paddle.cumsum(kept, axis=1)[:, -1:] * 0.1,
    "length": lambda new, kept, w: (
        new * 0.5 + 0.01 * paddle.reshape(paddle.cast(paddle.shape(kept)[1], "float32"), [1, 1, 1])
    ),
    "normal": lambda new, kept, w: paddle.mean(F.layer_norm(kept, [WIDTH]), axis=1, keepdim=True),
    "flat": lambda new, kept, w: (
        paddle.reshape(paddle.max(paddle.reshape(kept, [0, -1]), axis=1), [-1, 1, 1]) + new
    ),
    "where": lambda new, kept, w: (
        paddle.sum(paddle.where(kept > 0, kept, kept * 0.1), axis=1, keepdim=True) * 0.1
    ),
    "gelu": lambda new, kept, w: paddle.mean(F.gelu(paddle.matmul(kept, w)), 1, True),
}


class RandomLoop:
    """A random loop that collects rows: their number, and their readers, depend on a seed."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.readers = [str(n) for n in draw.choice(list(READERS), size=draw.integers(1, 4))]
        self.caches = [
            (int(draw.integers(1, 3)), bool(draw.integers(2))) for _ in range(draw.integers(1, 4))
        ]
        self.ending = str(draw.choice(["constant", "fed", "data"]))
        self.rows = int(draw.choice([-1, 2]))
        self.reads_after = bool(draw.integers(2))
        self.fetched = draw.random(8) < draw.choice([0.3, 1.0])

    def build(self) -> Any:
        x = paddle.static.data("x", [self.rows, -1, WIDTH], "float32")
        self.weights = [parameter(WIDTH, WIDTH, seed=n) for n in range(3)]
        limit = fed_limit()
        end = paddle.full([1], 5, "int64") if self.ending == "constant" else limit
        goes_on = (lambda h, *_: paddle.mean(h) < 0.4) if self.ending == "data" else None
        start = [paddle.mean(x, axis=1, keepdim=True)]
        start += [paddle.tanh(x * float(n + 1)) for n, _ in enumerate(self.caches)]
        _, h, *kept = counted(self.body, *start, end=end, goes_on=goes_on)
        results = [h, *kept]
        if self.reads_after:
            results = [h + 1.0, *kept, *(paddle.mean(each, axis=1) for each in kept)]
        return [each for each, is_fetched in zip(results, self.fetched) if is_fetched] or [h]

    def body(self, i: Any, h: Any, *kept: Any) -> Any:
        grown = []
        for number, (each, (count, at_front)) in enumerate(zip(kept, self.caches)):
            new = [paddle.matmul(h, self.weights[number]) * float(n + 1) for n in range(count)]
            grown.append(paddle.concat([*new, each] if at_front else [each, *new], axis=1))
        for number, name in enumerate(self.readers):
            read = READERS[name](h, grown[number % len(grown)], self.weights[number % 3])
            h = paddle.tanh(read + 0.1 * h)
        return [h, *grown]


LENGTHS = [(1, 3), (2, 0), (3, 1), (1, 1), (4, 6), (7, 2), (2, 3), (1, 0)]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("name", READERS)
def test_growing_values_are_read(name: str) -> None:
    loop = RandomLoop(0)
    loop.readers, loop.caches, loop.ending = [name], [(1, False)], "fed"
    loop.rows, loop.reads_after = 2, False
    program = Program(loop.build)
    for length, limit in LENGTHS:
        agree(program, x=floats(2, length, WIDTH, seed=length), limit=np.array([limit]))
    assert is_one_operator(program)


@pytest.mark.parametrize("seed", range(24))
def test_a_random_loop_grows(seed: int) -> None:
    loop = RandomLoop(seed)
    program = Program(loop.build)
    for number, (length, limit) in enumerate(LENGTHS):
        rows = 2 if loop.rows > 0 else 1 + number % 3
        agree(program, x=floats(rows, length, WIDTH, seed=number), limit=np.array([limit]))
    assert is_one_operator(program)


# -- variants --------------------------------------------------------------------------------------


def greedy() -> Any:
    """A greedy decoder that appends a token, and reads all tokens again, until all rows end."""
    ids = paddle.static.data("ids", [-1, -1], "int64")
    table, out = parameter(WORDS, WIDTH, seed=1), parameter(WIDTH, WORDS, seed=2)
    weight = parameter(WIDTH, WIDTH, seed=3)

    def body(i: Any, words: Any, h: Any) -> Any:
        rows = F.embedding(words, table)
        h = h + attention(rows, rows, weight)[:, -1] + F.embedding(i % 3, table)
        word = paddle.argmax(paddle.matmul(h, out), axis=-1, keepdim=True)
        return [paddle.concat([words, word], axis=1), paddle.tanh(h)]

    start = [ids, paddle.mean(F.embedding(ids, table), axis=1)]
    return counted(body, *start, end=fed_limit(), goes_on=lambda words, h: paddle.mean(h) < 0.2)


def feed_of_greedy(length: int, seed: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(0, WORDS, (1 + seed % 3, length))
    return {"ids": ids}


def rows(length: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": floats(2, length, WIDTH, seed=seed)}


def data() -> Any:
    return paddle.static.data("x", [2, -1, WIDTH], "float32")


def grows_by_feed() -> Any:
    """Each iteration appends as many rows as the feed has."""
    x = data()
    body = lambda i, h: [paddle.concat([h, paddle.tanh(x + paddle.mean(h, 1, True))], 1)]  # noqa: E731
    return counted(body, x * 1.0, end=fed_limit())


def along_several_axes() -> Any:
    """One value grows along one axis, one along two axes at once, one not at all."""
    x = data()
    last = paddle.mean(x, axis=1)

    def body(i: Any, wide: Any, square: Any, h: Any) -> Any:
        size = paddle.shape(square)[0]
        below = paddle.concat([square, paddle.tile(paddle.mean(h, keepdim=True), [1, size])], 0)
        beside = paddle.tile(paddle.max(below, keepdim=True) * 0.5, [size + 1, 1])
        h = paddle.tanh(paddle.mean(wide, axis=1) + h)
        wide = paddle.concat([wide, paddle.unsqueeze(h, 1)], 1)
        return [wide, paddle.concat([below, beside], 1), h]

    start = [paddle.tanh(x), paddle.ones([1, 1]) * 0.3, last]
    return counted(body, *start, end=fed_limit())


def sizes_that_follow() -> Any:
    """A mask with the size of another value, which no input shows before an iteration."""
    x = data()

    def body(i: Any, h: Any, mask: Any) -> Any:
        h = paddle.concat([h, paddle.mean(h * mask, 1, True)], 1)
        return [h, paddle.ones_like(h[:, :, :1]) * 0.5]

    return counted(body, x * 1.0, paddle.ones_like(x[:, :, :1]), end=fed_limit())


def read_afterwards() -> Any:
    """The grown value and its size are read by operators and by other loops."""
    x = data()
    _, h = counted(lambda i, h: [paddle.concat([h, h[:, :1] * 0.5], 1)], x * 1.0, end=fed_limit())
    once = counted(lambda i, g: [g * 0.5 + paddle.mean(h, 1)], x[:, 0] * 1.0, end=fed_limit())[1]
    _, more = counted(
        lambda i, g: [paddle.concat([g, paddle.mean(g, 1, True)], 1)], h * 1.0, end=fed_limit()
    )
    flat = paddle.reshape(more, [paddle.shape(more)[1] * 2, WIDTH])
    return [h * 2.0, once, more, flat, paddle.shape(more), paddle.flip(h, [1])[:, :1]]


def likeliest_index() -> Any:
    """An index along the growing axis."""
    x = data()

    def body(i: Any, h: Any, place: Any) -> Any:
        h = paddle.concat([paddle.tanh(h), paddle.mean(h, 1, True) + 0.3], 1)
        return [h, place * 0.5 + paddle.cast(paddle.argmax(h, axis=1), "float32")]

    return counted(body, x * 1.0, x[:, 0] * 1.0, end=fed_limit())


def joins_carried_values() -> Any:
    """The appended value is itself carried, directly or reshaped, also into the next iteration."""
    x = data()
    seen = paddle.cast(x[:, :, 0] > 0, "int64")

    def body(i: Any, h: Any, new: Any, words: Any, word: Any) -> Any:
        h = paddle.concat([h, paddle.unsqueeze(new, 1)], 1)
        words = paddle.concat([word, words], 1)
        word = paddle.cast(paddle.mean(new, 1, True) > 0.1, "int64")
        return [h, paddle.tanh(paddle.mean(h, 1) + 0.2), words, word]

    return counted(body, x * 1.0, paddle.mean(x, axis=1), seen, seen[:, :1] * 1, end=fed_limit())


FORMS: list[tuple[Callable[[], Any], Callable[..., dict[str, np.ndarray]]]] = [
    (greedy, feed_of_greedy),
    *((build, rows) for build in (grows_by_feed, along_several_axes, sizes_that_follow)),
    *((build, rows) for build in (read_afterwards, likeliest_index, joins_carried_values)),
]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build, feed", FORMS)
def test_unread_values_grow(build: Callable, feed: Callable) -> None:
    """nGraph drops outputs of a loop that have no reader."""
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        count = len(build())
    for number in range(count):
        program = Program(lambda n=number: build()[n])
        for seed, (length, limit) in enumerate([(1, 3), (2, 0), (5, 4), (3, 1)]):
            agree(program, **feed(length, seed), limit=np.array([limit]))


@pytest.mark.parametrize("build, feed", FORMS)
def test_a_variant_grows(build: Callable, feed: Callable) -> None:
    program = Program(build)
    for seed, (length, limit) in enumerate(LENGTHS):
        agree(program, **feed(length, seed), limit=np.array([limit]))
    assert is_one_operator(program)


# -- as many iterations as sizes allow -------------------------------------------------------------


def adds_many_rows() -> Any:
    """Appends one row, as many as are fed, and twice as many; later operators read the count."""
    x = data()

    def body(i: Any, one: Any, h: Any, g: Any) -> Any:
        h = paddle.concat([h, paddle.tanh(x + paddle.mean(h, 1, True))], 1)
        return [paddle.concat([one, h[:, :1]], 1), h, paddle.concat([g, x, x * 0.5], 1)]

    _, one, h, g = counted(body, x[:, :1] * 1.0, x * 1.0, x * 2.0, end=fed_limit())
    return [one, h, paddle.reshape(g, [paddle.shape(g)[1] * 2, WIDTH])]


def reads_many_numbers() -> Any:
    """One row in each iteration, with a reader that flattens all rows to one list."""
    x = data()

    def body(i: Any, h: Any) -> Any:
        count = paddle.shape(h)[1]
        flat = paddle.reshape(paddle.tile(h, [1, 1, 40]), [count * 2 * 40 * WIDTH])
        new = paddle.mean(paddle.reshape(flat, [2, count, 40 * WIDTH])[:, :, :WIDTH], 1, True)
        return [paddle.concat([h, paddle.tanh(new + x[:, :1])], 1)]

    return counted(body, x * 1.0, end=fed_limit(), goes_on=lambda h: paddle.mean(h) < 9.0)


def divides_sizes() -> Any:
    """Half as many elements as there are rows; nGraph divides sizes as float32."""
    x = data()

    def body(i: Any, h: Any) -> Any:
        places = paddle.arange(paddle.shape(h)[1] // 2 + 1)
        new = paddle.mean(h, 1, True) + paddle.mean(paddle.cast(places, "float32")) * 0.01
        return [paddle.concat([h, paddle.tanh(new) * 0.5], 1)]

    return counted(body, x * 1.0, end=fed_limit())


def grows_in_an_inner_loop() -> Any:
    """The inner loop appends feeds to the outer loop's growing value, and flattens it."""
    x = data()

    def add(i: Any, h: Any) -> Any:
        flat = paddle.reshape(h, [paddle.shape(h)[1] * 2, WIDTH])
        return [paddle.concat([h, x, paddle.tanh(x + paddle.mean(flat, 0))], 1)]

    def body(i: Any, h: Any, rows: Any) -> Any:
        most = counted(add, rows * 1.0, end=paddle.full([1], 3, "int64"))[1]
        return [h * 0.5 + paddle.mean(most, 1, True), paddle.concat([rows, x], 1)]

    return counted(body, x[:, :1] * 1.0, x * 1.0, end=fed_limit())


OFTEN = [adds_many_rows, reads_many_numbers, divides_sizes, grows_in_an_inner_loop]
LONG = [(3, 2), (200, 3), (7, 4), (3000, 2), (128, 0), (64, 5), (500, 1)]


@pytest.mark.slow("compiles loops of many lengths")
@pytest.mark.parametrize("build", OFTEN)
def test_sizes_within_int32_are_never_rejected(build: Callable) -> None:
    """Loops run as many iterations as int32 allows, whatever the first feed was."""
    for feeds in (LONG, LONG[::-1]):
        denylist.clear()
        paddle_ngraph.clear_cache()
        program = Program(build)
        for length, limit in feeds:
            agree(program, **rows(length, length), limit=np.array([limit]))
        assert is_one_operator(program)


@pytest.mark.slow("compiles loops of many lengths")
@pytest.mark.parametrize("build", OFTEN)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_run_beyond_the_limits_falls_back(
    build: Callable, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the run beyond the limits falls back."""
    monkeypatch.setattr(size_rules, "_INT32_MAX", 12_000)
    monkeypatch.setattr(size_rules, "_MAX_EXACT_FLOAT32_INTEGER", 100)
    paddle_ngraph.clear_cache()
    program = Program(build)
    lengths = (3, 5, 4, 6) if is_open else (3,)
    for length in lengths:
        agree(program, **rows(length, length), limit=np.array([2]))
    feed = {**rows(lengths[-1], 0), "limit": np.array([300])}
    native = program.run(engine=False, **feed)
    for _ in range(2):
        paddle_ngraph.reset_stats()
        found = program.run(**feed)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (0, 1)
        for expected, actual in zip_equal(native, found):
            np.testing.assert_array_equal(actual, expected)
    agree(program, **rows(lengths[-1], 1), limit=np.array([4]))
    assert is_one_operator(program)
    paddle_ngraph.clear_cache()  # functions built with these limits


# -- slices up to a counter ----------------------------------------------------------------------

COLUMNS = 9


def columns() -> Any:
    return paddle.static.data("x", [-1, COLUMNS, WIDTH], "float32")


def while_loop(goes_on: Callable, body: Callable, start: list[Any]) -> list[Any]:
    return list(paddle.static.nn.while_loop(goes_on, body, start))


def number(value: int, dtype: str = "int64") -> Any:
    return paddle.full([], value, dtype)


def up_to_the_count() -> Any:
    x = columns()
    body = lambda i, h: [i + 1, paddle.tanh(paddle.mean(x[:, :i], axis=1) + h)]  # noqa: E731
    end = number(COLUMNS)
    return while_loop(lambda i, h: i < end, body, [number(1), x[:, 0] * 1.0])


def from_the_count_on() -> Any:
    x = columns()
    body = lambda i, h: [i + 2, paddle.tanh(paddle.max(x[:, i:], axis=1) + h)]  # noqa: E731
    start, end = [number(0, "int32"), x[:, 0] * 1.0], number(COLUMNS - 2, "int32")
    return while_loop(lambda i, h: end >= i, body, start)


def between_two_counts() -> Any:
    """Slices that grow and shrink, with steps, of values computed in the loop."""
    x = columns()

    def body(i: Any, j: Any, h: Any) -> Any:
        rows = x * 0.5 + paddle.unsqueeze(h, 1)
        few = paddle.mean(rows[:, 0 : j - 1], 1) + paddle.mean(rows[:, i:j], 1)
        return [i + 1, j - 1, paddle.tanh(few + paddle.mean(rows[:, 0 : i + 3 : 2], 1))]

    start = [number(0), number(COLUMNS), x[:, 0] * 1.0]
    return while_loop(lambda i, j, h: i < 4, body, start)


def a_cache_of_fixed_size() -> Any:
    """A decoder that writes into a cache of fixed size, and reads the rows it has written."""
    x = columns()
    weight = parameter(WIDTH, WIDTH)
    cache = paddle.zeros_like(x)

    def body(i: Any, h: Any, kept: Any) -> Any:
        kept[:, i] = paddle.squeeze(paddle.matmul(h, weight), 1)
        seen = attention(h, kept[:, : i + 1], weight)
        return [i + 1, paddle.tanh(seen + h + paddle.mean(x, 1, True)), kept]

    def goes_on(i: Any, h: Any, kept: Any) -> Any:
        return paddle.logical_and(i < COLUMNS, paddle.mean(h) < 0.5)

    return while_loop(goes_on, body, [number(0), paddle.mean(x, 1, True), cache])


def as_many_as_there_are() -> Any:
    """The size of a feed limits the counter."""
    x = data()
    end = paddle.cast(paddle.shape(x)[1], "int64")
    body = lambda i, h: [i + 1, paddle.tanh(paddle.mean(x[:, : i + 1], axis=1) + h)]  # noqa: E731
    return while_loop(lambda i, h: i < end, body, [number(0), x[:, 0] * 1.0])


def of_growing_value() -> Any:
    """The counter is less than the size of a growing value."""
    x = columns()

    def body(i: Any, h: Any) -> Any:
        new = paddle.mean(h[:, i:], 1, True) + paddle.max(h[:, : i + 1], 1, True)
        return [i + 1, paddle.concat([h, paddle.tanh(new)], 1)]

    return while_loop(lambda i, h: i < 7, body, [number(0), x * 1.0])


COUNTED = [up_to_the_count, from_the_count_on, between_two_counts, a_cache_of_fixed_size]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build", [*COUNTED, of_growing_value])
def test_a_slice_is_as_long_as_a_count(build: Callable) -> None:
    program = Program(build)
    alone = Program(lambda: build()[-1])
    agree(alone, x=floats(2, COLUMNS, WIDTH))
    for seed, batch in enumerate((1, 2, 3, 5, 2, 4)):
        agree(program, x=floats(batch, COLUMNS, WIDTH, seed=seed))
    assert is_one_operator(program)
    assert paddle_ngraph.stats()["functions_built"] == 0


@pytest.mark.slow("compiles many or large functions")
def test_a_slice_is_as_long_as_a_count_that_a_size_limits() -> None:
    program = Program(as_many_as_there_are)
    for length in (3, 1, 5, 2, 7, 4):
        agree(program, x=floats(2, length, WIDTH, seed=length))
    assert is_one_operator(program)
    assert paddle_ngraph.stats()["functions_built"] == 0


# -- fallback --------------------------------------------------------------------------------------


def doubles() -> Any:
    return counted(lambda i, h: [paddle.concat([h, h * 0.5], 1)], data() * 1.0, end=fed_limit())


def shrinks() -> Any:
    x = data()
    start = paddle.concat([x, x, x, x, x, x, x], 1)
    return counted(lambda i, h: [h[:, 1:] * 0.9], start, end=fed_limit())


def grows_by_itself() -> Any:
    def body(i: Any, h: Any, g: Any) -> Any:
        return [paddle.concat([h, g], 1), paddle.concat([g, g[:, :1]], 1)]

    x = data()
    return counted(body, x * 1.0, x * 2.0, end=fed_limit())


def grows_by_iteration_index() -> Any:
    def body(i: Any, h: Any) -> Any:
        add = lambda j, g: [paddle.concat([g, g[:, :1] * 0.5], 1)]  # noqa: E731
        return [counted(add, h * 1.0, end=i)[1]]

    return counted(body, data() * 1.0, end=fed_limit())


def grows_in_a_branch() -> Any:
    def body(i: Any, h: Any) -> Any:
        longer = paddle.concat([h, h[:, :1] + 0.2], 1)
        return [paddle.static.nn.cond(paddle.mean(h) < 0.1, lambda: longer * 1.0, lambda: h * 1.0)]

    return counted(body, data() * 1.0, end=fed_limit())


def becomes_grown_value() -> Any:
    """One value becomes another one with an extra row; two values of one size are swapped."""
    x = data()
    longer = paddle.concat([x, x[:, :1]], 1)

    def body(i: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        new = paddle.mean(a, axis=1, keepdim=True)
        return [b, paddle.concat([b, new], 1), *(paddle.concat([h, new], 1) for h in (d, c))]

    return counted(body, x * 1.0, longer * 1.0, x * 2.0, x * 3.0, end=fed_limit())


def meets_one_row() -> Any:
    """The growing value is multiplied by a value of equal size in the first iteration only."""
    x = data()

    def body(i: Any, h: Any) -> Any:
        return [paddle.concat([h, paddle.mean(h * x, 1, True)], 1)]

    return counted(body, x * 1.0, end=fed_limit())


def counts_from_nothing() -> Any:
    """The first slice has no elements."""
    x = data()
    body = lambda i, h: [h + paddle.sum(x[:, 0 : i[0]], axis=1)]  # noqa: E731
    return counted(body, x[:, 0] * 1.0, end=paddle.clip(fed_limit(), 0, 1))


def counts_beyond_the_end() -> Any:
    """Only a run determines the end of the counter."""
    x = data()
    body = lambda i, h: [h + paddle.mean(x[:, : i[0] + 1], axis=1)]  # noqa: E731
    return counted(body, x[:, 0] * 1.0, end=fed_limit())


def sorts_growing_value() -> Any:
    """The core's own operators have sizes among their attributes."""

    def body(i: Any, h: Any) -> Any:
        return [paddle.concat([paddle.sort(h, axis=1), paddle.mean(h, 1, True)], 1)]

    return counted(body, data() * 1.0, end=fed_limit())


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs")
@pytest.mark.parametrize(
    "build",
    [
        *(doubles, shrinks, grows_by_itself, grows_by_iteration_index),
        *(grows_in_a_branch, becomes_grown_value, meets_one_row),
        *(counts_from_nothing, counts_beyond_the_end, sorts_growing_value),
    ],
)
def test_loops_with_undecided_shapes_fall_back(build: Callable) -> None:
    program = Program(build)
    for number, (length, limit) in enumerate(LENGTHS):
        feed = {"x": floats(2, length, WIDTH, seed=number), "limit": np.array([limit])}
        try:
            native = program.run(engine=False, **feed)
        except Exception:  # sizes that cannot be broadcast
            with pytest.raises(Exception, match=r"(?i)broadcast"):
                program.run(**feed)
            continue
        for expected, actual in zip_equal(native, program.run(**feed)):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    reasons = [op.reason for op in native_of(program) if op.type == "pd_op.while"]
    assert reasons
    for reason in reasons:  # a sentence of this package, not a message of a library
        assert not set("\n<>") & set(reason) and ".cpp" not in reason and "C++" not in reason
        assert any(word in reason for word in ("iteration", "shape", "becomes", "in a run only"))


def native_of(program: Program) -> Any:
    return paddle_ngraph.explain(program.main).native


@pytest.mark.parametrize("length, limit", [(2, 5), (3, 1)])
def test_a_loop_starts_with_zero_rows(length: int, limit: int) -> None:
    """A cache without a row before the first iteration, to which each iteration appends."""

    def build() -> Any:
        x = data()
        start = [paddle.zeros([2, 0, WIDTH]) for _ in range(2)]

        def append(i: Any, rows: Any, cache: Any) -> Any:
            rows = paddle.concat([rows, paddle.mean(x, 1, True)], 1)
            cache = paddle.concat([cache, paddle.mean(rows, 1, True) + x[:, :1]], 1)
            return [rows, cache]

        return counted(append, *start, end=fed_limit())

    program = Program(build)
    assert is_one_operator(program)
    feed = {"x": floats(2, length, WIDTH, seed=length)}
    agree(program, **feed, limit=np.array([limit]))
    # Without an iteration, the results have no elements.
    _, *expected = program.run(engine=False, **feed, limit=np.array([0]))
    paddle_ngraph.reset_stats()
    _, *found = program.run(**feed, limit=np.array([0]))
    assert (
        [each.shape for each in found] == [each.shape for each in expected] == [(2, 0, WIDTH)] * 2
    )
    assert paddle_ngraph.stats()["native_runs"] == 1


def test_a_value_that_starts_with_zero_rows_and_is_read_falls_back() -> None:
    def build() -> Any:
        nothing = paddle.zeros([2, 0, WIDTH])
        new = paddle.mean(data(), 1, True)
        add = lambda i, h: [paddle.concat([h * 2.0, new], 1)]  # noqa: E731
        return counted(add, nothing, end=fed_limit())

    (reason,) = [op.reason for op in native_of(Program(build)) if op.type == "pd_op.while"]
    assert "its initial value is an empty tensor" in reason


def test_an_empty_value_stays_with_a_loop_that_falls_back() -> None:
    """The engine has other operators around it, and would refuse to compute the empty tensor."""
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": False})

    def build() -> Any:
        nothing = paddle.zeros([2, 0, WIDTH])
        x = data()
        new = paddle.tanh(paddle.mean(x, 1, True))

        def append(i: Any, rows: Any) -> Any:
            order = paddle.median(new, axis=-1, keepdim=True)  # without a converter
            return [paddle.concat([rows, new + order], 1)]

        return counted(append, nothing, end=fed_limit())

    program = Program(build)
    native = [op for op in native_of(program) if op.type in ("pd_op.while", "pd_op.full")]
    assert len(native) >= 1, native
    feed = {"x": floats(2, 3, WIDTH), "limit": np.array([3])}
    expected = program.run(engine=False, **feed)
    paddle_ngraph.reset_stats()
    for one, other in zip_equal(expected, program.run(**feed)):
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > 0


# -- slices after the loop -------------------------------------------------------------------------

AFTER: dict[str, Callable[[Any], Any]] = {
    "without the first row": lambda rows: rows[:, 1:],
    "computed with": lambda rows: paddle.transpose(paddle.tanh(rows[:, 1:]), [1, 0, 2]) * 2.0,
    "after a transpose": lambda rows: paddle.transpose(rows, [1, 0, 2])[1:],
    "without the last row": lambda rows: rows[:, :-1] + 1.0,
}


@pytest.mark.parametrize("name", AFTER)
def test_a_slice_is_empty_only_without_an_iteration(name: str) -> None:
    """Then the function would compute an empty tensor: Paddle does such a run."""

    def build() -> Any:
        add = lambda i, rows: [paddle.concat([rows, paddle.tanh(rows[:, -1:] * 2.0)], 1)]  # noqa: E731
        _, rows = counted(add, data()[:, :1] * 1.0, end=fed_limit())
        return [AFTER[name](rows), rows]

    program = Program(build)
    for batch, limit in [(2, 3), (3, 1), (4, 2), (5, 4)]:
        feed = {"x": floats(batch, 2, WIDTH), "limit": np.array([limit])}
        agree(program, **feed)
        expected = program.run(engine=False, **{**feed, "limit": np.array([0])})
        paddle_ngraph.reset_stats()
        found = program.run(**{**feed, "limit": np.array([0])})
        assert [each.shape for each in found] == [each.shape for each in expected]
        assert found[0].size == 0
        assert paddle_ngraph.stats()["native_runs"] == 1
    assert denylist.count() == 0


# -- functions on disk, and projects ---------------------------------------------------------------


def once_on_disk() -> None:
    """Runs the program in this and in another process."""
    program = Program(greedy)
    for seed, (length, limit) in enumerate([(2, 5), (3, 0), (4, 2), (5, 3)]):
        feed = {**feed_of_greedy(length, seed), "limit": np.array([limit])}
        for one, other in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] == 4 and stats["native_runs"] == 0
    print("counts", stats["functions_built"], stats["functions_loaded"])


@pytest.mark.slow("compiles loops of many lengths")
def test_another_process_loads_growing_loops(tmp_path: Path) -> None:
    counts = counts_of_two_processes("tests.conversion.test_growing_loops", tmp_path)
    assert counts[0][0] > 2 and counts[0][1] == 0 and counts[1] == counts[0][::-1]


def test_growing_loops_have_no_cpp_code(tmp_path: Path) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [2, 3, WIDTH], "float32")
        end = paddle.full([1], 3, "int64")
        return counted(lambda i, h: [paddle.concat([h, h[:, :1]], 1)], x * 1.0, end=end)[1]

    program = Program(build)
    with pytest.raises(NgraphError, match="is not supported in C"):
        generate_native(program.main, tmp_path / "out", program.fetches, scope=program.scope)
    assert not list(tmp_path.iterdir())
