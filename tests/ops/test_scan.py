"""Running sums, products and extremes, and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import both, check, check_fallback, normal
from tests.ops.merging import merged

CASES = [((), None), ((1,), 0), ((7,), None), ((3, 5), 0), ((3, 5), -1), ((3, 5), None)]
CASES += [((2, 3, 4), 1), ((2, 1, 4, 5), 1), ((2, 1, 4, 5), 2)]


@merged
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_cumsum(shape, axis):
    check(lambda x: paddle.cumsum(x, axis), {"x": normal(shape)}, both("cumsum"))


@merged
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("flatten", [True, False])
def test_cumsum_with_all_attributes(flatten, reverse, exclusive):
    def build(x):
        return paddle._C_ops.cumsum(x, 0 if flatten else 1, flatten, exclusive, reverse)

    check(build, {"x": normal((3, 4, 2))}, both("cumsum"))


@merged
def test_cumsum_of_special_values():
    x = normal((4, 40))
    x[0, 7], x[1, 3], x[2, 5], x[2, 9], x[3, 2] = np.nan, np.inf, np.inf, -np.inf, 3e38
    check(lambda x: paddle.cumsum(x, 1), {"x": x}, both("cumsum"), dynamic={"x": [-1, 40]})
    check(lambda x: paddle.cumsum(x, 0), {"x": x}, both("cumsum"), dynamic={"x": [-1, -1]})


@merged
def test_cumsum_of_integers_falls_back():
    x = {"x": np.array([2**31 - 1, 5], "int32")}
    check_fallback(lambda x: paddle.cumsum(x, 0), x, ["cumsum"])


@merged
def test_in_place():
    x = {"x": normal((3, 4))}
    check(
        lambda x: paddle._C_ops.cumsum_(x * 1.0, 1, False, False, False),
        x,
        ["cumsum_"],
        gradients=False,
    )
    check(
        lambda x: paddle._C_ops.cumprod_(x * 1.0, 1, False, False), x, ["cumprod_"], gradients=False
    )


@merged
@pytest.mark.parametrize(
    ("shape", "axis"), [((), 0), ((1,), 0), ((7,), 0), ((3, 5), 0), ((3, 1), -1), ((2, 3, 64), -1)]
)
def test_cumprod(shape, axis):
    x = {"x": normal(shape)}
    check(lambda x: paddle.cumprod(x, axis), x, both("cumprod"), rtol=1e-4)


@merged
@pytest.mark.parametrize("zeros", [[0], [2], [6], [1, 4], [0, 1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumprod_of_zeros(zeros, axis):
    x = normal((7, 7))
    x[zeros, zeros[::-1]] = 0.0
    check(lambda x: paddle.cumprod(x, axis), {"x": x}, both("cumprod"), rtol=1e-4)


@merged
def test_cumprod_of_special_values():
    x = np.array([[1e30, 1e30, 1e-30], [1e-30, 1e-30, 1e30], [np.nan, 1, 2]], "float32")
    check(lambda x: paddle.cumprod(x, 1), {"x": x}, ["cumprod"], gradients=False)
    y = np.array([[np.inf, 0.0, 1.0], [-np.inf, 2.0, 0.0]], "float32")
    check(lambda x: paddle.cumprod(x, 1), {"x": y}, ["cumprod"], gradients=False)


@merged
def test_cumprod_of_long_and_open_axes_falls_back():
    check_fallback(lambda x: paddle.cumprod(x, 0), {"x": normal(65)}, both("cumprod"))
    x = {"x": normal((3, 4))}
    check_fallback(lambda x: paddle.cumprod(x, 0), x, both("cumprod"), dynamic={"x": [-1, 4]})


@merged
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extremes(name, shape, axis, dtype):
    def build(x):
        return getattr(paddle, name)(x, axis, dtype)

    check(build, {"x": normal(shape)}, both(name))


@merged
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extremes_of_ties_and_special_values(name, axis):
    x = np.random.default_rng(0).integers(-2, 3, (9, 33)).astype("float32")
    x[1, 5], x[4, 9], x[4, 20], x[7, 3], x[8, :] = np.nan, np.nan, np.nan, np.inf, -np.inf
    dynamic = {"x": [-1, -1]}
    check(lambda x: getattr(paddle, name)(x, axis), {"x": x}, both(name), dynamic=dynamic)
