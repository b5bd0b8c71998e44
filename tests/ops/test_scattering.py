"""Converters of paddle_ngraph.ops.scattering compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import check, check_fallback, check_rejected, ids, strange, whole
from tests.ops.merging import merged
from tests.programs import floats

# -- rows ------------------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_scatter(overwrite, dtype, count):
    def build(x, index, updates):
        return paddle.scatter(x, index, updates, overwrite)

    feeds = {
        "x": strange(5, 4),
        "index": ids(5, count, dtype=dtype, low=-5),
        "updates": floats(count, 4),
    }
    types = ["scatter", "scatter_grad"]
    check(build, feeds, types, dynamic={"x": [-1, 4], "updates": [-1, 4], "index": [-1]})
    # Some of the int32 sums wrap around.
    check(build, {**feeds, "x": whole(5, 4), "updates": whole(count, 4)}, types[:1])


@merged
@pytest.mark.parametrize("shape, rest", [([3], []), ([3, 1], [2, 2]), ([], [2])])
def test_scatter_shapes(shape, rest):
    feeds = {"x": strange(5, *rest), "index": ids(5, *shape), "updates": floats(*shape[:1], *rest)}
    check(paddle.scatter, feeds, ["scatter", "scatter_grad"])


@merged
def test_the_last_of_many_updates_wins():
    feeds = {"x": floats(7, 16), "index": ids(7, 3000), "updates": floats(3000, 16)}
    check(paddle.scatter, feeds, ["scatter", "scatter_grad"])


@pytest.mark.parametrize("bad", [5, -6, 2**40])
def test_scatter_rejects_indices_out_of_range(bad):
    feeds = {"x": floats(5, 4), "index": np.array([0, bad]), "updates": floats(2, 4)}
    check_rejected(paddle.scatter, feeds, ["scatter"])


@merged
@pytest.mark.parametrize("shape", [[6, 1], [6, 2], [2, 3, 3], [2]])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_scatter_nd_add(shape, dtype):
    index = ids(3, *shape, dtype=dtype, low=-3)
    updates = floats(*shape[:-1], *[3, 4, 5][shape[-1] :])
    types = ["scatter_nd_add", "scatter_nd_add_grad"]
    check(paddle.scatter_nd_add, {"x": strange(3, 4, 5), "index": index, "updates": updates}, types)
    feeds = {"x": whole(3, 4, 5), "index": index, "updates": whole(*updates.shape)}
    check(paddle.scatter_nd_add, feeds, types[:1])


@merged
def test_scatter_nd():
    feeds = {"index": ids(5, 3, 1), "updates": strange(3, 4)}
    build = lambda index, updates: paddle.scatter_nd(index, updates, [5, 4])  # noqa: E731
    check(build, feeds, ["scatter_nd_add", "scatter_nd_add_grad"])


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_index_add(axis, dtype):
    shape = [3, 4, 5]
    shape[axis] = 6

    def build(x, index, value):
        return paddle.index_add(x, index, axis, value)

    feeds = {
        "x": strange(3, 4, 5),
        "index": ids(3, 6, dtype=dtype, low=-3),
        "value": floats(*shape),
    }
    check(build, feeds, ["index_add", "index_add_grad"])
    check(build, {**feeds, "x": whole(3, 4, 5), "value": whole(*shape)}, ["index_add"])


@merged
def test_index_fill():
    build = lambda x, index: paddle.index_fill(x, index, 1, 2.5)  # noqa: E731
    check(build, {"x": strange(3, 4), "index": ids(4, 2)}, ["index_put", "index_put_grad"])


# -- single elements along an axis -----------------------------------------------------------------


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("reduce", ["assign", "add", "mul"])
def test_put_along_axis(axis, dtype, reduce):
    def build(x, index, values):
        return paddle.put_along_axis(x, index, values, axis, reduce, broadcast=False)

    feeds = {
        "x": strange(3, 4, 5),
        "index": ids(3, 3, 4, 5, dtype=dtype),
        "values": floats(3, 4, 5),
    }
    types = ["put_along_axis"] + ["put_along_axis_grad"] * (reduce != "mul")
    check(build, feeds, types, rtol=1e-4)
    check(build, {**feeds, "x": whole(3, 4, 5), "values": whole(3, 4, 5)}, types[:1])


@merged
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reduce", ["assign", "add", "mul"])
def test_put_along_axis_with_fewer_indices_than_values(axis, reduce):
    def build(x, index, values):
        return paddle.put_along_axis(x, index, values, axis, reduce, broadcast=False)

    feeds = {"x": floats(3, 5), "index": ids(3, 2, 3), "values": floats(2, 5, seed=1)}
    check(build, feeds, ["put_along_axis"], gradients=False)


def test_put_along_axis_of_more_elements_than_float32_counts():
    columns = 2**23 + 7
    x = np.zeros([2, columns], "float32")
    index = np.array([[5], [columns - 3]])  # flat index 2**24 + 11, which float32 rounds
    values = np.ones([2, 1], "float32")
    build = lambda x, i, v: paddle.put_along_axis(x, i, v, 1, broadcast=False)  # noqa: E731
    feeds = {"x": x, "i": index, "v": values}
    check(build, feeds, ["put_along_axis"], gradients=False)


@merged
@pytest.mark.parametrize("axis", [0, 1])
def test_put_along_axis_broadcast(axis):
    shape = [1, 4] if axis == 0 else [3, 1]
    build = lambda x, i: paddle.put_along_axis(x, i, 99.0, axis)  # noqa: E731
    check(build, {"x": strange(3, 4), "i": ids(3, *shape)}, ["put_along_axis"])


@merged
@pytest.mark.parametrize(
    "reduce, include_self",
    [("add", False), ("mul", False), ("add", True), ("mul", True), ("amin", True), ("amax", True)],
)
def test_put_along_axis_with_and_without_self(reduce, include_self):
    def build(x, i, v):
        return paddle.put_along_axis(x, i, v, 0, reduce, include_self, broadcast=False)

    feeds = {"x": floats(3, 4), "i": ids(3, 2, 4), "v": floats(2, 4, seed=5)}
    check(build, feeds, ["put_along_axis"], gradients=False)
    odd = {**feeds, "x": strange(3, 4), "v": strange(2, 4)}
    check(build, odd, ["put_along_axis"], gradients=False)
    check(build, {**feeds, "x": whole(3, 4), "v": whole(2, 4)}, ["put_along_axis"])


@merged
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("include_self", [False, True])
def test_mean_put_along_axis(axis, include_self):
    def build(x, i, v):
        return paddle.put_along_axis(x, i, v, axis, "mean", include_self, broadcast=False)

    feeds = {"x": floats(4, 5, 6), "i": ids(4, 3, 5, 6), "v": floats(3, 5, 6, seed=5)}
    check(build, feeds, ["put_along_axis", "put_along_axis_grad"])
    odd = {**feeds, "x": strange(4, 5, 6), "v": strange(3, 5, 6)}
    check(build, odd, ["put_along_axis", "put_along_axis_grad"])
    one = {"x": floats(4), "i": ids(4, 9), "v": floats(9)}
    if axis == 0:
        check(build, one, ["put_along_axis", "put_along_axis_grad"])


@merged
@pytest.mark.parametrize("reduce, include_self", [("amax", False), ("amin", False)])
def test_put_along_axis_falls_back(reduce, include_self):
    build = lambda x, i, v: paddle.put_along_axis(x, i, v, 0, reduce, include_self)  # noqa: E731
    feeds = {"x": floats(3, 4), "i": ids(3, 3, 4), "v": floats(3, 4)}
    check_fallback(build, feeds, ["put_along_axis"], gradients=False)


@merged
def test_put_along_axis_with_mean_of_integers_falls_back():
    build = lambda x, i, v: paddle.put_along_axis(x, i, v, 0, "mean")  # noqa: E731
    feeds = {"x": whole(3, 4), "i": ids(3, 3, 4), "v": whole(3, 4)}
    check_fallback(build, feeds, ["put_along_axis"])


# -- by index tensors ------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    "shapes, value",
    [
        ([[6]], [6, 4, 5]),
        ([[6]], [5]),
        ([[6]], [1]),
        ([[6], [6]], [6, 5]),
        ([[2, 1], [3]], [2, 3, 5]),
        ([[2, 1], [3], [1]], [2, 3]),
        ([[2, 1], [3], [1]], []),
        ([[1]], [4, 5]),
    ],
)
def test_index_put(accumulate, shapes, value):
    def build(x, value, **indices):
        return paddle.index_put(x, tuple(indices.values()), value, accumulate)

    feeds = {"x": strange(3, 4, 5), "value": floats(*value)}
    feeds |= {f"i{n}": ids(3, *shape, low=-3) + 0 * n for n, shape in enumerate(shapes)}
    check(build, feeds, ["index_put", "index_put_grad"])
    feeds |= {"x": whole(3, 4, 5), "value": whole(*value)}
    check(build, feeds, ["index_put"])


@merged
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
def test_index_put_by_a_mask(accumulate, rank):
    def build(x, mask, value):
        return paddle.index_put(x, (mask,), value, accumulate)

    mask = np.resize([True, False, False, True, True], [3, 4][:rank])
    feeds = {"x": strange(3, 4), "mask": mask, "value": floats(1)}
    check(build, feeds, ["index_put", "index_put_grad"])
    if not accumulate:
        check(build, {**feeds, "x": whole(3, 4), "value": whole(1)}, ["index_put"])


@merged
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("shape", [(1,), (8, 16)], ids=str)
def test_index_put_of_int32_by_a_comparison_is_exact(accumulate, shape):
    def build(x, value, a):
        return paddle.index_put(x, (paddle.isfinite(a),), value, accumulate)

    feeds = {"x": whole(*shape), "value": whole(1), "a": strange(*shape)}
    check(build, feeds, ["index_put"], gradients=False)


@merged
def test_index_put_of_many_values_by_a_mask_falls_back():
    build = lambda x, m, v: paddle.index_put(x, (m,), v)  # noqa: E731
    feeds = {"x": floats(4), "m": np.array([True, False, True, False]), "v": floats(2)}
    check_fallback(build, feeds, ["index_put"], gradients=False)


# -- slices ----------------------------------------------------------------------------------------

SLICES = [
    np.s_[1:3],
    np.s_[1],
    np.s_[:, 2],
    np.s_[-1],
    np.s_[:, 1:3],
    np.s_[1:3, :, 2:4],
    np.s_[::2],
    np.s_[:, 1::2, 1::3],
    np.s_[0, 1, 2],
    np.s_[..., ::2],
    np.s_[2:0:-1],
    np.s_[:, ::-1],
    np.s_[1:1],
    np.s_[:],
]


@merged
@pytest.mark.parametrize("where", SLICES, ids=str)
def test_set_value(where):
    build = lambda x: paddle.static.setitem(x * 1.0, where, 1.5)  # noqa: E731
    check(build, {"x": strange(3, 4, 5)}, ["set_value_", "set_value_grad"])


@merged
@pytest.mark.parametrize("where", SLICES[:-2], ids=str)
def test_set_value_with_tensor(where):
    def build(x, v):
        return paddle.static.setitem(x * 1.0, where, v)

    shape = np.zeros([3, 4, 5])[where].shape
    types = ["set_value_with_tensor_", "set_value_with_tensor_grad"]
    for target in {shape, shape[-1:], (), (1, *shape)}:
        feeds = {"x": strange(3, 4, 5), "v": floats(*target)}
        check(build, feeds, types)


@merged
def test_set_value_of_integers():
    def build(x, v):
        x = paddle.static.setitem(paddle.assign(x), np.s_[1:3], v)
        return paddle.static.setitem(x, np.s_[:, ::2], 7)

    feeds = {"x": whole(3, 4), "v": whole(2, 4)}
    check(build, feeds, ["set_value_with_tensor_", "set_value_"])


@merged
def test_set_value_at_a_new_axis():
    build = lambda x, v: paddle.static.setitem(x * 1.0, np.s_[1:3, None], v)  # noqa: E731
    feeds = {"x": strange(3, 4), "v": floats(2, 1, 4)}
    check(build, feeds, ["set_value_with_tensor_"], gradients=False)


@merged
def test_set_value_dynamic():
    build = lambda x, v: paddle.static.setitem(x * 1.0, np.s_[1:3], v)  # noqa: E731
    types = ["set_value_with_tensor_", "set_value_with_tensor_grad"]
    check(build, {"x": strange(5, 4), "v": floats(4)}, types, dynamic={"x": [-1, 4]})


@merged
def test_set_value_in_a_chain():
    def build(x, v):
        y = x * 2.0
        for row in range(3):
            y = paddle.static.setitem(y, row, v + y[row])
        return y

    check(build, {"x": floats(4, 3), "v": floats(3)}, ["set_value_with_tensor_", "slice"])


@merged
@pytest.mark.parametrize("scatter", [paddle.select_scatter, paddle.slice_scatter])
def test_scatter_of_a_slice(scatter):
    if scatter is paddle.select_scatter:
        build = lambda x, v: scatter(x, v, 0, 1)  # noqa: E731
    else:
        build = lambda x, v: scatter(x, v, [1], [0], [4], [2])  # noqa: E731
    shape = [4] if scatter is paddle.select_scatter else [3, 2]
    types = ["set_value_with_tensor", "set_value_with_tensor_grad"]
    check(build, {"x": strange(3, 4), "v": floats(*shape)}, types)
