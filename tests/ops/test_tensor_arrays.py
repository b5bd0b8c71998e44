"""TensorArrays: lists that grow in loops, and their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.tensor import array_length, array_read, array_write, create_array
from paddle.tensor.manipulation import tensor_array_to_tensor

import paddle_ngraph
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.transpiler import generate_native
from paddle_ngraph.utils.lru_cache import LRUCache
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

WIDTH = 3
# (rows, iterations) of some runs: sizes become dynamic after two of them.
RUNS = [(2, 3), (2, 1), (5, 4), (3, 2), (1, 6), (4, 1)]


def rows() -> Any:
    return paddle.static.data("x", [-1, WIDTH], "float32")


def one(value: int) -> Any:
    return paddle.full([1], value, "int64")


def append(array: Any, value: Any) -> None:
    """Appends as ``to_static`` converts ``list.append``."""
    array_write(value, array_length(array), array)


def last(array: Any, number: int) -> Any:
    """An element counted from the end, like ``list[-number]``."""
    return paddle._pir_ops.slice_array_dense(array, [-number])


def joined(array: Any, axis: int = 0, stack: bool = True) -> Any:
    return tensor_array_to_tensor(array, axis, stack)[0]


@contextmanager
def in_program_order() -> Iterator[None]:
    """Runs operators in program order, since Paddle may not wait for writes of blocks to a
    TensorArray.
    """
    paddle.set_flags({"FLAGS_new_executor_sequential_run": True})
    try:
        yield
    finally:
        paddle.set_flags({"FLAGS_new_executor_sequential_run": False})


def agree(program: Program, by_paddle: bool = False, **feed: np.ndarray) -> list[np.ndarray]:
    """Compares Paddle and the engine, which is called once and runs the program or falls back."""
    with in_program_order():
        native = program.run(engine=False, **feed)
    for _ in range(2):
        paddle_ngraph.reset_stats()
        found = program.run(**feed)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (1 - by_paddle, int(by_paddle))
        for expected, actual in zip_equal(native, found):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    return native


def is_one_operator(program: Program) -> bool:
    report = paddle_ngraph.explain(program.main)
    return len(report.intervals) == 1 and not report.native


# -- random programs -------------------------------------------------------------------------------

DTYPES = ["float32", "int64", "int32", "bool"]


class RandomArrays:
    """A random program with TensorArrays, which have initial elements and grow in loops."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.is_open = self._chance(0.5)
        self.starts_with = int(self._random.integers(0, 3))
        self.per_iteration = int(self._random.integers(1, 3))
        self.loops = int(self._random.integers(1, 3))
        self.by_count = self.starts_with + self.per_iteration <= 2 and self._chance(0.5)
        self.dtype = str(self._random.choice(DTYPES))
        self.grows = self._chance(0.3)
        self.axis = int(self._random.integers(0, 2))
        self.is_known = self._chance(0.2)

    def _chance(self, share: float) -> bool:
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
        limit = one(4) if self.is_known else fed_limit()
        weight = parameter(WIDTH, WIDTH)
        array, means = create_array(self.dtype), create_array("float32")
        for place in range(self.starts_with):
            array_write(self._as_element(x, place), one(place), array)

        def body(i: Any, h: Any, *kept: Any) -> Any:
            h = paddle.tanh(paddle.matmul(h, weight) + 0.1)
            for place in range(self.per_iteration):
                element = self._as_element(h, place)
                if self.by_count and self.per_iteration == 1:
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
            if loop:  # a counter of the array would restart
                self.by_count = False
            start = [x * 1.0, x * 0.5] if self.grows else [x * 1.0]
            found += counted(body, *start, end=limit)[1:]
        found += [joined(array, self.axis, True), joined(array, self.axis, False)]
        found += [array_length(array), array_read(array, one(0)), joined(means)]
        return found


@pytest.mark.parametrize("seed", range(32))
def test_a_random_array_grows(seed: int) -> None:
    arrays = RandomArrays(seed)
    program = Program(arrays.build)
    for number, (size, limit) in enumerate(RUNS):
        feed = {"x": floats(size if arrays.is_open else 2, WIDTH, seed=number)}
        agree(program, **feed if arrays.is_known else {**feed, "limit": np.array([limit])})
    assert is_one_operator(program)


# -- variants --------------------------------------------------------------------------------------


