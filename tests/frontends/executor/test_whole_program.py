"""Programs of nothing but one engine operator run without Paddle's interpreter."""

from __future__ import annotations

import re

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.frontends.executor import interpreter
from paddle_ngraph.partitioning import fallback
from tests.programs import Program, chain, floats, linear_regression, summary


@pytest.fixture
def interpreted(monkeypatch):
    """The number of Paddle interpreters that were created."""
    made = []
    original = interpreter.StandaloneExecutor

    def make(*args):
        made.append(args)
        return original(*args)

    for module in (interpreter, fallback):
        monkeypatch.setattr(module, "StandaloneExecutor", make)
    return made


def with_native_operator():
    x = paddle.static.data("x", [-1, 4], "float32")
    return [paddle.unique(paddle.nn.functional.relu(x) + 1.0)]


@pytest.mark.slow("compiles many or large functions")
def test_it_needs_no_interpreter(interpreted):
    program = Program(linear_regression)
    feed = {"x": floats(6, 4), "y": floats(6, 1)}
    native = [program.run(engine=False, **feed) for _ in range(3)]
    again = Program(linear_regression)
    interpreted.clear()
    for expected in native:
        np.testing.assert_allclose(again.run(**feed)[0], expected[0], rtol=1e-5)
    assert not interpreted
    assert paddle_ngraph.stats()["engine_runs"] == 3


def test_native_operators_need_one(interpreted):
    program = Program(with_native_operator)
    interpreted.clear()
    program.run(x=floats(3, 4))
    assert interpreted
    program.both(x=floats(3, 4))


def test_fetches_of_feeds_or_parameters_need_an_interpreter(interpreted):
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        weight = paddle.static.create_parameter([4], "float32")
        return [x * weight, x, weight]

    program = Program(build)
    interpreted.clear()
    program.both(x=floats(3, 4))
    assert len(interpreted) == 2


def test_a_value_fetched_twice():
    def build():
        out = paddle.exp(paddle.static.data("x", [-1, 4], "float32"))
        return [out, out]

    first, second = Program(build).both(x=floats(3, 4))
    np.testing.assert_array_equal(first, second)


def test_profilers_see_the_operators(interpreted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the profiler writes
    program = Program(chain)
    interpreted.clear()
    with paddle.profiler.Profiler(targets=[paddle.profiler.ProfilerTarget.CPU]):
        program.run(x=floats(2, 4))
    assert len(interpreted) == 1
    program.run(x=floats(2, 4))
    assert len(interpreted) == 1


def test_nan_is_found_where_the_flag_looks_for_it():
    def build():
        return paddle.log(paddle.static.data("x", [-1, 4], "float32") * 2.0)

    program = Program(build)
    assert np.isnan(program.run(x=-floats(2, 4))[0]).any()
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(Exception, match=r"(?i)nan"):
            program.run(x=-np.abs(floats(2, 4)) - 1.0)
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})


@pytest.mark.parametrize("count", range(1, 10))
def test_nan_is_looked_for_in_any_number_of_outputs(count):
    """The operator has outputs to spare where their number is no power of two."""

    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return [paddle.exp(x * float(number)) for number in range(1, count + 1)]

    program = Program(build)
    expected = program.run(engine=False, x=floats(2, 4))
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        for _ in range(2):
            for value, native in zip(program.run(x=floats(2, 4)), expected):
                np.testing.assert_allclose(value, native, rtol=1e-6)
        stats = paddle_ngraph.stats()
        assert (stats["engine_runs"], stats["native_runs"]) == (0, 2)
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})


def infinite_gradient():
    """A step that makes parameters infinite, and a loss that is finite."""
    hidden = paddle.static.nn.fc(paddle.static.data("x", [-1, 4], "float32"), 3, bias_attr=False)
    loss = paddle.mean(paddle.sqrt(hidden * hidden))
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


def masked():
    """A result without the infinity that is made on the way."""
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.where(x > 0.0, 1.0 / x, x)


@pytest.mark.parametrize("build", [infinite_gradient, masked])
def test_the_operator_that_makes_nan_or_infinity_is_named(build):
    """While the flag is on, Paddle runs the subgraphs and checks the output of each operator."""
    zeros, errors = np.zeros((2, 4), "float32"), []
    for engine in (False, True):
        program = Program(build)
        program.run(engine=engine, x=zeros + 1.0)
        paddle.set_flags({"FLAGS_check_nan_inf": True})
        try:
            with pytest.raises(Exception, match=r"num_inf|There are NAN or INF") as error:
                program.run(engine=engine, x=zeros)
        finally:
            paddle.set_flags({"FLAGS_check_nan_inf": False})
        errors.append(re.findall(r"op=(\w+?)_?\b", str(error.value)))  # in place or not
        assert errors[-1]
    assert errors[0] == errors[1]
    assert paddle_ngraph.stats()["engine_runs"] == 1


def test_feeds_are_dropped_as_native_paddle_drops_them():
    program = Program(chain)
    for engine in (False, True):
        program.run(engine=engine, x=floats(2, 4))
        assert not program.scope.find_var("x").get_tensor()._is_initialized()


def test_without_the_startup_program():
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return x * paddle.static.create_parameter([4], "float32", name="weight")

    messages = []
    for engine in (False, True):
        program = Program(build)
        program.scope = paddle.static.Scope()
        with pytest.raises(RuntimeError) as error:
            program.run(engine=engine, x=floats(2, 4))
        messages.append(str(error.value).splitlines()[-1])
        assert program.scope.find_var("weight") is None
    assert messages[0] == messages[1]


def test_an_uninitialized_variable_raises_as_in_paddle():
    def build():
        x = paddle.static.data("x", [-1, 4], "float32")
        return x * paddle.static.create_parameter([4], "float32", name="weight")

    program = Program(build)
    program.scope = paddle.static.Scope()
    program.scope.var("weight").get_tensor()
    errors = []
    for engine in (False, True):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            program.run(engine, x=floats(2, 4))
        errors.append((caught.type, summary(caught.value)))
    assert errors[0] == errors[1]


def test_views_are_read_in_the_order_of_their_elements():
    """Paddle takes the tensor of a view as a feed, and a variable may hold one."""

    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        weight = paddle.static.create_parameter([5, 6], "float32", name="weight")
        return [paddle.reshape(x, [-1, 2, 3]), paddle.matmul(x, weight, transpose_y=True)]

    def view_of(value):
        paddle.disable_static()
        views.append(paddle.to_tensor(np.ascontiguousarray(value.T)).t())
        paddle.enable_static()
        assert not views[-1].is_contiguous()
        return views[-1].get_tensor()

    views = []  # which their tensors do not keep alive
    program = Program(build)
    for seed in range(3):
        x, weight = floats(4, 6, seed=seed), floats(5, 6, seed=seed + 7)
        program.scope.find_var("weight").get_tensor()._share_data_with(view_of(weight))
        expected = [x.reshape(-1, 2, 3), x @ weight.T]
        for feed in (x, view_of(x), view_of(x)):
            before = paddle_ngraph.stats()["engine_runs"]
            results = program.run(x=feed)
            assert paddle_ngraph.stats()["engine_runs"] > before
            for result, right in zip(results, expected):
                np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-5)
