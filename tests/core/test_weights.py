"""Weights as constants of a function: cached while unchanged, never stale."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core
from tests.forgeries import forged
from tests.programs import Program, floats

X = floats(3, 8)
WEIGHT = "linear_0.w_0"
shift = 0.0


@pytest.fixture(autouse=True)
def separate_graph(request: pytest.FixtureRequest) -> None:
    """Each test has another graph, since the state of weights is stored by graph."""
    global shift
    shift = float(zlib.crc32(request.node.name.encode()) % 1000)


def predict() -> Any:
    return paddle.nn.Linear(8, 4)(paddle.static.data("x", [-1, 8], "float32")) + shift


def train() -> Any:
    prediction = paddle.nn.Linear(8, 4)(paddle.static.data("x", [-1, 8], "float32"))
    loss = paddle.mean(prediction * prediction)
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


def predictor() -> Program:
    """A program whose function has constant weights, after one run."""
    program = Program(predict)
    check(program)
    assert paddle_ngraph.stats()["functions_with_weights"] == 1
    return program


def check(program: Program) -> None:
    """Asserts that the engine's results follow from the weights in the scope."""
    before = paddle_ngraph.stats()["engine_runs"]
    (result,) = program.run(x=X)
    assert paddle_ngraph.stats()["engine_runs"] == before + 1, "the engine did not run"
    expected = X @ program.variable(WEIGHT) + program.variable("linear_0.b_0")
    np.testing.assert_allclose(result, expected + shift, rtol=1e-6, atol=1e-5)


def other_weights() -> np.ndarray:
    return floats(8, 4, seed=7)


# -- forged weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1])
def test_weights_of_equal_content_hashes_have_a_function_each(position):
    """Another model of the same graph, with weights that collide at their position in the graph."""
    weights = predictor().variable(WEIGHT)
    other = Program(predict)
    other.scope.find_var(WEIGHT).get_tensor().set(forged(weights, position), paddle.CPUPlace())
    check(other)
    assert paddle_ngraph.stats()["functions_with_weights"] == 2


@pytest.mark.parametrize("position", [0, 1])
def test_a_change_to_weights_of_an_equal_content_hash_is_noticed(position):
    program = predictor()
    other = forged(program.variable(WEIGHT), position)
    program.scope.find_var(WEIGHT).get_tensor().set(other, paddle.CPUPlace())
    check(program)


# -- every method of writing -------------------------------------------------------------------


def by_tensor_set(program: Program, _: Any) -> None:
    program.scope.find_var(WEIGHT).get_tensor().set(other_weights(), paddle.CPUPlace())


def by_set_program_state(program: Program, _: Any) -> None:
    paddle.static.set_program_state(program.main, {WEIGHT: other_weights()})


def by_load(program: Program, folder: Any) -> None:
    path = str(folder / "model")
    before = program.variable(WEIGHT)
    by_tensor_set(program, None)
    paddle.static.save(program.main, path)
    program.scope.find_var(WEIGHT).get_tensor().set(before, paddle.CPUPlace())
    check(program)
    paddle.static.load(program.main, path, program.executor)


def by_startup_program(program: Program, _: Any) -> None:
    paddle.seed(11)
    program.executor.run(program.startup)


def by_sharing_memory(program: Program, _: Any) -> None:
    other = program.scope.var("other").get_tensor()
    other.set(other_weights(), paddle.CPUPlace())
    program.scope.find_var(WEIGHT).get_tensor()._share_data_with(other)


WRITERS = [
    by_tensor_set,
    by_set_program_state,
    by_load,
    by_startup_program,
    by_sharing_memory,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda writer: writer.__name__)
def test_the_next_run_reads_written_weights(write, tmp_path):
    program = predictor()
    old = program.variable(WEIGHT)
    with paddle.static.scope_guard(program.scope):
        write(program, tmp_path)
    assert not np.array_equal(program.variable(WEIGHT), old)
    check(program)


def test_the_next_run_of_a_program_desc_program_reads_a_set_value():
    with paddle.pir_utils.OldIrGuard():
        program = predictor()
        old = program.variable(WEIGHT)
        parameter = next(p for p in program.main.all_parameters() if p.name == WEIGHT)
        parameter.set_value(other_weights(), program.scope)
        assert not np.array_equal(program.variable(WEIGHT), old)
        check(program)