def loop_invariant_elements() -> Any:
    """Loop-invariant elements: a weight, a scalar, a feed."""
    x, weight = rows(), parameter(2, WIDTH)
    arrays = [create_array("float32") for _ in range(4)]

    def body(i: Any, h: Any) -> Any:
        for array, value in zip(arrays, (weight, paddle.full([], 2.0), x, x)):
            append(array, value)
        return [h + 1]

    return [counted(body, x * 1.0, end=fed_limit())[1], *map(joined, arrays)]


def carried_elements() -> Any:
    """Elements that are initial and yielded values of iterations."""
    x = rows()
    before, after = create_array("float32"), create_array("float32")

    def body(i: Any, h: Any, g: Any) -> Any:
        append(before, h)
        append(after, g)
        return [g, h * 0.5 + 1]

    _, h, g = counted(body, x * 1.0, x * 2.0, end=fed_limit())
    return [h, g, joined(before), joined(after, 1, False)]


def loop_inside() -> Any:
    """Each iteration fills an array, and appends a result computed from it."""
    x, limit = rows(), fed_limit()
    outer = create_array("float32")

    def body(i: Any, h: Any) -> Any:
        inner = create_array("float32")

        def inner_body(j: Any, g: Any) -> Any:
            append(inner, g)
            return [g * 0.7]

        counted(inner_body, h + 0.1, end=limit)
        stacked = joined(inner)
        append(outer, paddle.sum(stacked, 0))
        return [paddle.tanh(paddle.mean(stacked, 0)) + paddle.cast(array_length(inner), "float32")]

    return [counted(body, x * 1.0, end=limit)[1], joined(outer), array_length(outer)]


def inputs_of_a_recurrent_layer() -> Any:
    """A loop that reads from one array by its counter, and appends to another."""
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    limit, weight = fed_limit(), parameter(WIDTH, WIDTH)
    inputs, outputs = create_array("float32"), create_array("float32")
    for place in range(6):
        array_write(x * (place + 1.0), one(place), inputs)

    def body(i: Any, h: Any) -> Any:
        h = paddle.tanh(paddle.matmul(array_read(inputs, i), weight) + h)
        append(outputs, h)
        return [h]

    h = counted(body, x * 0.0, end=limit)[1]
    place = paddle.cast(paddle.mean(x) > 0, "int64") * (array_length(outputs) > 1)
    return [h, joined(outputs, 1), array_read(outputs, place)]


def read_under_a_condition() -> Any:
    x = rows()
    array, chosen = create_array("float32"), create_array("float32")
    counted(lambda i, h: [append(array, h), h + 1.0][1:], x * 1.0, end=fed_limit())
    found = paddle.static.nn.cond(
        paddle.mean(x) > 0.0, lambda: joined(array)[-1] * 2, lambda: array_read(array, one(0)) + 1
    )

    def body(i: Any, h: Any) -> Any:
        h = paddle.static.nn.cond(
            paddle.mean(h) > 0.5, lambda: h * 0.5, lambda: h + array_read(array, one(0))
        )
        append(chosen, h)
        return [h]

    return [found, *counted(body, x * 1.0, end=fed_limit())[1:], joined(chosen)]


def computed_with_afterwards() -> Any:
    """Readers of all elements: sums, matmuls, a softmax over them, slices, another loop."""
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


def growing_iteration_counts() -> Any:
    """Each iteration has an inner loop with one iteration more than the time before."""
    x = rows()
    outer = create_array("float32")

    def body(i: Any, h: Any) -> Any:
        inner = create_array("float32")
        counted(lambda j, g: [append(inner, g), g * 0.7][1:], h + 0.1, end=i + 1)
        stacked = joined(inner)
        append(outer, paddle.sum(stacked, 0) + stacked[-1])
        return [paddle.tanh(paddle.max(stacked, 0))]

    return [*counted(body, x * 1.0, end=fed_limit())[1:], joined(outer, 1)]


def length_inside() -> Any:
    """The number of elements is used as an operand."""
    x = rows()
    array = create_array("float32")

    def body(i: Any, h: Any) -> Any:
        append(array, h)
        return [h * 0.5 + paddle.cast(array_length(array), "float32")]

    return [*counted(body, x * 1.0, end=fed_limit())[1:], joined(array)]


