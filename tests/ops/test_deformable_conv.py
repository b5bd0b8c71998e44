"""Deformable convolution with samples at and beyond every border."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, normal
from tests.ops.merging import merged

CASES = [
    # groups, deformable groups, stride, padding, dilation, kernel
    (1, 1, 1, 1, 1, (3, 3)),
    (2, 1, 2, 0, 1, (3, 3)),
    (1, 4, 1, (2, 1), (1, 2), (2, 3)),
    (4, 2, (2, 1), (0, 3), 2, (3, 1)),
    (8, 8, 3, 1, 1, (1, 1)),
]


def convolution(case: tuple, x: Any, offset: Any, filter: Any, mask: Any = None) -> Any:
    groups, deformable, stride, padding, dilation, _ = case
    return paddle.vision.ops.deform_conv2d(
        x, offset, filter, None, stride, padding, dilation, deformable, groups, mask
    )


def random_inputs(case: tuple, mask: bool, seed: int = 0, rows: int = 2) -> dict[str, np.ndarray]:
    groups, deformable, stride, padding, dilation, kernel = case
    size = np.array([9, 11])
    reach = np.array(dilation) * (np.array(kernel) - 1) + 1
    out = (size + 2 * np.array(padding) - reach) // np.array(stride) + 1
    draw = np.random.default_rng(seed)
    places = kernel[0] * kernel[1] * deformable
    found = {
        "x": normal((rows, 8, *size), seed=seed),
        "offset": draw.normal(size=(rows, 2 * places, *out)).astype("float32") * 2,
        "filter": normal((16, 8 // groups, *kernel), seed=seed + 1),
    }
    if mask:
        found["mask"] = draw.random((rows, places, *out)).astype("float32")
    return found


@merged
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_deformable_conv(case, mask):
    native = ["deformable_conv_grad"]
    build = partial(convolution, case)
    check(build, random_inputs(case, mask), ["deformable_conv"], native=native, atol=1e-5)


@merged
@pytest.mark.parametrize(
    "offsets",
    [
        [-1.0, 0.0, 1.0],  # integer coordinates, borders included
        [-0.5, 0.999999, -0.999999, -1.000001],
        [8.0, 9.0, 10.0, 11.0, -9.0, 10.999999],
        [1e9, -1e9, 3e38, -3e38],
        [np.nan, np.inf, -np.inf, 0.5],
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_borders(case, offsets):
    given = random_inputs(case, mask=True)
    draw = np.random.default_rng(1)
    given["offset"] = draw.choice(np.float32(offsets), given["offset"].shape)
    # Paddle's gradients read out of bounds for offsets that are NaN or infinite.
    build = partial(convolution, case)
    check(build, given, ["deformable_conv"], gradients=False, atol=1e-5)