@pytest.mark.parametrize("engine", [False, True], ids=["native", "engine"])
def test_the_next_run_reads_updated_weights(engine):
    program = predictor()
    training = Program(train)
    training.scope = program.scope
    with paddle.static.scope_guard(program.scope):
        training.executor.run(training.startup)
    for _ in range(3):
        old = program.variable(WEIGHT)
        training.run(engine=engine, x=X)
        assert not np.array_equal(program.variable(WEIGHT), old)
        check(program)


def test_writes_that_bypass_paddle_are_detected_soon():
    program = predictor()
    tensor = program.scope.find_var(WEIGHT).get_tensor()
    address, count = tensor._ptr(), tensor._numel()
    view = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
    view[:] = other_weights().reshape(-1)
    check(program)  # small weights are read in each run


# -- when weights are constants ----------------------------------------------------------------


def test_stable_weights_become_constants_after_some_runs():
    program = predictor()
    by_tensor_set(program, None)
    for _ in range(40):
        check(program)
    assert paddle_ngraph.stats()["functions_with_weights"] == 2
    assert paddle_ngraph.stats()["functions_built"] == 3


def test_changing_weights_cost_few_functions():
    program = predictor()
    for number in range(60):
        weights = floats(8, 4, seed=number)
        program.scope.find_var(WEIGHT).get_tensor().set(weights, paddle.CPUPlace())
        for _ in range(3):
            check(program)
    assert paddle_ngraph.stats()["functions_built"] == 2


def test_a_reported_write_without_a_change_builds_nothing():
    program = predictor()
    for _ in range(5):
        _core.mark_weights_written()
        check(program)
    assert paddle_ngraph.stats()["functions_built"] == 1


def test_weights_of_a_training_program_are_inputs():
    program = Program(train)
    for _ in range(3):
        program.run(x=X)
    assert paddle_ngraph.stats()["engine_runs"] == 3
    assert paddle_ngraph.stats()["functions_with_weights"] == 0


def test_two_models_of_one_architecture_have_separate_weights():
    first, second = Program(predict), Program(predict)
    by_tensor_set(second, None)
    for _ in range(3):
        check(first)
        check(second)
    assert paddle_ngraph.stats()["functions_built"] == 2
    assert paddle_ngraph.stats()["functions_with_weights"] == 2


def test_the_cache_bounds_constant_weights():
    paddle_ngraph.clear_cache()
    paddle.set_flags({"FLAGS_ngraph_cache_mb": 0})
    try:
        program = predictor()
        program.run(x=X[:2])
        check(program)
    finally:
        paddle.set_flags({"FLAGS_ngraph_cache_mb": 1024})
    # The next function has no weights.
    assert paddle_ngraph.cache_info().currsize == 2
    assert paddle_ngraph.cache_info().evictions == 1


@pytest.fixture
def a_megabyte() -> Iterator[None]:
    paddle_ngraph.clear_cache()
    paddle.set_flags({"FLAGS_ngraph_cache_mb": 1})
    yield
    paddle.set_flags({"FLAGS_ngraph_cache_mb": 1024})


