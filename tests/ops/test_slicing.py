"""Converters of paddle_ngraph.ops.slicing compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.nn import functional

from tests.ops.harness import check, check_dtypes, strange, whole
from tests.ops.merging import merged

SLICES = [
    ([0, 2], [0, -3], [1, 3]),
    ([1], [-100], [100]),
    ([0, 1], [1, 1], [5, -1]),
    ([2], [-1], [2**31 - 1]),
    ([-1], [1], [3]),
]


@merged
@pytest.mark.parametrize("axes, starts, ends", SLICES)
def test_slice(axes, starts, ends):
    check_dtypes(lambda x: paddle.slice(x, axes, starts, ends), [2, 3, 4], ["slice", "slice_grad"])


@merged
@pytest.mark.parametrize(
    "index",
    [
        (0,),
        (-1,),
        (slice(None), 1),
        (slice(1, None), slice(None), 2),
        (1, 2, 3),
        (slice(None), -1, slice(1, -1)),
        (Ellipsis, 0),
    ],
)
def test_slice_with_axes_dropped(index):
    check_dtypes(lambda x: x[index], [2, 3, 4], ["slice", "slice_grad"])


@merged
def test_slice_dynamic():
    build = lambda x: x[:, 1:-1]  # noqa: E731
    check(build, {"x": strange(4, 5)}, ["slice", "slice_grad"], dynamic={"x": [-1, 5]})
    check(build, {"x": strange(4, 5)}, ["slice", "slice_grad"], dynamic={"x": [4, -1]})


@merged
def test_slice_at_a_fed_index():
    def build(x, start):
        return paddle.slice(x, [0], start, [4])

    feeds = {"x": strange(4, 5), "start": np.array([1], "int32")}
    check(build, feeds, ["slice"], gradients=False)


STRIDES = [
    ([0, 2], [0, -1], [1, -6], [1, -2]),
    ([1, 2], [0, 0], [3, 7], [2, 3]),
    ([1, 2], [2, 100], [-100, -100], [-1, -3]),
    ([2], [-2], [0], [-2]),
    ([2], [5], [1], [-1]),
    ([0, 1, 2], [0, 0, 0], [2, 3, 7], [1, 1, 1]),
]


@merged
@pytest.mark.parametrize("axes, starts, ends, strides", STRIDES)
def test_strided_slice(axes, starts, ends, strides):
    check_dtypes(
        lambda x: paddle.strided_slice(x, axes, starts, ends, strides),
        [2, 3, 7],
        ["strided_slice", "strided_slice_grad"],
    )


@merged
def test_strided_slice_by_index():
    check_dtypes(lambda x: x[::-1, ::2], [3, 5, 2], ["strided_slice", "strided_slice_grad"])


@merged
@pytest.mark.parametrize("axis", [[0], [0, 2], [-1], [0, 1, 2], 1])
def test_flip(axis):
    check_dtypes(lambda x: paddle.flip(x, axis), [2, 3, 4], ["flip"])


@merged
@pytest.mark.parametrize("counts, offsets", [([2, 2], [1, 1]), ([-1, 3], [2, 0]), ([4, 5], [0, 0])])
def test_crop(counts, offsets):
    build = lambda x: paddle.crop(x, counts, offsets)  # noqa: E731
    check(build, {"x": strange(4, 5)}, ["crop", "crop_grad"])
    check(build, {"x": whole(4, 5)}, ["crop"])


@merged
@pytest.mark.parametrize(
    "shifts, axis", [([1, -2], [0, 2]), (3, None), (-1, 1), (100, -1), ([1, 1], [0, 0])]
)
def test_roll(shifts, axis):
    check_dtypes(lambda x: paddle.roll(x, shifts, axis), [2, 3, 4], ["roll", "roll_grad"])


@merged
@pytest.mark.parametrize("value", [0.0, 2.5, float("nan"), float("-inf")])
def test_pad(value):
    def build(x):
        return functional.pad(x, [1, 2, 0, 1, 1, 0], value=value)

    check(build, {"x": strange(2, 3, 4)}, ["pad", "pad_grad"])


@merged
def test_pad_of_integers():
    build = lambda x: functional.pad(x, [1, 2, 0, 1], value=-3)  # noqa: E731
    check(build, {"x": whole(3, 4)}, ["pad"])


@merged
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_pad_of_an_image(data_format):
    def build(x):
        return functional.pad(x, [1, 2, 0, 1], value=0.5, data_format=data_format)

    check(build, {"x": strange(2, 3, 4, 5)}, ["pad3d", "pad3d_grad", "unsqueeze", "squeeze"])


@merged
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "shape, frame, data_format",
    [
        ((2, 3, 4), [1, 2], "NCL"),
        ((2, 4, 3), [3, 3], "NLC"),
        ((2, 3, 4, 5), [1, 2, 0, 1], "NCHW"),
        ((2, 4, 5, 3), [2, 2, 3, 3], "NHWC"),
        ((1, 2, 4, 3, 5), [1, 2, 0, 1, 2, 1], "NCDHW"),
        ((1, 4, 3, 5, 2), [0, 0, 1, 1, 0, 2], "NDHWC"),
    ],
)
def test_pad_modes(mode, shape, frame, data_format):
    def build(x):
        return functional.pad(x, frame, mode=mode, value=0.5, data_format=data_format)

    check(build, {"x": strange(*shape)}, ["pad3d", "pad3d_grad"])


@merged
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad_modes_of_integers(mode):
    build = lambda x: functional.pad(x, [1, 2, 0, 1], mode=mode)  # noqa: E731
    check(build, {"x": whole(2, 3, 4, 5)}, ["pad3d"])


@merged
@pytest.mark.parametrize("mode", ["replicate", "circular"])
@pytest.mark.parametrize("size", [(4, 5), (1, 1)])
def test_pad_wider_than_the_data(mode, size):
    build = lambda x: functional.pad(x, [9, 7, 0, 11], mode=mode)  # noqa: E731
    check(build, {"x": strange(2, 3, *size)}, ["pad3d", "pad3d_grad"])


@merged
def test_pad_that_cuts_off():
    build = lambda x: functional.pad(x, [-1, 1, 2, -2])  # noqa: E731
    check(build, {"x": strange(2, 3, 4, 5)}, ["pad3d", "pad3d_grad"])
