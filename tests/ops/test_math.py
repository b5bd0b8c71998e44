"""Functions of one tensor and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import both, check, check_fallback
from tests.ops.merging import merged

SHAPES = [(), (1,), (3, 5), (2, 1, 4), (2, 1, 2, 3, 2)]
# Functions of positive values, of any values, and functions without a gradient operator.
POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"]
ANY = ["exp", "expm1", "square", "abs", "erf", "floor", "ceil", "round", "trunc"]
FLAT = ["sign"]
# Fewer values than a SIMD packet, for which plain Paddle's sqrt of infinity is infinity, not NaN.
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1.5], "float32")


def sample(name, shape, seed=0):
    generator = np.random.default_rng(seed)
    if name in POSITIVE:
        return generator.uniform(0.1, 5.0, size=shape).astype("float32")
    return (generator.normal(size=shape) * 2).astype("float32")


def function(name):
    return lambda x: getattr(paddle, name)(x)


def converted(name):
    return [name] if name in FLAT else both(name)


@merged
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_shapes(name, shape):
    check(function(name), {"x": sample(name, shape)}, converted(name))


@merged
@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_many_values_of_dynamic_shape(name):
    x = sample(name, (333, 3))
    check(function(name), {"x": x}, converted(name), dynamic={"x": [-1, -1]})


@merged
@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_nan_and_infinity(name):
    check(function(name), {"x": STRANGE}, converted(name))


@merged
@pytest.mark.parametrize("name", [*POSITIVE, *ANY, *FLAT])
def test_nan_among_many(name):
    x = sample(name, (5, 33))
    x[::2, 7] = np.nan
    check(function(name), {"x": x}, converted(name))


@merged
def test_exp_of_large_numbers():
    x = np.array([80.0, 87.0, 88.0, 89.0, 200.0, -80.0, -104.0, -500.0], "float32")
    check(paddle.exp, {"x": x}, ["exp", "exp_grad"])


@merged
@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc"])
def test_nan_and_infinite_gradients_of_step_functions(name):
    """Paddle multiplies the gradient by 0, which leaves NaN, except for trunc."""
    x, y = sample(name, (4,)), np.array([1, np.nan, np.inf, -np.inf], "float32")
    build = lambda x, y: getattr(paddle, name)(x) * y  # noqa: E731
    check(build, {"x": x, "y": y}, [name, f"{name}_grad"])


@merged
def test_round_ties_to_even():
    x = np.arange(-4.5, 5.0, 1.0, dtype="float32")
    check(paddle.round, {"x": x}, ["round", "round_grad"])


@merged
def test_round_to_decimals_falls_back():
    check_fallback(lambda x: paddle.round(x, 1), {"x": sample("round", (3,))}, ["round"])


@merged
@pytest.mark.parametrize(
    "name",
    [
        "exp_",
        "expm1_",
        "log_",
        "log2_",
        "log10_",
        "log1p_",
        "sqrt_",
        "rsqrt_",
        "floor_",
        "ceil_",
        "trunc_",
        "reciprocal_",
    ],
)
def test_in_place(name):
    def build(x):
        return getattr(paddle._C_ops, name)(x * 1.0)

    check(build, {"x": sample("sqrt", (3, 5))}, [name], gradients=False)


@merged
@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_small_numbers(name):
    x = np.concatenate([10.0 ** np.arange(-30, 2), -(10.0 ** np.arange(-30, 0)), [-0.999, 5e37]])
    check(getattr(paddle, name), {"x": x.astype("float32")}, converted(name), atol=0)


@merged
def test_expm1_of_large_numbers():
    x = np.array([80.0, 87.0, 88.0, 89.0, 200.0, -80.0, -104.0, -500.0], "float32")
    check(paddle.expm1, {"x": x}, ["expm1", "expm1_grad"])


@merged
@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.2])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4)], ids=str)
def test_logit(shape, eps):
    x = np.random.default_rng(0).uniform(-0.1, 1.1, size=shape).astype("float32")
    check(lambda x: paddle.logit(x, eps), {"x": x}, ["logit", "logit_grad"])


@merged
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_logit_at_the_edges(eps):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 0.9, 0.1, 0.5], "float32")
    check(lambda x: paddle.logit(x, eps), {"x": x}, ["logit", "logit_grad"])
    check(lambda x: paddle._C_ops.logit_(x * 1.0, eps), {"x": x}, ["logit_"], gradients=False)


@merged
@pytest.mark.parametrize(
    "shapes", [((), (), ()), ((3, 5), (3, 5), (1,)), ((3, 1), (5,), (3, 5))], ids=str
)
def test_lerp(shapes):
    generator = np.random.default_rng(0)
    x, y, w = (np.asarray(generator.normal(size=shape), "float32") for shape in shapes)
    inputs = {"x": x, "y": y}
    check(lambda x, y: paddle.lerp(x, y, 0.3), inputs, ["lerp", "lerp_grad"])
    inputs["w"] = w
    check(lambda x, y, w: paddle.lerp(x, y, w), inputs, ["lerp", "lerp_grad"])


@merged
def test_lerp_of_special_values():
    x, y = np.meshgrid(STRANGE, STRANGE)
    inputs = {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}
    check(lambda x, y: paddle.lerp(x, y, 0.7), inputs, ["lerp", "lerp_grad"])
    check(lambda x, y: paddle._C_ops.lerp_(x * 1.0, y, y), inputs, ["lerp_"], gradients=False)


@merged
@pytest.mark.parametrize("shapes", [((), ()), ((3, 5), (5,)), ((2, 1, 4), (3, 1))], ids=str)
def test_heaviside(shapes):
    generator = np.random.default_rng(0)
    x = np.asarray(generator.integers(-1, 2, size=shapes[0]), "float32")
    y = np.asarray(generator.normal(size=shapes[1]), "float32")
    check(paddle.heaviside, {"x": x, "y": y}, ["heaviside", "heaviside_grad"])


@merged
def test_heaviside_of_special_values():
    x, y = np.meshgrid(STRANGE, STRANGE)
    inputs = {"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}
    check(paddle.heaviside, inputs, ["heaviside", "heaviside_grad"])


@merged
def test_squares_of_integers_fall_back():
    check_fallback(paddle.square, {"x": np.array([1, -2, 3], "int32")}, ["square"], gradients=False)


@merged
def test_abs_of_integers():
    x = np.array([1, -2, 3, 0, 2**31 - 1, -(2**31) + 1, -(2**31)], "int32")
    check(paddle.abs, {"x": x}, ["abs"], gradients=False)
    check(lambda x: paddle.abs(x.astype("int64")), {"x": x[:-1]}, ["abs"], gradients=False)


@merged
@pytest.mark.parametrize("rank", [1, 2])
def test_abs_does_not_overwrite_its_operand(rank):
    """The plugin's Abs overwrites its operand, which matters after nodes that it does not fuse
    with.
    """

    def build(x):
        joined = paddle.concat([x * 2.0, paddle.exp(x)], axis=rank - 1)
        return paddle.abs(joined) + joined

    check(build, {"x": sample("abs", (5,) if rank == 1 else (2, 5))}, both("add"))


@merged
def test_abs_of_special_values_with_other_readers():
    strange = np.concatenate([STRANGE, STRANGE])

    def build(x):
        joined = paddle.concat([x, x])
        return paddle.abs(joined), joined * 0.5

    check(build, {"x": strange}, ["abs", "concat"], gradients=False)
