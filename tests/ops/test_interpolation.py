"""Interpolation and its gradients compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_fallback, pixels
from tests.ops.merging import merged

F = paddle.nn.functional


def types(mode: str) -> list[str]:
    return [f"{mode}_interp", f"{mode}_interp_grad"]


def image(sizes: tuple[int, ...], channels_last: bool) -> np.ndarray:
    return pixels(2, *sizes, 3) if channels_last else pixels(2, 3, *sizes)


def layout(axes: int, channels_last: bool) -> str:
    names = {1: "W", 2: "HW", 3: "DHW"}[axes]
    return f"N{names}C" if channels_last else f"NC{names}"


PLANE = [
    ("nearest", {}),
    ("bilinear", {"align_mode": 0}),
    ("bilinear", {"align_mode": 1}),
    ("bilinear", {"align_corners": True}),
    ("bicubic", {}),
    ("bicubic", {"align_corners": True}),
]


@merged
@pytest.mark.parametrize(("mode", "options"), PLANE)
@pytest.mark.parametrize(
    ("size", "channels_last"),
    [
        ((4, 5), False),
        ((12, 14), True),
        ((1, 1), False),
        ((6, 20), True),
        ((13, 3), False),
        ((6, 7), True),
    ],
)
def test_2d(mode, options, size, channels_last):
    form = layout(2, channels_last)
    check(
        lambda x: F.interpolate(x, list(size), mode=mode, data_format=form, **options),
        {"x": image((6, 7), channels_last)},
        types(mode),
        atol=1e-5,
    )


@merged
@pytest.mark.parametrize(("mode", "options"), PLANE)
@pytest.mark.parametrize("scale", [2, 0.5, [0.3, 2.6], 3.3])
def test_scale(mode, options, scale):
    check(
        lambda x: F.interpolate(x, scale_factor=scale, mode=mode, **options),
        {"x": pixels(2, 3, 6, 7)},
        types(mode),
        atol=1e-5,
    )


LINE = [{"align_mode": 0}, {"align_mode": 1}, {"align_corners": True}]


@merged
@pytest.mark.parametrize("options", LINE)
@pytest.mark.parametrize(
    ("size", "channels_last"), [(1, False), (4, True), (8, False), (17, False), (17, True)]
)
def test_1d(options, size, channels_last):
    form = layout(1, channels_last)
    check(
        lambda x: F.interpolate(x, [size], mode="linear", data_format=form, **options),
        {"x": image((8,), channels_last)},
        types("linear"),
    )


@merged
@pytest.mark.parametrize(
    ("mode", "options"), [("nearest", {}), *(("trilinear", options) for options in LINE)]
)
@pytest.mark.parametrize(
    ("size", "channels_last"), [((4, 5, 6), True), ((1, 2, 1), False), ((3, 11, 2), False)]
)
def test_3d(mode, options, size, channels_last):
    form = layout(3, channels_last)
    check(
        lambda x: F.interpolate(x, list(size), mode=mode, data_format=form, **options),
        {"x": image((4, 6, 5), channels_last)},
        types(mode),
        atol=1e-5,
    )


@merged
@pytest.mark.parametrize("form", ["NCW", "NCDHW"])
def test_scale_of_1d_and_3d(form):
    mode, shape = ("linear", (2, 3, 8)) if form == "NCW" else ("trilinear", (2, 3, 4, 5, 6))
    for scale in (2.3, 0.27):
        check(
            lambda x, scale=scale: F.interpolate(
                x, scale_factor=scale, mode=mode, data_format=form
            ),
            {"x": pixels(*shape)},
            types(mode),
            atol=1e-5,
        )


@merged
def test_nearest_with_aligned_corners():
    def build(x):
        form = ("NCHW", -1, 9, 11, [], "nearest", True, 0)
        return paddle._C_ops.nearest_interp(x, None, None, None, *form)

    check(build, {"x": pixels(2, 3, 6, 7)}, types("nearest"))


@merged
def test_many_sizes_of_one_row():
    """Rows of the gradient with different numbers of terms, including none."""
    for out in (7, 23, 61):
        check(
            lambda x, out=out: F.interpolate(x, [2, out], mode="nearest"),
            {"x": pixels(1, 2, 2, 37)},
            types("nearest"),
        )
        check(
            lambda x, out=out: F.interpolate(x, [2, out], mode="bilinear"),
            {"x": pixels(1, 2, 2, 37)},
            types("bilinear"),
        )


@merged
def test_size_and_scale_that_are_fed():
    feeds = {"x": pixels(2, 3, 6, 7), "size": np.array([5, 9], "int32")}
    check(lambda x, size: F.interpolate(x, size, mode="bilinear"), feeds, types("bilinear"))

    def build(x, scale):
        return F.interpolate(x, scale_factor=scale, mode="bilinear")

    feeds = {"x": pixels(2, 3, 6, 7), "scale": np.array([1.7], "float32")}
    check(build, feeds, types("bilinear"))


@merged
def test_size_computed_from_a_shape():
    def to_twice(x):
        size = paddle.shape(x)
        return F.interpolate(x, [size[2] * 2, size[3] * 2], mode="nearest")

    check(to_twice, {"x": pixels(2, 3, 6, 7)}, types("nearest"), dynamic={"x": [-1, 3, -1, -1]})

    def to_other(x, y):
        return F.interpolate(x, paddle.shape(y)[2:], mode="bilinear")

    feeds = {"x": pixels(2, 3, 6, 7), "y": pixels(2, 3, 10, 11)}
    check(to_other, feeds, types("bilinear"), dynamic={"y": [-1, 3, -1, -1]})


@merged
def test_float64_falls_back():
    check_fallback(
        lambda x: F.interpolate(x, [2, 2]),
        {"x": np.ones((1, 1, 4, 4))},
        ["nearest_interp"],
        gradients=False,
    )
