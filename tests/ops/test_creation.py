"""Constants and copies."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback, normal
from tests.ops.merging import merged
from tests.programs import Program

SHAPES = [(), (1,), (3, 5), (2, 1, 4)]


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_full(shape):
    check(lambda x: x + paddle.full(shape, 2.5), {"x": normal(shape)}, ["add"])


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make", [paddle.zeros_like, paddle.ones_like])
def test_like(make, shape):
    check(lambda x: x + make(x), {"x": normal(shape)}, ["full_like"])


@merged
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_full_like_of_any_dtype(dtype):
    check(lambda x: paddle.full_like(x, 1, dtype), {"x": normal((3, 4))}, ["full_like"])


@merged
def test_64_bit_results_fall_back():
    def build(x):
        far = paddle.arange(2**40, 2**40 + 7, dtype="int64")
        return paddle.full_like(x, 2**40, "int64"), far, x * 2.0

    check_fallback(build, {"x": normal((3, 4))}, ["full_like", "arange"])


def test_arange_of_64_bit_integers_known_only_at_run_time():
    """The first run detects the overflow, and Paddle repeats that run."""

    def build():
        bounds = [paddle.static.data(name, [1], "int64") for name in ("start", "end")]
        return paddle.arange(*bounds, dtype="int64")

    program = Program(build)
    for start in (2, 2**40):
        for _ in range(2):
            (found,) = program.run(start=np.array([start]), end=np.array([start + 3]))
            assert found.tolist() == [start, start + 1, start + 2]
    assert paddle_ngraph.stats()["native_by_type"].get("pd_op.arange")


@merged
def test_arange_of_indices():
    def build(x):
        return paddle.gather(x, paddle.arange(0, 3, dtype="int64"))

    check(build, {"x": normal((5, 4))}, ["arange", "gather"])


@merged
def test_arange_to_a_dynamic_size():
    """Position ids of a text of any length."""

    def build(x, words):
        positions = paddle.arange(0, paddle.shape(words)[1], dtype="int64").unsqueeze(0)
        return paddle.nn.functional.embedding(positions, x)

    inputs = {"x": normal((9, 4)), "words": np.ones((2, 5), "int64")}
    check(build, inputs, ["arange", "embedding"], dynamic={"words": [-1, -1]})


@merged
def test_full_like_of_dynamic_shape():
    def build(x):
        return paddle.full_like(x, -0.5) * x

    check(build, {"x": normal((3, 4))}, ["full_like"], dynamic={"x": [-1, -1]})


@merged
def test_full_like_of_an_unread_tensor():
    x = np.array([2**40, 1], "int64")
    check(lambda x: paddle.full_like(x, float("nan"), "float32"), {"x": x}, ["full_like"])


@merged
def test_full_of_a_shape_known_at_run_time():
    def build(x):
        return x * paddle.full([paddle.shape(x)[0], 3], 2.0)

    check(build, {"x": normal((4, 3))}, ["full_with_tensor"], dynamic={"x": [-1, 3]})


@merged
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

    check(build, {"x": normal((3,))}, ["add"], gradients=False)  # a constant


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_assign_value(dtype):
    values = np.array([[1, 0, 3], [4, 5, -6]]).astype(dtype)

    def build(x):
        return paddle.assign(values), x * 2.0

    check(build, {"x": normal((2,))}, ["assign_value"])


def test_assign_value_of_indices():
    check(lambda x: paddle.assign(np.array([1, 2**31 - 1])), {"x": normal((2,))}, ["assign_value"])


def test_assign_value_of_64_bit_integers_falls_back():
    check_fallback(
        lambda x: paddle.assign(np.array([1, 2**31])), {"x": normal((2,))}, ["assign_value"]
    )


@merged
@pytest.mark.parametrize(
    ("bounds", "dtype"),
    [
        ((5,), "float32"),
        ((1, 9, 3), "int32"),
        ((3, -3, -2), "float32"),
        ((0.0, 1.0, 0.3), "float32"),
        ((-2, 9, 2), "int64"),
    ],
    ids=str,
)
def test_arange(bounds, dtype):
    check(lambda x: (paddle.arange(*bounds, dtype=dtype), x * 2), {"x": normal((2,))}, ["arange"])


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_assign(shape):
    check(paddle.assign, {"x": normal(shape)}, ["assign"])
    check(lambda x: paddle.assign(x * 2.0) + 1.0, {"x": normal(shape)}, ["assign", "scale"])


@merged
def test_assign_to_a_tensor():
    def build(x):
        y = x * 3.0
        paddle.assign(x + 1.0, y)
        return y * 2.0

    check(build, {"x": normal((3, 4))}, ["assign", "scale"], gradients=False)


@merged
@pytest.mark.parametrize("start, stop, number", [(0.0, 1.0, 7), (-3.0, 5.5, 10), (2.0, 9.0, 1)])
def test_linspace(start, stop, number):
    build = lambda x: x + paddle.linspace(start, stop, number)  # noqa: E731
    check(build, {"x": normal((2, number))}, ["linspace"], rtol=0, atol=0)


@merged
def test_fill():
    build = lambda x: paddle._C_ops.fill_(x * 2.0, 1.5)  # noqa: E731
    check(build, {"x": normal((2, 3))}, ["fill_", "fill_grad"])


@merged
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "bool"])
def test_sequence_mask(dtype):
    build = lambda x: paddle.nn.functional.sequence_mask(x, 5, dtype)  # noqa: E731
    for x in (np.array([0, 3, 9, -1, 5]), np.array([[2], [2**40]], "int64") % 2**30):
        check(build, {"x": x}, ["sequence_mask"])


@merged
def test_sequence_mask_without_maxlen_falls_back():
    build = lambda x: paddle.nn.functional.sequence_mask(x, None, "float32")  # noqa: E731
    check_fallback(build, {"x": np.array([1, 3])}, ["sequence_mask"])


@merged
def test_is_empty():
    check(paddle.is_empty, {"x": normal((2, 3))}, ["is_empty"])


@merged
def test_zeros_like_of_ids():
    def build(ids, table):
        kinds = paddle.zeros_like(ids)
        return paddle.nn.functional.embedding(kinds, table), paddle.ones_like(ids)

    ids = np.array([[3, 2**40, 1]])
    check(build, {"ids": ids, "table": normal((2, 4))}, ["full_like", "embedding"])


@merged
def test_assign_value_over_a_tensor_of_another_size():
    values = np.arange(10, dtype="float32").reshape(2, 5)

    def build(x):
        y = paddle.zeros([1])
        paddle.assign(values, output=y)
        return [y, x * 2.0]

    check(build, {"x": normal((2,))}, ["assign_value_", "scale"])
