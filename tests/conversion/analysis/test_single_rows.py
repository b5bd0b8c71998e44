"""Decoders that compute all words again: only the last one is computed, where that is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph.conversion import bodies
from paddle_ngraph.conversion.analysis import single_rows
from tests.programs import Program, counted, floats, parameter
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WIDTH, WORDS, STEPS, COLUMNS = 8, 13, 7, 5
LOWEST = float(np.finfo("float32").min)

Masks = dict[str, Callable[[Any, Any], Any]]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tensors that each loop keeps, once it is converted; 0: it is not changed."""
    found: list[int] = []

    def record(*args: Any) -> Any:
        result = single_rows.compute_single_rows(*args)
        found.append(0 if result is None else len(result[1]))
        return result

    monkeypatch.setattr(bodies, "compute_single_rows", record)
    return found


def agree(program: Program, **feed: np.ndarray) -> None:
    """Compares Paddle and the engine, which has to run the program in one call."""
    expected = program.run(engine=False, **feed)
    for _ in range(2):
        paddle_ngraph.reset_stats()
        found = program.run(**feed)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (1, 0)
        for one, other in zip_equal(expected, found):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


# -- masks ----------------------------------------------------------------------------------------


def _square(length: Any, number: float) -> Any:
    return paddle.full([length, length], number)


def _is_later(length: Any) -> Any:
    place = paddle.arange(length)
    return paddle.unsqueeze(place, 1) < paddle.unsqueeze(place, 0)


def _filled(scores: Any, is_hidden: Any) -> Any:
    return paddle.where(is_hidden, paddle.full_like(scores, LOWEST), scores)


def _slopes(length: Any) -> Any:
    place = paddle.cast(paddle.arange(length), "float32")
    return 0.1 * (paddle.unsqueeze(place, 0) - paddle.unsqueeze(place, 1))


CAUSAL: Masks = {
    "infinite triangle": lambda s, n: s + paddle.triu(_square(n, float("-inf")), diagonal=1),
    "compared places": lambda s, n: s + LOWEST * paddle.cast(_is_later(n), "float32"),
    "subtracted": lambda s, n: s - 1e38 * paddle.cast(_is_later(n), "float32"),
    "lower triangle": lambda s, n: s + (1.0 - paddle.tril(_square(n, 1.0))) * -1e38,
    "selected": lambda s, n: _filled(s, _is_later(n)),
    "masked fill": lambda s, n: (
        s + paddle.masked_fill(_square(n, LOWEST), paddle.logical_not(_is_later(n)), 0.0)
    ),
    "expanded": lambda s, n: (
        s
        + paddle.expand(
            paddle.unsqueeze(paddle.triu(_square(n, -1e38), diagonal=1), [0, 1]),
            [paddle.shape(s)[0], 1, n, n],
        )
    ),
    "slopes": lambda s, n: s + (_slopes(n) + paddle.triu(_square(n, -1e38), diagonal=1)),
    "a window": lambda s, n: (
        s
        + (paddle.triu(_square(n, -1e38), diagonal=1) + paddle.tril(_square(n, -1e38), diagonal=-3))
    ),
}
# Masks that show a later word, or hide in ways that follow from data.
OTHERS: Masks = {
    "none": lambda s, n: s,
    "one later word": lambda s, n: s + paddle.triu(_square(n, -1e38), diagonal=2),
    "earlier words": lambda s, n: s + paddle.tril(_square(n, -1e38), diagonal=-1),
    "all but later words": lambda s, n: s + paddle.tril(_square(n, -1e38)),
    "too little": lambda s, n: s + paddle.triu(_square(n, -3.0), diagonal=1),
    "divided": lambda s, n: (
        paddle.divide(s, paddle.full([1], 1e-9)) + paddle.triu(_square(n, -1e38), diagonal=1)
    ),
    "enlarged twice": lambda s, n: s * 1e4 * 1e4 + paddle.triu(_square(n, -1e38), diagonal=1),
    "squared": lambda s, n: s - paddle.square(s * 1e4) + paddle.triu(_square(n, -1e38), diagonal=1),
    "added often": lambda s, n: (
        s
        + paddle.tril(paddle.triu(_square(n, -9e5)))
        + paddle.tril(paddle.triu(_square(n, -9e5)))
        + paddle.triu(_square(n, -1e38), diagonal=1)
    ),
    "scaled": lambda s, n: (s + paddle.triu(_square(n, -1e38), diagonal=1)) * 1e-9,
    "by the length": lambda s, n: (
        s * paddle.cast(n, "float32") + paddle.triu(_square(n, -1e38), diagonal=1)
    ),
    "by scores": lambda s, n: (
        s + paddle.triu(paddle.where(s > 0.1, paddle.full_like(s, -1e38), s), diagonal=1)
    ),
    "also by data": lambda s, n: _filled(
        s + paddle.triu(_square(n, -1e38), diagonal=1), paddle.mean(s, axis=1, keepdim=True) > 0.3
    ),
}