def until_something_happens() -> Any:
    """The number of iterations depends on tensor values."""
    start = counted(lambda i, h: [h * 0.7], rows() * 1.0, end=fed_limit())[1]
    array = create_array("float32")

    def body(h: Any) -> Any:
        append(array, h)
        return [h + paddle.abs(h) + 0.3]

    h = paddle.static.nn.while_loop(lambda h: paddle.mean(h) < 6.0, body, [start])[0]
    return [h, joined(array), array_length(array)]


def read_in_its_loop() -> Any:
    """A loop that reads the elements it has appended: the last one, all of them, their number."""
    x, weight = rows(), parameter(WIDTH, WIDTH)
    array, other = create_array("float32"), create_array("float32")
    array_write(x * 0.5, one(0), array)
    array_write(x + 0.1, one(1), array)
    array_write(paddle.mean(x, keepdim=True), one(0), other)

    def body(i: Any, h: Any) -> Any:
        last = array_read(array, array_length(array) - 1)
        all_of_them = paddle.mean(joined(array), 0) + array_read(array, i)
        append(array, paddle.tanh(paddle.matmul(last, weight) + all_of_them))
        array_write(array_read(other, i) * 0.9, i + 1, other)
        return [h + paddle.sum(joined(array, 1), 1)]

    h = counted(body, x * 1.0, end=fed_limit())[1]
    return [h, joined(array), array_length(array), joined(other)]


def read_by_the_appending_iteration() -> Any:
    """The array has no initial elements."""
    x = rows()
    array, pairs = create_array("float32"), create_array("float32")

    def body(i: Any, h: Any) -> Any:
        append(array, h * 0.5)
        append(pairs, h)
        append(pairs, last(array, 1) + 1)
        return [paddle.tanh(last(array, 1) + last(pairs, 2) * last(pairs, 1))]

    return [
        *counted(body, x * 1.0, end=fed_limit())[1:],
        joined(array),
        joined(pairs),
        last(pairs, 1),
    ]


def until_the_wanted_length() -> Any:
    """The loop condition is the number of elements."""
    x, limit = rows(), fed_limit()
    array = create_array("float32")
    body = lambda h: [append(array, h), h * 0.9][1:]  # noqa: E731
    start = [x * 1.0]
    return [
        *paddle.static.nn.while_loop(lambda h: array_length(array) < limit, body, start),
        joined(array),
    ]


def overwritten_afterwards() -> Any:
    """An element keeps the value it had when it was appended."""
    x = rows()
    array = create_array("float32")
    number = paddle.zeros([1])

    def body(i: Any, h: Any) -> Any:
        append(array, number)
        paddle.increment(number)
        return [h + number]

    return [counted(body, x * 1.0, end=fed_limit())[1], joined(array, 0, False), number * 1.0]


FORMS: list[Callable[[], Any]] = [
    *(loop_invariant_elements, carried_elements, loop_inside, inputs_of_a_recurrent_layer),
    *(read_under_a_condition, computed_with_afterwards, length_inside, until_something_happens),
    *(read_in_its_loop, overwritten_afterwards, growing_iteration_counts),
    *(read_by_the_appending_iteration, until_the_wanted_length),
]


@pytest.mark.parametrize("build", FORMS)
def test_a_variant_of_an_array(build: Callable) -> None:
    program = Program(build)
    for number, (size, limit) in enumerate(RUNS):
        agree(program, x=floats(size, WIDTH, seed=number), limit=np.array([limit]))
    assert is_one_operator(program)


@pytest.mark.parametrize("build", FORMS)
@pytest.mark.parametrize("fetched", ["first", "last", "others"])
def test_unread_elements_are_appended(build: Callable, fetched: str) -> None:
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        count = len(build())
    places = {"first": [0], "last": [count - 1], "others": range(1, count - 1)}[fetched]
    for place in places:
        program = Program(lambda n=place: build()[n])
        for number, (size, limit) in enumerate(RUNS[:4]):
            agree(program, x=floats(size, WIDTH, seed=number), limit=np.array([limit]))


# -- loops without iterations ----------------------------------------------------------------------


def grown_array(x: Any, starts_with: int) -> Any:
    """An array of ``number`` elements, to which each iteration of a loop appends one."""
    array = create_array("float32")
    for place in range(starts_with):
        array_write(x * (place + 1.0), one(place), array)
    counted(lambda i, h: [append(array, h), h + 1][1:], x * 1.0, end=fed_limit())
    return array


def one_array(starts_with: int = 1) -> Callable[[], Any]:
    def build() -> Any:
        x = rows()
        array = grown_array(x, starts_with)
        found = [array_length(array)]
        return [joined(array, 1), *found] if starts_with else found

    return build


