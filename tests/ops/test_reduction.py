"""Reductions and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.ops.harness import both, check, check_fallback, normal
from tests.ops.merging import merged
from tests.programs import Program
from tests.zips import zip_equal

FLOATING = ["sum", "mean", "max", "min", "amax", "amin", "prod", "logsumexp"]
CASES = [
    ((), None),
    ((1,), 0),
    ((7,), None),
    ((7,), -1),
    ((3, 5), 0),
    ((3, 5), 1),
    ((3, 5), [0, 1]),
    ((3, 1), 1),
    ((1, 1), None),
    ((2, 3, 4), [0, 2]),
    ((2, 3, 4), -2),
    ((2, 3, 4), None),
    ((2, 1, 4, 5), [1, -1]),
]


@merged
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_axes(name, shape, axis):
    def build(x):
        reduce = getattr(paddle, name)
        return reduce(x, axis), reduce(x, axis, keepdim=True)

    check(build, {"x": normal(shape)}, both(name))


@merged
@pytest.mark.parametrize("name", ["sum", "mean", "max", "amin", "prod"])
def test_rank_five(name):
    x = {"x": normal((2, 2, 3, 2, 2))}
    # Plain Paddle leaves the gradient of such a maximum unwritten.
    gradients = name in ("sum", "mean", "prod")
    check(lambda x: getattr(paddle, name)(x, [0, 1, 3]), x, [name], gradients=gradients)


@merged
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", FLOATING)
def test_dynamic_shapes(name, axis):
    x = normal((5, 17)) / 2
    check(lambda x: getattr(paddle, name)(x, axis), {"x": x}, both(name), dynamic={"x": [-1, -1]})


@merged
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_ties(name, axis):
    x = np.random.default_rng(0).integers(0, 3, (6, 5)).astype("float32")
    check(lambda x: getattr(paddle, name)(x, axis), {"x": x}, both(name))


@merged
@pytest.mark.parametrize("row", [0, 3, 5])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "amax", "amin", "prod"])
def test_nan_at_any_index(name, row):
    x = normal((6, 40))
    x[row, ::3] = np.nan
    x[(row + 2) % 6, 1] = np.inf
    check(lambda x: getattr(paddle, name)(x, 0), {"x": x}, both(name))
    check(lambda x: getattr(paddle, name)(x, 1), {"x": x.T.copy()}, both(name))


@merged
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.finfo("float32").min])
@pytest.mark.parametrize("size", [1, 5, 67])
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_equal_extremes_alone(name, size, value):
    x = np.full((3, size), value, "float32")
    check(lambda x: getattr(paddle, name)(x, 1), {"x": x}, both(name))
    check(lambda x: getattr(paddle, name)(x), {"x": x}, [name], gradients=False)


@merged
@pytest.mark.parametrize(
    "shape, axis", [((1, 4), 0), ((4, 1, 1), [1, 2]), ((1, 4), 1), ((4,), None)]
)
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_nan_along_axes_of_size_1(name, shape, axis):
    x = np.array([np.nan, np.inf, -np.inf, 1], "float32").reshape(shape)
    check(lambda x: getattr(paddle, name)(x, axis), {"x": x}, both(name))


@merged
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_nan_alone(name, shape):
    x = np.full(shape, np.nan, "float32")
    check(lambda x: getattr(paddle, name)(x), {"x": x}, both(name))


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_extremes_over_two_axes_of_five(name):
    """Plain Paddle leaves this gradient unwritten: compared with one over a single axis."""

    def build():
        x = paddle.static.data("x", [2, 3, 2, 5, 2], "float32")
        x.stop_gradient = False
        together = paddle.reshape(x, [2, 6, 5, 2])
        out = [getattr(paddle, name)(x, [2, 1]), getattr(paddle, name)(together, 1)]
        return [*out, *(paddle.static.gradients([o * o], [x])[0] for o in out)]

    program = Program(build)
    assert not paddle_ngraph.explain(program.main).native
    out, expected, grad, expected_grad = program.run(x=normal((2, 3, 2, 5, 2)))
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(grad, expected_grad)


@merged
def test_logsumexp_of_large_numbers():
    x = np.array([[500.0, 501.0, -3.0], [-400.0, -401.0, -500.0], [0.0, 88.0, 89.0]], "float32")
    check(lambda x: paddle.logsumexp(x, 1), {"x": x}, both("logsumexp"))


@merged
def test_logsumexp_of_nan():
    x = np.array([[np.nan, 1.0, -3.0], [1.0, 2.0, -np.inf], [3.0, np.nan, 1.0]], "float32")
    check(lambda x: paddle.logsumexp(x, 1), {"x": x}, both("logsumexp"))


@merged
def test_prod_of_zeros():
    x = np.array([[0.0, 2.0, 3.0], [1.0, -2.0, 4.0], [0.0, 0.0, 1.0]], "float32")
    check(lambda x: paddle.prod(x, 1), {"x": x}, both("prod"))


@merged
def test_large_sum():
    x = normal((257, 129)) + 1
    check(lambda x: (paddle.sum(x), paddle.mean(x), paddle.sum(x, 0)), {"x": x}, both("mean"))


@merged
@pytest.mark.parametrize("shape", [(), (1,), (3, 4)], ids=str)
def test_mean_all(shape):
    check(lambda x: paddle._C_ops.mean_all(x), {"x": normal(shape)}, both("mean_all"))


@merged
def test_sum_to_its_own_dtype():
    check(lambda x: paddle.sum(x, 1, dtype="float32"), {"x": normal((3, 4))}, both("sum"))


@merged
def test_sum_to_another_dtype_falls_back():
    x = {"x": normal((3, 4))}
    check_fallback(lambda x: paddle.sum(x, 1, dtype="float64"), x, ["sum"], gradients=False)


@merged
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "argmax"])
def test_integers_fall_back(name):
    x = np.array([[2**24 + 1, 3], [2, 2**24 + 3]], "int32")
    check_fallback(lambda x: getattr(paddle, name)(x, 1), {"x": x}, [name], gradients=False)


@merged
@pytest.mark.parametrize("axis", [0, 1, [0, 1], None])
@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_extremes_of_integers_are_exact(name, axis):
    x = np.array([[2**24 + 1, 2**24, 2**31 - 1, -5], [2**31 - 2, 0, 2**24 + 2, -(2**31)]], "int32")
    check(lambda x: getattr(paddle, name)(x, axis), {"x": x}, [name])
    check(lambda x: getattr(paddle, name)(x, axis), {"x": ~x.T}, [name])


@merged
@pytest.mark.parametrize("dtype", [None, "int32", "float32"])
@pytest.mark.parametrize(("shape", "axis"), [*CASES[::3], ((40, 1000), None)], ids=str)
def test_sum_of_bools_counts(shape, axis, dtype):
    x = {"x": np.asarray(normal(shape) > 0)}
    check(lambda x: paddle.sum(x, axis, dtype=dtype), x, ["sum"])


@merged
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_sum_of_integers_within_int32(shape, axis, dtype, keepdim):
    def build(x):
        small = paddle.cast(x, "uint8")  # so that the sum surely fits
        return paddle.sum(paddle.cast(small, dtype) * 30000 - 7, axis, keepdim=keepdim)

    x = np.resize(np.array([0, 255, 254, 3, 77], "float32"), shape)
    check(build, {"x": x}, ["sum"], gradients=False)


@merged
def test_sum_of_integers_beyond_float32():
    def build(x):
        return paddle.sum(paddle.cast(x, "int32") + 2**24, 0), paddle.sum(paddle.cast(x, "int64"))

    check(build, {"x": np.asarray(normal((67, 3)) > 0)}, ["sum"])
    check(build, {"x": np.asarray(normal((67, 3)) > 0)}, ["sum"], dynamic={"x": [67, -1]})


@merged
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sum_of_integers_that_may_need_64_bits_falls_back(dtype):
    x = {"x": np.array([2**31 - 1, 5], dtype)}
    check_fallback(lambda x: paddle.sum(x), x, ["sum"])


@merged
def test_nanmean_and_nansum():
    x = normal((3, 5))
    x[0, 1] = x[2, :] = np.nan
    check(lambda x: (paddle.nanmean(x, 1), paddle.nansum(x, 1)), {"x": x}, ["sum", "bitwise_not"])


@merged
@pytest.mark.parametrize("target", [(), (5,), (3, 1), (2, 3, 5), (1, 1, 5)], ids=str)
def test_reduce_as(target):
    inputs = {"x": normal((2, 3, 5)), "y": normal(target)}
    check(lambda x, y: paddle.reduce_as(x, y), inputs, both("reduce_as"))


@merged
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("name", ["all", "any"])
def test_all_and_any(name, shape, axis):
    def build(x, y):
        reduce = getattr(paddle, name)
        return reduce(x, axis), reduce(x, axis, keepdim=True), reduce(y, axis)

    inputs = {"x": np.asarray(normal(shape) > -1.0), "y": np.asarray(normal(shape) > 1.0)}
    check(build, inputs, [name])


@merged
@pytest.mark.parametrize("name", ["all", "any"])
def test_all_and_any_of_numbers_fall_back(name):
    x = {"x": np.array([0, 3], "int32")}
    check_fallback(lambda x: getattr(paddle, name)(x), x, [name])


@merged
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((7,), 0),
        ((1,), None),
        ((3, 5), 0),
        ((3, 5), -1),
        ((3, 5), None),
        ((2, 3, 4), 1),
        ((4, 1), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin(name, shape, axis, keep):
    def build(x):
        return getattr(paddle, name)(x, axis, keepdim=keep)

    check(build, {"x": normal(shape)}, [name])


@merged
@pytest.mark.parametrize("length", [1, 3, 64, 70, 200])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_of_special_values(name, axis, length):
    largest = np.finfo("float32").max
    values = np.array([np.nan, np.inf, -np.inf, largest, -largest, 0.0], "float32")
    x = np.random.default_rng(length).choice(values[: length + 1], (300, length))
    x = np.concatenate([x, np.full((1, length), np.nan, "float32")])
    x[:100] = np.where(np.isinf(x[:100]), -largest, x[:100])
    x = np.ascontiguousarray(x if axis == 1 else x.T)
    check(lambda x: getattr(paddle, name)(x, axis), {"x": x}, [name])


@merged
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_returns_the_first_of_equal_values(name, axis, dtype):
    x = np.random.default_rng(0).integers(0, 3, (40, 33)).astype("float32")
    check(lambda x: getattr(paddle, name)(x, axis, dtype=dtype), {"x": x}, [name])
    check(lambda x: getattr(paddle, name)(x, axis, dtype=dtype), {"x": x * 0}, [name])


@merged
def test_logsumexp_of_infinities():
    inf = np.inf
    x = np.array([[inf, 1], [inf, inf], [-inf, -inf], [inf, -inf], [-inf, 1]], "float32")
    check(lambda x: paddle.logsumexp(x, 1), {"x": x}, both("logsumexp"))


SOURCES = {
    "average": lambda x: paddle.nn.functional.avg_pool2d(x, 2),
    "maximum": lambda x: paddle.nn.functional.max_pool2d(x, 3, 2, 1),
    "convolution": lambda x: paddle.nn.functional.conv2d(x, paddle.ones([3, x.shape[1], 3, 3])),
    "resized": lambda x: paddle.nn.functional.interpolate(x, [5, 7], mode="bilinear"),
    "plain": lambda x: x * 2.0,
}


def _random_means(x, seed):
    """Means whose readers reduce over samples, with a chain of axis permutations between them."""
    draw, names = np.random.default_rng(seed), ["n", "c", "h", "w"]
    left = set(draw.permutation(names)[: int(draw.integers(1, 5))])
    while left:
        kind = draw.choice(["mean", "mean", "transpose", "unsqueeze", "squeeze"])
        if kind == "transpose":
            order = [int(axis) for axis in draw.permutation(len(names))]
            x, names = paddle.transpose(x, order), [names[axis] for axis in order]
        elif kind == "unsqueeze" and len(names) < 6:
            place = int(draw.integers(len(names) + 1))
            x, names = paddle.unsqueeze(x, place), [*names[:place], "", *names[place:]]
        elif kind == "squeeze" and "" in names:
            place = names.index("")
            x, names = paddle.squeeze(x, place), [*names[:place], *names[place + 1 :]]
        elif kind == "mean":
            some = [name for name in names if name in left and draw.integers(2)]
            axes = [names.index(name) for name in some]
            keep = bool(draw.integers(2))
            if axes:
                x = paddle.mean(x, axes, keepdim=keep)
                names = [("" if n in some else n) for n in names if keep or n not in some]
                left -= set(some)
    return x


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "all", "any", "logsumexp"])
def test_reductions_after_unsqueeze(name, keep):
    """The plugin fuses an unsqueeze after a reduction."""

    def build():
        x = paddle.exp(paddle.static.data("x", [3, 2, 4], "float32"))
        x = x > 1.0 if name in ("all", "any") else x
        found = []
        for place in range(4):
            for more in (None,) if name == "logsumexp" else (None, 0, 4):
                new = paddle.unsqueeze(x, place)
                new = new if more is None else paddle.unsqueeze(new, more)
                for axes in ([0], [1], [0, 3], [1, 2], [-1, 0]):
                    found.append(getattr(paddle, name)(new, axes, keepdim=keep))
        return found

    program = Program(build)
    for run in range(2):
        program.both(x=0.3 * normal((3, 2, 4), run))


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_stepwise_means_over_samples_are_deterministic(seed, in_a_loop):
    channels = 2 + seed % 2

    def pooled(x):
        found = paddle.nn.functional.avg_pool2d(x, 2)
        return [_random_means(found, 8 * seed + each) for each in range(8)]

    def build():
        x = paddle.static.data("x", [3, channels, 8, 8], "float32")
        if not in_a_loop:
            return pooled(x)
        start = [paddle.full([], 0, "int64"), *(each * 0.0 for each in pooled(x))]
        return paddle.static.nn.while_loop(
            lambda i, *_: i < 3,
            lambda i, *sums: [i + 1, *(a + b for a, b in zip(sums, pooled(x)))],
            start,
        )[1:]

    program = Program(build)
    for run in range(3):
        program.both(x=normal((3, channels, 8, 8), run))


@pytest.mark.parametrize("batch", [4, -1])
@pytest.mark.parametrize("channels", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("source", SOURCES)
def test_reductions_over_samples_are_deterministic(source, channels, batch):
    """The plugin's means vary: the plugin processes a batch of few channels in blocks."""

    def build():
        x = SOURCES[source](paddle.static.data("x", [batch, channels, 8, 8], "float32"))
        of_samples = paddle.mean(x, [2, 3], keepdim=True)
        running = [paddle.zeros([x.shape[1]]), paddle.ones([x.shape[1]])]
        normed = paddle.nn.functional.batch_norm(x, *running, None, None, training=True)
        found = [paddle.mean(of_samples, 0), paddle.mean(paddle.mean(x, 0), [1, 2]), normed]
        for axes in ([0], [0, 1], [0, 2], [0, 3], [0, 2, 3], [0, 1, 2, 3]):
            found += [paddle.mean(x, axes), paddle.sum(x, axes), paddle.max(x, axes)]
        return [*found, paddle.var(x, [0, 2, 3]), paddle.logsumexp(x, [0, 2, 3])]

    program = Program(build)
    for run in range(4):
        x = normal((4 + (run % 2 if batch < 0 else 0), channels, 8, 8), run)
        before = paddle_ngraph.stats()["engine_runs"]
        for one, other in zip_equal(program.run(engine=False, x=x), program.run(x=x)):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)
        assert paddle_ngraph.stats()["engine_runs"] == before + 1
