"""Constants and copies."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_native

SHAPES = [(), (1,), (3, 5), (2, 1, 4)]


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_full(shape):
    check(lambda x: x + paddle.full(shape, 2.5), {"x": normal(shape)}, ["add"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make", [paddle.zeros_like, paddle.ones_like])
def test_like(make, shape):
    check(lambda x: x + make(x), {"x": normal(shape)}, ["full_like"])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_full_like_of_any_dtype(dtype):
    check(lambda x: paddle.full_like(x, 1, dtype), {"x": normal((3, 4))}, ["full_like"])


def test_wide_integers_that_leave_stay_native():
    def build(x):
        return paddle.full_like(x, 2**40, "int64"), paddle.arange(0, 7, dtype="int64"), x * 2.0

    check_native(build, {"x": normal((3, 4))}, ["full_like", "arange"])


def test_arange_of_positions():
    def build(x):
        return paddle.gather(x, paddle.arange(0, 3, dtype="int64"))

    check(build, {"x": normal((5, 4))}, ["arange", "gather"])


def test_full_like_of_open_shape():
    def build(x):
        return paddle.full_like(x, -0.5) * x

    check(build, {"x": normal((3, 4))}, ["full_like"], dynamic={"x": [-1, -1]})


def test_full_like_of_what_is_not_read():
    x = np.array([2**40, 1], "int64")
    check(lambda x: paddle.full_like(x, float("nan"), "float32"), {"x": x}, ["full_like"])


def test_full_of_a_shape_known_at_run_time():
    def build(x):
        return x * paddle.full([paddle.shape(x)[0], 3], 2.0)

    check(build, {"x": normal((4, 3))}, ["full_with_tensor"], dynamic={"x": [-1, 3]})


def test_full_batch_size_like():
    def build(x):
        like = paddle._C_ops.full_batch_size_like(
            x, [-1, 5], paddle.float32, 1.5, 0, 0, paddle.CPUPlace()
        )
        return like + paddle.sum(x)

    check(build, {"x": normal((4, 3))}, ["full_batch_size_like"], dynamic={"x": [-1, 3]})


def test_full_over_a_tensor():
    def build(x):
        y = x * 2.0
        return paddle._C_ops.full_(y, [3], 4.5, paddle.float32, paddle.CPUPlace()) + x

    check(build, {"x": normal((3,))}, ["full_"], gradients=False)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_assign_value(dtype):
    values = np.array([[1, 0, 3], [4, 5, -6]]).astype(dtype)

    def build(x):
        return paddle.assign(values), x * 2.0

    check(build, {"x": normal((2,))}, ["assign_value_"])


def test_assign_value_of_positions():
    check(lambda x: paddle.assign(np.array([1, 2**31 - 1])), {"x": normal((2,))}, ["assign_value_"])


def test_assign_value_of_wide_integers_stays_native():
    check_native(
        lambda x: paddle.assign(np.array([1, 2**31])), {"x": normal((2,))}, ["assign_value_"]
    )


@pytest.mark.parametrize(
    ("bounds", "dtype"),
    [
        ((5,), "float32"),
        ((1, 9, 3), "int32"),
        ((3, -3, -2), "float32"),
        ((0.0, 1.0, 0.3), "float32"),
    ],
    ids=str,
)
def test_arange(bounds, dtype):
    check(lambda x: (paddle.arange(*bounds, dtype=dtype), x * 2), {"x": normal((2,))}, ["arange"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_assign(shape):
    check(paddle.assign, {"x": normal(shape)}, ["assign"])
    check(lambda x: paddle.assign(x * 2.0) + 1.0, {"x": normal(shape)}, ["assign", "scale"])


def test_assign_to_a_tensor():
    def build(x):
        y = x * 3.0
        paddle.assign(x + 1.0, y)
        return y * 2.0

    check(build, {"x": normal((3, 4))}, ["assign_out_"], gradients=False)
