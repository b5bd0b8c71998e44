"""Training in the blocked layout of convolutions, by operators of the core."""

from __future__ import annotations

from collections import Counter

import numpy as np
import paddle
import pytest

from paddle_ngraph import flags
from paddle_ngraph.conversion import build
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.conversion.passes import blocked_layout
from tests.ops.harness import check
from tests.programs import floats

F = paddle.nn.functional
CONV = ("conv2d", "conv2d_grad")
DEPTHWISE = ("depthwise_conv2d", "depthwise_conv2d_grad")
KERNELS = ("BlockedConvolution", "BlockedConvolutionDataGrad", "BlockedConvolutionFilterGrad")
OWN = {
    *KERNELS,
    "BatchNorm",
    "BatchNormGrad",
    "PaddleMaxPool",
    "PaddleMaxPoolGrad",
    "PaddleAvgPool",
    "PaddleAvgPoolGrad",
}


@pytest.fixture
def built(monkeypatch):
    """Counts the operators of the function built last, the core's own by name."""
    counts: Counter[str] = Counter()

    def count(draft: Draft) -> None:
        counts.clear()  # programs are also built to find convertible operators
        for node in draft.model.get_ops():
            counts[node.get_type_name()] += 1

    spy = build.BuildPass("count", "what is compiled is counted", count)
    monkeypatch.setattr(build, "PASSES", (*build.PASSES, spy))
    return counts


def check_conv(data, filter_, converted=CONV, **options):
    return check(
        lambda x, w: F.conv2d(x, w, **options),
        {"x": floats(*data), "w": floats(*filter_, seed=1)},
        converted,
        rtol=1e-4,
        atol=2e-4,
    )


@pytest.mark.parametrize(
    ("data", "filter_", "options"),
    [
        ((2, 8, 1, 1), (8, 8, 1, 1), {}),
        ((4, 16, 9, 8), (24, 16, 3, 3), {}),
        ((5, 24, 9, 7), (16, 24, 3, 2), {"stride": 2, "padding": [1, 0]}),
        ((3, 8, 7, 7), (8, 8, 3, 3), {"stride": 2, "padding": [1, 0, 2, 1]}),
        ((4, 64, 8, 8), (128, 64, 1, 1), {"stride": 2}),
        ((2, 16, 12, 5), (32, 16, 5, 5), {"padding": "SAME"}),
        ((4, 32, 9, 9), (32, 16, 3, 3), {"padding": 1, "groups": 2}),
        ((3, 6, 9, 8), (16, 6, 5, 5), {}),
        ((5, 16, 9, 7), (7, 16, 3, 2), {"stride": 2, "padding": [1, 0]}),
        ((2, 11, 7, 7), (6, 11, 3, 3), {"stride": 2, "padding": [1, 0, 2, 1]}),
        ((2, 20, 12, 5), (50, 20, 5, 5), {"padding": "SAME"}),
        ((3, 12, 8, 8), (20, 12, 1, 1), {"stride": 2}),
    ],
)
def test_convolutions(built, data, filter_, options):
    check_conv(data, filter_, **options)
    assert all(built[kind] == 1 for kind in KERNELS), built


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [32, 29])
def test_depthwise_convolutions(built, stride, channels):
    options = {"stride": stride, "padding": 1, "groups": channels}
    check_conv((3, channels, 9, 10), (channels, 1, 3, 3), DEPTHWISE, **options)
    assert all(built[kind] == 1 for kind in KERNELS), built


@pytest.mark.parametrize(("channels", "features"), [(3, 16), (1, 6), (2, 20), (3, 7)])
def test_an_image_is_read_in_plain_layout(built, channels, features):
    check_conv((5, channels, 17, 15), (features, channels, 7, 7), stride=2, padding=3)
    assert built["BlockedConvolution"] == built["BlockedConvolutionFilterGrad"] == 1
    assert built["BlockedReorder"] == 2  # the output and its gradient


@pytest.mark.parametrize("channels", [16, 12])
def test_dilation_falls_back_where_there_is_no_fast_kernel(built, channels):
    check_conv((4, channels, 9, 9), (channels, channels, 3, 3), dilation=2, padding=2)
    assert built["BlockedConvolution"] == 1


