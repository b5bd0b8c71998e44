"""Converters of paddle_ngraph.ops.repetition compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_dtypes, strange, whole
from tests.ops.merging import merged

EXPANDS = [
    ([2, 1, 4], [2, 2, 3, 4]),
    ([2, 1, 4], [3, -1, 5, -1]),
    ([1], [3, 2]),
    ([], [2, 3]),
    ([2, 3], [2, 3]),
    ([1, 1, 1], [2, 1, 3]),
    ([2, 1, 2, 1, 2], [2, 3, 2, 2, 2]),
]


@merged
@pytest.mark.parametrize("shape, target", EXPANDS)
def test_expand(shape, target):
    check_dtypes(lambda x: paddle.expand(x, target), shape, ["expand", "expand_grad"])


@merged
def test_expand_dynamic():
    def build(x, y):
        return paddle.expand(x, [paddle.shape(y)[0], 4])

    feeds = {"x": strange(1, 4), "y": strange(3, 4)}
    check(build, feeds, ["expand", "expand_grad"], dynamic={"y": [-1, 4]})


@merged
def test_expand_as():
    feeds = {"x": strange(2, 1, 4), "y": strange(3, 2, 3, 4)}
    types = ["expand_as", "expand_as_grad"]
    check(paddle.expand_as, feeds, types)
    check(paddle.expand_as, feeds, types, dynamic={"y": [-1, 2, 3, 4]})


@merged
@pytest.mark.parametrize("shapes", [[[4], [5, 1]], [[1], [3, 1, 2], [2, 1]], [[], [3]]])
def test_broadcast_tensors(shapes):
    feeds = {f"x{i}": strange(*shape) for i, shape in enumerate(shapes)}
    build = lambda **x: paddle.broadcast_tensors(list(x.values()))  # noqa: E731
    check(build, feeds, ["broadcast_tensors", "broadcast_tensors_grad"])


@merged
def test_index_by_lists():
    types = ["broadcast_tensors", "gather_nd", "gather_nd_grad"]
    check(lambda x: x[[0, 2], [1, 3]], {"x": strange(3, 4)}, types)


@merged
@pytest.mark.parametrize("lengths", [[3, 4], [2, 1, 3], [1, 1]])
def test_meshgrid(lengths):
    feeds = {f"x{i}": strange(n) for i, n in enumerate(lengths)}
    build = lambda **x: paddle.meshgrid(*x.values())  # noqa: E731
    check(build, feeds, ["meshgrid", "meshgrid_grad"])


@merged
@pytest.mark.parametrize(
    "shape, repeats",
    [
        ([2, 1, 4], [2, 1, 3]),
        ([2, 3], [2, 1, 1, 2]),
        ([2, 3, 2], [2]),
        ([3], [1]),
        ([], [2, 2]),
        ([2], [3]),
    ],
)
def test_tile(shape, repeats):
    check_dtypes(lambda x: paddle.tile(x, repeats), shape, ["tile", "tile_grad"])


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_repeat_interleave(axis):
    build = lambda x: paddle.repeat_interleave(x, 3, axis)  # noqa: E731
    types = ["repeat_interleave", "repeat_interleave_grad"]
    check(build, {"x": strange(2, 3, 2)}, types)
    check(build, {"x": whole(2, 3, 2)}, types[:1])


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_repeat_interleave_by_a_tensor(axis, dtype):
    kind = "repeat_interleave_with_tensor_index"
    feeds = {"x": strange(3, 4, 5), "r": np.array([2, 0, 3, 1, 4][: [3, 4, 5][axis]], dtype)}
    build = lambda x, r: paddle.repeat_interleave(x, r, axis)  # noqa: E731
    check(build, feeds, [kind], gradients=False)
