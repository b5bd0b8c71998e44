"""FLAGS_ngraph_weights: weights of matmuls as integers, decompressed within the product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.static import Program

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion.passes.weight_compression import GROUP

INPUTS, OUTPUTS = 3 * GROUP, 96
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def as_given_afterwards() -> Iterator[None]:
    paddle_ngraph.clear_cache()
    yield
    flags.set("ngraph_weights", "as given")


def weight_of(inputs: int, outputs: int) -> Array:
    """A weight whose scale and offset differ between outputs, and between groups of inputs."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((inputs, outputs))
    weight *= random.uniform(0.1, 10, outputs)
    per_group = random.uniform(0.1, 10, (-(-inputs // GROUP), outputs))
    weight *= np.repeat(per_group, GROUP, axis=0)[:inputs]
    weight += np.repeat(random.uniform(-3, 3, per_group.shape) * per_group, GROUP, axis=0)[:inputs]
    return weight.astype("float32")


def rounded(weight: Array, weight_format: str) -> Array:
    """The weight that a format stands for, computed output by output in float64."""
    found = np.array(weight, "float64")
    for output in range(weight.shape[1]):
        if weight_format == "int8":
            scale = np.abs(found[:, output]).max() / 127
            found[:, output] = np.rint(found[:, output] / scale) * scale
            continue
        for first in range(0, len(weight), GROUP):
            part = found[first : first + GROUP, output]
            low, high = min(part.min(), 0), max(part.max(), 0)
            scale = (high - low) / 15
            zero = np.rint(-low / scale)
            part[:] = (np.clip(np.rint(part / scale) + zero, 0, 15) - zero) * scale
    return found


class Product:
    """A program with products by one weight, which is transposed in memory or not."""

    def __init__(self, weight: Array, is_transposed: bool = False, trains: bool = False) -> None:
        self.program, startup = Program(), Program()
        stored = np.ascontiguousarray(weight.T) if is_transposed else weight
        with paddle.static.program_guard(self.program, startup), paddle.utils.unique_name.guard():
            x = paddle.static.data("x", [-1, len(weight)])
            attribute = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(stored))
            parameter = paddle.create_parameter(list(stored.shape), "float32", attr=attribute)
            product = paddle.matmul(x, parameter, transpose_y=is_transposed)
            self.fetch = [product, paddle.tanh(product)]
            if trains:
                paddle.optimizer.SGD(0.0).minimize(paddle.mean(product))
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(startup)

    def run(self, x: Array, weight_format: str) -> list[Array]:
        flags.set("ngraph_weights", weight_format)
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph():
            found = self.executor.run(self.program, feed={"x": x}, fetch_list=self.fetch)
        assert paddle_ngraph.stats()["engine_runs"] == before + 1, "the engine did not run"
        return [np.asarray(each) for each in found]


def rows(count: int, inputs: int = INPUTS) -> Array:
    return np.random.default_rng(1).standard_normal((count, inputs)).astype("float32")


@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["stored by inputs", "by outputs"])
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_products_by_compressed_weights(weight_format, is_transposed, count):
    weight, x = weight_of(INPUTS, OUTPUTS), rows(count)
    expected = x.astype("float64") @ rounded(weight, weight_format)
    exact = x.astype("float64") @ weight.astype("float64")
    size = np.abs(exact).max(axis=0)
    # A weight beside the middle of two integers may be rounded to either of them.
    product, tanh = Product(weight, is_transposed).run(x, weight_format)
    assert (np.abs(product - expected) <= 2e-3 * size).all()
    np.testing.assert_array_equal(np.sign(tanh), np.sign(product))
    # The bound tells the formats apart: no other rounding is as close.
    assert (np.abs(exact - expected) > 2e-3 * size).any()


def test_each_format_has_functions_of_its_own():
    weight, x = weight_of(INPUTS, OUTPUTS), rows(3)
    program = Product(weight)
    formats = ["as given", "int8", "int4"]
    found = [program.run(x, each)[0] for each in formats]
    again = [program.run(x, each)[0] for each in formats]
    assert paddle_ngraph.stats()["functions_built"] == len(formats)
    for one, other in zip(found, again):
        np.testing.assert_array_equal(one, other)
    errors = [np.abs(each - x @ weight).mean() for each in found]
    assert errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize(
    ("weight_format", "change"),
    [
        ("int8", lambda weight: weight[:8, :8]),
        ("int4", lambda weight: weight[: GROUP + 8]),
        ("int8", lambda weight: np.where(weight == weight.max(), np.float32(np.nan), weight)),
        ("int4", lambda weight: np.where(weight == weight.max(), np.float32(np.inf), weight)),
    ],
    ids=["small", "no whole groups", "with NaN", "with infinity"],
)
def test_weights_that_keep_their_format(weight_format, change):
    weight = np.ascontiguousarray(change(weight_of(INPUTS, 128)))
    x = rows(3, len(weight))
    program = Product(weight)
    for found, given in zip(program.run(x, weight_format), program.run(x, "as given")):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_groups_of_zeros_and_of_subnormal_numbers(weight_format):
    weight = weight_of(INPUTS, OUTPUTS)
    weight[:GROUP] = 0
    weight[:, 1] = 0
    weight[:, 2] = 1e-44
    x = rows(3)
    product, _ = Product(weight).run(x, weight_format)
    assert np.isfinite(product).all()
    np.testing.assert_array_equal(product[:, 1:3], 0)


def test_training_keeps_its_weights():
    """Parameters that a program writes are no constants."""
    program = Product(weight_of(INPUTS, OUTPUTS), trains=True)
    found = [program.run(rows(3), each)[0] for each in ("as given", "int4")]
    np.testing.assert_array_equal(*found)


def test_another_format_is_rejected():
    program = Product(weight_of(INPUTS, OUTPUTS))
    with pytest.raises(ValueError, match="FLAGS_ngraph_weights=int3: use"):
        program.run(rows(3), "int3")
    program.run(rows(3), "int8")