@pytest.mark.parametrize(
    ("data", "filter_"), [((2, 5, 9, 9), (8, 5, 3, 3)), ((2, 8, 9, 9), (9, 8, 3, 3))]
)
def test_other_channels_keep_the_engines_convolution(built, data, filter_):
    check_conv(data, filter_)
    assert not OWN & {*built}


@pytest.mark.parametrize("asked", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_any_number_of_threads_and_samples(built, asked, batch):
    before = flags.get("ngraph_num_threads")
    flags.set("ngraph_num_threads", asked)
    try:
        check_conv((batch, 24, 9, 9), (40, 24, 3, 3), padding=1)
    finally:
        flags.set("ngraph_num_threads", before)
    assert all(built[kind] == 1 for kind in KERNELS), built


def test_inference_keeps_the_engines_convolution(built):
    inputs = {"x": floats(4, 16, 9, 9), "w": floats(16, 16, 3, 3)}
    check(lambda x, w: F.conv2d(x, w), inputs, ("conv2d",), gradients=False, rtol=1e-4, atol=1e-4)
    assert not OWN & {*built}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_propagate(value):
    data = floats(2, 8, 6, 6)
    data[0, 3, 2, 2] = value
    check(
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        {"x": data, "w": floats(8, 8, 3, 3, seed=1)},
        CONV,
        rtol=1e-4,
        atol=1e-4,
    )


def _block(activation, pool=None, bias=False):
    """Convolution, normalization, activation, and a residual path."""

    def build(x, w, v, **given):
        hidden = F.conv2d(x, w, padding=1)
        if bias:
            hidden = hidden + given["b"].reshape([1, -1, 1, 1])
        mean, variance = paddle.zeros([16]), paddle.ones([16])
        scale, offset = given["scale"], given["offset"]
        hidden = F.batch_norm(hidden, mean, variance, scale, offset, training=True)
        hidden = activation(hidden)
        out = F.conv2d(hidden, v, padding=1) + hidden
        return pool(activation(out)) if pool else out

    return build


def _block_inputs(bias=False):
    inputs = {
        "x": floats(4, 16, 7, 6),
        "w": floats(16, 16, 3, 3, seed=1),
        "v": 0.1 * floats(16, 16, 3, 3, seed=2),
        "scale": floats(16, seed=3),
        "offset": floats(16, seed=4),
    }
    return {**inputs, "b": floats(16, seed=5)} if bias else inputs


def chosen(x):
    return paddle.where(x > 0.1, x, x * 0.5)


@pytest.mark.parametrize(
    "activation", [F.relu, F.relu6, F.hardswish, F.sigmoid, F.silu, F.swish, chosen]
)
def test_operators_between_convolutions_stay_blocked(built, activation):
    types = ("conv2d", "conv2d_grad", "batch_norm_", "batch_norm_grad")
    check(_block(activation), _block_inputs(), types, rtol=1e-3, atol=2e-4)
    # The data, the output and their gradients: no transposition in between.
    assert built["BlockedReorder"] == 4, built


@pytest.mark.parametrize("activation", [F.relu, F.relu6])
def test_relu_is_fused_into_the_normalization(built, activation):
    def build(x, w, scale, offset):
        mean, variance = paddle.zeros([16]), paddle.ones([16])
        hidden = F.conv2d(x, w, padding=1)
        hidden = F.batch_norm(hidden, mean, variance, scale, offset, training=True)
        return activation(hidden)

    inputs = {name: value for name, value in _block_inputs().items() if name != "v"}
    inputs["scale"] *= 5.0  # beyond the ceiling too
    check(build, inputs, ("batch_norm_", "batch_norm_grad"), rtol=1e-3, atol=2e-4)
    assert built["BatchNorm"] == built["BatchNormGrad"] == 1
    assert not {"Relu", "Clamp", "Greater"} & {*built}, built


@pytest.mark.parametrize("activation", [F.relu, F.relu6])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_pass_the_fused_operator(built, activation, value):
    def build(x, w, scale, offset):
        mean, variance = paddle.zeros([16]), paddle.ones([16])
        hidden = F.conv2d(x, w)
        hidden = F.batch_norm(hidden, mean, variance, scale, offset, training=True)
        return activation(hidden)

    filter_ = np.zeros((16, 8, 1, 1), "float32")
    filter_[:8, :, 0, 0] = np.eye(8)  # the other channels never see the value
    inputs = {"x": floats(4, 8, 5, 5), "w": filter_}
    inputs["x"][1, 3, 2, 2] = value
    inputs["scale"], inputs["offset"] = floats(16, seed=3), floats(16, seed=4)
    check(build, inputs, ("batch_norm_", "batch_norm_grad"), rtol=1e-3, atol=2e-4)
    assert not {"Relu", "Clamp", "Greater"} & {*built}, built


def test_a_bias_stays_blocked(built):
    check(_block(F.relu, bias=True), _block_inputs(bias=True), CONV, rtol=1e-3, atol=2e-4)
    assert built["BatchNorm"] == 1


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 2, 1, 1, exclusive=False),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, 3),
    ],
)
def test_blocked_pooling(built, pool):
    check(_block(F.relu, pool), _block_inputs(), ("pool2d", "pool2d_grad"), rtol=1e-3, atol=2e-4)
    assert built["BlockedReorder"] == 4, built


