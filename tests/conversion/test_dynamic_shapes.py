"""One function for many shapes: results equal Paddle's, with no more functions than needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import caches
from paddle_ngraph.settings import SETTINGS
from tests.programs import Program, floats, summary

SIZES = [(2, 32), (3, 48), (2, 20), (4, 33), (5, 21), (2, 63), (3, 40)]


def run_all(
    build: Callable[[], Any], feed: Callable[[int, int], dict[str, np.ndarray]], sizes: Any = SIZES
) -> Program:
    """Runs a program at every size; ``Program.both`` asserts an engine run and equal results."""
    paddle_ngraph.clear_cache()
    program = Program(build)
    for batch, size in sizes:
        program.both(**feed(batch, size))
    return program


def built() -> int:
    return int(paddle_ngraph.stats()["functions_built"])


def resident_mb() -> float:
    """The resident memory of this process, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def pictures() -> Any:
    x = paddle.static.data("x", [-1, 3, 16, -1], "float32")
    x = paddle.nn.functional.relu(paddle.nn.BatchNorm2D(8)(paddle.nn.Conv2D(3, 8, 3, 2, 1)(x)))
    small = paddle.nn.functional.interpolate(x, scale_factor=2)
    gate = paddle.nn.functional.sigmoid(paddle.nn.AdaptiveAvgPool2D(1)(x))
    columns = paddle.transpose(paddle.flatten(x * gate, 1, 2), [0, 2, 1])
    scores = paddle.nn.functional.softmax(paddle.nn.Linear(64, 10)(columns))
    return scores, paddle.mean(small)


def picture(batch: int, width: int) -> dict[str, np.ndarray]:
    return {"x": floats(batch, 3, 16, width)}


def words() -> Any:
    ids = paddle.static.data("ids", [-1, -1], "int64")
    x = paddle.nn.Embedding(50, 16)(ids)
    query = paddle.reshape(paddle.nn.Linear(16, 16)(x), [0, 0, 4, 4]).transpose([0, 2, 1, 3])
    weights = paddle.nn.functional.softmax(paddle.matmul(query, query, transpose_y=True))
    mixed = paddle.matmul(weights, query).transpose([0, 2, 1, 3])
    mixed = paddle.reshape(mixed, [paddle.shape(ids)[0], paddle.shape(ids)[1], 16])
    return paddle.nn.LayerNorm(16)(x + mixed).mean(axis=1)


def text(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(length).integers(0, 50, (batch, length))}


def characters() -> Any:
    """Rows with as many classes as text recognizers have."""
    ids = paddle.static.data("ids", [-1, -1], "int64")
    return paddle.nn.functional.softmax(paddle.nn.Embedding(50, 4096)(ids))


@pytest.mark.parametrize(
    ("build", "feed"), [(pictures, picture), (words, text), (characters, text)]
)
def test_many_shapes_share_a_function(build, feed):
    run_all(build, feed)
    assert built() == SETTINGS.static_shapes_before_dynamic + 1


def test_functions_of_shapes_that_do_not_recur_are_dropped():
    program = run_all(words, text)
    first, second = SIZES[: SETTINGS.static_shapes_before_dynamic]
    functions = caches.sizes()["functions"]
    assert functions == built() == SETTINGS.static_shapes_before_dynamic + 1

    def run(*sizes: tuple[int, int]) -> None:
        for size in sizes:
            program.run(**text(*size))

    for _ in range(64):
        run((2, 63), first, (3, 40), second)
    assert caches.sizes()["functions"] == functions
    for _ in range(2 * 32):  # core/engine/function_cache.cc:kFoundBetweenCollections
        run((2, 63), first)
    assert caches.sizes()["functions"] == functions - 1
    for size in (first, second):  # the function for many shapes serves it
        program.both(**text(*size))
    assert built() == functions
    assert paddle_ngraph.stats()["native_runs"] == 0


def test_changing_sizes_return_freed_memory_to_the_system():
    program = run_all(words, text)
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    blocks = [library.malloc(100_000) for _ in range(500)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    held = resident_mb()
    for block in blocks[:-1]:  # the last one separates them from the end of the heap
        library.free(block)
    for change in range(64):  # core/engine/function_cache.cc:kChangesBetweenTrims
        program.run(**text(*SIZES[2 + change % 5]))
    assert resident_mb() < held - 30
    library.free(blocks[-1])


def test_training_steps_of_many_batch_sizes_share_a_function():
    def step() -> Any:
        x = paddle.static.data("x", [-1, 8], "float32")
        loss = paddle.sum(paddle.nn.Linear(8, 4)(paddle.nn.functional.gelu(x)) ** 2)
        paddle.optimizer.Momentum(1e-3).minimize(loss)
        return loss

    paddle_ngraph.clear_cache()
    losses = {}
    for engine in (False, True):
        program = Program(step)
        losses[engine] = [
            program.run(engine=engine, x=floats(batch, 8, seed=batch))[0]
            for batch in (4, 7, 9, 16, 5, 30)
        ]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] == 6
    assert built() == SETTINGS.static_shapes_before_dynamic + 1


