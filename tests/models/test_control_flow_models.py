"""Real programs with control flow: decoders that write word by word, a detector without finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.programs import Program, floats
from tests.zips import zip_equal

WORDS, HIDDEN, FEATURES = 23, 32, 24
END = 1


def _gru_cell(x: Any, h: Any, weights: dict[str, Any]) -> Any:
    update, reset, candidate = paddle.split(
        paddle.matmul(x, weights["x"]) + weights["b"], 3, axis=1
    )
    update_h, reset_h, candidate_h = paddle.split(paddle.matmul(h, weights["h"]), 3, axis=1)
    update, reset = F.sigmoid(update + update_h), F.sigmoid(reset + reset_h)
    return update * h + (1.0 - update) * paddle.tanh(candidate + reset * candidate_h)


def _attended(features: Any, h: Any, weights: dict[str, Any]) -> Any:
    """The context of the decoder: a mean of the encoder's columns (additive attention)."""
    keys = paddle.matmul(features, weights["key"])
    scores = paddle.matmul(
        paddle.tanh(keys + paddle.unsqueeze(paddle.matmul(h, weights["query"]), 1)),
        weights["score"],
    )
    return paddle.sum(F.softmax(scores, axis=1) * features, axis=1)


def _weights() -> dict[str, Any]:
    shapes = {
        "x": (HIDDEN + FEATURES, 3 * HIDDEN),
        "h": (HIDDEN, 3 * HIDDEN),
        "b": (3 * HIDDEN,),
        "key": (FEATURES, HIDDEN),
        "query": (HIDDEN, HIDDEN),
        "score": (HIDDEN, 1),
        "word": (WORDS, HIDDEN),
        "out": (HIDDEN, WORDS),
    }
    return {
        name: paddle.static.create_parameter(
            list(shape),
            "float32",
            name=f"decoder_{name}",
            default_initializer=paddle.nn.initializer.Assign(0.4 * floats(*shape, seed=n + 1)),
        )
        for n, (name, shape) in enumerate(shapes.items())
    }


def decoder(steps: int, stops: bool) -> Any:
    """An encoder of pictures, and a table's structure word by word: greedy, or until all end."""
    picture = paddle.static.data("picture", [-1, 1, 8, -1], "float32")
    filters = paddle.static.create_parameter(
        [FEATURES, 1, 8, 3],
        "float32",
        name="encoder",
        default_initializer=paddle.nn.initializer.Assign(0.3 * floats(FEATURES, 1, 8, 3, seed=9)),
    )
    columns = paddle.tanh(F.conv2d(picture, filters, padding=[0, 1]))
    features = paddle.transpose(paddle.squeeze(columns, 2), [0, 2, 1])
    weights = _weights()
    rows = paddle.shape(picture)[0]
    i, end = paddle.full([], 0, "int64"), paddle.full([], steps, "int64")
    h = paddle.mean(paddle.matmul(features, weights["key"]), axis=1)
    word = paddle.cast(paddle.sum(h * 0.0, axis=1), "int64")
    words = paddle.zeros([rows, steps], "int64")
    scores = paddle.zeros([rows, steps, WORDS], "float32")
    positions = paddle.arange(steps, dtype="int64")

    def goes_on(i: Any, word: Any, *_: Any) -> Any:
        if not stops:
            return i < end
        return paddle.logical_and(i < end, paddle.logical_or(i == 0, paddle.any(word != END)))

    def step(i: Any, word: Any, h: Any, words: Any, scores: Any) -> Any:
        x = paddle.concat([F.embedding(word, weights["word"]), _attended(features, h, weights)], 1)
        h = _gru_cell(x, h, weights)
        logits = paddle.matmul(h, weights["out"])
        word = paddle.argmax(logits, axis=1)
        here = positions == i
        words = words + paddle.unsqueeze(word, 1) * paddle.cast(here, "int64")
        place = paddle.reshape(paddle.cast(here, "float32"), [1, -1, 1])
        scores = scores + paddle.unsqueeze(F.softmax(logits), 1) * place
        return [i + 1, word, h, words, scores]

    return paddle.static.nn.while_loop(goes_on, step, [i, word, h, words, scores])


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("stops", [False, True])
def test_a_decoder_writes_the_same_words(stops: bool) -> None:
    steps = 137
    program = Program(lambda: decoder(steps, stops))
    written = set()
    for number, (batch, width) in enumerate([(2, 19), (2, 19), (1, 31), (3, 7), (1, 64), (2, 19)]):
        picture = floats(batch, 1, 8, width, seed=number)
        expected = program.run(engine=False, picture=picture)
        found = program.run(picture=picture)
        count, _, _, words, _ = found
        assert int(count) == int(expected[0])
        np.testing.assert_array_equal(words, expected[3])
        for one, other in zip(found, expected):  # each step multiplies the rounding of the last
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
        assert stops or int(count) == steps
        written |= set(words.ravel().tolist())
    assert len(written) > 5, "it does not write the same word all the time"
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] >= 6 and stats["native_runs"] == 0