# -- decoders -------------------------------------------------------------------------------------


class RandomDecoder:
    """A decoder with a mask; its depth and the forms of its layers depend on a seed."""

    def __init__(self, mask: Callable[[Any, Any], Any], seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.mask, self.seed = mask, seed
        self.depth, self.heads = int(draw.integers(1, 4)), int(draw.choice([1, 2, 4]))
        self.is_pre_normalized, self.attends_outside = draw.random(2) < 0.5
        self.columns = [COLUMNS, -1][draw.integers(2)]
        self.places = str(draw.choice(["slice", "embedding", "none"]))
        self.ending = str(draw.choice(["count", "flag"]))
        self.splits_by_shape, self.convolves = draw.random(2) < 0.5
        # Whether weights are computed outside of the loop.
        self.scales = draw.random() < 0.3

    def build(self) -> Any:
        shapes = [(WIDTH, WIDTH)] * 8 + [(WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)]
        shapes = [*shapes, (2 * WIDTH, 2 * WIDTH, 1, 1)] * self.depth
        shapes += [(WORDS, WIDTH), (STEPS + 2, WIDTH), (WIDTH, WORDS)]
        self.weights = [
            (shape, parameter(*shape, seed=100 * self.seed + n)) for n, shape in enumerate(shapes)
        ]
        context = paddle.static.data("context", [-1, self.columns, WIDTH], "float32")
        ids = paddle.full([paddle.shape(context)[0], 1], 1, "int64")
        scores = paddle.ones_like(paddle.cast(ids, "float32"))
        flag = (lambda ids, scores: paddle.max(scores) < 1.9) if self.ending == "flag" else None
        end = paddle.full([1], STEPS, "int64")
        self.context = context
        return counted(self.step, ids, scores, end=end, goes_on=flag)

    def weight(self, *shape: int) -> Any:
        """A weight of this shape that no other operator reads."""
        number = next(n for n, (each, _) in enumerate(self.weights) if each == shape)
        return self.weights.pop(number)[1]

    def step(self, i: Any, ids: Any, scores: Any) -> Any:
        length = paddle.shape(ids)[1]
        self.ids = ids
        x = F.embedding(ids, self.weight(WORDS, WIDTH)) * 2.0
        if self.places == "slice":
            x = x + self.weight(STEPS + 2, WIDTH)[:length]
        if self.places == "embedding":
            x = x + F.embedding(paddle.arange(length), self.weight(STEPS + 2, WIDTH))
        for _ in range(self.depth):
            x = self.layer(x, length)
        logits = paddle.matmul(x, self.weight(WIDTH, WORDS))[:, -1, :]
        word = paddle.argmax(logits, axis=-1, keepdim=True)
        score = paddle.max(F.softmax(logits), axis=-1, keepdim=True)
        return [paddle.concat([ids, word], axis=1), paddle.concat([scores, score], axis=1)]

    def layer(self, x: Any, length: Any) -> Any:
        y = F.layer_norm(x, [WIDTH]) if self.is_pre_normalized else x
        x = x + self.attention(y, y, length)
        if self.attends_outside:
            x = x + self.attention(x, self.context, None)
        y = F.gelu(paddle.matmul(x, self.weight(WIDTH, 2 * WIDTH)))
        if self.convolves:
            columns = paddle.unsqueeze(paddle.transpose(y, [0, 2, 1]), 2)
            y = F.relu(F.conv2d(columns, self.weight(2 * WIDTH, 2 * WIDTH, 1, 1)))
            y = paddle.transpose(paddle.squeeze(y, 2), [0, 2, 1])
        x = x + paddle.matmul(y, self.weight(2 * WIDTH, WIDTH))
        return x if self.is_pre_normalized else F.layer_norm(x, [WIDTH])

    def split(self, x: Any) -> Any:
        shape = [0, 0, self.heads, WIDTH // self.heads]
        if self.splits_by_shape:
            rows, length, width = paddle.shape(x)
            shape = [rows, length, self.heads, width // self.heads]
        return paddle.transpose(paddle.reshape(x, shape), [0, 2, 1, 3])

    def attention(self, x: Any, source: Any, length: Any) -> Any:
        query, key, value = (
            self.split(paddle.matmul(each, self.weight(WIDTH, WIDTH)))
            for each in (x, source, source)
        )
        scores = paddle.matmul(query * 0.6, key, transpose_y=True)
        if length is not None:
            scores = self.mask(scores, length)
        found = paddle.matmul(F.softmax(scores), value)
        found = paddle.reshape(paddle.transpose(found, [0, 2, 1, 3]), [0, 0, WIDTH])
        return paddle.matmul(found, self.weight(WIDTH, WIDTH))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_the_last_word_is_computed_alone_under_causal_masks(
    name: str, seed: int, kept: list[int]
) -> None:
    decoder = RandomDecoder({**CAUSAL, **OTHERS}[name], seed + 10 * len(name))
    program = Program(decoder.build)
    for rows in (2, 1, 3):
        agree(program, context=floats(rows, COLUMNS, WIDTH, seed=rows))
    expected = 2 * decoder.depth if name in CAUSAL else 0
    assert kept and {*kept} == {expected}


# -- numbers that hide words as data say ----------------------------------------------------------

# From 1 for words that a layer hides, else 0; and a fed number, -1e38.
BIASES: dict[str, Callable[[Any, Any], Any]] = {
    "scaled twice": lambda b, fed: b * -1e5 * 1e5,
    "a bias": lambda b, fed: b * (b - 2e9),
    "squared": lambda b, fed: -paddle.square(b * 1e5),
    "a slope": lambda b, fed: F.leaky_relu(b * -50.0, 1e38),
    "a logarithm": lambda b, fed: paddle.log(1.0 - b),
    "a product": lambda b, fed: paddle.matmul(
        paddle.ones_like(paddle.transpose(b, [0, 1, 3, 2])), b * -1e38
    ),
    "fed": lambda b, fed: b * fed,
    "embedded": lambda b, fed: paddle.squeeze(
        F.embedding(paddle.cast(b, "int64"), paddle.concat([fed * 0.0, fed])), 4
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_words_are_computed_again_if_data_hide_earlier_ones(name: str, kept: list[int]) -> None:
    def mask(scores: Any, length: Any) -> Any:
        if decoder.is_masked:
            return scores + paddle.triu(_square(length, -1e38), diagonal=1)
        decoder.is_masked = True
        words = paddle.unsqueeze(paddle.unsqueeze(decoder.ids, 1), 2)
        bias = BIASES[name](paddle.cast(words == 1, "float32"), decoder.fed)
        return scores + bias + paddle.triu(_square(length, -1e38), diagonal=1)

    def build() -> Any:
        decoder.fed = paddle.static.data("fed", [1, 1], "float32")
        return decoder.build()

    decoder = RandomDecoder(mask, len(name))
    decoder.depth, decoder.is_masked, decoder.attends_outside = 2, False, True
    agree(Program(build), context=floats(2, COLUMNS, WIDTH), fed=np.full([1, 1], -1e38, "float32"))
    assert kept and {*kept} == {0}


@pytest.mark.parametrize("triangle", [paddle.triu, paddle.tril])
def test_a_triangle_may_have_columns_of_unknown_number(triangle: Any, kept: list[int]) -> None:
    class Windowed(RandomDecoder):
        def attention(self, x: Any, source: Any, length: Any) -> Any:
            self.mask = causal if length is not None else window
            return super().attention(x, source, paddle.shape(x)[1])

    def causal(scores: Any, length: Any) -> Any:
        return scores + paddle.triu(_square(length, -1e38), diagonal=1)

    def window(scores: Any, length: Any) -> Any:
        size = [length, paddle.shape(decoder.context)[1]]
        return scores + triangle(paddle.full(size, -4.0), diagonal=1)

    decoder = Windowed(causal, 3)
    decoder.columns, decoder.attends_outside, decoder.depth = -1, True, 2
    program = Program(decoder.build)
    for columns in (5, 7, 4, 9):
        agree(program, context=floats(2, columns, WIDTH, seed=columns))
    assert 4 in kept


def test_a_body_that_cannot_be_converted_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def broken(*args: Any) -> Any:
        block, kept = single_rows.compute_single_rows(*args)
        found.append(kept)
        return replace(
            block, ops=[*block.ops[:-2], replace(block.ops[-2], type="pd_op.none")]
        ), kept

    monkeypatch.setattr(bodies, "compute_single_rows", broken)
    agree(Program(RandomDecoder(CAUSAL["selected"], 1).build), context=floats(2, COLUMNS, WIDTH))
    assert found