@pytest.mark.parametrize("starts_with", [0, 1, 2])
def test_a_run_without_iterations_falls_back(starts_with: int) -> None:
    program = Program(one_array(starts_with))
    for number, limit in enumerate([2, 0, 3, 0, -1, 1]):
        x = floats(2 + number, WIDTH, seed=number)
        agree(program, by_paddle=limit <= 0, x=x, limit=np.array([limit]))
    assert is_one_operator(program)


def test_a_graph_of_another_process_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback program creates each operator once, with Paddle's own attributes."""
    monkeypatch.setattr(fallback, "_recorded_graphs", LRUCache(1))
    program = Program(one_array(2))
    x = floats(3, WIDTH)
    agree(program, x=x, limit=np.array([1]))
    monkeypatch.setattr(fallback, "_recorded_graphs", LRUCache(1))
    agree(program, by_paddle=True, x=x, limit=np.array([0]))


def test_no_array_is_a_subgraph_input_or_output() -> None:
    (interval,) = paddle_ngraph.explain(Program(one_array()).main).intervals
    graph = Graph.from_string(interval.graph.to_string())
    (creator,) = (op for op in graph.ops if op.type == "pd_op.create_array")
    array = creator.output("out")
    with pytest.raises(NgraphError, match="a TensorArray has no representation outside"):
        Graph.from_string(replace(graph, outputs=[*graph.outputs, array]).to_string())


def test_an_inner_loop_without_iterations_falls_back() -> None:
    """Paddle raises an error there: an array without elements cannot become a tensor."""
    program = Program(loop_inside)
    agree(program, x=floats(2, WIDTH), limit=np.array([2]))
    with pytest.raises(Exception) as native:
        program.run(engine=False, x=floats(2, WIDTH), limit=np.array([0]))
    with pytest.raises(type(native.value)):
        program.run(x=floats(2, WIDTH), limit=np.array([0]))
    agree(program, x=floats(2, WIDTH), limit=np.array([3]))


def test_reading_beyond_the_array_is_an_error() -> None:
    def build() -> Any:
        x = rows()
        array = create_array("float32")
        counted(lambda i, h: [append(array, h), h + 1][1:], x * 1.0, end=fed_limit())
        place = paddle.static.data("place", [1], "int64")
        return array_read(array, place)

    program = Program(build)
    x, limit = floats(2, WIDTH), np.array([3])
    for place in (0, 2, 1):
        agree(program, x=x, limit=limit, place=np.array([place]))
    for place in (3, -1, 2**31, 2**40, -(2**31)):
        with pytest.raises(Exception) as native:
            program.run(engine=False, x=x, limit=limit, place=np.array([place]))
        with pytest.raises(type(native.value)):
            program.run(x=x, limit=limit, place=np.array([place]))
    agree(program, x=x, limit=limit, place=np.array([2]))
    assert is_one_operator(program)


def element_of(elements: list[np.ndarray], start: int) -> np.ndarray | None:
    """The result of Paddle's ``slice_array_dense``; ``None`` for a start beyond the end."""
    place = max(start + len(elements) if start < 0 else start, 0)
    return elements[place] if place < len(elements) else None


def one_element(is_fed: bool, where: str, starts_with: int, start: int) -> Callable[[], Any]:
    def build() -> Any:
        x = rows()
        array = grown_array(x, starts_with)
        place = paddle.static.data("place", [1], "int64") if is_fed else [start]
        read = lambda: paddle._pir_ops.slice_array_dense(array, place) * 2.0  # noqa: E731
        if where == "branch":
            return paddle.static.nn.cond(array_length(array) >= 0, read, lambda: x * 1.0)
        if where == "loop":
            return counted(lambda i, h: [h + read()], x * 0.0, end=one(1))[1]
        return read()

    return build