@pytest.mark.slow("compiles many or large functions")
def test_padding_by_a_remainder_needs_separate_functions():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 3, 16, -1], "float32")
        return paddle.nn.functional.max_pool2d(paddle.exp(x), 2, 2, ceil_mode=True) + 0.5

    run_all(build, picture)
    assert built() == len(SIZES)


@pytest.mark.slow("compiles many or large functions")
def test_a_shape_below_the_tried_ones_is_right():
    run_all(pictures, picture, [*SIZES, (1, 20), (2, 9), (1, 1)])


@pytest.mark.slow("compiles many or large functions")
def test_an_id_out_of_range_is_rejected_at_any_shape():
    program = run_all(words, text)
    with pytest.raises(ValueError, match=r"(?s)embedding.* 50\b"):
        program.run(ids=np.full((3, 37), 50))
    program.both(**text(3, 37))
    assert built() == SETTINGS.static_shapes_before_dynamic + 1


@pytest.mark.slow("compiles many or large functions")
def test_new_weights_are_seen_at_any_shape():
    program = run_all(words, text)
    weight = program.scope.find_var("embedding_0.w_0").get_tensor()
    weight.set(floats(50, 16, seed=3), paddle.CPUPlace())
    program.both(**text(3, 37))


@pytest.mark.slow("compiles many or large functions")
def test_many_shapes_need_one_cache_entry():
    run_all(pictures, picture)
    assert paddle_ngraph.cache_info().currsize == SETTINGS.static_shapes_before_dynamic + 1


# -- scalars in inputs that are read by value ------------------------------------------------------

ROWS = 12
COUNTED = [3, 7, 5, 2, 9, 4]
# The ends of the axis and of int32, and values beyond.
AT_THE_EDGE = [0, 1, 11, 12, 13, -1, -2, -12, -13, 2**31 - 1]
BEYOND_32_BITS = [2**31, 2**32 + 3, -(2**32) + 3, -(2**40)]


def one_row(x: Any, i: Any) -> Any:
    return x[:, i]


def rows_from(x: Any, i: Any) -> Any:
    return paddle.slice(x, [1], [i], [i + 3])


def rows_up_to(x: Any, i: Any) -> Any:
    return paddle.slice(x, [1], [0], [i])


def rows_after(x: Any, i: Any) -> Any:
    return paddle.slice(x, [1], [i], [ROWS * 2])


def every_second_row_back(x: Any, i: Any) -> Any:
    return paddle.strided_slice(x, [1], [i], [-100], [-2])


def written_rows(x: Any, i: Any) -> Any:
    y = x + 0.0
    y[:, i : i + 2] = paddle.mean(x, axis=1, keepdim=True)
    return y


def first_numbers(x: Any, i: Any) -> Any:
    return paddle.cast(paddle.arange(0, i, 1, dtype=i.dtype), "float32") + paddle.sum(x)


def repeated(x: Any, i: Any) -> Any:
    return paddle.expand(paddle.sum(x, axis=1, keepdim=True), [-1, i, -1])


def counting(build: Callable[[Any, Any], Any], dtype: str) -> Program:
    """Returns a program of ``build`` for x [-1, 12, 5] and a fed scalar."""

    def program() -> Any:
        x = paddle.static.data("x", [-1, ROWS, 5], "float32")
        return build(x * 2.0, paddle.static.data("i", [], dtype)) + 1.0

    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    return Program(program)


def outcome(program: Program, engine: bool, **feed: Any) -> Any:
    """Returns the results of a run, or the type and message of its error."""
    try:
        return program.run(engine, **feed)[0]
    except Exception as error:
        return type(error), summary(error)


COUNTING = [
    one_row,
    rows_from,
    rows_up_to,
    rows_after,
    every_second_row_back,
    written_rows,
    first_numbers,
    repeated,
]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("build", COUNTING)
def test_many_scalars_share_a_function(build, dtype):
    program = counting(build, dtype)
    for i in COUNTED:
        program.both(x=floats(2, ROWS, 5), i=np.array(i, dtype))
    assert paddle_ngraph.stats()["native_runs"] == 0
    # A subgraph computes with int32 first.
    assert built() <= SETTINGS.static_shapes_before_dynamic + 2
    if build in (repeated, first_numbers):  # a tensor with as many elements as the scalar
        return
    for i in [*AT_THE_EDGE, *BEYOND_32_BITS] if dtype == "int64" else AT_THE_EDGE[::3]:
        feed = {"x": floats(2, ROWS, 5), "i": np.array(i, dtype)}
        native, engine = (outcome(program, engine, **feed) for engine in (False, True))
        if isinstance(native, tuple):
            assert engine == native, i
        else:
            np.testing.assert_allclose(engine, native, rtol=1e-5, atol=1e-6, err_msg=str(i))


