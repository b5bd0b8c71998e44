"""Sorting, the largest elements, accuracy."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, normal
from tests.ops.merging import merged
from tests.programs import Program

CASES = [((), -1), ((1,), 0), ((7,), -1), ((3, 5), 0), ((3, 5), -1), ((2, 3, 4), 1), ((4, 1), 1)]


def strange(shape, seed=0):
    values = [np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, np.finfo("float32").max, 3.0, 1e-30]
    return np.random.default_rng(seed).choice(np.array(values, "float32"), shape)


@merged
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_sort(shape, axis, descending):
    def build(x):
        return paddle.sort(x, axis, descending), paddle.argsort(x, axis, descending)

    check(build, {"x": normal(shape)}, ["argsort", "argsort_grad"])


@merged
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("length", [16, 65, 3000])
@pytest.mark.parametrize("make", [strange, lambda shape: np.round(normal(shape))])
def test_order_of_equal_values_nan_and_infinity(make, length, stable, descending):
    def build(x):
        return paddle.sort(x, 1, descending, stable), paddle.argsort(x, 1, descending, stable)

    x = make((9, length)).astype("float32")
    check(build, {"x": x}, ["argsort", "argsort_grad"], dynamic={"x": [-1, -1]})


@merged
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_topk(shape, axis, largest):
    k = 1 if not shape or shape[axis] == 1 else 2
    build = lambda x: paddle.topk(x, k, axis, largest)  # noqa: E731
    check(build, {"x": normal(shape)}, ["topk", "topk_grad"])


@merged
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("length", "k"), [(3, 3), (40, 1), (40, 3), (40, 40), (400, 6), (400, 7)])
@pytest.mark.parametrize("make", [strange, lambda shape: np.round(normal(shape))])
def test_topk_among_equal_values_nan_and_infinity(make, length, k, in_order, largest):
    build = lambda x: paddle.topk(x, k, 1, largest, in_order)  # noqa: E731
    x = make((11, length)).astype("float32")
    check(build, {"x": x}, ["topk", "topk_grad"], dynamic={"x": [-1, -1]})


def test_topk_with_k_beyond_the_axis_is_an_error():
    program = Program(lambda: paddle.topk(paddle.static.data("x", [-1, -1], "float32"), 5, 1))
    program.both(x=normal((2, 6)))
    with pytest.raises(ValueError, match="less than or equal"):
        program.run(x=normal((2, 4)))
    program.both(x=normal((2, 6)))


@merged
@pytest.mark.parametrize("k", [1, 3])
def test_accuracy(k):
    def build(x, label):
        return paddle.static.accuracy(paddle.nn.functional.softmax(x), label, k)

    label = np.random.default_rng(0).integers(0, 6, (50, 1))
    check(build, {"x": normal((50, 6)), "label": label}, ["accuracy", "topk"])
    build_direct = lambda x, label: paddle.metric.accuracy(x, label, k)  # noqa: E731
    check(build_direct, {"x": normal((50, 6)), "label": label}, ["accuracy"])
