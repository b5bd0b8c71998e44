"""Plugin algebra that would change results is blocked; harmless fusions remain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
import pytest
from openvino import opset15

import paddle_ngraph
from paddle_ngraph.conversion.passes import algebra
from tests.programs import Program, counted, floats, parameter

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

# Both signs, with values that overflow or underflow when multiplied.
MAGNITUDES = [0.0, 1.0, 3.0, 1e-4, 1e4, 1e-10, 1e10, 1e-20, 1e-30, 1e30, 1e38, 3.4e38, np.inf]
NUMBERS = np.array([*MAGNITUDES, *(-x for x in MAGNITUDES), np.nan, 7.0], "float32").reshape(4, 7)
# float32's least normal value: below it, the plugin's kernels may return 0.
LEAST = 1.2e-38


def agree(build: Callable[[Any], Any], x: np.ndarray = NUMBERS, rtol: float = 1e-5) -> None:
    """Compares with Paddle's results, at any magnitude; the engine has to have run."""
    program = Program(lambda: build(paddle.static.data("x", list(x.shape), "float32")))
    before = paddle_ngraph.stats()["engine_runs"]
    found, expected = program.run(x=x), program.run(engine=False, x=x)
    assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=LEAST)


def number(value: float) -> Any:
    return paddle.full([1], value, "float32")


def weight(value: float, *shape: int) -> Any:
    initial = paddle.nn.initializer.Constant(value)
    return paddle.static.create_parameter(list(shape), "float32", default_initializer=initial)


# -- multiplications by constants -----------------------------------------------------------------

CHAINS = [
    (1e30, 1e30),
    (1e-30, 1e-30, 1e30),
    (1e30, 1e-30),
    (1e-30, 1e30),
    (100.0, 0.01),
    (0.125, 8.0),
    (1e20, 0.0),
    (-1e20, 1e10, 1e10),
    (1e-20, -1.0, 1e-20),
    (3e38, 1.2e-38),
]
TIMES = {
    "scale": lambda x, factor: x * factor,
    "number": lambda x, factor: paddle.multiply(x, number(factor)),
    "weight": lambda x, factor: x * weight(factor, 7),
    "expanded": lambda x, factor: x * paddle.expand(number(factor), [4, 7]),
    "reshaped": lambda x, factor: paddle.reshape(paddle.reshape(x, [28]) * factor, [4, 7]),
    "turned": lambda x, factor: paddle.transpose(paddle.transpose(x, [1, 0]) * factor, [1, 0]),
}


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("way", TIMES)
@pytest.mark.parametrize("factors", CHAINS, ids=str)
def test_several_factors(factors: tuple[float, ...], way: str) -> None:
    """The product of the constants, or of a subset, is beyond float32."""

    def build(x: Any) -> Any:
        for factor in factors:
            x = TIMES[way](x, factor)
        return x

    agree(build)


def random_chain(x: Any, seed: int) -> Any:
    """A chain of multiplications by constants of all magnitudes, with other operators between."""
    draw = np.random.default_rng(seed)
    factors = [1.0, -1.0, 3.0, 0.1, 1e4, 1e-5, 1e10, -1e-10, 1e20, 1e-20, 1e30, 1e-30, 3e38]
    others = [paddle.abs, lambda x: paddle.clip(x, -1e20, 1e35), lambda x: x + 0.0]
    others += [lambda x: paddle.reshape(x, [7, 4]), lambda x: paddle.reshape(x, [4, 7])]
    others += [lambda x: paddle.divide(number(2.0), x), paddle.square]
    for _ in range(6):
        kind = draw.integers(0, 4)
        factor = float(draw.choice(factors))
        if kind == 0:
            x = others[draw.integers(len(others))](x)
        elif kind == 1:
            x = paddle.divide(x, number(factor))
        else:
            x = x * factor if kind == 2 else paddle.multiply(x, number(factor))
    return x


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("seed", range(40))
def test_random_products(seed: int) -> None:
    agree(lambda x: random_chain(x, seed))