def cropped(x: Any, i: Any) -> Any:
    return paddle.crop(x, [2, 3, 5], paddle.stack([i * 0, i, i * 0]))


def cropped_to(x: Any, i: Any) -> Any:
    return paddle.crop(x, paddle.stack([i * 0 + 2, i, i * 0 + 5]), [0, 2, 0])


def inferred(x: Any, i: Any) -> Any:
    return paddle.reshape(x, [i - 3, -1, 5])


def summed_along(x: Any, i: Any) -> Any:
    return paddle.sum(x, axis=i - 4)


def evenly_spaced(x: Any, i: Any) -> Any:
    return paddle.linspace(0.0, 1.0, i - 4) + paddle.mean(x)


@pytest.mark.parametrize("build", [cropped, cropped_to, inferred, summed_along, evenly_spaced])
def test_scalars_that_paddle_rejects_are_rejected(build):
    """Some occur before sizes become dynamic, some in a function with dynamic sizes."""
    program = counting(build, "int32")
    refused = 0
    for i in (5, 11, 4, 7, 2, 6, 8, 10, 9, 12, 40):
        feed = {"x": floats(2, ROWS, 5), "i": np.array(i, "int32")}
        native, engine = (outcome(program, engine, **feed) for engine in (False, True))
        if isinstance(native, tuple):
            refused += 1
            assert engine == native, i
        else:
            np.testing.assert_allclose(engine, native, rtol=1e-5, err_msg=str(i))
    assert refused and paddle_ngraph.stats()["engine_runs"] >= 3


def test_three_scalars_at_constant_distances():
    """All follow from the first, none from a scalar that follows itself."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, ROWS, 5], "float32") * 2.0
        first, second, third = (paddle.static.data(n, [], "int64") for n in "ijk")
        return x[:, first] + x[:, second] * 3.0 - x[:, third]

    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    program = Program(build)

    def run(*numbers: int) -> None:
        program.both(x=floats(2, ROWS, 5), **dict(zip("ijk", map(np.array, numbers))))

    for i in (2, 5, 3, 6, 4, 7):
        run(i, i + 1, i + 3)
    assert built() == SETTINGS.static_shapes_before_dynamic + 1
    run(4, 6, 7)  # other distances: another function
    assert built() == SETTINGS.static_shapes_before_dynamic + 2


def test_scalars_and_shapes_become_dynamic_together():
    """A growing window of a text, with equal start and length in each run."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, -1, 5], "float32")
        i = paddle.static.data("i", [], "int64")
        last = x[:, i - 1]
        return paddle.nn.functional.softmax(x + paddle.unsqueeze(last, 1))

    paddle_ngraph.clear_cache()
    program = Program(build)
    for i in (3, 7, 5, 9, 4, 12):
        program.both(x=floats(2, i, 5), i=np.array(i))
    assert built() == SETTINGS.static_shapes_before_dynamic + 1
    program.both(x=floats(2, 6, 5), i=np.array(3))  # not equal: another function
    assert built() == SETTINGS.static_shapes_before_dynamic + 2


def test_scalars_that_are_operands_are_computed_at_run_time():
    """An index that is also an operand."""

    def build(x: Any, i: Any) -> Any:
        return x[:, i] * paddle.cast(i, "float32")

    program = counting(build, "int32")
    for i in COUNTED:
        program.both(x=floats(2, ROWS, 5), i=np.array(i, "int32"))
    assert built() <= len(COUNTED)


def test_functions_with_dynamic_scalars_are_stored(tmp_path):
    before = paddle.get_flags(["FLAGS_ngraph_cache_dir", "FLAGS_ngraph_cache_min_ms"])
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path), "FLAGS_ngraph_cache_min_ms": 0})
    try:
        for is_stored in (False, True):
            program = counting(rows_from, "int64")
            for i in COUNTED:
                program.both(x=floats(2, ROWS, 5), i=np.array(i))
            assert built() == (0 if is_stored else SETTINGS.static_shapes_before_dynamic + 1)
            loaded = paddle_ngraph.stats()["functions_loaded"]
            assert loaded == (SETTINGS.static_shapes_before_dynamic + 1 if is_stored else 0)
    finally:
        paddle.set_flags(before)
