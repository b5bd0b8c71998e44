"""Second and third derivatives, operator by operator."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.ops.harness import check, check_derivatives, normal
from tests.ops.merging import merged
from tests.programs import Program

X = normal((3, 5), 1)
POSITIVE = np.abs(X) + np.float32(0.5)
# Elementwise functions with a domain, and whether they have a third derivative.
FUNCTIONS = {
    "abs": (paddle.abs, X, False),
    "celu": (lambda x: F.celu(x, 0.7), X, False),
    "clip": (lambda x: paddle.clip(x, -0.5, 0.5), X, False),
    "cos": (paddle.cos, X, True),
    "elu": (lambda x: F.elu(x, 0.7), X, False),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), X, False),
    "log": (paddle.log, POSITIVE, False),
    "pow": (lambda x: paddle.pow(x, 2.5), POSITIVE, True),
    "relu": (F.relu, X, False),
    "rsqrt": (paddle.rsqrt, POSITIVE, False),
    "sigmoid": (F.sigmoid, X, True),
    "sin": (paddle.sin, X, True),
    "softplus": (lambda x: F.softplus(x, 1.5, 1.0), X, False),
    "sqrt": (paddle.sqrt, POSITIVE, False),
    "square": (paddle.square, X, False),
    "tanh": (paddle.tanh, X, True),
}
# Fewer values than a SIMD packet: see test_trigonometry.py.
STRANGE = [[np.nan, np.inf, -np.inf], [0.0, -0.0, -1.5], [1.0, 100.0, -100.0]]
THRICE = [name for name, (_, _, is_thrice) in FUNCTIONS.items() if is_thrice]
SHAPES = [
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((3, 5), (3, 1)),
    ((5,), (3, 5)),
    ((3, 1), (1, 5)),
    ((), (3,)),
]


@merged
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second(name):
    function, x, _ = FUNCTIONS[name]
    check_derivatives(function, {"x": x}, [f"{name}_double_grad"])


@merged
@pytest.mark.parametrize("name", THRICE)
def test_third(name):
    function, x, _ = FUNCTIONS[name]
    converted = [f"{name}_double_grad", f"{name}_triple_grad"]
    check_derivatives(function, {"x": x}, converted, order=3)


@merged
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dynamic_shapes(name):
    function, x, is_thrice = FUNCTIONS[name]
    order = 3 if is_thrice else 2
    check_derivatives(function, {"x": x}, [f"{name}_double_grad"], order, dynamic=[-1, 5])


@merged
@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, -1.0, 0.5])
def test_powers(exponent):
    kinds = ["pow_double_grad", "pow_triple_grad"]
    check_derivatives(lambda x: paddle.pow(x, exponent), {"x": POSITIVE}, kinds, order=3)


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_arithmetic(name, shapes):
    inputs = {"x": normal(shapes[0], 1), "y": np.abs(normal(shapes[1], 2)) + np.float32(0.5)}
    check_derivatives(getattr(paddle, name), inputs, [f"{name}_double_grad"])


@merged
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_arithmetic_thrice(name):
    converted = [f"{name}_double_grad", f"{name}_triple_grad"]
    inputs = {"x": X, "y": normal((3, 5), 2)}
    check_derivatives(getattr(paddle, name), inputs, converted, order=3)


@merged
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_sums_thrice(shapes):
    inputs = {"x": normal(shapes[0], 1), "y": normal(shapes[1], 2)}
    check_derivatives(paddle.add, inputs, ["add_triple_grad"], order=3)


MATRICES = [
    ((3, 4), (4, 5), False, False),
    ((4, 3), (4, 5), True, False),
    ((3, 4), (5, 4), False, True),
    ((4, 3), (5, 4), True, True),
    ((2, 3, 4), (4, 5), False, False),
    ((2, 3, 4), (2, 4, 5), False, False),
    ((2, 4, 3), (2, 5, 4), True, True),
    ((2, 1, 3, 4), (2, 3, 4, 5), False, False),
    ((3, 4), (4,), False, False),
    ((4,), (4, 5), False, False),
    ((4,), (4,), False, False),
]


@merged
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("case", MATRICES, ids=str)
def test_matmul(case, order):
    x, y, *transposed = case
    kinds = ["matmul_double_grad", "matmul_triple_grad"][: order - 1]
    inputs = {"x": normal(x, 1), "y": normal(y, 2)}
    check_derivatives(
        lambda x, y: paddle.matmul(x, y, *transposed), inputs, kinds, order, atol=1e-5
    )


@merged
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"groups": 2}, {"dilation": 2}]
)
def test_conv2d(options):
    inputs = {
        "x": normal((2, 4, 7, 6), 1),
        "w": normal((6, 4 // options.get("groups", 1), 3, 3), 2),
    }
    check_derivatives(
        lambda x, w: F.conv2d(x, w, **options), inputs, ["conv2d_grad_grad"], atol=1e-4
    )


@merged
def test_conv2d_of_channels_last():
    inputs = {"x": normal((2, 7, 6, 4), 1), "w": normal((6, 4, 3, 3), 2)}
    check_derivatives(
        lambda x, w: F.conv2d(x, w, data_format="NHWC"), inputs, ["conv2d_grad_grad"], atol=1e-4
    )


@merged
def test_conv3d():
    inputs = {"x": normal((2, 2, 4, 5, 4), 1), "w": normal((3, 2, 2, 2, 2), 2)}
    check_derivatives(lambda x, w: F.conv3d(x, w), inputs, ["conv3d_double_grad"], atol=1e-4)


@merged
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (6, 3), (4, 3, 5)], ids=str)
@pytest.mark.parametrize("is_global", [False, True])
def test_batch_norm(shape, is_global):
    def function(x, scale, bias):
        mean, variance = paddle.full([3], 0.3), paddle.full([3], 1.7)
        return F.batch_norm(
            x, mean, variance, scale, bias, training=True, use_global_stats=is_global
        )

    inputs = {"x": normal(shape, 1), "scale": normal(3, 2), "bias": normal(3, 3)}
    check_derivatives(function, inputs, ["batch_norm_double_grad"], atol=1e-4)


@merged
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (4, 3, 5)], ids=str)
def test_instance_norm(shape):
    def function(x, scale, bias):
        return F.instance_norm(x, weight=scale, bias=bias)

    inputs = {"x": normal(shape, 1), "scale": normal(3, 2), "bias": normal(3, 3)}
    check_derivatives(function, inputs, ["instance_norm_double_grad"], atol=1e-4)


@merged
def test_reshape():
    check_derivatives(lambda x: paddle.reshape(x, [5, 3]), {"x": X}, ["reshape_double_grad"])


@merged
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_pad(value):
    def function(x):
        return F.pad(x, [1, 2, 0, 1], value=value)

    check_derivatives(function, {"x": X}, ["pad_double_grad"])


@merged
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pad3d(mode):
    def function(x):
        return F.pad(x, [1, 2, 0, 1, 1, 1], mode=mode)

    check_derivatives(function, {"x": normal((2, 1, 3, 4, 5), 1)}, ["pad3d_double_grad"])


@merged
@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"padding": 1}, {"padding": 1, "exclusive": False}]
)
def test_average_pooling(options):
    def function(x):
        return F.avg_pool2d(x, 3, **options)

    check_derivatives(function, {"x": normal((2, 3, 7, 8), 1)}, ["pool2d_double_grad"])


def _stopped(value):
    stopped = paddle.assign(value)
    stopped.stop_gradient = True
    return stopped


@merged
@pytest.mark.parametrize("stops_x", [False, True])
@pytest.mark.parametrize("name", ["multiply", "divide", "matmul"])
def test_one_operand_is_not_differentiated(name, stops_x):
    def function(x, y):
        return getattr(paddle, name)(*((_stopped(x), y) if stops_x else (x, _stopped(y))))

    inputs = {"x": normal((5, 5), 1), "y": np.abs(normal((5, 5), 2)) + np.float32(0.5)}
    check_derivatives(function, inputs, [f"{name}_double_grad"], atol=1e-5)


@merged
@pytest.mark.parametrize("name", ["multiply", "matmul", "tanh", "sin", "cos", "sigmoid", "pow"])
def test_third_derivatives_without_some_gradients(name):
    """Of the gradients of the second order only one is differentiated: others are zero."""
    functions = {"multiply": lambda x: x * x, "matmul": lambda x: paddle.matmul(x, x)}
    function = functions.get(name) or FUNCTIONS[name][0]

    def build(x, first, second):
        for cotangent in (first, second):
            (x_grad,) = paddle.static.gradients([function(x)], [x], [cotangent])
        (third,) = paddle.static.gradients([x_grad], [x])
        return third

    inputs = {"x": np.abs(normal((5, 5), 1)) + np.float32(0.5)}
    inputs.update(first=normal((5, 5), 2), second=normal((5, 5), 3))
    check(build, inputs, [f"{name}_double_grad"], atol=1e-4)


def test_third_derivatives_of_broadcast_products():
    """Paddle's kernel does not sum them, and writes beyond its results: compared with copies."""
    shapes = {"x": (3, 5), "y": (5,), "g": (3, 5), "gx": (3, 5), "gy": (5,)}
    seconds = {"hx": (3, 5), "hy": (5,), "hg": (3, 5)}
    feed = {n: normal(s, seed) for seed, (n, s) in enumerate({**shapes, **seconds}.items())}

    def built(expands):
        given = {name: paddle.static.data(name, array.shape) for name, array in feed.items()}
        for value in given.values():
            value.stop_gradient = False
        x, y, g, gx, gy, *others = given.values()
        product = x * (paddle.expand(y, [3, 5]) if expands else y)
        first = paddle.static.gradients([product], [x, y], [g])
        second = paddle.static.gradients(first, [x, y, g], [gx, gy])
        return paddle.static.gradients(second, [x, y, g, gx, gy], others)

    by_engine, expanded = Program(lambda: built(False)), Program(lambda: built(True))
    before = paddle_ngraph.stats()["engine_runs"]
    results = by_engine.run(**feed)
    assert paddle_ngraph.stats()["engine_runs"] > before
    assert "pd_op.multiply_triple_grad" in {op.name() for op in by_engine.main.global_block().ops}
    assert not paddle_ngraph.explain(by_engine.main).native
    for ours, theirs in zip(results, expanded.run(engine=False, **feed)):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


