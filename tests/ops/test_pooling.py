"""Pooling and its gradients against native Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_native

F = paddle.nn.functional
POOL = ("pool2d", "pool2d_grad")
INDEXED = ("max_pool2d_with_index", "max_pool2d_with_index_grad")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def tied(*shape: int) -> np.ndarray:
    """Few different values, many zeros: as after relu."""
    return np.random.default_rng(0).integers(0, 3, shape).astype("float32")


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": [2, 3], "stride": [3, 2], "padding": [1, 0]},
        {"kernel_size": 3, "stride": 2, "padding": [1, 0, 0, 1]},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": "SAME"},
        {"kernel_size": 3, "stride": 2, "padding": "VALID"},
        {"kernel_size": 2, "stride": 4},
        {"kernel_size": [9, 1]},
        {"kernel_size": [9, 8]},
        {"kernel_size": 1},
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_attributes(pool, options, channels_last):
    data, options = tied(2, 3, 9, 8), dict(options)
    if channels_last:
        data = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
        options["data_format"] = "NHWC"
    check(lambda x: pool(x, **options), {"x": data}, POOL)


@pytest.mark.parametrize("padding", [1, [1, 0, 0, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_average_that_counts_padding(padding, ceil_mode, stride):
    check(
        lambda x: F.avg_pool2d(x, 3, stride, padding, ceil_mode, exclusive=False),
        {"x": normal(2, 3, 8, 7)},
        POOL,
    )


@pytest.mark.parametrize("out", [1, 2, 3, [4, 3], [8, 7], [10, 2]])
def test_adaptive_average(out):
    check(lambda x: F.adaptive_avg_pool2d(x, out), {"x": normal(2, 3, 8, 7)}, POOL)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 1), (2, 3, 1, 6), (1, 5, 40, 37)])
@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_shapes(shape, pool):
    kernel = [min(2, shape[2]), min(2, shape[3])]
    check(lambda x: pool(x, kernel), {"x": tied(*shape)}, POOL)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_global(kind):
    def build(x):
        size = paddle.full([2], 1, "int64")
        return paddle._C_ops.pool2d(
            x, size, [1, 1], [0, 0], False, True, "NCHW", kind, True, False, "EXPLICIT"
        )

    check(build, {"x": tied(2, 3, 5, 6)}, POOL)


@pytest.mark.parametrize("pool", [F.max_pool1d, F.avg_pool1d])
def test_one_axis(pool):
    check(lambda x: pool(x, 3, 2, 1), {"x": tied(2, 3, 11)}, POOL)


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_open_batch_and_size(pool):
    check(
        lambda x: pool(x, 3, 2, 1),
        {"x": tied(2, 3, 9, 8)},
        POOL,
        dynamic={"x": [-1, 3, -1, -1]},
    )


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3, 8])
def test_nan_and_infinity(kernel, stride):
    data = normal(3, 2, 12, 11)
    flat = data.reshape(-1)
    chosen = np.random.default_rng(1).permutation(flat.size)
    flat[chosen[:40]], flat[chosen[40:80]], flat[chosen[80:120]] = np.nan, np.inf, -np.inf
    data[2, 1] = -np.inf
    check(lambda x: F.max_pool2d(x, kernel, stride), {"x": data}, POOL)
    check(lambda x: F.avg_pool2d(x, kernel, stride), {"x": data}, POOL)


def test_gradient_that_is_nan_or_infinite():
    def build(x, cotangent):
        pooled = [F.max_pool2d(x, 3, 2), F.avg_pool2d(x, 3, 2)]
        return paddle.static.gradients(pooled, [x], [cotangent, cotangent])[0]

    cotangent = normal(2, 3, 4, 3)
    cotangent[0, 0, 0, 0], cotangent[1, 2, 3, 2] = np.nan, np.inf
    check(build, {"x": tied(2, 3, 9, 8), "cotangent": cotangent}, ["pool2d_grad"], gradients=False)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": [3, 2], "stride": [1, 2]},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    ],
)
def test_maximum_with_index(options):
    check(
        lambda x: list(F.max_pool2d(x, return_mask=True, **options)),
        {"x": tied(2, 3, 9, 8)},
        INDEXED,
    )


@pytest.mark.parametrize("out", [1, [3, 2], [9, 8]])
def test_adaptive_maximum(out):
    check(
        lambda x: list(F.adaptive_max_pool2d(x, out, return_mask=True)),
        {"x": tied(2, 3, 9, 8)},
        INDEXED,
    )


def test_maximum_with_index_leaves_out_nan():
    data = normal(2, 3, 9, 8)
    data[0, 0, 3:5, 2:5], data[1, 1, 2, 2] = np.nan, np.inf
    check(
        lambda x: list(F.max_pool2d(x, 3, 1, return_mask=True)),
        {"x": data},
        INDEXED[:1],
        gradients=False,
    )


def test_float64_stays_native():
    check_native(
        lambda x: F.max_pool2d(x, 2), {"x": np.ones((1, 1, 4, 4))}, ["pool2d"], gradients=False
    )