WEIGHTED = {
    "matrix": lambda x, w: paddle.matmul(x, paddle.eye(7) * w),
    "turned matrix": lambda x, w: paddle.matmul(x, paddle.eye(7) * w, transpose_y=True),
    "convolution": lambda x, w: _convolved(x, F.conv2d, weight(w, 7, 1, 1, 1)),
    "transposed convolution": lambda x, w: _convolved(x, F.conv2d_transpose, weight(w, 7, 1, 1, 1)),
}


def _convolved(x: Any, convolve: Any, filters: Any) -> Any:
    return paddle.reshape(convolve(paddle.reshape(x, [4, 7, 1, 1]), filters, groups=7), [4, 7])


@pytest.mark.parametrize("kind", WEIGHTED)
@pytest.mark.parametrize("sizes", [(1e30, 1e30), (1e-30, 1e-30), (1e-20, -1e-25)], ids=str)
def test_scaled_weights(kind: str, sizes: tuple[float, float]) -> None:
    x = np.array([0.0, 1.0, -3.0, 1e-30, 1e-20, 1e10, -1e20] * 4, "float32").reshape(4, 7)
    x = x if sizes[0] < 1.0 else np.minimum(x, np.float32(1e5))
    agree(lambda x: TIMES["number"](WEIGHTED[kind](x, sizes[0]), sizes[1]), x)
    if "convolution" in kind:
        agree(lambda x: WEIGHTED[kind](TIMES["number"](x, sizes[1]), sizes[0]), x)


def test_scaled_product_of_two_matrices() -> None:
    """The plugin would scale one of them."""
    x = np.diag(np.array([1e20, 1e-20, 1.0, 1e25], "float32"))
    agree(lambda x: TIMES["number"](paddle.matmul(x, paddle.abs(x)), 1e20), x * 1e-18)


def test_quotients_by_large_constants_after_products() -> None:
    """The plugin fuses them into the node before as multiplications by a denormal, which is 0."""
    divisors = np.array([3e38, -2e38, 1.0, 1e-30, 0.0, np.inf, 3.0], "float32")
    x = np.array([0.0, 1.0, -3.0, 1e-30, 1e30, 1e38, 5.0] * 4, "float32").reshape(4, 7)

    def build(x: Any) -> Any:
        return paddle.divide(WEIGHTED["matrix"](x, 1.0), paddle.assign(divisors)) * 1e-10

    agree(build, x)


def model_of(*results: Any) -> ov.Model:
    """Builds the model of these outputs, computed from the inputs of :func:`read`."""
    pending, parameters = list(results), []
    while pending:
        node = pending.pop()
        pending += [value.get_node() for value in node.input_values()]
        if node.get_type_name() == "Parameter":
            parameters.append(node)
    return ov.Model([opset15.result(result) for result in results], parameters, "model")


TERMS = {
    "scale": lambda x: x * 3.0 - 3e38,
    "numbers": lambda x: paddle.add(paddle.multiply(x, number(1e30)), number(-3.4e38)),
    "infinity": lambda x: paddle.subtract(paddle.multiply(x, x), number(np.inf)),
    "behind a convolution": lambda x: WEIGHTED["convolution"](x, 1.0) * 7.0 + 3.4e38,
    "less than": lambda x: paddle.subtract(number(1e38), paddle.multiply(x, number(1e10))),
}


@pytest.mark.parametrize("name", TERMS)
def test_products_that_overflow_in_a_sum(name: str) -> None:
    agree(TERMS[name], np.where(np.isinf(NUMBERS), np.float32(2e38), NUMBERS))


def num_barriers(*results: Any) -> int:
    """Returns the number of barriers in a model of these outputs."""
    model = model_of(*results)
    algebra.round_products_before_constants(model)
    algebra.preserve_overflow_before_large_terms(model)
    return sum(node.get_type_name() == "PRelu" for node in model.get_ops())


