"""Functions of one tensor and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_native

SHAPES = [(), (1,), (7,), (1, 1), (3, 5), (2, 1, 4), (2, 3, 4, 5), (2, 1, 2, 3, 2)]
# Functions of positive numbers, of any numbers, and those without a gradient operator.
POSITIVE = ["log", "sqrt", "rsqrt", "reciprocal"]
ANY = ["exp", "square", "abs", "erf", "floor", "ceil", "round"]
FLAT = ["sign"]
# Fewer than a packet, for which native Paddle's square root of infinity is infinity, not NaN.
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1.5], "float32")


def sample(name, shape, seed=0):
    generator = np.random.default_rng(seed)
    if name in POSITIVE:
        return generator.uniform(0.1, 5.0, size=shape).astype("float32")
    return (generator.normal(size=shape) * 2).astype("float32")


def converted(name):
    return [name] if name in FLAT else [name, f"{name}_grad"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_shapes(name, shape):
    check(getattr(paddle, name), {"x": sample(name, shape)}, converted(name))


@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_many_values_of_open_shape(name):
    x = sample(name, (333, 3))
    check(getattr(paddle, name), {"x": x}, converted(name), dynamic={"x": [-1, -1]})


@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_nan_and_infinity(name):
    check(getattr(paddle, name), {"x": STRANGE}, converted(name))


@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_nan_among_many(name):
    x = sample(name, (5, 33))
    x[::2, 7] = np.nan
    check(getattr(paddle, name), {"x": x}, converted(name))


def test_exp_of_large_numbers():
    x = np.array([80.0, 87.0, 88.0, 89.0, 200.0, -80.0, -104.0, -500.0], "float32")
    check(paddle.exp, {"x": x}, ["exp", "exp_grad"])


def test_round_takes_the_even_number():
    x = np.arange(-4.5, 5.0, 1.0, dtype="float32")
    check(paddle.round, {"x": x}, ["round", "round_grad"])


def test_round_to_decimals_stays_native():
    check_native(lambda x: paddle.round(x, 1), {"x": sample("round", (3,))}, ["round"])


@pytest.mark.parametrize("name", ["exp_", "sqrt_", "rsqrt_", "floor_", "ceil_", "reciprocal_"])
def test_in_place(name):
    def build(x):
        return getattr(paddle._C_ops, name)(x * 1.0)

    check(build, {"x": sample("sqrt", (3, 5))}, [name], gradients=False)


@pytest.mark.parametrize("name", ["abs", "square"])
def test_whole_numbers_stay_native(name):
    x = np.array([1, -2, 3], "int32")
    check_native(getattr(paddle, name), {"x": x}, [name], gradients=False)