@pytest.mark.parametrize("where", ["block", "branch", "loop"])
@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_reading_out_of_range_is_an_error_or_falls_back(
    where: str, is_fed: bool, seed: int
) -> None:
    """Paddle's kernel reads arbitrary memory there, or ends the process; the engine runs on."""
    random = np.random.default_rng(seed)
    starts_with = seed % 2
    for known in [None] if is_fed else random.permutation(range(-6, 6))[:4]:
        program = Program(
            one_element(is_fed, where, starts_with, 0 if known is None else int(known))
        )
        runs = {"engine": 0, "paddle": 0, "nobody": 0}
        for number in range(8):
            start = int(random.integers(-6, 6)) if known is None else int(known)
            limit = 3 if number == 0 else int(random.integers(0, 5))
            x = floats(int(random.integers(2, 5)), WIDTH, seed=number)
            elements = [x * (n + 1.0) for n in range(starts_with)] + [x + n for n in range(limit)]
            feed = {"x": x, "limit": np.array([limit])}
            feed |= {"place": np.array([start])} if is_fed else {}
            expected = element_of(elements, start)
            paddle_ngraph.reset_stats()
            if expected is None:
                with pytest.raises(RuntimeError):  # from ``array_read``
                    program.run(**feed)
                runs["nobody"] += 1
                continue
            (found,) = program.run(**feed)
            np.testing.assert_allclose(found, expected * 2, rtol=1e-5, atol=1e-6)
            stats = paddle_ngraph.stats()
            by_engine = int(limit > 0)
            assert (stats["engine_runs"], stats["native_runs"]) == (by_engine, 1 - by_engine)
            runs["engine" if by_engine else "paddle"] += 1
        assert sum(runs.values()) == 8 and (runs["engine"] or runs["nobody"])
        assert is_one_operator(program)


def test_a_failed_run_leaves_no_elements() -> None:
    """In Paddle, elements of a failed run remain for the next one."""

    def build() -> Any:
        x = rows()
        array = create_array("float32")
        counted(lambda i, h: [append(array, h), h + 1][1:], x * 1.0, end=fed_limit())
        return [array_length(array), array_read(array, paddle.static.data("place", [1], "int64"))]

    program = Program(build)
    random = np.random.default_rng(0)
    failed = 0
    for number in range(24):
        limit, place = (int(random.integers(low, 5)) for low in (0, -1))
        x = floats(2 + number % 3, WIDTH, seed=number)
        feed = {"x": x, "limit": np.array([limit]), "place": np.array([place])}
        paddle_ngraph.reset_stats()
        if not 0 <= place < limit:
            with pytest.raises(RuntimeError):
                program.run(**feed)
            failed += 1
            continue
        count, found = program.run(**feed)
        assert paddle_ngraph.stats()["engine_runs"] == 1
        assert count == [limit]
        np.testing.assert_allclose(found, x + place, rtol=1e-5, atol=1e-6)
    assert 6 < failed < 20


# -- fallback --------------------------------------------------------------------------------------


def in_a_loop(body: Callable[[Any, Any, Any], Any], starts_with: int = 1) -> Callable[[], Any]:
    """A loop of three iterations with an array; its length and first element are read."""

    def build() -> Any:
        x = rows()
        array = create_array("float32")
        for place in range(starts_with):
            array_write(x, one(place), array)
        h = counted(lambda i, h: [body(i, h, array)], x * 1.0, end=one(3))[1]
        return [h, array_length(array), array_read(array, one(0))]

    return build


def leaves_gaps(i: Any, h: Any, array: Any) -> Any:
    array_write(h, i * 2 + 1, array)
    return h + 1


def starts_after_a_gap(i: Any, h: Any, array: Any) -> Any:
    array_write(h, i + 2, array)
    return h + 1


def replaces_the_first(i: Any, h: Any, array: Any) -> Any:
    array_write(h, one(0), array)
    return h + 1


def replaces_from_the_start_on(i: Any, h: Any, array: Any) -> Any:
    array_write(h, i, array)
    return h + 1


def appends_and_replaces(i: Any, h: Any, array: Any) -> Any:
    append(array, h)
    array_write(h * 2, array_length(array) - 1, array)
    return h + 1


def fills_from_the_index_on(i: Any, h: Any, array: Any) -> Any:
    own = create_array("float32")
    array_write(h, i, own)
    append(array, h * paddle.cast(array_length(own), "float32"))
    return h + 1


def appends_under_a_condition(i: Any, h: Any, array: Any) -> Any:
    def yes() -> Any:
        append(array, h)
        return h + 1

    return paddle.static.nn.cond(paddle.mean(h) > 1.0, yes, lambda: h * 1.5 + 0.3)


def appends_growing_value(i: Any, h: Any, array: Any) -> Any:
    append(array, paddle.tile(h, [2, 1]))
    return h + 1


def appends_two_shapes(i: Any, h: Any, array: Any) -> Any:
    append(array, h)
    append(array, paddle.mean(h))
    return h + 1


