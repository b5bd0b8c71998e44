"""Numbers of Python that differ in each call: inputs of one graph, not constants of many."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.partitioning import background_compile
from tests.dynamic import agree, floats, made
from tests.frontends.dynamic.test_compiled_layer import both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

NUMBERS = [0.5 + number / 7 for number in range(8)] + list(range(2, 8))
# Numbers that are constants before a number is an input, then a call that is recorded and one that
# builds the graph; each twice, as ints and floats may be in turn.
CONSTANT_CALLS = 6


def temperature(x: Any, number: float) -> Any:
    return F.softmax(x / number) * (1 - number / 9) + number * x


OPERATIONS: dict[str, Callable[[Any, float], Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "truediv", "gt", "ge", "lt", "le", "eq", "ne")
    },
    "radd": lambda x, number: number + x,
    "rsub": lambda x, number: number - x,
    "rmul": lambda x, number: number * x,
    "rtruediv": lambda x, number: number / (x.abs() + 1),
    "temperature": temperature,
}
COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")


def engine_runs() -> int:
    return int(paddle_ngraph.stats()["engine_runs"])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_a_number_of_each_operator(name: str, trains: bool) -> None:
    operation = OPERATIONS[name]

    def function(x: Any, number: float) -> Any:
        result = operation(F.tanh(x) * 3.0, number)
        return F.tanh(result.astype("float32") if name in COMPARISONS else result * 0.25)

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        called, found = compiled(function), []
        for number in NUMBERS:
            x = floats(4, 6)
            x.stop_gradient = not trains or name in COMPARISONS
            result = called(x, number)
            found.append(result)
            if not x.stop_gradient:
                result.square().sum().backward()
                found.append(x.grad)
        return found

    both(scenario, runs=len(NUMBERS) - CONSTANT_CALLS)


@pytest.mark.parametrize("dtype", [float, np.float64])
def test_one_graph_for_all_numbers(dtype: type[float]) -> None:
    compiled = paddle_ngraph.compile(temperature)
    built = paddle_ngraph.stats()["functions_built"]
    for call in range(30):
        number = dtype(1.0 + call / 29)
        agree(compiled(floats(3, 5), number), temperature(floats(3, 5), number))
    assert paddle_ngraph.stats()["functions_built"] - built <= 2
    assert engine_runs() >= 12


def test_extreme_numbers_as_in_eager_mode() -> None:
    def function(x: Any, number: Any) -> Any:
        return F.relu(x * number) + number

    # One float32 tensor has no axes, an integer beyond 64 bits is Paddle's to judge.
    numbers = [*NUMBERS[:6], float("inf"), float("nan"), 1e300, -0.0, True, 2**62, -(2**31), 1e-46]
    compiled = paddle_ngraph.compile(function)
    before = engine_runs()
    for number, shape in itertools.product(numbers, [(3, 4), ()]):
        agree(compiled(floats(*shape), number), function(floats(*shape), number))
    assert engine_runs() > before


def test_integers_that_are_no_floats_as_in_eager_mode() -> None:
    """Paddle rounds them once in comparisons, and twice in sums."""
    x = paddle.to_tensor([2.0**60, 2.0**60 + 2.0**37])
    for function in (operator.eq, operator.add):
        compiled = paddle_ngraph.compile(lambda x, number, function=function: function(x, number))
        for number in [*range(6), 2**60 + 2**36 + 1]:
            agree(compiled(x, number), function(x, number))


@pytest.mark.parametrize("name", [*OPERATIONS, "floordiv", "mod"])
def test_a_tensor_without_axes_as_in_eager_mode(name: str) -> None:
    function = OPERATIONS.get(name) or getattr(operator, name)
    compiled = paddle_ngraph.compile(lambda x, number: function(x, number))
    x = paddle.to_tensor(1.75)
    for number in NUMBERS[:6]:
        agree(compiled(x, number), function(x, number))


@pytest.mark.parametrize("dtype", ["float64", "int64", "bfloat16"])
def test_other_dtypes_have_constants(dtype: str) -> None:
    def function(x: Any, number: float) -> Any:
        return (x * number).astype("float32").tanh()

    compiled = paddle_ngraph.compile(function)
    for number in [*NUMBERS, *NUMBERS]:
        x = (floats(3, 4) * 9).astype(dtype)
        agree(compiled(x, number), function(x, number))


def test_a_number_that_is_used_by_several_operators() -> None:
    """Each place gets the number of its call, also where it was derived from others."""

    class Noisy(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Any, level: float) -> Any:
            scale = (1 - level**2) ** 0.5
            noisy = x * scale + self.linear(x) * level
            return (noisy - scale * x) / max(level, 0.25) + level

    layer = made(Noisy)
    compiled = paddle_ngraph.compile(made(Noisy))
    before = engine_runs()
    for step in range(40):
        level = step / 40
        with paddle.no_grad(), background_compile.compile_synchronously():
            agree(compiled(floats(2, 6), level), layer(floats(2, 6), level))
    assert engine_runs() - before >= 35


@pytest.mark.parametrize(
    "product", [lambda x, number: x * number, lambda x, number: number * x], ids=["x*n", "n*x"]
)
def test_products_leave_no_negative_zero(product: Callable[[Any, float], Any]) -> None:
    """Paddle adds 0 to a product with a number, but not to one with a tensor."""
    x = paddle.to_tensor([-0.0, 0.0, 1.5])
    compiled = paddle_ngraph.compile(lambda x, number: 1 / product(x, number))
    for number in NUMBERS:
        agree(compiled(x, number), 1 / product(x, number))
    assert engine_runs() > 0
