"""Comparison, logic, where."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_native

ORDER = ["less_than", "less_equal", "greater_than", "greater_equal"]
COMPARISONS = ["equal", "not_equal", *ORDER]
SHAPES = [((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1), (1, 3)), ((2, 3, 4, 5), (3, 1, 5))]
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, 1e-40], "float32")


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def small(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2, shape).astype("float32")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison(name, shapes):
    inputs = {"x": small(shapes[0], 1), "y": small(shapes[1], 2)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, [name])


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_of_nan_and_infinity(name):
    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(STRANGE[:, None], STRANGE))
    dynamic = {"x": [-1, 7], "y": [-1, -1]}
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, [name], dynamic=dynamic)


@pytest.mark.parametrize("name", ["equal", "not_equal"])
def test_equality_of_int32_is_exact(name):
    x = np.array([2**24, 2**24 + 1, 2**31 - 1, -(2**31), 0, -5], "int32")
    y = np.array([2**24 + 1, 2**24 + 1, 2**31 - 2, -(2**31), 0, 5], "int32")
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, [name])
    check(lambda x, y: getattr(paddle, name)(x + y, y), {"x": x, "y": y}, [name, "add"])


@pytest.mark.parametrize("name", ORDER)
def test_order_of_int32_stays_native(name):
    x = np.array([1, 2**24], "int32")
    check_native(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": x + 1}, [name])


@pytest.mark.parametrize("name", COMPARISONS)
def test_int64_stays_native(name):
    x = np.array([1, 2**40], "int64")
    check_native(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": x + 1}, [name])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "equal", "not_equal"])
def test_logic(name, shapes):
    inputs = {"x": np.asarray(small(shapes[0], 1) > 0), "y": np.asarray(small(shapes[1], 2) > 0)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, [name])


@pytest.mark.parametrize("shape", [(), (1,), (3, 5)], ids=str)
def test_logical_not(shape):
    check(paddle.logical_not, {"x": np.asarray(small(shape) > 0)}, ["logical_not"])


def test_logic_of_numbers_stays_native():
    inputs = {"x": small((3, 4)), "y": small((3, 4), 1)}
    check_native(paddle.logical_and, inputs, ["logical_and"])


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_kinds_of_numbers(name):
    check(getattr(paddle, name), {"x": STRANGE}, [name])
    check(getattr(paddle, name), {"x": np.resize(STRANGE, (5, 33))}, [name])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_where(shapes):
    def build(c, x, y):
        return paddle._C_ops.where(c, x, y)

    shape = np.broadcast_shapes(*shapes)
    c = np.asarray(small(shape) > 0)
    inputs = {"c": c, "x": normal(shape, 1), "y": normal(shape, 2)}
    check(build, inputs, ["where", "where_grad"])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_where_with_broadcasting(shapes):
    def build(x, y):
        return paddle.where(x > y, x, y)

    check(build, {"x": normal(shapes[0], 1), "y": normal(shapes[1], 2)}, ["where", "where_grad"])


def test_where_with_open_shapes():
    def build(x, y):
        return paddle.where(x > y, x, y * 2)

    inputs = {"x": normal((5, 3), 1), "y": normal((5, 3), 2)}
    dynamic = {"x": [-1, 3], "y": [-1, 3]}
    check(build, inputs, ["where", "where_grad"], dynamic=dynamic)


def test_where_of_nan():
    def build(x, y):
        return paddle.where(paddle.isnan(x), y, x)

    check(build, {"x": np.resize(STRANGE, (4, 7)), "y": normal((4, 7))}, ["where", "where_grad"])


def test_where_of_int32_is_exact():
    x = np.array([2**24 + 1, 2**31 - 1, -(2**31), 5], "int32")
    c = np.array([True, False, True, False])
    check(lambda c, x, y: paddle.where(c, x, y), {"c": c, "x": x, "y": x - 1}, ["where"])


def test_where_of_int64_stays_native():
    x = np.array([2**40, 5], "int64")
    c = np.array([True, False])
    check_native(lambda c, x, y: paddle.where(c, x, y), {"c": c, "x": x, "y": x - 1}, ["where"])


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4)], ids=str)
def test_masked_fill(shape):
    def build(x):
        return paddle.masked_fill(x, x > 0.2, -3.5)

    check(build, {"x": normal(shape)}, ["masked_fill", "masked_fill_grad"])


def test_masked_fill_with_a_tensor():
    def build(x, value):
        return paddle.masked_fill(x, x > 0.2, value)

    inputs = {"x": normal((3, 5)), "value": np.array(2.5, "float32")}
    check(build, inputs, ["masked_fill", "masked_fill_grad"])