def read(*shape: int) -> Any:
    """An input of a run."""
    return opset15.parameter(list(shape), np.float32)


def test_products_that_the_plugin_may_fuse() -> None:
    """Scaling in attention, and batch normalization after a convolution, need no barrier."""
    x, gamma = read(2, 8, 6, 6), np.abs(floats(1, 8, 1, 1)) + 0.01
    filters = opset15.constant(0.1 * floats(8, 8, 3, 3))
    convolved = opset15.convolution(x, filters, [1, 1], [1, 1], [1, 1], [1, 1])
    scaled = opset15.multiply(convolved, opset15.constant(gamma))
    scores = opset15.matmul(read(2, 4, 8), read(2, 4, 8), False, True)
    mask = opset15.constant(np.triu(np.full((4, 4), -3.4e38, "float32"), 1))
    attention = opset15.add(opset15.multiply(scores, np.float32(0.125)), mask)
    twice = opset15.multiply(opset15.multiply(read(3), np.float32(2.0)), np.float32(-3.0))
    signs = opset15.multiply(opset15.multiply(read(3), np.float32(-1.0)), np.float32(0.1))
    assert num_barriers(scaled, attention, twice, signs) == 0


def test_products_that_must_not_be_fused() -> None:
    once = opset15.multiply(read(3), np.float32(1e30))
    assert num_barriers(opset15.multiply(once, np.float32(1e30))) == 1


WEIGHTS = [np.zeros((0, 5), "float32"), np.eye(5, dtype=bool), np.full((5, 5), -128, "int8")]


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda weights: str(weights.dtype))
def test_weights_of_other_dtypes_and_empty_weights(weights: np.ndarray) -> None:
    of_floats = opset15.convert(opset15.constant(weights), "f32")
    product = opset15.matmul(read(4, len(weights)), of_floats, False, False)
    assert num_barriers(opset15.multiply(product, np.float32(0.5))) == (weights.size == 0)


def test_barriers_precede_broadcasts() -> None:
    """The plugin fuses a broadcast into the multiplication that reads it."""
    small = opset15.multiply(read(3, 1), np.float32(0.1))
    spread = opset15.broadcast(small, np.array([3, 5]))
    results = [opset15.multiply(spread, np.float32(factor)) for factor in (2.0, 3.0)]
    assert num_barriers(*results) == 1
    assert all(
        result.input_value(0).get_node().get_type_name() == "Broadcast" for result in results
    )


def test_dynamic_shapes() -> None:
    def build() -> list[Any]:
        x = paddle.static.data("x", [-1, 7], "float32")
        return [x * 1e30 * 1e30, WEIGHTED["matrix"](x * 1e-5, 1e-30) * 1e-30, 1.0 / (x * 1.0)]

    program = Program(build)
    before = paddle_ngraph.stats()["engine_runs"]
    for rows in (1, 2, 3, 5, 4):
        x = NUMBERS[np.arange(rows) % 3]
        x = np.where(np.isfinite(x), x, np.float32(-0.0))
        found, expected = program.run(x=x), program.run(engine=False, x=x)
        for ours, theirs in zip(found, expected):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=LEAST)
    assert paddle_ngraph.stats()["engine_runs"] >= before + 5


def test_loop_bodies() -> None:
    def build(x: Any) -> Any:
        def body(_: Any, y: Any) -> list[Any]:
            return [y * 1e30 * 1e-30 + 1.0 / (y * 1.0)]

        limit = paddle.full([1], 2, "int64")
        return counted(body, x, end=limit)[1]

    agree(build)


# -- signs of zeros --------------------------------------------------------------------------------

