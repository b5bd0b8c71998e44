"""Converters of paddle_ngraph.ops.manipulation against native Paddle."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.nn import functional

import paddle_ngraph
from tests.ops.harness import check, strange, whole
from tests.programs import Program, floats


def truths(*shape):
    return np.resize(np.array([True, False, False, True, True]), shape)


MAKERS = [strange, whole, truths]


def both(build, x, types, **options):
    """Checks a float, an int32 and a bool tensor, with the gradient for the float one."""
    forward = [kind for kind in types if not kind.endswith("_grad")]
    for maker in MAKERS:
        is_float = maker is strange
        check(build, {"x": maker(*x)}, types if is_float else forward, **options)


RESHAPES = [
    ([2, 3, 4], [-1, 6]),
    ([2, 3, 4], [0, -1]),
    ([2, 3, 4], [4, 3, 2, 1]),
    ([1], []),
    ([], [1, 1]),
    ([2, 3, 4], [0, 0, 2, 2]),
]


@pytest.mark.parametrize("shape, target", RESHAPES)
def test_reshape(shape, target):
    both(lambda x: paddle.reshape(x, target), shape, ["reshape", "reshape_grad"])


def test_reshape_dynamic():
    build = lambda x: paddle.reshape(x, [0, -1]) * 2.0  # noqa: E731
    check(build, {"x": strange(5, 3, 4)}, ["reshape"], dynamic={"x": [-1, 3, 4]})


def test_reshape_to_a_shape_computed_from_another():
    def build(x):
        dims = paddle.shape(x)
        return paddle.reshape(x, [dims[1], dims[0]])

    check(build, {"x": strange(5, 3)}, ["reshape", "shape64", "slice"], dynamic={"x": [-1, -1]})


def test_reshape_to_a_shape_that_is_fed():
    feeds = {"x": strange(2, 6), "shape": np.array([3, 4], "int32")}
    check(lambda x, shape: paddle.reshape(x, shape), feeds, ["reshape"], gradients=False)


def test_reshape_in_place():
    build = lambda x: paddle.reshape_(x + x, [3, 2])  # noqa: E731
    check(build, {"x": strange(2, 3)}, gradients=False)


@pytest.mark.parametrize(
    "shape, start, stop",
    [
        ([2, 3, 4], 1, -1),
        ([2, 3, 4], 0, -1),
        ([2, 3, 4, 5], 1, 2),
        ([2, 3, 4], -2, 2),
        ([], 0, 0),
        ([3], 0, 0),
    ],
)
def test_flatten(shape, start, stop):
    both(lambda x: paddle.flatten(x, start, stop), shape, ["flatten", "flatten_grad"])


def test_flatten_dynamic():
    build = lambda x: paddle.flatten(x, 1)  # noqa: E731
    check(build, {"x": strange(3, 2, 4)}, ["flatten", "flatten_grad"], dynamic={"x": [-1, 2, 4]})


@pytest.mark.parametrize(
    "shape, axis",
    [
        ([2, 1, 4], [1]),
        ([1, 2, 1], None),
        ([2, 1, 4, 1], [-1]),
        ([2, 1, 4], [0, 1]),
        ([1], [0]),
        ([1, 1], None),
    ],
)
def test_squeeze(shape, axis):
    both(lambda x: paddle.squeeze(x, axis), shape, ["squeeze", "squeeze_grad"])


@pytest.mark.parametrize(
    "shape, axis",
    [
        ([2, 4], [0]),
        ([2, 4], [0, -1]),
        ([2, 4], [-1, 0]),
        ([2, 4], [1, 1]),
        ([], [0]),
        ([], [0, 1]),
        ([2, 4], [-3]),
    ],
)
def test_unsqueeze(shape, axis):
    both(lambda x: paddle.unsqueeze(x, axis), shape, ["unsqueeze", "unsqueeze_grad"])


@pytest.mark.parametrize(
    "shape, perm",
    [
        ([2, 3], [1, 0]),
        ([2, 3, 4], [2, 0, 1]),
        ([2, 3, 1, 4], [0, 2, 3, 1]),
        ([2, 3, 4], [0, 1, 2]),
        ([2, 3, 4], [-1, 0, 1]),
        ([2, 3, 2, 4, 2], [4, 2, 0, 1, 3]),
        ([2, 3, 2, 2, 2, 3], [5, 1, 4, 0, 2, 3]),
        ([3], [0]),
        ([], []),
    ],
)
def test_transpose(shape, perm):
    both(lambda x: paddle.transpose(x, perm), shape, ["transpose", "transpose_grad"])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("maker", MAKERS)
def test_concat(axis, maker):
    def build(a, b, c):
        return paddle.concat([a, b, c], axis)

    other = [2, 3, 4]
    other[axis] = 1
    types = ["concat", "concat_grad"] if maker is strange else ["concat"]
    check(build, {"a": maker(2, 3, 4), "b": maker(*other), "c": maker(2, 3, 4)}, types)


def test_concat_of_one_tensor_twice():
    build = lambda x: paddle.concat([x, x * 2.0, x], 0)  # noqa: E731
    check(build, {"x": strange(2, 3)}, ["concat", "concat_grad"])


def test_concat_dynamic():
    feeds = {"a": strange(3, 2), "b": strange(3, 4)}
    check(
        lambda a, b: paddle.concat([a, b], 1),
        feeds,
        ["concat", "concat_grad"],
        dynamic={"a": [-1, 2], "b": [-1, 4]},
    )


@pytest.mark.parametrize("shape, axis", [([2, 3], 0), ([2, 3], 1), ([2, 3], -1), ([], 0), ([1], 1)])
@pytest.mark.parametrize("maker", MAKERS)
def test_stack(shape, axis, maker):
    types = ["stack", "stack_grad"] if maker is strange else ["stack"]
    feeds = {"a": maker(*shape), "b": maker(*shape)}
    check(lambda a, b: paddle.stack([a, b, a], axis), feeds, types)


@pytest.mark.parametrize("sections, axis", [([1, 3], -1), ([2, -1], 2), ([1, 1, 1], 1), ([2], 0)])
def test_split(sections, axis):
    both(lambda x: paddle.split(x, sections, axis), [2, 3, 4], ["split"])


def test_split_gradient_is_a_concat():
    check(lambda x: paddle.split(x, [1, 3], 1), {"x": strange(2, 4)}, ["split", "concat"])


def test_split_whose_parts_are_not_all_used():
    build = lambda x: paddle.split(x, [1, 2, 3], 1)[1] * 2.0  # noqa: E731
    check(build, {"x": strange(2, 6)}, ["split"], gradients=False)


@pytest.mark.parametrize("num, axis", [(2, 0), (3, 1), (2, -1), (1, 0)])
def test_split_with_num(num, axis):
    both(lambda x: paddle.split(x, num, axis), [2, 3, 4], ["split_with_num"])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unbind_and_unstack(axis):
    both(lambda x: paddle.unbind(x, axis), [2, 3, 4], ["unbind"])
    check(lambda x: paddle.unstack(x, axis), {"x": strange(2, 3, 4)}, ["unstack", "unstack_grad"])
    check(lambda x: paddle.unstack(x, axis), {"x": whole(2, 3, 4)}, ["unstack"])


SLICES = [
    ([0, 2], [0, -3], [1, 3]),
    ([1], [-100], [100]),
    ([0, 1], [1, 1], [5, -1]),
    ([2], [-1], [2**31 - 1]),
    ([-1], [1], [3]),
]


@pytest.mark.parametrize("axes, starts, ends", SLICES)
def test_slice(axes, starts, ends):
    both(lambda x: paddle.slice(x, axes, starts, ends), [2, 3, 4], ["slice", "slice_grad"])


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
    both(lambda x: x[index], [2, 3, 4], ["slice", "slice_grad"])


def test_slice_dynamic():
    build = lambda x: x[:, 1:-1]  # noqa: E731
    check(build, {"x": strange(4, 5)}, ["slice", "slice_grad"], dynamic={"x": [-1, 5]})
    check(build, {"x": strange(4, 5)}, ["slice", "slice_grad"], dynamic={"x": [4, -1]})


def test_slice_at_a_position_that_is_fed():
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


@pytest.mark.parametrize("axes, starts, ends, strides", STRIDES)
def test_strided_slice(axes, starts, ends, strides):
    both(
        lambda x: paddle.strided_slice(x, axes, starts, ends, strides),
        [2, 3, 7],
        ["strided_slice", "strided_slice_grad"],
    )


def test_strided_slice_by_index():
    both(lambda x: x[::-1, ::2], [3, 5, 2], ["strided_slice", "strided_slice_grad"])


@pytest.mark.parametrize("axis", [[0], [0, 2], [-1], [0, 1, 2], 1])
def test_flip(axis):
    both(lambda x: paddle.flip(x, axis), [2, 3, 4], ["flip"])


EXPANDS = [
    ([2, 1, 4], [2, 2, 3, 4]),
    ([2, 1, 4], [3, -1, 5, -1]),
    ([1], [3, 2]),
    ([], [2, 3]),
    ([2, 3], [2, 3]),
    ([1, 1, 1], [2, 1, 3]),
    ([2, 1, 2, 1, 2], [2, 3, 2, 2, 2]),
]


@pytest.mark.parametrize("shape, target", EXPANDS)
def test_expand(shape, target):
    both(lambda x: paddle.expand(x, target), shape, ["expand", "expand_grad"])


def test_expand_dynamic():
    def build(x, y):
        return paddle.expand(x, [paddle.shape(y)[0], 4])

    feeds = {"x": strange(1, 4), "y": strange(3, 4)}
    check(build, feeds, ["expand", "expand_grad"], dynamic={"y": [-1, 4]})


def test_expand_as():
    feeds = {"x": strange(2, 1, 4), "y": strange(3, 2, 3, 4)}
    types = ["expand_as", "expand_as_grad"]
    check(paddle.expand_as, feeds, types)
    check(paddle.expand_as, feeds, types, dynamic={"y": [-1, 2, 3, 4]})


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
    both(lambda x: paddle.tile(x, repeats), shape, ["tile", "tile_grad"])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_repeat_interleave(axis):
    build = lambda x: paddle.repeat_interleave(x, 3, axis)  # noqa: E731
    types = ["repeat_interleave", "repeat_interleave_grad"]
    check(build, {"x": strange(2, 3, 2)}, types)
    check(build, {"x": whole(2, 3, 2)}, types[:1])


@pytest.mark.parametrize(
    "shifts, axis", [([1, -2], [0, 2]), (3, None), (-1, 1), (100, -1), ([1, 1], [0, 0])]
)
def test_roll(shifts, axis):
    both(lambda x: paddle.roll(x, shifts, axis), [2, 3, 4], ["roll", "roll_grad"])


@pytest.mark.parametrize("value", [0.0, 2.5, float("nan"), float("-inf")])
def test_pad(value):
    def build(x):
        return functional.pad(x, [1, 2, 0, 1, 1, 0], value=value)

    check(build, {"x": strange(2, 3, 4)}, ["pad", "pad_grad"])


def test_pad_of_whole_numbers():
    build = lambda x: functional.pad(x, [1, 2, 0, 1], value=-3)  # noqa: E731
    check(build, {"x": whole(3, 4)}, ["pad"])


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_pad_of_an_image(data_format):
    def build(x):
        return functional.pad(x, [1, 2, 0, 1], value=0.5, data_format=data_format)

    check(build, {"x": strange(2, 3, 4, 5)}, ["pad3d", "pad3d_grad", "unsqueeze", "squeeze"])


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


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad_modes_of_whole_numbers(mode):
    build = lambda x: functional.pad(x, [1, 2, 0, 1], mode=mode)  # noqa: E731
    check(build, {"x": whole(2, 3, 4, 5)}, ["pad3d"])


@pytest.mark.parametrize("mode", ["replicate", "circular"])
@pytest.mark.parametrize("size", [(4, 5), (1, 1)])
def test_pad_wider_than_the_data(mode, size):
    build = lambda x: functional.pad(x, [9, 7, 0, 11], mode=mode)  # noqa: E731
    check(build, {"x": strange(2, 3, *size)}, ["pad3d", "pad3d_grad"])


def test_pad_that_cuts_off():
    build = lambda x: functional.pad(x, [-1, 1, 2, -2])  # noqa: E731
    check(build, {"x": strange(2, 3, 4, 5)}, ["pad3d", "pad3d_grad"])


@pytest.mark.parametrize("diagonal", [0, -1, 2, 100])
@pytest.mark.parametrize("kind", ["tril", "triu"])
def test_triangle(kind, diagonal):
    both(lambda x: getattr(paddle, kind)(x, diagonal), [2, 3, 4], [kind, f"{kind}_grad"])


def test_shape_and_numel():
    def build(x):
        return paddle.shape(x), paddle.numel(x), paddle.flatten(x) * 2.0

    check(
        build, {"x": strange(3, 2)}, ["shape64", "numel"], dynamic={"x": [-1, -1]}, gradients=False
    )
    check(build, {"x": strange()}, ["numel"], native=["shape64"], gradients=False)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: paddle.reshape(x, [3, 2]),
        lambda x: paddle.transpose(x, [1, 0]),
        lambda x: paddle.concat([x, x], 0),
        lambda x: paddle.slice(x, [0], [0], [1]),
    ],
)
def test_wide_integers_stay_native(build):
    x = np.arange(6, dtype="int64").reshape(2, 3) + 2**40
    check(build, {"x": x}, ())


# -- several tensors of one shape, parts, repeated rows --------------------------------------------


@pytest.mark.parametrize("shapes", [[[4], [5, 1]], [[1], [3, 1, 2], [2, 1]], [[], [3]]])
def test_broadcast_tensors(shapes):
    feeds = {f"x{i}": strange(*shape) for i, shape in enumerate(shapes)}
    build = lambda **x: paddle.broadcast_tensors(list(x.values()))  # noqa: E731
    check(build, feeds, ["broadcast_tensors", "broadcast_tensors_grad"])


def test_index_by_lists():
    types = ["broadcast_tensors", "gather_nd", "gather_nd_grad"]
    check(lambda x: x[[0, 2], [1, 3]], {"x": strange(3, 4)}, types)


@pytest.mark.parametrize("lengths", [[3, 4], [2, 1, 3], [1, 1]])
def test_meshgrid(lengths):
    feeds = {f"x{i}": strange(n) for i, n in enumerate(lengths)}
    build = lambda **x: paddle.meshgrid(*x.values())  # noqa: E731
    check(build, feeds, ["meshgrid", "meshgrid_grad"])


@pytest.mark.parametrize("counts, offsets", [([2, 2], [1, 1]), ([-1, 3], [2, 0]), ([4, 5], [0, 0])])
def test_crop(counts, offsets):
    build = lambda x: paddle.crop(x, counts, offsets)  # noqa: E731
    check(build, {"x": strange(4, 5)}, ["crop", "crop_grad"])
    check(build, {"x": whole(4, 5)}, ["crop"])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_repeat_interleave_by_a_tensor(axis, dtype):
    kind = "repeat_interleave_with_tensor_index"
    feeds = {"x": strange(3, 4, 5), "r": np.array([2, 0, 3, 1, 4][: [3, 4, 5][axis]], dtype)}
    build = lambda x, r: paddle.repeat_interleave(x, r, axis)  # noqa: E731
    check(build, feeds, [kind], gradients=False)


# -- patterns of transformers ----------------------------------------------------------------------


def assert_all_converted(build, inputs, **options):
    """Checks values and gradients, and that no operator stays native."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard():
        feeds = {n: paddle.static.data(n, v.shape, str(v.dtype)) for n, v in inputs.items()}
        for name, value in feeds.items():
            value.stop_gradient = inputs[name].dtype.kind != "f"
        out = build(**feeds)
        if options.get("gradients", True):
            sources = [v for n, v in feeds.items() if inputs[n].dtype.kind == "f"]
            paddle.static.gradients([out], sources)
    report = paddle_ngraph.explain(program)
    assert not report.native, report
    check(build, inputs, **options)


