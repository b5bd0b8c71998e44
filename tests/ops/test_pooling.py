"""Pooling and its gradients compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import floats

F = paddle.nn.functional
POOL = ("pool2d", "pool2d_grad")
SOLID = ("pool3d", "pool3d_grad")
INDEXED3D = ("max_pool3d_with_index", "max_pool3d_with_index_grad")
INDEXED = ("max_pool2d_with_index", "max_pool2d_with_index_grad")


def tied(*shape: int) -> np.ndarray:
    """Few different values, many of them zero, as after a ReLU."""
    return np.random.default_rng(0).integers(0, 3, shape).astype("float32")


def with_specials(*shape: int) -> np.ndarray:
    """Many NaNs and infinities."""
    data = floats(*shape)
    flat = data.reshape(-1)
    chosen = np.random.default_rng(1).permutation(flat.size)
    part = flat.size // 12
    for number, special in enumerate((np.nan, np.inf, -np.inf)):
        flat[chosen[number * part : (number + 1) * part]] = special
    data[-1, -1] = -np.inf
    return data


@merged
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


@merged
@pytest.mark.parametrize("padding", [1, [1, 0, 0, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_average_that_counts_padding(padding, ceil_mode, stride):
    check(
        lambda x: F.avg_pool2d(x, 3, stride, padding, ceil_mode, exclusive=False),
        {"x": floats(2, 3, 8, 7)},
        POOL,
    )


@merged
@pytest.mark.parametrize("out", [1, 2, 3, [4, 3], [8, 7], [10, 2]])
def test_adaptive_average(out):
    check(lambda x: F.adaptive_avg_pool2d(x, out), {"x": floats(2, 3, 8, 7)}, POOL)


@merged
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 4, 1), (2, 3, 1, 6), (1, 5, 40, 37)])
@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_shapes(shape, pool):
    kernel = [min(2, shape[2]), min(2, shape[3])]
    check(lambda x: pool(x, kernel), {"x": tied(*shape)}, POOL)


@merged
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_global(kind):
    def build(x):
        size = paddle.full([2], 1, "int64")
        return paddle._C_ops.pool2d(
            x, size, [1, 1], [0, 0], False, True, "NCHW", kind, True, False, "EXPLICIT"
        )

    check(build, {"x": tied(2, 3, 5, 6)}, POOL)


@merged
@pytest.mark.parametrize("pool", [F.max_pool1d, F.avg_pool1d])
def test_1d(pool):
    check(lambda x: pool(x, 3, 2, 1), {"x": tied(2, 3, 11)}, POOL)


@merged
@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_dynamic_batch_and_size(pool):
    check(
        lambda x: pool(x, 3, 2, 1),
        {"x": tied(2, 3, 9, 8)},
        POOL,
        dynamic={"x": [-1, 3, -1, -1]},
    )


@merged
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3, 8])
def test_nan_and_infinity(kernel, stride):
    data = floats(3, 2, 12, 11)
    flat = data.reshape(-1)
    chosen = np.random.default_rng(1).permutation(flat.size)
    flat[chosen[:40]], flat[chosen[40:80]], flat[chosen[80:120]] = np.nan, np.inf, -np.inf
    data[2, 1] = -np.inf
    check(lambda x: F.max_pool2d(x, kernel, stride), {"x": data}, POOL)
    check(lambda x: F.avg_pool2d(x, kernel, stride), {"x": data}, POOL)


@merged
def test_gradient_that_is_nan_or_infinite():
    def build(x, cotangent):
        pooled = [F.max_pool2d(x, 3, 2), F.avg_pool2d(x, 3, 2)]
        return paddle.static.gradients(pooled, [x], [cotangent, cotangent])[0]

    cotangent = floats(2, 3, 4, 3)
    cotangent[0, 0, 0, 0], cotangent[1, 2, 3, 2] = np.nan, np.inf
    check(build, {"x": tied(2, 3, 9, 8), "cotangent": cotangent}, ["pool2d_grad"], gradients=False)


@merged
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


def test_windows_beyond_the_input_have_no_index():
    data = {"x": tied(2, 2, 4, 7)}

    def build(x):
        return list(F.max_pool2d(x, 2, (4, 2), ceil_mode=True, return_mask=True))

    _, mask = check(build, data, INDEXED[:1], gradients=False)
    assert (mask[:, :, 1] == -1).all()
    # Plain Paddle is no reference here, since its gradient writes out of bounds.
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [2, 2, 4, 7])
        x.stop_gradient = False
        (x_grad,) = paddle.static.gradients(build(x)[:1], [x])
    assert not paddle_ngraph.explain(program).native
    with paddle_ngraph.use_ngraph():
        (found,) = paddle.static.Executor().run(program, feed=data, fetch_list=[x_grad])
    expected = np.zeros((2, 2, 28), "float32")
    np.put_along_axis(expected, mask[:, :, 0].astype("int64"), 1.0, 2)
    np.testing.assert_array_equal(found.reshape(2, 2, 28), expected)


@merged
@pytest.mark.parametrize("out", [1, [3, 2], [9, 8]])
def test_adaptive_maximum(out):
    check(
        lambda x: list(F.adaptive_max_pool2d(x, out, return_mask=True)),
        {"x": tied(2, 3, 9, 8)},
        INDEXED,
    )


@merged
def test_maximum_with_index_leaves_out_nan():
    data = floats(2, 3, 9, 8)
    data[0, 0, 3:5, 2:5], data[1, 1, 2, 2] = np.nan, np.inf
    check(
        lambda x: list(F.max_pool2d(x, 3, 1, return_mask=True)),
        {"x": data},
        INDEXED[:1],
        gradients=False,
    )


OPTIONS3D = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 4},
    {"kernel_size": 1, "stride": 2},
]


@merged
@pytest.mark.parametrize("pool", [F.max_pool3d, F.avg_pool3d])
@pytest.mark.parametrize(
    "options",
    [
        *OPTIONS3D,
        {"kernel_size": [2, 3, 1], "stride": [3, 2, 1], "padding": [1, 0, 0]},
        {"kernel_size": 3, "stride": 2, "padding": [1, 0, 0, 1, 1, 1]},
        {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": "SAME"},
        {"kernel_size": 3, "stride": 2, "padding": "VALID"},
        {"kernel_size": [5, 1, 7]},
    ],
)
def test_3d(pool, options):
    check(lambda x: pool(x, **options), {"x": tied(2, 3, 5, 6, 7)}, SOLID)
    check(lambda x: pool(x, **options), {"x": with_specials(2, 3, 5, 6, 7)}, SOLID)


@merged
@pytest.mark.parametrize("pool", [F.max_pool3d, F.avg_pool3d])
def test_3d_with_channels_last(pool):
    check(
        lambda x: pool(x, 3, 2, 1, data_format="NDHWC"),
        {"x": tied(2, 5, 6, 7, 3)},
        SOLID,
        dynamic={"x": [-1, 5, -1, -1, 3]},
    )


@merged
@pytest.mark.parametrize("padding", [1, [1, 0, 0, 1, 1, 0]])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_3d_average_that_counts_padding(padding, ceil_mode):
    check(
        lambda x: F.avg_pool3d(x, 3, 2, padding, ceil_mode, exclusive=False),
        {"x": floats(2, 3, 5, 6, 7)},
        SOLID,
    )


@merged
@pytest.mark.parametrize("out", [1, [2, 3, 5], [3, 6, 4], [7, 2, 9]])
def test_3d_adaptive(out):
    data = {"x": with_specials(2, 3, 5, 6, 7)}
    check(lambda x: F.adaptive_avg_pool3d(x, out), data, SOLID)

    def build(x):
        return list(F.adaptive_max_pool3d(x, out, return_mask=True))

    check(build, {"x": tied(2, 3, 5, 6, 7)}, INDEXED3D)
    check(build, data, INDEXED3D[:1], gradients=False)


@merged
@pytest.mark.parametrize("options", OPTIONS3D)
def test_3d_maximum_with_index(options):
    def build(x):
        return list(F.max_pool3d(x, return_mask=True, **options))

    check(build, {"x": tied(2, 3, 5, 6, 7)}, INDEXED3D)
    check(build, {"x": with_specials(2, 3, 5, 6, 7)}, INDEXED3D[:1], gradients=False)


@merged
def test_indices_beyond_16_million_are_exact():
    def build(x):
        return list(F.max_pool3d(x, (2100, 1, 1), return_mask=True))

    depth = np.arange(2100, dtype="float32").reshape(1, 1, -1, 1, 1)
    data = np.ascontiguousarray(np.broadcast_to(depth, (1, 1, 2100, 64, 128)))
    check(build, {"x": data}, INDEXED3D[:1], gradients=False)


@merged
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_3d_global(kind):
    def build(x):
        form = (False, True, "NCDHW", kind, True, False, "EXPLICIT")
        return paddle._C_ops.pool3d(x, [1, 1, 1], [1, 1, 1], [0, 0, 0], *form)

    check(build, {"x": tied(2, 3, 4, 5, 6)}, SOLID)


@merged
@pytest.mark.parametrize("out", [1, 3, 11])
def test_1d_adaptive(out):
    data = {"x": tied(2, 3, 8)}
    check(lambda x: F.adaptive_avg_pool1d(x, out), data, POOL)
    check(lambda x: list(F.adaptive_max_pool1d(x, out, return_mask=True)), data, INDEXED)


@merged
@pytest.mark.parametrize(
    ("norm", "options"),
    [
        (2, {"kernel_size": 2}),
        (2, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (1, {"kernel_size": [3, 2], "stride": [1, 2], "padding": [1, 0]}),
        (2, {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
        (1, {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
        (2, {"kernel_size": 2, "stride": 3, "data_format": "NHWC"}),
    ],
)
def test_norm(norm, options):
    types = ("lp_pool2d", "lp_pool2d_grad")
    check(lambda x: F.lp_pool2d(x, norm, **options), {"x": floats(2, 3, 9, 8)}, types)


@merged
def test_norm_of_special_values():
    data = floats(2, 3, 9, 8)
    data[0, 0, :4, :4], data[0, 1, 2, 2], data[1, 2, 3, 3] = 0.0, np.nan, -np.inf
    check(lambda x: F.lp_pool2d(x, 2, 2), {"x": data}, ["lp_pool2d", "lp_pool2d_grad"])


@merged
def test_other_norms_fall_back():
    data = {"x": abs(floats(2, 3, 9, 8))}
    check_fallback(lambda x: F.lp_pool2d(x, 3, 2), data, ["lp_pool2d", "lp_pool2d_grad"])


@merged
@pytest.mark.parametrize("random_u", [0.1, 0.77])
@pytest.mark.parametrize(("out", "kernel"), [(3, None), ([2, 5], None), (3, 2), ([4, 3], [3, 2])])
def test_fractional(random_u, out, kernel):
    def build(x):
        return list(F.fractional_max_pool2d(x, out, kernel, random_u, return_mask=True))

    types = ("fractional_max_pool2d", "fractional_max_pool2d_grad")
    check(build, {"x": tied(2, 3, 8, 9)}, types)
    check(build, {"x": with_specials(2, 3, 8, 9)}, types[:1], gradients=False)


@merged
@pytest.mark.parametrize(("out", "kernel"), [([2, 5, 3], None), (3, 2)])
def test_fractional_3d(out, kernel):
    def build(x):
        return list(F.fractional_max_pool3d(x, out, kernel, 0.3, return_mask=True))

    types = ("fractional_max_pool3d", "fractional_max_pool3d_grad")
    check(build, {"x": tied(2, 3, 6, 8, 9)}, types)


@merged
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1), (3, 2)])
def test_unpool(kernel, stride):
    def plane(x):
        pooled, mask = F.max_pool2d(x, kernel, stride, return_mask=True)
        return F.max_unpool2d(pooled, mask, kernel, stride, output_size=[8, 9])

    check(plane, {"x": tied(2, 3, 8, 9)}, ["unpool", "unpool_grad"])

    def solid(x):
        pooled, mask = F.max_pool3d(x, kernel, stride, return_mask=True)
        return F.max_unpool3d(pooled, mask, kernel, stride, output_size=[5, 8, 7])

    check(solid, {"x": tied(2, 3, 5, 8, 7)}, ["unpool3d", "unpool3d_grad"])


@merged
def test_unpool_1d():
    def build(x):
        pooled, mask = F.max_pool1d(x, 2, 2, return_mask=True)
        return F.max_unpool1d(pooled, mask, 2, 2)

    check(build, {"x": tied(2, 3, 8)}, ["unpool", "unpool_grad"])


@merged
def test_unpool_to_one_index_twice():
    places = np.random.default_rng(0).integers(0, 20, (2, 3, 4, 5)).astype("int32")
    check(
        lambda x, i: F.max_unpool2d(x, i, 2, 2),
        {"x": floats(2, 3, 4, 5), "i": places},
        ["unpool", "unpool_grad"],
    )


@merged
def test_float64_falls_back():
    check_fallback(
        lambda x: F.max_pool2d(x, 2), {"x": np.ones((1, 1, 4, 4))}, ["pool2d"], gradients=False
    )
