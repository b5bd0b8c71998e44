"""Converters of paddle_ngraph.ops.diagonal compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import _C_ops

from tests.ops.harness import check, check_dtypes, check_fallback, strange, whole
from tests.ops.merging import merged

OFFSETS = [0, 1, -1, 2]


@merged
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("shape", [[4], [4, 4], [3, 5], [5, 3]])
def test_diag(shape, offset):
    build = lambda x: paddle.diag(x, offset)  # noqa: E731
    check(build, {"x": strange(*shape)}, ["diag", "diag_grad"])
    check(build, {"x": whole(*shape)}, ["diag"])


@merged
def test_diag_with_padding():
    build = lambda x: paddle.diag(x, 1, padding_value=2.5)  # noqa: E731
    check(build, {"x": strange(4)}, ["diag", "diag_grad"], dynamic={"x": [-1]})


@merged
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (-1, -2)])
def test_diagonal_and_trace(axes, offset):
    feeds = {"x": strange(4, 3, 5)}
    take = lambda x: paddle.diagonal(x, offset, *axes)  # noqa: E731
    check(take, feeds, ["diagonal", "diagonal_grad"])
    check(take, {"x": whole(4, 3, 5)}, ["diagonal"])
    add = lambda x: paddle.trace(x, offset, *axes)  # noqa: E731
    check(add, {"x": np.abs(strange(4, 3, 5))}, ["trace", "trace_grad"])


@merged
def test_trace_of_a_matrix():
    check(paddle.trace, {"x": strange(4, 4)}, ["trace", "trace_grad"], dynamic={"x": [-1, -1]})


@merged
@pytest.mark.parametrize("offset", [0, 1, -2])
@pytest.mark.parametrize("dims", [(-2, -1), (0, 2), (2, 0), (1, -1)])
def test_diag_embed(dims, offset):
    build = lambda x: paddle.diag_embed(x, offset, *dims)  # noqa: E731
    check(build, {"x": strange(2, 3)}, ["diag_embed"], gradients=False)


@merged
@pytest.mark.parametrize("shape", [[4, 4], [6, 3], [3, 6], [3, 3, 3]])
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("offset", [0, 1, -1])
def test_fill_diagonal(shape, wrap, offset):
    if len(shape) > 2 and (wrap or offset):
        return
    build = lambda x: _C_ops.fill_diagonal_(x * 1.0, 2.5, offset, wrap)  # noqa: E731
    check(build, {"x": strange(*shape)}, ["fill_diagonal_", "fill_diagonal_grad"])


@merged
@pytest.mark.parametrize("offset", [0, 1, -1])
@pytest.mark.parametrize("dims", [(0, 1), (0, 2), (1, 2)])
def test_fill_diagonal_tensor(offset, dims):
    x = strange(4, 3, 5)
    y = np.diagonal(x, offset, *dims) * 2

    def build(x, y):
        return _C_ops.fill_diagonal_tensor(x, y, offset, *dims)

    y = np.random.default_rng(1).normal(size=y.shape).astype("float32")
    check(build, {"x": x, "y": y}, ["fill_diagonal_tensor", "fill_diagonal_tensor_grad"])


@merged
def test_fill_diagonal_tensor_of_swapped_axes_falls_back():
    build = lambda x, y: _C_ops.fill_diagonal_tensor(x, y, 0, 1, 0)  # noqa: E731
    feeds = {"x": strange(4, 4), "y": strange(4)}
    check_fallback(build, feeds, ["fill_diagonal_tensor"], gradients=False)


@merged
def test_eye():
    build = lambda x: x + paddle.eye(3, 4) + paddle.eye(3)[:, :1]  # noqa: E731
    check(build, {"x": strange(3, 4)}, ["eye"])


@merged
@pytest.mark.parametrize("make", [paddle.tril_indices, paddle.triu_indices])
@pytest.mark.parametrize("offset", [0, -1, 1])
def test_triangle_indices(make, offset):
    def build(x):
        places = make(4, 5, offset)
        return paddle.gather_nd(x, paddle.transpose(places, [1, 0])), places

    check(build, {"x": strange(4, 5)}, [make.__name__, "gather_nd"])


@merged
@pytest.mark.parametrize("diagonal", [0, -1, 2, 100])
@pytest.mark.parametrize("kind", ["tril", "triu"])
def test_triangle(kind, diagonal):
    check_dtypes(lambda x: getattr(paddle, kind)(x, diagonal), [2, 3, 4], [kind, f"{kind}_grad"])
