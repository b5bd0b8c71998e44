"""Converters of paddle_ngraph.ops.cast against native Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_native

VALUES = {
    "float32": [0.5, -0.5, -1.9, 2.5, 0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 3e9, -(2.0**31)],
    "int32": [0, 1, -1, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**30 + 1],
    "bool": [True, False, True],
}


def values(dtype):
    return np.array(VALUES[dtype], dtype)


@pytest.mark.parametrize(
    "source, target",
    [
        ("float32", "bool"),
        ("float32", "int32"),
        ("int32", "float32"),
        ("int32", "bool"),
        ("int32", "int64"),
        ("bool", "float32"),
        ("bool", "int32"),
        ("bool", "int64"),
    ],
)
def test_cast(source, target):
    x = values(source)
    for feed in (x, x[:1].reshape([]), x.reshape(1, -1, 1)):
        check(lambda x: paddle.cast(x, target), {"x": feed}, ["cast"], gradients=False)


def test_cast_of_what_was_computed():
    def build(x):
        return paddle.cast(paddle.cast(paddle.transpose(x, [1, 0]), "bool"), "float32")

    check(build, {"x": values("float32").reshape(3, 4)}, ["cast", "transpose"], gradients=False)


def test_cast_of_a_shape():
    def build(x):
        return paddle.cast(paddle.shape(x)[0], "float32") + paddle.cast(paddle.numel(x), "float32")

    check(build, {"x": np.zeros([5, 3], "float32")}, ["cast", "shape64", "numel"], gradients=False)


def test_cast_dynamic():
    check(
        lambda x: paddle.cast(x, "float32"), {"x": values("int32")}, ["cast"], dynamic={"x": [-1]}
    )


@pytest.mark.parametrize(
    "source, target",
    [
        ("float32", "int64"),
        ("float32", "float64"),
        ("int32", "int16"),
        ("float64", "float32"),
        ("int64", "float32"),
        ("int64", "int32"),
        ("int64", "bool"),
    ],
)
def test_cast_stays_native(source, target):
    x = np.array([1, 2**40 if source == "int64" else 3, -5], source)

    def build(x):
        return paddle.nonzero(paddle.cast(x, target))

    check_native(build, {"x": x}, ["cast"], gradients=False)
