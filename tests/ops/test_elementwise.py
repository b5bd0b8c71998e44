"""Arithmetic with broadcasting: add ... pow, scale, add_n, clip."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.conversion.registry import find_converter
from tests.ops.harness import both, check, check_fallback, normal
from tests.ops.merging import merged
from tests.programs import Program

SHAPES = [
    ((), ()),
    ((3,), ()),
    ((), (2, 3)),
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((3,), (2, 3)),
    ((2, 3), (1, 3)),
    ((2, 3), (2, 1)),
    ((2, 1), (1, 3)),
    ((1,), (1, 1)),
    ((2, 3, 4), (3, 1)),
    ((2, 1, 4, 5), (3, 1, 5)),
    ((2, 2, 1, 2, 3), (2, 1, 3, 1, 1)),
]
BIG = np.array([2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**30 + 1, -7, 7, 0], "int32")
STRANGE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, -1.5], "float32")
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin"]


def positive(shape, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2.0, size=shape).astype("float32")


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, shapes):
    inputs = {"x": normal(shapes[0], 1), "y": positive(shapes[1], 2)}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, both(name))


@merged
@pytest.mark.parametrize("name", BINARY)
def test_binary_of_dynamic_shapes(name):
    inputs = {"x": normal((5, 4), 1), "y": positive((5, 4), 2)}
    dynamic = {"x": [-1, 4], "y": [-1, -1]}
    check(lambda x, y: getattr(paddle, name)(x, y), inputs, both(name), dynamic=dynamic)


def test_quotients_are_rounded_once():
    """Division as in IEEE 754; plain Paddle is one ulp off on some processors (252

    148).
    """
    x = np.arange(1, 400, dtype="float32")
    y = x[::-1].copy()

    def build(x, y):
        return paddle.floor(paddle.divide(x * y, y)), paddle.divide(x, y), paddle.divide(x, x)

    found = check(build, {"x": x, "y": y}, ["divide"], gradients=False, rtol=2e-7, atol=1.0)
    for quotient, expected in zip(found, (x, x / y, np.ones_like(x))):
        np.testing.assert_array_equal(quotient, expected)


@merged
@pytest.mark.parametrize("name", [*BINARY, "pow"])
def test_binary_of_nan_and_infinity(name):
    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(STRANGE[:, None], STRANGE))
    converted = "elementwise_pow" if name == "pow" else name
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, both(converted))


@merged
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_maximum_and_minimum_with_an_infinite_gradient(name):
    def build(x, y, slope):
        return getattr(paddle, name)(x, y) * slope

    x, y, slope = np.meshgrid([-1.0, 0.0, 2.0], [-1.0, -0.0, 2.0], [np.inf, -np.inf, np.nan])
    inputs = {"x": x, "y": y, "slope": slope}
    check(build, {n: v.astype("float32") for n, v in inputs.items()}, both(name))


@merged
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_ties(name):
    x = np.array([1.0, 2.0, 3.0, 0.0], "float32")
    y = np.array([1.0, 5.0, -3.0, -0.0], "float32")
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, both(name))


@merged
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_gradient_of_one_operand(name):
    def build(x, y):
        y.stop_gradient = True
        return getattr(paddle, name)(x, y)

    check(build, {"x": normal((2, 3)), "y": normal((3,), 1)}, both(name))


@merged
@pytest.mark.parametrize("name", ["add_grad", "subtract_grad"])
def test_axis_of_program_desc_programs(name):
    gradient = getattr(paddle._C_ops, name)

    def build(x, y, grad):
        return gradient(x, y, grad, x.ndim - y.ndim)

    def leading(x, y, grad):
        return gradient(x, y, grad, 0)

    feed = {"x": normal((3, 4, 4)), "grad": normal((3, 4, 4), 2)}
    for shape in [(4, 4), (4,), (3, 4, 4)]:
        check(build, {**feed, "y": normal(shape, 1)}, [name], gradients=False)
    check_fallback(leading, {**feed, "y": normal((3,), 1)}, [name], gradients=False)


@merged
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_int32_is_exact(name):
    other = np.array([2, 3, 1, -1, 2**30, 2, -2, 5], "int32")
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": BIG, "y": other}, [name])
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": BIG[:, None], "y": other}, [name])


@merged
def test_int32_chain_is_exact():
    def build(x, y):
        return (x + y) * y - x, paddle.cast(paddle.maximum(x * y, x), "float32")

    numbers = np.random.default_rng(3).integers(-(2**31), 2**31, (7, 33)).astype("int32")
    inputs = {"x": numbers, "y": numbers[::-1, ::-1].copy()}
    check(build, inputs, ["add", "multiply", "subtract", "maximum"])


@merged
@pytest.mark.parametrize("name", ["add_", "subtract_", "multiply_", "divide_"])
def test_in_place(name):
    def build(x, y):
        z = paddle.scale(x, 2.0)
        return getattr(paddle._C_ops, name)(z, y)

    inputs = {"x": normal((2, 3)), "y": positive((3,), 1)}
    check(build, inputs, ["scale", name], gradients=False)


@merged
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("add", "int64"),
        ("floor_divide", "int64"),
        ("remainder", "int64"),
        ("add", "float64"),
    ],
)
def test_binary_falls_back(name, dtype):
    x, y = np.array([7, -7, 5]).astype(dtype), np.array([2, 2, -3]).astype(dtype)
    check_fallback(
        lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, [name], gradients=False
    )


SHAPES_TO_DIVIDE = [
    ((), ()),
    ((7, 5), (5,)),
    ((4, 1), (1, 3)),
    ((1,), (2, 3)),
    ((40, 30), (40, 30)),
]


@merged
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
@pytest.mark.parametrize(("left", "right"), SHAPES_TO_DIVIDE, ids=str)
def test_floored_division(name, left, right):
    def build(x, y):
        return getattr(paddle, name)(x, y)

    x, y = normal(left) * 50, positive(right, 1) * np.sign(normal(right, 2))
    check(build, {"x": x, "y": np.asarray(y, "float32")}, [name], gradients=name == "remainder")
    generator = np.random.default_rng(1)
    x = generator.integers(-(2**31), 2**31, left).astype("int32")
    y = (generator.integers(1, 2**24, right) * generator.choice([-1, 1], right)).astype("int32")
    check(build, {"x": np.asarray(x), "y": np.asarray(y)}, [name])


@merged
@pytest.mark.parametrize("shape", [(6, 7), (7,)], ids=str)
def test_gradient_of_a_remainder_near_multiples(shape):
    """1.5

    0.3 is 5 after rounding, but 1.5 // 0.3 is 4.
    """
    y = np.resize(np.array([0.3, 0.1, -0.7, 1e-3, 3.0, -0.2, 1e30], "float32"), shape)
    x = y * np.arange(6, dtype="float32")[:, None]
    x[5, :4] = [1.5, np.inf, -np.inf, np.nan]
    inputs = {"x": x, "y": y}
    check(lambda x, y: paddle.remainder(x, y), inputs, ["remainder", "remainder_grad"])


@pytest.mark.parametrize("seed", range(12))
def test_integers_in_int32_are_divided(seed):
    """int64 values that are representable in int32 by the program: indices, times and plus
    constants.
    """
    draw = np.random.default_rng(seed)
    factor, added, divisor = (
        int(draw.integers(1, 1000)) * int(draw.choice([-1, 1])) for _ in "123"
    )
    least = int(draw.integers(1, 9))

    def build():
        x = paddle.static.data("x", [7, 40], "float32")
        place, other = paddle.argmax(x, axis=1), paddle.argmin(x, axis=1) + least
        number = place * factor + added
        pairs = [(number, paddle.full([], divisor, "int64")), (number, other), (number, -other)]
        return [f(*pair) for pair in pairs for f in (paddle.floor_divide, paddle.remainder)]

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    assert not report.native, str(report)
    for one in range(3):
        program.both(x=normal((7, 40), one))


@pytest.mark.parametrize("seed", range(6))
def test_integers_in_int32_are_compared_and_selected(seed):
    draw = np.random.default_rng(seed)
    factor, low, high = map(int, draw.integers(-50, 50, 3))

    def build():
        x = paddle.static.data("x", [7, 40], "float32")
        place, other = paddle.argmax(x, axis=1) * factor, paddle.argmin(x, axis=1)
        return [
            paddle.maximum(place, other),
            paddle.minimum(place, other * 2**24),
            paddle.clip(place, min(low, high), max(low, high)),
            paddle.where(x[:, 0] > 0, place, other),
            paddle.masked_fill(place, x[:, 1] > 0, high),
        ]

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    assert not report.native, str(report)
    for one in range(3):
        program.both(x=normal((7, 40), one))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_clip_to_an_empty_range_raises_paddles_error(dtype):
    program = Program(lambda: paddle.clip(paddle.static.data("x", [4], dtype), 10, 3))
    for engine in (False, True):
        with pytest.raises(ValueError, match="max should be greater than or equal to min"):
            program.run(engine, x=np.arange(4).astype(dtype))
    x = np.arange(4, dtype="float32")  # other uses of clip still go through the engine
    Program(lambda: paddle.clip(paddle.static.data("x", [4], "float32"), 1, 2)).both(x=x)


@pytest.mark.parametrize("name", ["maximum", "minimum", "clip", "where", "masked_fill"])
def test_comparison_of_64_bit_integers_falls_back(name):
    wide = np.array([2**31, -(2**31) - 1, 5, 2**40])

    def build():
        n = paddle.static.data("n", [4], "int64")
        other = paddle.flip(n, [0])
        choices = {
            "maximum": lambda: paddle.maximum(n, other),
            "minimum": lambda: paddle.minimum(n, other),
            "clip": lambda: paddle.clip(n, -7, 2**33),
            "where": lambda: paddle.where(n > 0, n, other),
            "masked_fill": lambda: paddle.masked_fill(n, n > 0, 3),
        }
        return choices[name](), paddle.exp(paddle.static.data("x", [4], "float32"))

    Program(build).both(n=wide, x=normal((4,)))


@pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs")
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_division_of_known_integers_by_zero_is_an_error(name):
    def build():
        known = paddle.full([3], 5, "int64"), paddle.full([3], 0, "int64")
        return getattr(paddle, name)(*known), paddle.static.data("x", [2], "float32") + 1.0

    program = Program(build)
    for engine in (False, True, True):
        with pytest.raises(Exception, match=r"(?i)zero"):
            program.run(engine, x=np.ones(2, "float32"))


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_the_range_of_a_division_contains_every_result(name):
    rule = find_converter(f"pd_op.{name}").integers
    draw = np.random.default_rng(0)
    function = {"floor_divide": np.floor_divide, "remainder": np.mod}[name]
    for _ in range(300):
        x, y = (np.sort(draw.integers(-9, 10, 2)) for _ in range(2))
        numbers = np.arange(x[0], x[1] + 1)[:, None], np.arange(y[0], y[1] + 1)[None]
        found = function(numbers[0], numbers[1][:, numbers[1][0] != 0])
        bounds = rule(None, {"x": tuple(map(int, x)), "y": tuple(map(int, y))})
        if found.size:
            assert bounds[0] <= found.min() and found.max() <= bounds[1], (x, y)


@merged
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_floored_division_of_special_values(name):
    special = [0.0, -0.0, 1.0, -1.0, 0.3, -7.5, 1e-30, 3e38, np.inf, -np.inf, np.nan, 16777217.0]
    x, y = (np.ravel(v).astype("float32") for v in np.meshgrid(special, special))
    check(lambda x, y: getattr(paddle, name)(x, y), {"x": x, "y": y}, [name], gradients=False)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_divisions_of_many_shapes_share_a_function(name, dtype):
    def build():
        x, y = (paddle.static.data(n, s, dtype) for n, s in (("x", [-1, -1]), ("y", [-1])))
        return getattr(paddle, name)(x, y)

    program = Program(build)
    paddle_ngraph.reset_stats()
    for seed, (rows, columns) in enumerate([(2, 3), (4, 5), (3, 7), (6, 4), (5, 9), (2, 8)]):
        draw = np.random.default_rng(seed)
        x = draw.integers(-99, 99, (rows, columns)).astype(dtype)
        y = draw.integers(1, 9, columns).astype(dtype)
        program.both(x=x, y=y)
        wrong = y * (np.arange(columns) > 0).astype(dtype)
        if dtype == "int32":
            for engine in (False, True):
                with pytest.raises(Exception, match=r"(?i)zero"):
                    program.run(engine, x=x, y=wrong)
    program.both(x=x, y=y)
    assert paddle_ngraph.stats()["functions_built"] <= 4


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_division_of_integers_by_zero_is_an_error(name):
    def build():
        x = paddle.static.data("x", [-1], "int32")
        return getattr(paddle, name)(x, paddle.static.data("y", [-1], "int32"))

    program = Program(build)
    ones, zero = np.ones(3, "int32"), np.array([1, 0, 2], "int32")
    for engine in (False, True):
        with pytest.raises(Exception, match=r"(?i)zero"):
            program.run(engine, x=ones, y=zero)
    program.both(x=ones, y=ones)


@merged
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize(("factor", "bias"), [(2.5, 0.0), (1.0, -1.5), (3.0, 0.7), (1.0, 0.0)])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
def test_scale(shape, factor, bias, after):
    check(lambda x: paddle.scale(x, factor, bias, after), {"x": normal(shape)}, ["scale"])


@merged
def test_scale_by_a_tensor():
    def build(x, factor):
        return paddle.scale(x, factor, 0.5)

    inputs = {"x": normal((2, 3)), "factor": np.array([1.5], "float32")}
    check(build, inputs, ["scale"], gradients=False)


@merged
def test_scale_of_integers():
    check(lambda x: paddle.scale(x, 3.0, 2.0), {"x": BIG}, ["scale"])
    check(lambda x: paddle.scale(x, 1.5, 2.7), {"x": BIG}, ["scale"])


@merged
def test_scale_of_nan_and_infinity():
    check(lambda x: paddle.scale(x, 2.0, 1.0), {"x": STRANGE}, ["scale"])
    check(lambda x: paddle.scale(x, 0.0, 1.0), {"x": STRANGE}, ["scale"])


@merged
def test_scale_in_place():
    def build(x):
        return paddle._C_ops.scale_(x * 3.0, 2.0, 1.0, True)

    check(build, {"x": normal((2, 3))}, ["scale_"], gradients=False)


@merged
def test_arithmetic_on_shapes():
    def build(x):
        rows = paddle.shape(x)[0]
        return paddle.reshape(x, [rows * 2, 4 // rows + rows - 2, -1])

    x = normal((2, 16))
    check(build, {"x": x}, ["scale", "floor_divide", "add"], dynamic={"x": [-1, 16]})


@merged
@pytest.mark.parametrize("count", [1, 2, 5])
def test_add_n(count):
    def build(**inputs):
        return paddle.add_n(list(inputs.values()))

    check(build, {f"x{i}": normal((2, 3), i) for i in range(count)}, ["add_n"])


@merged
def test_add_n_of_integers():
    check(lambda x, y: paddle.add_n([x, y]), {"x": BIG, "y": BIG[::-1].copy()}, ["add_n"])


@merged
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.5, 0.5), (None, 0.0), (0.0, None)], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5)], ids=str)
def test_clip(shape, bounds):
    check(lambda x: paddle.clip(x, *bounds), {"x": normal(shape)}, both("clip"))


@merged
def test_clip_of_nan_infinity_and_bounds():
    x = np.concatenate([STRANGE, np.array([-1.0, 1.0, 2.0, -2.0], "float32")])
    check(lambda x: paddle.clip(x, -1.0, 1.0), {"x": x}, both("clip"))


@merged
@pytest.mark.parametrize("bounds", [(-5, 2**24 + 1), (-2.7, 3.9), (2**31 - 1, 2**31 - 1)])
def test_clip_of_integers_is_exact(bounds):
    x = np.array([2**24 + 1, 2**24 + 2, 2**31 - 1, -(2**31), -2, -3, 0, 3, 4], "int32")
    check(lambda x: paddle.clip(x, *bounds), {"x": x}, ["clip"])


@merged
def test_clip_between_tensors():
    def build(x, low):
        return paddle.clip(x, low, low + 1.0)

    inputs = {"x": normal((3, 5)), "low": np.array([-0.5], "float32")}
    check(build, inputs, ["clip"], gradients=False)


@merged
def test_clip_in_place():
    def build(x):
        return paddle._C_ops.clip_(x * 2.0, -1.0, 1.0)

    check(build, {"x": normal((9,))}, ["clip_"], gradients=False)


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_elementwise_pow(shapes):
    inputs = {"x": positive(shapes[0], 1), "y": normal(shapes[1], 2)}
    check(lambda x, y: paddle.pow(x, y), inputs, both("elementwise_pow"))


@merged
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 2.5])
def test_pow_of_a_scalar(exponent):
    x = positive((3, 4))
    check(lambda x: x**exponent, {"x": x}, both("elementwise_pow"))
    check(lambda x: paddle._C_ops.pow(x, exponent), {"x": x}, both("pow"))


@merged
@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_pow_of_zero_nan_and_infinity(exponent):
    """The gradient for an exponent of 0 is 0 for every x."""
    x = np.array([0, 1, -2, np.nan, np.inf, -np.inf, 3], "float32")
    check(lambda x: paddle._C_ops.pow(x, exponent), {"x": x}, both("pow"))


@merged
@pytest.mark.parametrize("exponent", [2.0, 3.0])
def test_pow_of_negative_values(exponent):
    x = np.array([-2.0, -0.5, 0.0, 3.0, np.nan, np.inf], "float32")
    check(lambda x: x**exponent, {"x": x}, both("elementwise_pow"))


@merged
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_pow_that_is_a_root(exponent):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 4.0, -1.0, 1e-30, 1e30], "float32")

    def with_inverse(power):
        return [power, 1.0 / power]  # keeps the sign of zero

    for build, name in (
        (lambda x: paddle._C_ops.pow(x, exponent), "pow"),
        (lambda x: x**exponent, "elementwise_pow"),
        (lambda x: paddle.pow(x, paddle.full([1], exponent)), "elementwise_pow"),
    ):
        check(lambda x: with_inverse(build(x)), {"x": x}, [name], gradients=False)  # noqa: B023


@merged
def test_increment():
    check(
        lambda x: paddle.increment(x * 1.5, 2.0),
        {"x": normal((1,))},
        ["increment_"],
        gradients=False,
    )
