"""affine_grid and grid_sample compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_fallback
from tests.ops.merging import merged
from tests.programs import floats

F = paddle.nn.functional
SAMPLE = ("grid_sample", "grid_sample_grad")


@merged
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 7, 2), (2, 1, 3, 4, 5), (1, 1, 2, 2, 6)])
def test_affine_grid(shape, align_corners):
    axes = len(shape) - 2
    matrix = floats(shape[0], axes, axes + 1)
    matrix[0, 0, 1] = np.nan
    check(
        lambda x: F.affine_grid(x, list(shape), align_corners),
        {"x": matrix},
        ["affine_grid", "affine_grid_grad"],
    )


@merged
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("data", "points"),
    [((2, 3, 5, 6), (4, 7)), ((1, 2, 1, 4), (3, 3)), ((2, 2, 3, 4, 5), (2, 3, 4))],
)
def test_grid_sample(mode, padding_mode, align_corners, data, points):
    def build(x, grid):
        return F.grid_sample(x, grid, mode, padding_mode, align_corners)

    grid = floats(data[0], *points, len(points), seed=1) * 1.5
    check(build, {"x": floats(*data), "grid": grid}, SAMPLE, rtol=1e-4, atol=1e-4)


@merged
@pytest.mark.parametrize("align_corners", [False, True])
def test_points_on_elements_and_edges(align_corners):
    line = np.linspace(-1.25, 1.25, 11, dtype="float32")
    grid = np.stack(np.meshgrid(line, line), 2)[None]
    for mode in ("bilinear", "nearest"):
        check(
            lambda x, grid, mode=mode: F.grid_sample(x, grid, mode, align_corners=align_corners),
            {"x": floats(1, 2, 5, 5), "grid": grid},
            SAMPLE[:1],
            gradients=False,
        )


@merged
@pytest.mark.parametrize("wanted", ["x", "grid"])
def test_one_gradient_only(wanted):
    def build(x, grid):
        out = F.grid_sample(x, grid)
        return paddle.static.gradients([out], [{"x": x, "grid": grid}[wanted]])[0]

    feeds = {"x": floats(2, 3, 4, 5), "grid": floats(2, 3, 3, 2, seed=1)}
    check(build, feeds, SAMPLE[1:], gradients=False, rtol=1e-4, atol=1e-5)


@merged
def test_infinity_propagates_through_grid_sample():
    data = floats(1, 2, 4, 4)
    data[0, 0, 1, 1], data[0, 1, 2, 3] = np.inf, np.nan
    feeds = {"x": data, "grid": floats(1, 6, 6, 2, seed=1)}
    check(lambda x, grid: F.grid_sample(x, grid), feeds, SAMPLE[:1], gradients=False)


@merged
def test_dynamic_batch_and_size():
    check(
        lambda x, grid: F.grid_sample(x, grid),
        {"x": floats(2, 3, 4, 5), "grid": floats(2, 3, 3, 2, seed=1)},
        SAMPLE,
        dynamic={"x": [-1, 3, -1, -1], "grid": [-1, 3, -1, 2]},
        rtol=1e-4,
        atol=1e-5,
    )


@merged
def test_float64_falls_back():
    check_fallback(
        lambda x: F.affine_grid(x, [1, 1, 2, 2]), {"x": np.ones((1, 2, 3))}, ["affine_grid"]
    )
