"""Converters of paddle_ngraph.ops.cast compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import Program

VALUES = {
    "float32": [0.5, -0.5, -1.9, 2.5, 0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 3e9, -(2.0**31)],
    "int32": [0, 1, -1, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**30 + 1],
    "bool": [True, False, True],
}


def values(dtype):
    return np.array(VALUES[dtype], dtype)


@merged
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


# Every sign and exponent, midpoints between two bfloat16 values, and the values next to them.
_ENDS = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
SPECIAL = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array(_ENDS, np.uint32)).ravel()


def _bits(build, x):
    """Returns the results of Paddle and the engine as integers."""
    program = Program(lambda: build(paddle.static.data("x", [-1], paddle_name(x))))
    native = program.run(engine=False, x=x)
    found = program.run(x=x)
    assert paddle_ngraph.stats()["engine_runs"] == 1 and not paddle_ngraph.stats()["ops_native"]
    return [[out.view(f"u{out.itemsize}") for out in outs] for outs in (native, found)]


def paddle_name(x):
    return "bfloat16" if x.dtype == np.uint16 else str(x.dtype)


def test_casts_to_bfloat16_have_the_bits_of_paddles():
    """Covers NaN, infinities, subnormal values and ties."""

    def build(x):
        short = paddle.cast(x, "bfloat16")
        return [short, paddle.cast(short, "float32")]

    for native, found in zip(*_bits(build, SPECIAL.view("float32"))):
        np.testing.assert_array_equal(found, native)


def test_casts_from_bfloat16_have_the_bits_of_paddles():
    def build(x):
        return [paddle.cast(x, dtype) for dtype in ("float32", "int32", "bool")]

    for native, found in zip(*_bits(build, np.arange(1 << 16, dtype=np.uint16))):
        np.testing.assert_array_equal(found, native)


@pytest.mark.parametrize("source", ["int32", "bool"])
def test_casts_of_integers_to_bfloat16(source):
    (native,), (found,) = _bits(lambda x: [paddle.cast(x, "bfloat16")], values(source))
    np.testing.assert_array_equal(found, native)


@merged
def test_cast_of_a_computed_tensor():
    def build(x):
        return paddle.cast(paddle.cast(paddle.transpose(x, [1, 0]), "bool"), "float32")

    check(build, {"x": values("float32").reshape(3, 4)}, ["cast", "transpose"], gradients=False)


@merged
def test_cast_of_a_shape():
    def build(x):
        return paddle.cast(paddle.shape(x)[0], "float32") + paddle.cast(paddle.numel(x), "float32")

    check(build, {"x": np.zeros([5, 3], "float32")}, ["cast", "shape64", "numel"], gradients=False)


@merged
def test_cast_dynamic():
    check(
        lambda x: paddle.cast(x, "float32"), {"x": values("int32")}, ["cast"], dynamic={"x": [-1]}
    )


@merged
@pytest.mark.parametrize(
    "source, target",
    [
        ("float32", "float64"),
        ("int32", "int16"),
        ("float64", "float32"),
        ("int64", "float32"),
        ("int64", "int32"),
        ("int64", "bool"),
    ],
)
def test_cast_falls_back(source, target):
    x = np.array([1, 2**40 if source == "int64" else 3, -5], source)

    def build(x):
        return paddle.nonzero(paddle.cast(x, target))

    check_fallback(build, {"x": x}, ["cast"], gradients=False)


@merged
def test_shape_in_int32():
    x = {"x": np.zeros([5, 3], "float32")}
    check(lambda x: paddle._C_ops.shape(x), x, ["shape"], gradients=False)