def test_pooling_of_nan_and_infinity():
    data = floats(2, 8, 9, 9)
    data[0, 0, 3:6, 3:6] = np.nan
    data[0, 1, :4, :4], data[1, 2, 5, 5], data[1, 3] = -np.inf, np.inf, -np.inf
    check(
        lambda x, w: F.max_pool2d(F.conv2d(x, w), 3, 2, 1),
        {"x": data, "w": np.eye(8, dtype="float32").reshape(8, 8, 1, 1)},
        ("pool2d", "pool2d_grad"),
        rtol=1e-4,
        atol=1e-4,
    )


# -- padded lanes ------------------------------------------------------------------------------


def _odd_inputs(first=6, second=12):
    return {
        "x": floats(4, 3, 13, 12),
        "w": floats(first, 3, 3, 3, seed=1),
        "b": floats(first, seed=2),
        "v": 0.2 * floats(second, first, 3, 3, seed=3),
    }


def _odd_block(between):
    """Convolution, bias, the operator ``between``, convolution."""

    def build(x, w, b, v):
        hidden = F.conv2d(x, w, padding=1) + b.reshape([1, -1, 1, 1])
        return F.conv2d(between(hidden), v, padding=1)

    return build


@pytest.mark.parametrize(
    "between",
    [
        F.relu,
        F.relu6,
        F.hardswish,
        F.silu,
        F.tanh,
        F.gelu,
        chosen,
        lambda x: F.max_pool2d(F.relu(x), 2, 2),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(F.tanh(x), 2, 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1, exclusive=False),
        lambda x: F.adaptive_avg_pool2d(x, 3),
        lambda x: x / (1.0 + x * x),
        lambda x: F.sigmoid(x) - 0.5,
    ],
)
@pytest.mark.parametrize("channels", [(6, 12), (20, 50), (7, 6)])
def test_operators_that_preserve_zero_padding_stay_blocked(built, between, channels):
    check(_odd_block(between), _odd_inputs(*channels), CONV, rtol=1e-3, atol=5e-4)
    assert built["BlockedConvolution"] == built["BlockedConvolutionFilterGrad"] == 2
    # The output and its gradient, and the gradient of the bias.
    assert built["BlockedReorder"] == 3, built


@pytest.mark.parametrize(
    "between",
    [
        F.sigmoid,
        F.leaky_relu,
        lambda x: paddle.exp(-x.abs()) * x,
        lambda x: F.avg_pool2d(F.sigmoid(x), 2, 2),
        lambda x: F.max_pool2d(F.sigmoid(x), 3, 2, 1),
        lambda x: x + 1.0,
        paddle.exp,
        lambda x: paddle.log(x.abs()),
        lambda x: paddle.rsqrt(x.abs()),
        lambda x: 1.0 / x,
        lambda x: F.relu(-1.0 / x.abs()),
        lambda x: x / x,
        lambda x: x / x.abs().max(),
        lambda x: x * x.mean(),
        lambda x: x / x.abs().mean([0, 2, 3], keepdim=True),
        lambda x: F.max_pool2d(paddle.log(x.abs()), 2, 2),
        lambda x: F.softmax(x, 1),
    ],
)
def test_padded_lanes_do_not_affect_results(built, between):
    inputs = _odd_inputs()
    inputs["w"] *= 0.1  # divisors are not near zero
    inputs["b"] = np.abs(inputs["b"]) + 2.0
    check(_odd_block(between), inputs, CONV, rtol=1e-3, atol=5e-4)
    assert built["BlockedConvolution"] == built["BlockedConvolutionFilterGrad"] == 2