def tables(length, width):
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, width, 2) / width))
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")


def test_rotary_embedding_of_halves():
    cos, sin = (np.concatenate([t, t], -1) for t in tables(6, 8))

    def build(x, cos, sin):
        first, second = paddle.split(x, 2, axis=-1)
        return x * cos + paddle.concat([-second, first], axis=-1) * sin

    assert_all_converted(build, {"x": floats(2, 3, 6, 8), "cos": cos, "sin": sin})


def test_rotary_embedding_of_neighbours():
    cos, sin = tables(6, 8)

    def build(x, cos, sin):
        even, odd = x[..., ::2], x[..., 1::2]
        pairs = [even * cos - odd * sin, odd * cos + even * sin]
        return paddle.flatten(paddle.stack(pairs, axis=-1), -2)

    assert_all_converted(build, {"x": floats(2, 3, 6, 8), "cos": cos, "sin": sin})


def test_rotary_tables_by_position():
    cos, sin = tables(16, 8)

    def build(x, ids, cos, sin):
        cos = paddle.unsqueeze(paddle.nn.functional.embedding(ids, cos), 1)
        sin = paddle.unsqueeze(paddle.nn.functional.embedding(ids, sin), 1)
        first, second = paddle.chunk(x, 2, axis=-1)
        return paddle.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)

    ids = np.array([[3, 4, 5, 6], [0, 1, 2, 3]])
    assert_all_converted(build, {"x": floats(2, 3, 4, 8), "ids": ids, "cos": cos, "sin": sin})


