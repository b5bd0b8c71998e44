"""Converters of paddle_ngraph.ops.indexing compared with plain Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.nn import functional

import paddle_ngraph
from tests.ops.harness import check, check_fallback, check_rejected, ids, strange, whole
from tests.ops.merging import merged
from tests.programs import floats

# -- embedding -------------------------------------------------------------------------------------

EMBEDDING = ["embedding", "embedding_grad"]


@merged
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("padding", [None, 0, 3, -1, 8])
@pytest.mark.parametrize("shape", [[2, 5], [7], [2, 3, 2], []])
def test_embedding(dtype, padding, shape):
    def build(x, weight):
        return functional.embedding(x, weight, padding_idx=padding)

    feeds = {"x": ids(9, *shape, dtype=dtype), "weight": strange(9, 4)}
    check(build, feeds, EMBEDDING)


@merged
def test_operators_after_an_embedding_apply_to_its_padding():
    def build(x, weight):
        return paddle.tanh(functional.embedding(x, weight, padding_idx=1)) + 0.4

    weight = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    check(build, {"x": np.array([[0, 1], [1, 4]]), "weight": weight}, ["embedding", "scale"])


@merged
def test_embedding_dynamic():
    feeds = {"x": ids(9, 2, 5), "weight": strange(9, 4)}
    check(functional.embedding, feeds, EMBEDDING, dynamic={"x": [-1, -1]})


@merged
def test_embedding_of_many_repeated_ids():
    feeds = {"x": ids(5, 64, 50), "weight": strange(300, 16)}
    check(functional.embedding, feeds, EMBEDDING, rtol=1e-4, atol=1e-4)


@merged
def test_embedding_of_one_row():
    feeds = {"x": np.zeros([1, 1], "int64"), "weight": strange(1, 1)}
    check(functional.embedding, feeds, EMBEDDING)


def test_embedding_of_reshaped_ids():
    def build(x, weight):
        return functional.embedding(paddle.reshape(x, [-1, 2]), weight)

    feeds = {"x": ids(9, 2, 4), "weight": strange(9, 4)}
    check(build, feeds, [*EMBEDDING, "reshape"])
    check_rejected(build, {"x": feeds["x"] + 5, "weight": strange(9, 4)}, ["embedding", "reshape"])


@merged
def test_embedding_of_columns_with_separate_tables():
    def build(x, small, large):
        return functional.embedding(x[:, 0], small), functional.embedding(x[:, 1], large)

    x = np.stack([ids(3, 6), ids(50, 6)], 1)
    check(build, {"x": x, "small": strange(3, 2), "large": strange(50, 4)}, [*EMBEDDING, "slice"])


@merged
def test_embedding_of_joined_ids():
    def build(a, b, weight):
        return functional.embedding(paddle.concat([a, b], 0), weight)

    feeds = {"a": ids(9, 2, 3), "b": ids(9, 4, 3), "weight": strange(9, 4)}
    check(build, feeds, [*EMBEDDING, "concat"])


def test_embedding_of_minus_one():
    """Paddle reads memory before the table for this id, and raises no error."""
    x = np.array([0, -1, 3], "int64")
    weight = floats(9, 4)
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        out = functional.embedding(
            paddle.static.data("x", [3], "int64"), paddle.static.data("weight", [9, 4])
        )
    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph(True):
        (found,) = paddle.static.Executor().run(
            program, feed={"x": x, "weight": weight}, fetch_list=[out]
        )
    np.testing.assert_array_equal(found[[0, 2]], weight[[0, 3]])
    assert paddle_ngraph.stats()["native_runs"] == 1


@pytest.mark.parametrize("bad", [9, 2**40])
def test_embedding_rejects_ids_out_of_range(bad):
    x = np.array([0, bad, 3], "int64")
    check_rejected(functional.embedding, {"x": x, "weight": strange(9, 4)}, ["embedding"])


@merged
def test_sparse_embedding_gradient_falls_back():
    def build(x, weight):
        return functional.embedding(x, weight, sparse=True)

    feeds = {"x": ids(9, 2, 5), "weight": strange(9, 4)}
    check(build, feeds, ["embedding"], gradients=False)


# -- slices along an axis --------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("op", ["gather", "index_select"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_slices(op, dtype, axis):
    feeds = {"x": strange(3, 4, 5), "index": ids(3, 6, dtype=dtype)}
    build = lambda x, index: getattr(paddle, op)(x, index, axis)  # noqa: E731
    check(build, feeds, [op, f"{op}_grad"])
    check(build, {**feeds, "x": whole(3, 4, 5)}, [op])
    check(build, {**feeds, "x": whole(3, 4, 5) > 0}, [op])


@merged
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_of_negative_indices(axis):
    feeds = {"x": strange(3, 4), "index": ids(3, 6, low=-3)}
    build = lambda x, index: paddle.gather(x, index, axis)  # noqa: E731
    check(build, feeds, ["gather", "gather_grad"])
    check(
        lambda x, index: paddle.index_select(x, index, axis),
        feeds,
        ["index_select"],
        gradients=False,
    )


@merged
@pytest.mark.parametrize("shape", [[4, 1], [1], []])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_index_shapes(shape, axis):
    feeds = {"x": strange(3, 4, 2), "index": ids(3, *shape)}
    build = lambda x, index: paddle.gather(x, index, axis)  # noqa: E731
    if shape or axis == 0:
        check(build, feeds, ["gather", "gather_grad"])
    else:
        check(build, feeds, ["gather"], native=["gather_grad"])


@merged
def test_gather_dynamic():
    feeds = {"x": strange(5, 4), "index": ids(5, 3)}
    check(
        lambda x, index: paddle.gather(x, index),
        feeds,
        ["gather", "gather_grad"],
        dynamic={"x": [-1, 4], "index": [-1]},
    )


@merged
def test_gather_from_one_row():
    feeds = {"x": strange(1), "index": np.zeros(3, "int64")}
    check(lambda x, index: paddle.gather(x, index), feeds, ["gather", "gather_grad"])


@pytest.mark.parametrize("op", ["gather", "index_select"])
@pytest.mark.parametrize("bad", [3, -4])
def test_slices_reject_indices_out_of_range(op, bad):
    feeds = {"x": strange(3, 4), "index": np.array([0, bad], "int64")}
    check_rejected(lambda x, index: getattr(paddle, op)(x, index), feeds, [op])


# -- single elements -------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("shape", [[5, 1], [5, 2], [2, 3, 3], [2]])
def test_gather_nd(dtype, shape):
    index = ids(3, *shape, dtype=dtype, low=-3)
    types = ["gather_nd", "gather_nd_grad"]
    check(paddle.gather_nd, {"x": strange(3, 4, 5), "index": index}, types)
    check(paddle.gather_nd, {"x": whole(3, 4, 5), "index": index}, types[:1])


@merged
def test_index_by_a_tensor():
    feeds = {"x": strange(3, 4), "index": ids(3, 5)}
    check(lambda x, index: x[index], feeds, ["gather_nd", "gather_nd_grad", "unsqueeze"])


@pytest.mark.parametrize("bad", [[0, 4], [0, -5], [2**40, 0]])
def test_gather_nd_rejects_indices_out_of_range(bad):
    feeds = {"x": strange(3, 4), "index": np.array([bad], "int64")}
    check_rejected(paddle.gather_nd, feeds, ["gather_nd"])


@merged
def test_gather_nd_of_whole_tensors_falls_back():
    feeds = {"x": strange(3, 4), "index": np.zeros([2, 0], "int64")}
    check_fallback(paddle.gather_nd, feeds, ["gather_nd"])


@merged
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("broadcast", [True, False])
def test_take_along_axis(dtype, axis, broadcast):
    index = ids(3, 2, 3, 4, dtype=dtype, low=-3) if not broadcast else ids(3, 3, 4, 5, low=-3)
    feeds = {"x": strange(3, 4, 5), "index": index}

    def build(x, index):
        return paddle.take_along_axis(x, index, axis, broadcast=broadcast)

    check(build, feeds, ["take_along_axis", "take_along_axis_grad"])
    check(build, {**feeds, "x": whole(3, 4, 5)}, ["take_along_axis"])


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_index_sample(dtype):
    feeds = {"x": strange(3, 4), "index": ids(4, 3, 6, dtype=dtype)}
    check(paddle.index_sample, feeds, ["index_sample", "index_sample_grad"])
    check(paddle.index_sample, {**feeds, "x": whole(3, 4)}, ["index_sample"])
    feeds["index"] = feeds["index"] - 1
    check_rejected(paddle.index_sample, feeds, ["index_sample"])


@merged
@pytest.mark.parametrize("shape", [[4, 3], [4, 2, 3], [4, 1]])
def test_multiplex(shape):
    def build(x, y, z, index):
        return paddle.multiplex([x, y, z], index)

    index = np.array([[2], [0], [1], [0]], "int32")
    tables = {name: strange(*shape) * sign for name, sign in zip("xyz", (1, -1, 2))}
    check(build, {**tables, "index": index}, ["multiplex", "multiplex_grad"])
    tables = {name: whole(*shape) ^ flip for name, flip in zip("xyz", (0, 1, 3))}
    check(build, {**tables, "index": index}, ["multiplex"])


# -- one-hot classes -------------------------------------------------------------------------------


@merged
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("shape", [[4], [4, 1], [2, 3], []])
def test_one_hot(dtype, shape):
    build = lambda x: functional.one_hot(x, 5)  # noqa: E731
    check(build, {"x": ids(5, *shape, dtype=dtype)}, ["one_hot"])


@pytest.mark.parametrize("bad", [-1, 5])
def test_one_hot_rejects_classes_out_of_range(bad):
    build = lambda x: functional.one_hot(x, 5)  # noqa: E731
    check_rejected(build, {"x": np.array([0, bad], "int64")}, ["one_hot"])
