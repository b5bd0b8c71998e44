"""Convolutions and their gradients compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

import paddle_ngraph
from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import Program, floats
from tests.zips import zip_equal

CONV = ("conv2d", "conv2d_grad")
DEPTHWISE = ("depthwise_conv2d", "depthwise_conv2d_grad")
SOLID = ("conv3d", "conv3d_grad")
TRANSPOSED = ("conv2d_transpose", "conv2d_transpose_grad")

pytestmark = pytest.mark.thinned


def check_conv(data, filter_, converted=CONV, **options):
    harness = {k: options.pop(k) for k in ("dynamic", "runs") if k in options}
    return check(
        lambda x, w: F.conv2d(x, w, **options),
        {"x": floats(*data), "w": floats(*filter_, seed=1)},
        converted,
        rtol=1e-4,
        atol=1e-4,
        **harness,
    )


@merged
@pytest.mark.parametrize(
    ("data", "filter_"),
    [
        ((2, 3, 9, 8), (4, 3, 3, 3)),
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((4, 1, 28, 28), (6, 1, 5, 5)),
        ((4, 6, 14, 14), (16, 6, 5, 5)),
        ((3, 5, 7, 6), (8, 5, 1, 1)),
        ((2, 1, 10, 16), (7, 1, 3, 16)),
        ((2, 3, 10, 16), (7, 3, 3, 16)),
        ((2, 3, 5, 16), (7, 3, 5, 3)),
        ((2, 8, 1, 20), (6, 8, 1, 3)),
        ((2, 8, 20, 1), (6, 8, 4, 1)),
        ((2, 16, 5, 5), (10, 16, 5, 5)),
        ((2, 6, 1, 1), (3, 6, 1, 1)),
    ],
)
def test_shapes(data, filter_):
    check_conv(data, filter_)


@merged
@pytest.mark.parametrize("stride", [1, 2, 3, [2, 1]])
@pytest.mark.parametrize("padding", [0, 1, [2, 1], [1, 0, 2, 1], "SAME", "VALID"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_attributes(stride, padding, dilation):
    check_conv((2, 3, 11, 10), (4, 3, 3, 2), stride=stride, padding=padding, dilation=dilation)


@merged
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, [1, 0], [2, 1, 0, 0]])
def test_filter_as_wide_as_the_data(stride, padding):
    check_conv((3, 2, 9, 6), (4, 2, 3, 6), stride=stride, padding=padding)


@merged
@pytest.mark.parametrize("padding", [0, 1, 3])
def test_filter_as_high_as_the_padded_data(padding):
    check_conv((2, 2, 4, 6), (3, 2, 4 + 2 * padding, 3), padding=[padding, 0])


@merged
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_stride_beyond_the_filter(stride):
    check_conv((2, 3, 11, 12), (4, 3, 1, 1), stride=stride)
    check_conv((2, 3, 11, 12), (4, 3, 1, 1), stride=stride, padding=1)
    check_conv((2, 3, 1, 12), (4, 3, 1, 1), stride=stride)
    check_conv((2, 3, 12, 13), (4, 3, 2, 2), stride=stride, padding=1)


@merged
def test_padding_beyond_the_filter():
    check_conv((2, 3, 6, 5), (4, 3, 2, 2), padding=3)


@merged
def test_filter_over_padding_alone():
    check_conv((2, 3, 6, 1), (4, 3, 2, 1), stride=3, padding=1)
    check_conv((2, 4, 6, 1), (4, 1, 2, 1), DEPTHWISE, stride=3, padding=1, groups=4)


@merged
@pytest.mark.parametrize(
    ("channels", "filter_", "groups"),
    [(6, (4, 3, 3, 3), 2), (6, (9, 2, 3, 3), 3), (8, (8, 2, 1, 1), 4), (4, (8, 2, 6, 1), 2)],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_groups(channels, filter_, groups, stride):
    check_conv((2, channels, 7, 8), filter_, stride=stride, padding=1, groups=groups)


@merged
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, [2, 1], "SAME"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_depthwise(multiplier, stride, padding, dilation):
    check_conv(
        (2, 5, 9, 8),
        (5 * multiplier, 1, 3, 2),
        DEPTHWISE,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=5,
    )


@merged
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("padding", [1, "SAME", [0, 1, 2, 0]])
def test_channels_last(groups, padding):
    check_conv(
        (2, 7, 8, 6),
        (4, 6 // groups, 3, 3),
        stride=2,
        padding=padding,
        groups=groups,
        data_format="NHWC",
    )


@merged
@pytest.mark.parametrize(
    ("groups", "options"),
    [
        (1, {"stride": 2, "padding": 1}),
        (2, {"padding": [1, 2]}),
        (4, {"dilation": 2, "padding": "SAME"}),
        (1, {"data_format": "NLC"}),
    ],
)
def test_conv1d(groups, options):
    shape = (2, 11, 4) if "data_format" in options else (2, 4, 11)
    check(
        lambda x, w: F.conv1d(x, w, groups=groups, **options),
        {"x": floats(*shape), "w": floats(8, 4 // groups, 3, seed=1)},
        CONV,
        rtol=1e-4,
        atol=1e-4,
    )


def check_conv3d(data, filter_, **options):
    check(
        lambda x, w: F.conv3d(x, w, **options),
        {"x": floats(*data), "w": floats(*filter_, seed=1)},
        SOLID,
        rtol=1e-4,
        atol=1e-4,
    )


@merged
@pytest.mark.parametrize("stride", [1, [1, 2, 3]])
@pytest.mark.parametrize("padding", [[2, 1, 0], [1, 0, 2, 1, 0, 1], "SAME", "VALID"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv3d(stride, padding, dilation):
    check_conv3d(
        (2, 3, 6, 7, 8), (4, 3, 3, 2, 3), stride=stride, padding=padding, dilation=dilation
    )


@merged
@pytest.mark.parametrize("kernel", [(4, 5, 6), (1, 1, 1), (4, 1, 6), (4, 5, 1)])
@pytest.mark.parametrize("stride", [1, 2])
def test_conv3d_kernels(kernel, stride):
    check_conv3d((2, 3, 4, 5, 6), (4, 3, *kernel), stride=stride)


@merged
@pytest.mark.parametrize(("groups", "filters"), [(2, 6), (4, 4), (4, 8)])
def test_conv3d_groups(groups, filters):
    check_conv3d(
        (2, 4, 6, 7, 8), (filters, 4 // groups, 3, 2, 3), stride=2, padding=1, groups=groups
    )


@merged
def test_conv3d_with_channels_last():
    check_conv3d((2, 6, 7, 8, 4), (5, 4, 3, 2, 3), stride=2, padding=1, data_format="NDHWC")


@merged
def test_dynamic_batch_and_size():
    check_conv((3, 2, 9, 8), (4, 2, 3, 3), padding=1, dynamic={"x": [-1, 2, -1, 8]})


@merged
@pytest.mark.parametrize("wanted", ["x", "w"])
def test_one_gradient_only(wanted):
    def build(x, w):
        out = F.conv2d(x, w, padding=1)
        return paddle.static.gradients([out], [{"x": x, "w": w}[wanted]])[0]

    check(
        build,
        {"x": floats(2, 3, 6, 7), "w": floats(4, 3, 3, 3, seed=1)},
        ["conv2d_grad"],
        gradients=False,
        rtol=1e-4,
        atol=1e-4,
    )


@merged
def test_nan_and_infinity_propagate():
    data = floats(2, 2, 8, 8)
    data[0, 0, 3, 4], data[1, 1, 2, 2] = np.nan, np.inf
    check(
        lambda x, w: F.conv2d(x, w),
        {"x": data, "w": floats(3, 2, 3, 3, seed=1)},
        ["conv2d"],
        rtol=1e-4,
        atol=1e-4,
    )


@merged
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, [3, 2]])
@pytest.mark.parametrize("padding", [0, 1, [0, 1, 1, 0], "SAME", "VALID"])
def test_transposed(groups, stride, padding):
    check(
        lambda x, w: F.conv2d_transpose(x, w, stride=stride, padding=padding, groups=groups),
        {"x": floats(2, 4, 5, 6), "w": floats(4, 3, 3, 4, seed=1)},
        TRANSPOSED,
        rtol=1e-4,
        atol=1e-4,
    )


@merged
@pytest.mark.parametrize(
    "options",
    [
        {"output_padding": 1},
        {"output_size": [12, 13]},
        {"dilation": 2},
        {"data_format": "NHWC"},
    ],
)
def test_transposed_options(options):
    shape = (2, 5, 6, 4) if "data_format" in options else (2, 4, 5, 6)
    check(
        lambda x, w: F.conv2d_transpose(x, w, stride=2, **options),
        {"x": floats(*shape), "w": floats(4, 3, 3, 3, seed=1)},
        TRANSPOSED,
        rtol=1e-4,
        atol=1e-4,
    )


@merged
def test_transposed_depthwise():
    check(
        lambda x, w: F.conv2d_transpose(x, w, stride=2, padding=1, groups=4),
        {"x": floats(2, 4, 5, 6), "w": floats(4, 1, 3, 3, seed=1)},
        ["depthwise_conv2d_transpose", "depthwise_conv2d_transpose_grad"],
        rtol=1e-4,
        atol=1e-4,
    )


def check_transposed3d(data, filter_, **options):
    check(
        lambda x, w: F.conv3d_transpose(x, w, **options),
        {"x": floats(*data), "w": floats(*filter_, seed=1)},
        ["conv3d_transpose", "conv3d_transpose_grad"],
        rtol=1e-4,
        atol=1e-4,
    )


@merged
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [[0, 1, 1, 0, 1, 1], "SAME"])
def test_transposed_conv3d(groups, stride, padding):
    filter_ = (4, 1 if groups == 4 else 3, 3, 2, 3)
    check_transposed3d((2, 4, 3, 4, 5), filter_, stride=stride, padding=padding, groups=groups)


@merged
@pytest.mark.parametrize(
    "options",
    [
        {"output_padding": 1},
        {"output_size": [8, 10, 12]},
        {"dilation": 2},
        {"data_format": "NDHWC"},
    ],
)
def test_transposed_conv3d_options(options):
    data = (2, 3, 4, 5, 4) if "data_format" in options else (2, 4, 3, 4, 5)
    check_transposed3d(data, (4, 3, 3, 3, 3), stride=2, **options)


@merged
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_conv1d(groups):
    depthwise = "depthwise_" if groups == 4 else ""
    check(
        lambda x, w: F.conv1d_transpose(x, w, stride=2, padding=1, groups=groups),
        {"x": floats(2, 4, 11), "w": floats(4, 1 if groups == 4 else 2, 3, seed=1)},
        [f"{depthwise}conv2d_transpose", f"{depthwise}conv2d_transpose_grad"],
        rtol=1e-4,
        atol=1e-4,
    )


@merged
def test_float64_falls_back():
    check_fallback(
        lambda x, w: F.conv2d(x, w),
        {"x": np.ones((1, 1, 4, 4)), "w": np.ones((1, 1, 2, 2))},
        ["conv2d"],
        gradients=False,
    )


def _random_readers(seed):
    """A grouped filter of one of several producers, with readers before and after a factor."""
    draw = np.random.default_rng(seed)
    groups, multiplier = int(draw.choice([2, 3])), int(draw.choice([1, 2]))
    inputs, outputs, size = int(draw.choice([1, 2])), groups * multiplier, int(draw.choice([2, 3]))
    made = draw.choice(["fed", "relu", "transposed", "reshaped", "unsqueezed"])
    readers = [str(kind) for kind in draw.choice(READERS, draw.integers(1, 4))]
    factor = np.float32(0.5) if draw.integers(2) else draw.random((1, outputs, 1, 1), "float32")
    whole = [outputs, inputs, 2, 2]

    def upwards(x, w):
        return F.conv2d_transpose(x, w, groups=groups)

    def build(x, w):
        w = {
            "fed": lambda: w,
            "relu": lambda: F.relu(w),
            "transposed": lambda: paddle.transpose(w, [0, 1, 3, 2]),
            "reshaped": lambda: paddle.reshape(paddle.reshape(w, [-1]), whole),
            "unsqueezed": lambda: paddle.squeeze(paddle.unsqueeze(w, [1, 2]), [1, 2]),
        }[made]()
        read = {
            "stack": lambda: paddle.stack([w, w * 2.0, w], 1),
            "unsqueeze": lambda: paddle.exp(paddle.unsqueeze(w, 1)),
            "groups": lambda: paddle.reshape(w, [groups, multiplier, *whole[1:]]) + 1.0,
            "conv": lambda: F.conv2d(x + 0.25, w, groups=groups),
            "factor": lambda: F.conv2d(x - 0.5, w, groups=groups) * 3.0,
            "transpose": lambda: upwards(F.conv2d(x, w, groups=groups), w),
        }
        found = [read[kind]() for kind in readers]
        half = paddle.assign(np.asarray(factor))
        return [F.conv2d(x, w, groups=groups) * half, *found]

    x = draw.normal(size=(2, groups * inputs, size, size)).astype("float32")
    return build, {"x": x, "w": draw.normal(size=whole).astype("float32")}


READERS = ["stack", "unsqueeze", "groups", "conv", "factor", "transpose"]


@pytest.mark.parametrize("seed", range(40))
def test_a_factor_of_one_reader_of_a_grouped_filter(seed):
    build, inputs = _random_readers(seed)

    def program():
        return build(*(paddle.static.data(n, list(v.shape), "float32") for n, v in inputs.items()))

    def training():
        x, w = inputs.values()
        x = paddle.static.data("x", list(x.shape), "float32")
        start = paddle.nn.initializer.Assign(w)
        w = paddle.static.create_parameter(list(w.shape), "float32", default_initializer=start)
        found = build(x, w)
        loss = paddle.add_n([paddle.mean(each * each) for each in found])
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss, *found]

    Program(program).both(**inputs)
    native, engine = Program(training), Program(training)
    before = paddle_ngraph.stats()["engine_runs"]
    for _ in range(3):
        expected, found = (each.run(each is engine, x=inputs["x"]) for each in (native, engine))
        for one, other in zip_equal(expected, found):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > before


@merged
@pytest.mark.parametrize(("stride", "padding"), [(2, 1), (3, [1, 0, 2, 1])])
def test_single_elements_with_strides_and_padding(stride, padding):
    def build(x, w):
        return paddle.nn.functional.conv2d(
            paddle.nn.functional.sigmoid(x) * 0.5, w, None, stride, padding
        )

    check(build, {"x": floats(2, 1, 3, 4), "w": floats(3, 1, 1, 1)}, ["conv2d", "conv2d_grad"])


@merged
def test_filter_gradient_of_single_results_with_dilation_and_padding():
    def build(x, w):
        return paddle.nn.functional.conv2d(
            paddle.nn.functional.sigmoid(x) * 0.5, w, None, 1, 1, dilation=2
        )

    check(build, {"x": floats(2, 2, 3, 3), "w": floats(3, 2, 3, 3)}, ["conv2d", "conv2d_grad"])