def appends_in_a_loop_inside(i: Any, h: Any, array: Any) -> Any:
    def body(j: Any, g: Any) -> Any:
        append(array, g)
        return [g * 0.5]

    return counted(body, h + 0.1, end=one(2))[1]


def prints_elements(i: Any, h: Any, array: Any) -> Any:
    append(array, paddle.static.Print(h, print_phase="forward", first_n=1))
    return h + 1


def reads_from_nothing(i: Any, h: Any, array: Any) -> Any:
    append(array, h)
    return array_read(array, i) + 1


NATIVE = [
    (in_a_loop(reads_from_nothing, 0), "reads a TensorArray that starts without elements"),
    (in_a_loop(leaves_gaps), "its index may differ from the length"),
    (in_a_loop(starts_after_a_gap), "its index may differ from the length"),
    (in_a_loop(replaces_the_first), "its index may differ from the length"),
    (in_a_loop(replaces_from_the_start_on), "its index may differ from the length"),
    (in_a_loop(appends_and_replaces), "its index may differ from the length"),
    (in_a_loop(fills_from_the_index_on), "its index may differ from the length"),
    (in_a_loop(appends_under_a_condition), "writes to a TensorArray under a condition"),
    (in_a_loop(appends_growing_value), "elements of several shapes"),
    (in_a_loop(appends_two_shapes), "elements of several shapes"),
    (in_a_loop(appends_in_a_loop_inside), "writes to a TensorArray of an outer block"),
    (in_a_loop(prints_elements), "print"),
]


@pytest.mark.parametrize("build, reason", NATIVE)
def test_other_arrays_fall_back(build: Callable, reason: str) -> None:
    program = Program(build)
    for number, size in enumerate((2, 5, 3, 1)):
        x = floats(size, WIDTH, seed=number)
        with in_program_order():
            native = program.run(engine=False, x=x)
        found = program.run(x=x)
        for expected, actual in zip_equal(native, found):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    report = paddle_ngraph.explain(program.main)
    assert any(op.type == "pd_op.while" for op in report.native)
    assert reason in str(report)


def test_an_array_in_two_subgraphs_falls_back() -> None:
    def build() -> Any:
        x = rows()
        array = create_array("float32")
        append(array, x * 2)
        noise = paddle.static.Print(paddle.mean(array_read(array, one(0))), first_n=1)
        append(array, x + noise)
        return joined(array)

    program = Program(build)
    x = floats(2, WIDTH)
    np.testing.assert_allclose(program.run(x=x)[0], program.run(engine=False, x=x)[0], rtol=1e-6)
    assert "used outside of its interval" in str(paddle_ngraph.explain(program.main))


def test_fed_integers_beyond_int32_fall_back() -> None:
    def build() -> Any:
        ids = paddle.static.data("ids", [2], "int64")
        array = create_array("int64")
        counted(lambda i, h: [append(array, h), h + 1][1:], ids * 1, end=fed_limit())
        return joined(array)

    program = Program(build)
    feed = {"ids": np.array([2**40, 3]), "limit": np.array([2])}
    np.testing.assert_array_equal(program.run(**feed)[0], [[2**40, 3], [2**40 + 1, 4]])
    assert "64 bits" in str(paddle_ngraph.explain(program.main))


# -- lists in to_static ----------------------------------------------------------------------------


@pytest.fixture
def dynamic() -> Iterator[None]:
    paddle.disable_static()
    yield
    paddle.enable_static()


class Lists(paddle.nn.Layer):
    """Python lists in a loop over a tensor."""

    def __init__(self, body: Callable) -> None:
        super().__init__()
        self.step = paddle.nn.Linear(WIDTH, WIDTH)
        self.body = body

    def forward(self, x: Any, n: Any) -> Any:
        return self.body(self, x, n)


def list_in_a_while(self: Any, x: Any, n: Any) -> Any:
    outs, i = [], paddle.zeros([1], "int64")
    while i < n:
        x = paddle.tanh(self.step(x))
        outs.append(x)
        i += 1
    return paddle.stack(outs), x


def list_in_a_for(self: Any, x: Any, n: Any) -> Any:
    outs = []
    for _ in range(n):
        x = paddle.tanh(self.step(x))
        outs.append(x)
    return paddle.concat(outs, axis=1), len(outs), outs[0], outs[-1]