def reader(steps: int) -> Any:
    """A network that reads a row in each step, and carries all of its outputs so far."""
    rows = paddle.static.data("rows", [-1, steps, FEATURES], "float32")
    weights = _weights()
    i, end = paddle.full([], 0, "int64"), paddle.full([], steps, "int64")
    h = paddle.matmul(paddle.mean(rows, axis=1), weights["key"])

    def step(i: Any, h: Any, written: Any) -> Any:
        last = paddle.mean(written, axis=1)
        h = _gru_cell(paddle.concat([last, rows[:, i]], 1), h, weights)
        return [i + 1, h, paddle.concat([written, paddle.unsqueeze(h, 1)], 1)]

    start = [i, h, paddle.unsqueeze(h * 1.0, 1)]
    return paddle.static.nn.while_loop(lambda i, *_: i < end, step, start)


@pytest.mark.slow("compiles many or large functions")
def test_a_decoder_that_concatenates_its_outputs() -> None:
    program = Program(lambda: reader(37))
    for batch in (2, 1, 3, 4, 2):
        found = program.both(rows=floats(batch, 37, FEATURES, seed=batch))
        assert found[2].shape == (batch, 38, HIDDEN)
    stats = paddle_ngraph.stats()
    assert (stats["engine_runs"], stats["native_runs"]) == (5, 0)


@pytest.mark.slow("compiles many or large functions")
def test_a_step_that_picks_a_row_by_a_counter_needs_no_function_of_its_own(
    leave_native: Any,
) -> None:
    leave_native("pd_op.while")
    steps = 150
    program = Program(lambda: reader(steps))
    rows = floats(2, steps, FEATURES)
    expected = program.run(engine=False, rows=rows)
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    for one, other in zip_equal(program.run(rows=rows), expected):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] > steps
    assert stats["native_runs"] == 0
    assert stats["functions_built"] <= 10


def detector() -> Any:
    """Boxes over a grid with scores by a convolution; those that suppress the others, in a picture.

    Boxes below the threshold are dropped first, as detectors do: in a black picture all of them.
    """
    picture = paddle.static.data("picture", [1, 3, 32, 32], "float32")
    filters = [
        paddle.static.create_parameter(
            list(shape),
            "float32",
            name=f"detector_{n}",
            default_initializer=paddle.nn.initializer.Assign(0.3 * floats(*shape, seed=n + 20)),
        )
        for n, shape in enumerate([(8, 3, 3, 3), (8, 8, 3, 3), (5, 8, 1, 1)])
    ]
    h = F.relu(F.conv2d(picture, filters[0], stride=2, padding=1))
    h = F.relu(F.conv2d(h, filters[1], stride=2, padding=1))
    found = paddle.reshape(paddle.transpose(F.conv2d(h, filters[2]), [0, 2, 3, 1]), [-1, 5])
    scores = F.sigmoid(found[:, 4] - 1.0)
    corners = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2)
    grid = paddle.assign(np.tile(4.0 * corners, 2).astype("float32"))
    sides = paddle.assign(np.array([[-4.0, -4.0, 8.0, 8.0]], "float32"))
    boxes = grid + sides + paddle.tanh(found[:, :4])
    kept = paddle.reshape(paddle.nonzero(scores > 0.45), [-1])
    boxes, scores = paddle.gather(boxes, kept), paddle.gather(scores, kept)
    order = paddle.argsort(scores, descending=True)
    boxes, scores = paddle.gather(boxes, order), paddle.gather(scores, order)
    alone = _suppressed(boxes)
    boxes = boxes * paddle.unsqueeze(alone, 1)
    centers = (boxes[:, :2] + boxes[:, 2:]) * 0.5
    return [boxes, scores, alone, centers, paddle.sum(alone), F.softmax(boxes, axis=-1)]


def _suppressed(boxes: Any) -> Any:
    """1 for each box that no kept box with a higher score overlaps, box by box."""
    low = paddle.maximum(paddle.unsqueeze(boxes[:, :2], 1), paddle.unsqueeze(boxes[:, :2], 0))
    high = paddle.minimum(paddle.unsqueeze(boxes[:, 2:], 1), paddle.unsqueeze(boxes[:, 2:], 0))
    common = paddle.prod(F.relu(high - low), axis=-1)
    area = paddle.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    overlap = common / (paddle.unsqueeze(area, 1) + paddle.unsqueeze(area, 0) - common)
    count = paddle.shape(boxes)[0]
    number = paddle.arange(count)
    i, alone = paddle.full([], 0, "int32"), paddle.cast(area > -1.0, "float32")

    def step(i: Any, alone: Any) -> Any:
        row = paddle.reshape(paddle.gather(overlap, paddle.reshape(i, [1])), [-1])
        here = paddle.sum(paddle.cast(number == paddle.cast(i, number.dtype), "float32") * alone)
        behind = paddle.cast(number > paddle.cast(i, number.dtype), "float32")
        out = paddle.cast(row > 0.3, "float32") * behind * here
        return [i + 1, alone * (1.0 - out)]

    return paddle.static.nn.while_loop(lambda i, alone: i < count, step, [i, alone])[1]


@pytest.mark.slow("compiles many or large functions")
def test_a_detector_finds_nothing_on_a_black_picture() -> None:
    program = Program(detector)
    found = []
    for seed, light in enumerate([1.0, 0.0, 0.7, 0.0, 0.0, 1.0]):
        picture = light * floats(1, 3, 32, 32, seed=seed)
        boxes, _, alone, *_ = program.both(picture=picture)
        found.append((len(boxes), int(alone.sum())))
    assert found[1] == found[3] == found[4] == (0, 0)
    assert all(count > kept > 1 for count, kept in (found[0], found[2], found[5])), found
    assert paddle_ngraph.stats()["engine_runs"] > 6
