"""Sorting, the largest elements, accuracy."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_native

CASES = [((), -1), ((1,), 0), ((7,), -1), ((3, 5), 0), ((3, 5), -1), ((2, 3, 4), 1), ((4, 1), 1)]


def normal(shape, seed=0):
    return np.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def strange(shape, seed=0):
    values = [np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, np.finfo("float32").max, 3.0, 1e-30]
    return np.random.default_rng(seed).choice(np.array(values, "float32"), shape)


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_sort(shape, axis, descending):
    def build(x):
        return paddle.sort(x, axis, descending), paddle.argsort(x, axis, descending)

    check(build, {"x": normal(shape)}, ["argsort", "argsort_grad"])


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("make", [strange, lambda shape: np.round(normal(shape))])
def test_order_of_equal_and_strange_elements(make, stable, descending):
    def build(x):
        return paddle.sort(x, 1, descending, stable), paddle.argsort(x, 1, descending, stable)

    x = make((50, 64 if stable else 16)).astype("float32")
    check(build, {"x": x}, ["argsort", "argsort_grad"], dynamic={"x": [-1, x.shape[1]]})


@pytest.mark.parametrize("stable", [True, False])
def test_order_of_long_and_open_axes_stays_native(stable):
    build = lambda x: paddle.argsort(x, 1, stable=stable)  # noqa: E731
    check_native(build, {"x": normal((3, 65))}, ["argsort"])
    check_native(build, {"x": normal((3, 4))}, ["argsort"], dynamic={"x": [3, -1]})


def test_values_of_an_unstable_sort():
    x = strange((20, 300))
    dynamic = {"x": [-1, -1]}
    for descending in (True, False):
        build = lambda x, down=descending: paddle.sort(x, 1, down) * 2  # noqa: E731
        check(build, {"x": x}, ["argsort"], gradients=False, dynamic=dynamic)
    check_native(lambda x: paddle.argsort(x, 1), {"x": x}, ["argsort"])
    check_native(lambda x: paddle.sort(x, 1), {"x": normal((3, 300))}, ["argsort"])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_values_of_topk(shape, axis, largest):
    k = 1 if not shape or shape[axis] == 1 else 2
    build = lambda x: paddle.topk(x, k, axis, largest)[0] * 2  # noqa: E731
    check(build, {"x": normal(shape)}, ["topk"], gradients=False)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_values_of_topk_among_strange_numbers(k, largest):
    build = lambda x: paddle.topk(x, k, 1, largest)[0] * 2  # noqa: E731
    check(build, {"x": strange((30, 40))}, ["topk"], gradients=False)
    check(build, {"x": strange((3, 400))}, ["topk"], gradients=False, dynamic={"x": [-1, 400]})


def test_gradient_of_topk():
    build = lambda x: paddle.topk(x, 3, 1)  # noqa: E731
    check(build, {"x": normal((4, 9))}, ["topk_grad"], native=["topk"])
    build = lambda x: paddle.topk(x, 2, 0, largest=False)  # noqa: E731
    check(build, {"x": normal((7, 2, 3))}, ["topk_grad"], native=["topk"])


def test_topk_of_a_short_axis():
    x = np.round(normal((40, 3)))
    check(lambda x: paddle.topk(x, 1, 1), {"x": x}, ["topk", "topk_grad"])
    check(lambda x: paddle.topk(x, 3, 1), {"x": x}, ["topk", "topk_grad"])
    check(lambda x: paddle.topk(x, 2, 1, largest=False), {"x": x}, ["topk", "topk_grad"])


def test_topk_without_order_stays_native():
    build = lambda x: paddle.topk(x, 3, 1, sorted=False)[0]  # noqa: E731
    check_native(build, {"x": normal((4, 9))}, ["topk"], gradients=False)


@pytest.mark.parametrize("k", [1, 3])
def test_accuracy(k):
    def build(x, label):
        return paddle.static.accuracy(paddle.nn.functional.softmax(x), label, k)

    label = np.random.default_rng(0).integers(0, 6, (50, 1))
    check(build, {"x": normal((50, 6)), "label": label}, ["accuracy"], native=["topk"])
    build_direct = lambda x, label: paddle.metric.accuracy(x, label, k)  # noqa: E731
    check(build_direct, {"x": normal((50, 6)), "label": label}, ["accuracy"])
