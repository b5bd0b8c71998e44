"""Results do not depend on a thread's floating-point environment, present or earlier."""

from __future__ import annotations

import gc

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.float_environments import (
    DENORMAL,
    ENVIRONMENTS,
    control_bits,
    float_environment,
)
from tests.frontends.predictor.test_hook import config_of, native, predict, save
from tests.programs import Program

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

# On the calling thread, on a few threads, on all.
SIZES = [15, 4099, 1_000_003]


def masks(size: int) -> Program:
    """Sums, and a gradient that depends on a denormal."""

    def build():
        x = paddle.static.data("x", [size], "float32")
        x.stop_gradient = False
        out = F.relu(x)
        return paddle.static.gradients(out * 3.0, x)[0], x + 1e-9, x / 3.0

    return Program(build)


def feed(size: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(size).standard_normal(size).astype("float32")
    x[::3] = DENORMAL
    return {"x": x}


def assert_ieee(program: Program, size: int, environment: int = 0) -> None:
    """Compares the engine in this environment with plain Paddle in the default one."""
    given = feed(size)
    expected = program.run(engine=False, **given)
    before = paddle_ngraph.stats()["engine_runs"]
    with float_environment(environment):
        results = program.run(engine=True, **given)
        assert control_bits() == environment, "the caller's environment was changed"
    assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
    np.testing.assert_array_equal(results[0], expected[0])
    np.testing.assert_array_equal(results[1], expected[1])
    np.testing.assert_allclose(results[2], expected[2], rtol=1e-7, atol=1e-45)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_callers_environment_is_neither_used_nor_changed(name, size):
    bits = ENVIRONMENTS[name]
    program = masks(size)
    assert_ieee(program, size, bits)  # the function is built there
    assert_ieee(program, size)
    assert_ieee(program, size, bits)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_function_does_not_inherit_an_earlier_environment(name, size):
    bits = ENVIRONMENTS[name]
    paddle_ngraph.clear_cache()
    for other in SIZES:
        assert_ieee(masks(other), other, bits)
    gc.collect()
    paddle_ngraph.clear_cache()
    assert_ieee(masks(size), size)


@pytest.mark.parametrize("size", SIZES)
def test_after_a_predictor(tmp_path, size):
    """Paddle Inference flushes denormals while a predictor runs."""

    def build():
        x = paddle.static.data("x", [size], "float32")
        return [x], [paddle.cast(F.relu(x) * 3.0 > 0.0, "float32")]

    files = save(tmp_path, build)
    flushed = native(files, feed(size))[0]
    assert flushed[0] == 0.0, "Paddle does not flush any more"
    paddle_ngraph.enable()
    predictor = paddle.inference.create_predictor(config_of(files))
    (result,) = predict(predictor, feed(size))
    assert paddle_ngraph.stats()["engine_runs"] == 1
    np.testing.assert_array_equal(result, feed(size)["x"] > 0)
    del predictor
    gc.collect()
    paddle_ngraph.clear_cache()
    assert_ieee(masks(size), size)