ZEROS = {
    "scaled": lambda x: x * 2.0,
    "times one": lambda x: x * 1.0,
    "negative": lambda x: -x,
    "plus zero": lambda x: x + 0.0,
    "plus zeros": lambda x: x + weight(0.0, 7),
    "zero plus": lambda x: 0.0 + x,
    "less zero": lambda x: x - 0.0,
    "zero less": lambda x: paddle.subtract(number(0.0), x),
    "less a zero": lambda x: paddle.subtract(x, number(0.0)),
    "scaled first": lambda x: paddle.scale(x, -2.0, 0.0, bias_after_scale=False),
    "a product": lambda x: paddle.multiply(x, number(2.0)),
    "a product by a negative": lambda x: paddle.multiply(x, number(-2.0)),
    "a product, scaled": lambda x: paddle.multiply(x, number(2.0)) * 1.0,
    "twice": lambda x: -(x * 0.5),
    "plus something": lambda x: (x * 2.0) + 1.0,
}
READERS = {
    "inverse": lambda x: 1.0 / x,
    "of a view": lambda x: paddle.divide(number(3.0), paddle.reshape(x, [28])),
    "of a product": lambda x: 1.0 / paddle.multiply(x, number(-3.0)),
    "angle": lambda x: paddle.atan2(x, x),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ZEROS)
def test_signs_of_zeros(name: str, reader: str) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 3.0, -1e30, np.nan] * 4, "float32").reshape(4, 7)
    agree(lambda x: READERS[reader](ZEROS[name](x)), x)


def test_zeros_of_norms_are_positive() -> None:
    x = opset15.add(read(2, 3), np.zeros(3, "float32"))
    total = opset15.reduce_sum(opset15.multiply(x, x), np.array([1]), keep_dims=True)
    model = model_of(opset15.divide(x, opset15.sqrt(total)))
    before = len(model.get_ops())
    algebra.keep_positive_zeros(model)
    assert len(model.get_ops()) == before


def test_a_product_read_with_and_without_an_added_zero() -> None:
    x = np.array([[0.0, -0.0, 1.0]], "float32")

    def build(x: Any) -> list[Any]:
        product = paddle.multiply(x, number(2.0))
        return [1.0 / product, 1.0 / (product * 1.0)]

    agree(build, x)


# -- nodes that the plugin fuses -------------------------------------------------------------------

RECTIFIED = {
    "sum": lambda x: F.relu(x) + -0.25 * F.relu(-x),
    "difference": lambda x: F.relu(x) - 0.25 * F.relu(-x),
    "of a product": lambda x: F.relu(x) - F.relu(paddle.multiply(x, number(-1.0))) * 0.25,
    "of weights": lambda x: F.relu(x) - F.relu(-x) * parameter(7),
}


@pytest.mark.parametrize("name", RECTIFIED)
def test_nan_in_a_relu_that_becomes_prelu(name: str) -> None:
    agree(RECTIFIED[name])


def test_erf_of_small_values() -> None:
    x = np.concatenate([10.0 ** np.arange(-37, 1), np.linspace(0.01, 4.0, 102)]).astype("float32")
    agree(lambda x: paddle.erf(x), np.stack([x, -x]), rtol=1e-6)


def erf_nodes(scale: float, term: float) -> int:
    """Returns the number of nodes added for ``scale * erf(x) + term``."""
    half = opset15.multiply(opset15.erf(read(3)), np.float32(scale))
    model = model_of(opset15.add(half, np.float32(term)))
    before = len(model.get_ops())
    algebra.compute_small_erf(model)
    return len(model.get_ops()) - before


def test_erf_plus_one_is_left_to_the_plugin() -> None:
    whole = opset15.add(opset15.erf(read(3)), np.float32(1.0))
    model = model_of(whole)
    before = len(model.get_ops())
    algebra.compute_small_erf(model)
    assert len(model.get_ops()) == before
    assert erf_nodes(0.5, 0.5) == 0
    assert erf_nodes(10.0, 1.0) > 0
