"""Shuffles, patches and temporal shift compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, pixels
from tests.ops.merging import merged

F = paddle.nn.functional


def ordered(shape: tuple[int, ...], data_format: str) -> np.ndarray:
    x = pixels(*shape)
    return x if data_format == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))


FORMATS = pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])


@FORMATS
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_pixel_shuffle(factor, data_format):
    check(
        lambda x: F.pixel_shuffle(x, factor, data_format),
        {"x": ordered((2, 2 * factor * factor, 3, 4), data_format)},
        ["pixel_shuffle", "pixel_shuffle_grad"],
    )


@FORMATS
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_pixel_unshuffle(factor, data_format):
    check(
        lambda x: F.pixel_unshuffle(x, factor, data_format),
        {"x": ordered((2, 2, 3 * factor, 4 * factor), data_format)},
        ["pixel_unshuffle", "pixel_unshuffle_grad"],
    )


@FORMATS
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_channel_shuffle(groups, data_format):
    check(
        lambda x: F.channel_shuffle(x, groups, data_format),
        {"x": ordered((2, 6, 3, 4), data_format)},
        ["channel_shuffle", "channel_shuffle_grad"],
    )


PATCHES = [
    {"kernel_sizes": 2},
    {"kernel_sizes": 3, "paddings": 1},
    {"kernel_sizes": [2, 3], "strides": 2, "paddings": [1, 0]},
    {"kernel_sizes": 2, "strides": [1, 3], "paddings": [1, 0, 2, 1]},
    {"kernel_sizes": 3, "dilations": 2, "paddings": 2},
    {"kernel_sizes": 1, "strides": 2},
    {"kernel_sizes": [7, 9]},
]


@merged
@pytest.mark.parametrize("options", PATCHES)
def test_unfold(options):
    check(lambda x: F.unfold(x, **options), {"x": pixels(2, 3, 7, 9)}, ["unfold"])


@merged
@pytest.mark.parametrize("options", [*PATCHES[:3], *PATCHES[4:]])
def test_fold(options):
    def build(x):
        return F.fold(F.unfold(x, **options), [7, 9], **options)

    check(build, {"x": pixels(2, 3, 7, 9)}, ["fold", "fold_grad"], rtol=1e-4, atol=1e-5)


@merged
def test_unfold_of_a_long_row_with_a_stride_beyond_the_kernel():
    data = {"x": pixels(1, 2, 3, 60)}
    check(lambda x: F.unfold(x, 2, [1, 3]), data, ["unfold"])


@FORMATS
@pytest.mark.parametrize(("steps", "ratio"), [(2, 0.25), (3, 0.45), (1, 0.2), (3, 0.1), (6, 0.4)])
def test_temporal_shift(steps, ratio, data_format):
    check(
        lambda x: F.temporal_shift(x, steps, ratio, data_format=data_format),
        {"x": ordered((6, 8, 2, 3), data_format)},
        ["temporal_shift", "temporal_shift_grad"],
    )


@merged
def test_dynamic_batch_and_size():
    def build(x):
        return F.unfold(F.pixel_shuffle(F.channel_shuffle(x, 2), 2), 2)

    check(
        build,
        {"x": pixels(3, 4, 6, 8)},
        ["unfold", "pixel_shuffle", "channel_shuffle"],
        dynamic={"x": [-1, 4, -1, -1]},
    )