def test_pooling_windows_in_padding_do_not_affect_results(built):
    def between(x, b):
        lowest = paddle.clip(F.max_pool2d(x, 2, 3, 1, ceil_mode=True), min=-10.0)
        return 1.0 / (lowest + b.abs().reshape([1, -1, 1, 1]) + 10.0)  # 1 / 0 where b is padded

    def build(x, w, b, v):
        return F.conv2d(between(F.conv2d(x, w, padding=1), b), v, padding=1)

    inputs = _odd_inputs()
    inputs["b"] += np.sign(inputs["b"])
    check(build, inputs, CONV, rtol=1e-3, atol=5e-4)
    assert built["BlockedConvolution"] == built["BlockedConvolutionFilterGrad"] == 2


@pytest.mark.parametrize("between", [F.relu, F.tanh, lambda x: F.max_pool2d(F.relu(x), 2, 2)])
def test_nan_and_infinity_do_not_reach_padded_lanes(built, between):
    def build(x, w, b, v):
        hidden = F.conv2d(x, w) + b.reshape([1, -1, 1, 1])
        return F.conv2d(between(hidden), v)

    for name in ("x", "w", "b", "v"):
        for value in (np.nan, np.inf, -np.inf):
            inputs = _odd_inputs()
            inputs[name].reshape(-1)[2] = value
            check(build, inputs, CONV, rtol=1e-3, atol=5e-4)
    assert built["BlockedConvolution"] == built["BlockedConvolutionFilterGrad"] == 2


def test_nan_and_infinity_of_gradients_do_not_reach_padded_lanes(built):
    def build(x, w, b, v):
        out = _odd_block(F.tanh)(x, w, b, v)
        return paddle.where(out > 3.0, out * np.inf, out)

    check(build, _odd_inputs(), CONV, rtol=1e-3, atol=5e-4)
    assert built["BlockedConvolutionDataGrad"] == 1


@pytest.mark.parametrize("epsilon", [1e-5, 0.0])
@pytest.mark.parametrize("activation", [F.relu, F.relu6, F.sigmoid])
def test_normalization_with_padding(built, activation, epsilon):
    def build(x, w, b, v):
        mean, variance = paddle.zeros([6]), paddle.ones([6])
        hidden = F.conv2d(x, w, padding=1)
        hidden = F.batch_norm(hidden, mean, variance, b, b, training=True, epsilon=epsilon)
        return F.conv2d(activation(hidden), v, padding=1), mean, variance

    types = ("batch_norm_", "batch_norm_grad")
    check(build, _odd_inputs(), types, rtol=1e-3, atol=5e-4)
    assert built["BatchNormGrad"] == 1 and built["BatchNorm"] == (epsilon > 0)


def test_blocks_of_other_widths_with_padding(built):
    def build(x, w, b, v):
        hidden = F.relu(_odd_block(F.relu)(x, w, b, v))
        return F.conv2d(hidden, paddle.ones([16, 32, 1, 1]))

    check(build, _odd_inputs(6, 32), CONV, rtol=1e-3, atol=5e-3)
    assert built["BlockedConvolution"] == 3


def test_few_padded_lanes():
    assert blocked_layout.padded_block_of(6, 16) == 8
    assert blocked_layout.padded_block_of(11, 20, 50) == 8
    assert blocked_layout.padded_block_of(5, 8) == 1
    assert blocked_layout.padded_block_of(9) == 1
    assert blocked_layout.padded_block_of(32, 64) == blocked_layout.widest_block()


def test_the_widest_dividing_block_is_chosen():
    assert blocked_layout.block_of(24, 8) == 8
    assert blocked_layout.block_of(32, 64) == blocked_layout.widest_block()
    assert blocked_layout.block_of(12, 8) == 1


def test_unequal_shares_of_a_batch(built):
    check_conv((7, 16, 6, 5), (16, 16, 3, 3), padding=1)
    assert built["BlockedConvolution"] == 1