def list_that_starts_with_something(self: Any, x: Any, n: Any) -> Any:
    outs = [x]
    for _ in range(n):
        outs.append(paddle.tanh(self.step(outs[-1])))
    return paddle.stack(outs, axis=1)


def list_of_rows(self: Any, x: Any, n: Any) -> Any:
    outs = []
    for row in x:
        outs.append(self.step(row) * 2)
    return paddle.stack(outs)


def list_of_words(self: Any, x: Any, n: Any) -> Any:
    words, word = [], paddle.zeros([1], "int64")
    for _ in range(n):
        x = paddle.tanh(self.step(x) + paddle.cast(word, "float32"))
        word = paddle.argmax(paddle.flatten(x), axis=0, keepdim=True)
        words.append(word)
    return paddle.concat(words)


def list_that_is_gone_through(self: Any, x: Any, n: Any) -> Any:
    outs = []
    for _ in range(n):
        x = self.step(x)
        outs.append(x)
    total, again = paddle.zeros_like(x), x
    for each in outs:
        total = total + each
    for i in range(n):
        again = again * 0.5 + outs[i]
    return total, again


def list_until_a_break(self: Any, x: Any, n: Any) -> Any:
    outs = []
    for _ in range(n):
        x = self.step(x) + 0.2
        outs.append(x)
        if paddle.max(x) > 1.5:
            break
    return paddle.stack(outs)


LISTS = [
    *(list_in_a_while, list_in_a_for, list_that_starts_with_something, list_of_rows),
    *(list_of_words, list_that_is_gone_through, list_until_a_break),
]


@pytest.mark.parametrize("body", LISTS)
def test_a_list_is_one_operator(body: Callable, dynamic: None) -> None:
    paddle.seed(5)
    spec = paddle.static.InputSpec
    specs = [spec([-1, WIDTH], "float32", "x"), spec([1], "int64", "n")]
    layer = paddle.jit.to_static(Lists(body), input_spec=specs, full_graph=True)
    layer.eval()

    def run(size: int, iterations: int) -> list[np.ndarray]:
        with paddle.no_grad():
            fed = floats(size, WIDTH, seed=size + iterations), np.array([iterations])
            found = layer(*map(paddle.to_tensor, fed))
        return [each.numpy() for each in (found if isinstance(found, tuple) else [found])]

    for size, iterations in RUNS:
        with paddle_ngraph.use_ngraph(False), in_program_order():
            native = run(size, iterations)
        paddle_ngraph.reset_stats()
        with paddle_ngraph.use_ngraph(True):
            found = run(size, iterations)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (1, 0)
        for expected, actual in zip_equal(native, found):
            assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)


def test_training_through_a_list_falls_back(dynamic: None) -> None:
    """Paddle does not differentiate such lists, and its error is raised."""
    layer = paddle.jit.to_static(Lists(list_that_starts_with_something), full_graph=True)
    x, n = paddle.to_tensor(floats(2, WIDTH)), paddle.to_tensor(np.array([3]))
    x.stop_gradient = False
    for engine in (False, True):
        with paddle_ngraph.use_ngraph(engine), pytest.raises(NotImplementedError):
            paddle.sum(layer(x, n)).backward()


# -- functions on disk, and projects ---------------------------------------------------------------


def once_on_disk() -> None:
    """Runs the program in this and in another process."""
    for build in (read_in_its_loop, loop_inside):
        program = Program(build)
        for number, (size, limit) in enumerate(RUNS):
            feed = {"x": floats(size, WIDTH, seed=number), "limit": np.array([limit])}
            with in_program_order():
                native = program.run(engine=False, **feed)
            found = program.run(**feed)
            for one, other in zip_equal(native, found):
                np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-5)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] == 2 * len(RUNS) and stats["native_runs"] == 0
    print("counts", stats["functions_built"], stats["functions_loaded"])


@pytest.mark.slow("starts a process")
def test_another_process_loads_arrays(tmp_path: Path) -> None:
    counts = counts_of_two_processes("tests.ops.test_tensor_arrays", tmp_path, 300)
    assert counts[0][0] > 2 and counts[0][1] == 0 and counts[1] == counts[0][::-1]


def test_dynamic_element_counts_have_no_cpp_code(tmp_path: Path) -> None:
    program = Program(one_array())
    with pytest.raises(NgraphError, match="is not supported in C"):
        generate_native(program.main, tmp_path / "out", program.fetches, scope=program.scope)
    assert not list(tmp_path.iterdir())