@merged
@pytest.mark.parametrize("values", STRANGE, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_and_infinity(name, values):
    function, _, is_thrice = FUNCTIONS[name]
    order = 3 if is_thrice else 2
    inputs = {"x": np.array(values, "float32")}
    check_derivatives(function, inputs, [f"{name}_double_grad"], order)


PRODUCTS = {
    "multiply": ("multiply_double_grad", (3, 5), (5,), lambda x, y: x * y),
    "divide": ("divide_double_grad", (3, 5), (5,), lambda x, y: x / y),
    "matmul": ("matmul_double_grad", (3, 5), (5, 4), paddle.matmul),
    "transposed": (
        "matmul_double_grad", (2, 5, 3), (4, 5),
        lambda x, y: paddle.matmul(x, y, transpose_x=True, transpose_y=True),
    ),
    "column": ("matmul_double_grad", (3, 5), (5, 1), paddle.matmul),
    "vectors": ("matmul_double_grad", (5,), (5,), paddle.matmul),
    "matrices": ("matmul_double_grad", (2, 3, 5), (5, 4), paddle.matmul),
    "conv2d": (
        "conv2d_grad_grad", (1, 2, 5, 5), (3, 2, 3, 3), lambda x, y: F.conv2d(x, y, padding=1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("poisoned", ["x", "y"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_infinity_times_zeros_of_paddle(name, poisoned, number):
    """The penalty has the gradient of one operand alone: Paddle fills in zeros for the other."""
    operator, x_shape, y_shape, function = PRODUCTS[name]

    def build(x, y):
        operands = {"x": x, "y": y}
        (grad,) = paddle.static.gradients([paddle.tanh(function(x, y))], [operands[poisoned]])
        found = paddle.static.gradients([(grad * grad).sum()], [x, y])
        return [each for each in found if each is not None]

    inputs = {"x": normal(x_shape, 1), "y": np.abs(normal(y_shape, 2)) + np.float32(0.5)}
    inputs[poisoned].flat[0] = number
    check(build, inputs, [operator], gradients=False, atol=1e-4)


@merged
def test_bfloat16():
    """Products alone have kernels for it on Paddle's CPU."""

    def build(x, first, second):
        numbers = [paddle.cast(each, "bfloat16") for each in (x, first, second)]
        (x_grad,) = paddle.static.gradients([numbers[0] * numbers[0]], numbers[:1], numbers[1:2])
        found = paddle.static.gradients([x_grad], numbers[:2], numbers[2:])
        return [paddle.cast(each, "float32") for each in found]

    inputs = {name: normal((3, 5), seed) for seed, name in enumerate(("x", "first", "second"))}
    check(build, inputs, ["multiply_double_grad"], gradients=False)
