"""Trigonometric and hyperbolic functions and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import both, check
from tests.ops.merging import merged

SHAPES = [(), (1,), (3, 5), (2, 1, 2, 3, 2)]
# The domain of each function.
RANGES = {
    "sin": (-50, 50),
    "cos": (-50, 50),
    "tan": (-50, 50),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atan": (-50, 50),
    "sinh": (-20, 20),
    "cosh": (-20, 20),
    "asinh": (-50, 50),
    "acosh": (1, 50),
    "atanh": (-1, 1),
}
# Fewer values than a SIMD packet, for which plain Paddle's sqrt of infinity is infinity, not NaN.
STRANGE = [[np.nan, np.inf, -np.inf], [0.0, -0.0, -1.5], [1.0, -1.0, 1e-40], [100.0, -100.0, 1e30]]


def sample(name, shape, seed=0):
    return np.random.default_rng(seed).uniform(*RANGES[name], size=shape).astype("float32")


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", RANGES)
def test_shapes(name, shape):
    check(getattr(paddle, name), {"x": sample(name, shape)}, both(name))


@merged
@pytest.mark.parametrize("name", RANGES)
def test_many_values_of_dynamic_shape(name):
    x = np.concatenate([sample(name, 900), sample(name, 99) * np.float32(1e-3)]).reshape(-1, 3)
    check(getattr(paddle, name), {"x": x}, both(name), dynamic={"x": [-1, 3]})


@merged
@pytest.mark.parametrize("values", STRANGE, ids=str)
@pytest.mark.parametrize("name", RANGES)
def test_nan_infinity_and_edges(name, values):
    check(getattr(paddle, name), {"x": np.array(values, "float32")}, both(name))


@merged
@pytest.mark.parametrize("name", RANGES)
def test_in_place(name):
    def build(x):
        return getattr(paddle._C_ops, f"{name}_")(x * 1.0)

    check(build, {"x": sample(name, (3, 5))}, [f"{name}_"], gradients=False)


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_atan2(shape):
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(2, *shape)).astype("float32")
    check(paddle.atan2, {"x": np.asarray(x), "y": np.asarray(y)}, both("atan2"))


def test_atan2_at_the_edges():
    edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e30, -1e-30, 1e-40]
    x, y = np.meshgrid(np.array(edges, "float32"), np.array(edges, "float32"))
    inputs = {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}
    out = check(paddle.atan2, inputs, both("atan2"))[0]
    zero = (x == 0) & ~np.isnan(y)
    np.testing.assert_array_equal(np.signbit(out[zero]), np.signbit(x[zero]))
