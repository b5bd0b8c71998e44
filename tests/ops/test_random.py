"""Random numbers in a subgraph."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.programs import Program, floats

pytestmark = pytest.mark.usefixtures("native_in_order")


@pytest.mark.parametrize("shape", [[], [1], [7], [40, 50]])
@pytest.mark.parametrize("seed", [0, 6])
def test_uniform(shape, seed):
    def build(x: Any) -> Any:
        return x * paddle.uniform(shape, min=-0.5, max=3.0, seed=seed), x * paddle.rand([3])

    check(build, {"x": floats(1)}, ["uniform"], runs=3)


@pytest.mark.parametrize("shape", [[1], [7], [40, 50]])
def test_gaussian(shape):
    def build(x: Any) -> Any:
        return x * paddle.normal(1.5, 0.3, shape), x * paddle.randn([3])

    check(build, {"x": floats(1)}, ["gaussian"], runs=3)


@pytest.mark.parametrize("shape", [[], [1], [40, 50]])
def test_bernoulli(shape):
    def build(x: Any) -> Any:
        return 2.0 * paddle.bernoulli(paddle.nn.functional.sigmoid(x)), x * paddle.rand([1])

    check(build, {"x": floats(*shape)}, ["bernoulli"], gradients=False, runs=3)


def test_bernoulli_with_probabilities_0_and_1():
    x = np.array([0, 1, 1, 0, 1], "float32")
    build = lambda x: paddle.bernoulli(1.0 - x)  # noqa: E731
    (hits,) = check(build, {"x": x}, ["bernoulli"], gradients=False)
    np.testing.assert_array_equal(hits, 1 - x)


@pytest.mark.parametrize("probability", [1.5, -0.1, np.nan, np.inf])
def test_bernoulli_rejects_values_beyond_0_and_1(probability):
    def build() -> Any:
        x = paddle.static.data("x", [3], "float32")
        return 2.0 * paddle.bernoulli(x * 1.0)

    program = Program(build)
    assert not paddle_ngraph.explain(program.main).native
    for engine in (False, True):
        with pytest.raises((ValueError, IndexError), match=r"probability"):
            program.run(engine, x=np.array([0.5, probability, 0.5], "float32"))


def test_random_tensors_with_the_batch_size():
    def build(x: Any) -> Any:
        return x + paddle.randn(paddle.shape(x)), x * paddle.rand(paddle.shape(x))

    for size in (3, 5):
        inputs = {"x": floats(size, 4)}
        check(build, inputs, ["gaussian", "uniform"], dynamic={"x": [-1, 4]}, runs=2)


def test_random_numbers_without_converted_readers_fall_back():
    def build(x: Any) -> Any:
        return x * 2.0, paddle.randn([3]), paddle.rand([4])

    check_fallback(build, {"x": floats(3)}, ["gaussian", "uniform"])


def test_other_dtypes_fall_back():
    def build(x: Any) -> Any:
        return x * paddle.uniform([3], "float64").astype("float32")

    check_fallback(build, {"x": floats(3)}, ["uniform"])


def test_parameter_initialization_falls_back():
    def build() -> Any:
        return paddle.nn.Linear(3, 4)(paddle.static.data("x", [-1, 3]))

    assert not paddle_ngraph.explain(Program(build).startup).intervals


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("shape, axis", [((7,), 0), ((3, 1), -1), ((4, 5, 6), 1), ((4, 5, 6), -1)])
def test_gumbel_softmax(shape, axis, hard):
    def build(x: Any) -> Any:
        out = paddle.nn.functional.gumbel_softmax(x * 2.0, 0.7, hard, axis)
        return out, out * paddle.rand([1])

    types = ["gumbel_softmax", "gumbel_softmax_grad"]
    check(build, {"x": floats(*shape)}, types, runs=2, atol=1e-5)


def test_gumbel_softmax_of_a_scalar():
    def build(x: Any) -> Any:
        return paddle.nn.functional.gumbel_softmax(x * 2.0), x * paddle.rand([1])

    check(build, {"x": floats()}, ["gumbel_softmax", "gumbel_softmax_grad"], runs=2)