def large(number: int) -> Program:
    """A separate program with 640 KB of weights."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, 8], "float32")
        return paddle.nn.Linear(400, 400)(paddle.tile(x, [1, 50])) + shift + number

    return Program(build)


def run(program: Program, times: int = 1) -> list[int]:
    """Returns, for each run, whether it built a function."""
    found = []
    native = program.run(engine=False, x=X)[0]
    for number in range(times):
        before = paddle_ngraph.stats()
        np.testing.assert_allclose(program.run(x=X)[0], native, rtol=1e-5, atol=1e-4)
        after = paddle_ngraph.stats()
        assert after["engine_runs"] == before["engine_runs"] + 1, "the engine did not run"
        if after["functions_built"] > before["functions_built"]:
            found.append(number)
    return found


@pytest.mark.usefixtures("a_megabyte")
def test_functions_without_weights_stay_when_weights_exceed_the_limit():
    training = Program(train)
    training.run(x=X)
    first, second = large(0), large(1)
    run(first)
    run(second)
    assert paddle_ngraph.cache_info().evictions == 1
    before = paddle_ngraph.stats()["functions_built"]
    training.run(x=X)
    assert paddle_ngraph.stats()["functions_built"] == before


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.usefixtures("a_megabyte")
def test_unused_room_is_reclaimed():
    first, second = large(0), large(1)
    run(first)
    run(second)  # has constant weights instead of the first
    with_weights = paddle_ngraph.stats()["functions_with_weights"]
    assert run(first, 3) == [0]  # its weights are inputs
    assert paddle_ngraph.stats()["functions_with_weights"] == with_weights
    assert len(run(first, 1100)) == 1
    assert paddle_ngraph.stats()["functions_with_weights"] == with_weights + 1
    assert run(second, 3) == [0] and run(first, 3) == []


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.usefixtures("a_megabyte")
def test_alternating_functions_do_not_evict_each_other():
    programs = [large(number) for number in range(3)]
    for _ in range(400):
        for program in programs:
            program.run(x=X)
    # Each with its weights, and all but the last one without.
    assert paddle_ngraph.stats()["functions_built"] == 5


def test_feeds_do_not_count_as_writes():
    program = predictor()
    by_tensor_set(program, None)
    for number in range(40):
        program.run(x=floats(3, 8, seed=number))
    assert paddle_ngraph.stats()["functions_with_weights"] == 2


# -- models that are loaded repeatedly -----------------------------------------------------------


def reload_in_place(program: Program, number: int) -> Program:
    weights = floats(8, 4, seed=number)
    program.scope.find_var(WEIGHT).get_tensor().set(weights, paddle.CPUPlace())
    return program


def reload_at_the_same_place(program: Program, number: int) -> Program:
    """A new scope may have its variables at the addresses of a former scope's."""
    for name in (WEIGHT, "linear_0.b_0"):
        tensor = program.scope.find_var(name).get_tensor()
        array = floats(*tensor.shape(), seed=number)
        # The allocator reuses the memory if it is large enough.
        tensor.set(floats(1000 * (number + 1)), paddle.CPUPlace())
        tensor.set(array, paddle.CPUPlace())
    return program


def reload_in_a_new_scope(program: Program, number: int) -> Program:
    program = Program(predict)
    return reload_in_place(program, number)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(
    ("load", "runs"),
    [
        (reload_in_place, 300),
        (reload_at_the_same_place, 40),
        (reload_in_a_new_scope, 1),
    ],
)
def test_long_service_pays_for_the_next_model(load, runs):
    program = predictor()
    for _ in range(runs):
        check(program)
    for number in range(4):
        before = paddle_ngraph.stats()
        program = load(program, number)
        for _ in range(runs):
            check(program)
        after = paddle_ngraph.stats()
        for counter in ("functions_built", "functions_with_weights"):
            assert after[counter] == before[counter] + 1, f"{counter} of number {number}"


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(("load", "runs"), [(reload_in_place, 30), (reload_at_the_same_place, 10)])
def test_models_with_few_runs_cost_few_functions(load, runs):
    program = predictor()
    for number in range(20):
        program = load(program, number)
        for _ in range(runs):
            check(program)
    assert paddle_ngraph.stats()["functions_built"] <= 4
    # Whatever happened before, weights become constants after long service, and pay for the next
    # ones.
    for number in range(3):
        for _ in range(600):
            check(program)
        program = load(program, 100 + number)
    assert paddle_ngraph.stats()["functions_with_weights"] >= 4
    assert paddle_ngraph.stats()["functions_built"] <= 8


def test_weights_stay_constants_while_another_model_trains():
    """Each step may have written all weights: they are read when the wait is over."""
    program = predictor()
    training = Program(train)
    by_tensor_set(program, None)
    for _ in range(40):
        training.run(x=X)
        check(program)
    assert paddle_ngraph.stats()["functions_with_weights"] == 2


def test_weights_that_change_between_checks_are_no_constants():
    program = predictor()
    for number in range(700):  # a wait of any length ends with a check
        reload_in_place(program, number)
        check(program)
    assert paddle_ngraph.stats()["functions_built"] == 2
