"""TensorArrays: lists that grow in loops, and what reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.tensor import array_length, array_read, array_write, create_array
from paddle.tensor.manipulation import tensor_array_to_tensor

import paddle_ngraph
from paddle_ngraph.function import refusals
from tests.programs import Program, floats, parameter, summary

WIDTH = 3
# (rows, turns) of some runs: sizes open after two of them.
RUNS = [(2, 3), (2, 1), (5, 4), (3, 2), (1, 6), (4, 1)]


@pytest.fixture(autouse=True)
def fresh(small_intervals_pay: None) -> Any:
    refusals.clear()
    yield
    refusals.clear()


def fed_limit() -> Any:
    return paddle.static.data("limit", [1], "int64")


def rows() -> Any:
    return paddle.static.data("x", [-1, WIDTH], "float32")


def one(value: int) -> Any:
    return paddle.full([1], value, "int64")


def counted(turn: Callable, *start: Any, end: Any, first: int = 0) -> list[Any]:
    """A loop that counts: ``turn`` has the count first, and returns all but that."""
    found = paddle.static.nn.while_loop(
        lambda i, *h: i < end, lambda i, *h: [i + 1, *turn(i, *h)], [one(first), *start]
    )
    return list(found)


def append(array: Any, value: Any) -> None:
    """As ``list.append`` does by ``to_static``."""
    array_write(value, array_length(array), array)


def joined(array: Any, axis: int = 0, stack: bool = True) -> Any:
    return tensor_array_to_tensor(array, axis, stack)[0]


def agree(program: Program, by_paddle: bool = False, **feed: np.ndarray) -> list[np.ndarray]:
    """Runs natively and through the engine, which is asked once, and does it, or leaves it."""
    native = program.run(engine=False, **feed)
    for _ in range(2):
        paddle_ngraph.reset_stats()
        found = program.run(**feed)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (1 - by_paddle, int(by_paddle))
        for expected, actual in zip(native, found, strict=True):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    return native


def is_one_operator(program: Program) -> bool:
    report = paddle_ngraph.explain(program.main)
    return len(report.intervals) == 1 and not report.native


# -- drawn programs --------------------------------------------------------------------------------

DTYPES = ["float32", "int64", "int32", "bool"]


class Drawn:
    """A program with some TensorArrays, which begin with some elements, and grow in loops."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.is_open = self._draws(0.5)
        self.starts_with = int(self._random.integers(0, 3))
        self.per_turn = int(self._random.integers(1, 3))
        self.loops = int(self._random.integers(1, 3))
        self.by_count = self.starts_with + self.per_turn <= 2 and self._draws(0.5)
        self.dtype = str(self._random.choice(DTYPES))
        self.grows = self._draws(0.3)
        self.axis = int(self._random.integers(0, 2))

    def _draws(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def _as_element(self, h: Any, place: int) -> Any:
        value = h * (place + 1.0)
        if self.dtype == "float32":
            return value
        if self.dtype == "bool":
            return value > 0.1
        return paddle.cast(value > 0.1, self.dtype) * 3 + place

    def build(self) -> Any:
        x = rows() if self.is_open else paddle.static.data("x", [2, WIDTH], "float32")
        limit, weight = fed_limit(), parameter(WIDTH, WIDTH)
        array, means = create_array(self.dtype), create_array("float32")
        for place in range(self.starts_with):
            array_write(self._as_element(x, place), one(place), array)

        def turn(i: Any, h: Any, *kept: Any) -> Any:
            h = paddle.tanh(paddle.matmul(h, weight) + 0.1)
            for place in range(self.per_turn):
                element = self._as_element(h, place)
                if self.by_count and self.per_turn == 1:
                    array_write(element, i + self.starts_with, array)
                else:
                    append(array, element)
            array_write(paddle.mean(h), array_length(means), means)
            if not kept:
                return [h]
            grown = paddle.concat([kept[0], h], 0)
            return [h + paddle.mean(grown, 0, True), grown]

        found = []
        for loop in range(self.loops):
            if loop:  # a count of the array would start over
                self.by_count = False
            start = [x * 1.0, x * 0.5] if self.grows else [x * 1.0]
            found += counted(turn, *start, end=limit)[1:]
        found += [joined(array, self.axis, True), joined(array, self.axis, False)]
        found += [array_length(array), array_read(array, one(0)), joined(means)]
        return found


@pytest.mark.parametrize("seed", range(32))
def test_a_drawn_array_grows(seed: int) -> None:
    drawn = Drawn(seed)
    program = Program(drawn.build)
    for number, (size, limit) in enumerate(RUNS):
        size = size if drawn.is_open else 2
        agree(program, x=floats(size, WIDTH, seed=number), limit=np.array([limit]))
    assert is_one_operator(program)


# -- forms -----------------------------------------------------------------------------------------


def what_no_turn_changes() -> Any:
    """Elements that are the same in each turn: a weight, a number, what is fed."""
    x, weight = rows(), parameter(2, WIDTH)
    arrays = [create_array("float32") for _ in range(3)]

    def turn(i: Any, h: Any) -> Any:
        for array, value in zip(arrays, (weight, paddle.full([], 2.0), x)):
            append(array, value)
        return [h + 1]

    return [counted(turn, x * 1.0, end=fed_limit())[1], *map(joined, arrays)]


def what_is_handed_on() -> Any:
    """Elements that are what a turn starts from, and ends with."""
    x = rows()
    before, after = create_array("float32"), create_array("float32")

    def turn(i: Any, h: Any, g: Any) -> Any:
        append(before, h)
        append(after, g)
        return [g, h * 0.5 + 1]

    _, h, g = counted(turn, x * 1.0, x * 2.0, end=fed_limit())
    return [h, g, joined(before), joined(after, 1, False)]


def loop_inside() -> Any:
    """Each turn fills an array of its own, and appends what becomes of it."""
    x, limit = rows(), fed_limit()
    outer = create_array("float32")

    def turn(i: Any, h: Any) -> Any:
        inner = create_array("float32")

        def inner_turn(j: Any, g: Any) -> Any:
            append(inner, g)
            return [g * 0.7]

        counted(inner_turn, h + 0.1, end=limit)
        stacked = joined(inner)
        append(outer, paddle.sum(stacked, 0))
        return [paddle.tanh(paddle.mean(stacked, 0)) + paddle.cast(array_length(inner), "float32")]

    return [counted(turn, x * 1.0, end=limit)[1], joined(outer), array_length(outer)]


def inputs_of_a_recurrent_layer() -> Any:
    """A loop reads from one array, by its count, and appends to another."""
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    limit, weight = fed_limit(), parameter(WIDTH, WIDTH)
    inputs, outputs = create_array("float32"), create_array("float32")
    for place in range(6):
        array_write(x * (place + 1.0), one(place), inputs)

    def turn(i: Any, h: Any) -> Any:
        h = paddle.tanh(paddle.matmul(array_read(inputs, i), weight) + h)
        append(outputs, h)
        return [h]

    h = counted(turn, x * 0.0, end=limit)[1]
    place = paddle.cast(paddle.mean(x) > 0, "int64") * (array_length(outputs) > 1)
    return [h, joined(outputs, 1), array_read(outputs, place)]


def read_under_a_condition() -> Any:
    x = rows()
    array, chosen = create_array("float32"), create_array("float32")
    counted(lambda i, h: [append(array, h), h + 1.0][1:], x * 1.0, end=fed_limit())
    found = paddle.static.nn.cond(
        paddle.mean(x) > 0.0, lambda: joined(array)[-1] * 2, lambda: array_read(array, one(0)) + 1
    )

    def turn(i: Any, h: Any) -> Any:
        h = paddle.static.nn.cond(
            paddle.mean(h) > 0.5, lambda: h * 0.5, lambda: h + array_read(array, one(0))
        )
        append(chosen, h)
        return [h]

    return [found, *counted(turn, x * 1.0, end=fed_limit())[1:], joined(chosen)]


def computed_with_afterwards() -> Any:
    """What reads all elements: sums, products, a softmax over them, slices, another loop."""
    x = rows()
    array = create_array("float32")
    counted(lambda i, h: [append(array, h), h * 0.9 - 0.1][1:], x * 1.0, end=fed_limit())
    stacked = joined(array)
    attention = paddle.matmul(stacked, stacked, transpose_y=True)
    last = counted(lambda i, h: [h + paddle.mean(stacked, 0)], x * 1.0, end=fed_limit())[1]
    return [
        *(paddle.mean(stacked, axis=0), paddle.nn.functional.softmax(attention, axis=0), last),
        *(stacked[-1], stacked[:1], stacked * x, paddle.shape(stacked), paddle.flip(stacked, [0])),
        paddle.transpose(stacked, [1, 0, 2]).reshape([-1, WIDTH]),
    ]


def length_inside() -> Any:
    """The number of elements is a number like others."""
    x = rows()
    array = create_array("float32")

    def turn(i: Any, h: Any) -> Any:
        append(array, h)
        return [h * 0.5 + paddle.cast(array_length(array), "float32")]

    return [*counted(turn, x * 1.0, end=fed_limit())[1:], joined(array)]


def until_something_happens() -> Any:
    """Only the numbers tell when it ends."""
    start = counted(lambda i, h: [h * 0.7], rows() * 1.0, end=fed_limit())[1]
    array = create_array("float32")

    def turn(h: Any) -> Any:
        append(array, h)
        return [h + paddle.abs(h) + 0.3]

    h = paddle.static.nn.while_loop(lambda h: paddle.mean(h) < 6.0, turn, [start])[0]
    return [h, joined(array), array_length(array)]


FORMS: list[Callable[[], Any]] = [
    *(what_no_turn_changes, what_is_handed_on, loop_inside, inputs_of_a_recurrent_layer),
    *(read_under_a_condition, computed_with_afterwards, length_inside, until_something_happens),
]


@pytest.mark.parametrize("build", FORMS)
def test_a_form_of_array(build: Callable) -> None:
    program = Program(build)
    for number, (size, limit) in enumerate(RUNS):
        agree(program, x=floats(size, WIDTH, seed=number), limit=np.array([limit]))
    assert is_one_operator(program)


@pytest.mark.parametrize("build", FORMS)
def test_what_nothing_reads_is_appended_too(build: Callable) -> None:
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        count = len(build())
    for place in range(count):
        program = Program(lambda n=place: build()[n])
        for number, (size, limit) in enumerate(RUNS[:4]):
            agree(program, x=floats(size, WIDTH, seed=number), limit=np.array([limit]))