@pytest.mark.parametrize("way", ["triu", "where", "masked_fill"])
def test_causal_attention(way):
    def build(q, k, v):
        scores = paddle.matmul(q, k, transpose_y=True) * 0.35
        if way == "triu":
            scores = scores + paddle.triu(paddle.full([5, 5], float("-inf")), 1)
        elif way == "where":
            allowed = paddle.tril(paddle.ones([5, 5])) > 0.5
            scores = paddle.where(allowed, scores, paddle.full([], -1e9))
        else:
            masked = paddle.cast(paddle.triu(paddle.ones([5, 5]), 1), "bool")
            scores = paddle.masked_fill(scores, masked, -1e9)
        return paddle.matmul(functional.softmax(scores), v)

    feeds = {name: floats(2, 2, 5, 8) + i for i, name in enumerate("qkv")}
    assert_all_converted(build, feeds, rtol=1e-4, atol=1e-5)


def test_cache_of_keys_and_values():
    def build(q, k, v, past_k, past_v):
        k, v = paddle.concat([past_k, k], axis=2), paddle.concat([past_v, v], axis=2)
        weights = functional.softmax(paddle.matmul(q, k, transpose_y=True))
        return paddle.matmul(weights, v) + k[:, :, -1:] * v[:, :, -1:]

    feeds = {name: floats(2, 2, 1, 4) for name in "qkv"}
    feeds |= {name: floats(2, 2, 6, 4) for name in ("past_k", "past_v")}
    assert_all_converted(build, feeds, rtol=1e-4)


@pytest.mark.parametrize("dims", [[2, 1, 3], [-1, 1, 3], [-1, 1, -1]], ids=str)
@pytest.mark.parametrize("change", [paddle.squeeze, paddle.unsqueeze])
def test_gradient_of_an_old_style_squeeze(change, dims):
    def build():
        x = paddle.static.data("x", dims, "float32")
        x.stop_gradient = False
        y = change(x, [1])
        return [y, *paddle.static.gradients([y * y], [x])]

    with paddle.pir_utils.OldIrGuard():
        Program(build).both(x=strange(2, 1, 3))


@pytest.mark.parametrize("change", [paddle.flatten, lambda x: paddle.reshape(x, [6])])
def test_gradient_of_an_old_style_reshape(change):
    def build():
        x = paddle.static.data("x", [2, 1, 3], "float32")
        x.stop_gradient = False
        y = change(x)
        return [y, *paddle.static.gradients([y * y], [x])]

    with paddle.pir_utils.OldIrGuard():
        Program(build).both(x=strange(2, 1, 3))
