"""Poles and jumps of differences whose sign rounding does not determine, and faults beside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.comparison import Difference, SubgraphRun, compare
from paddle_ngraph.verification.evaluation import array_of, tensor_of
from tests.programs import Program, floats
from tests.verification.planted import negated, planted, scaled
from tests.verification.test_checks import verified

ROWS, COLUMNS = 6, 16

# Functions of two tensors that noise takes through zero where these are nearly equal.
DIFFERENCES: list[Callable[[Any, Any], Any]] = [
    lambda h, g: h - g,
    lambda h, g: h * 1.5 + g * -1.5,
    lambda h, g: paddle.scale(h - g, 2.0, 1e-30),
    lambda h, g: paddle.sum(paddle.stack([h, -g], 0), 0),
]
# Functions with a pole or a jump at zero.
FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda z: 1.0 / z,
    lambda z: paddle.log(paddle.abs(z)),
    lambda z: paddle.rsqrt(paddle.abs(z)),
    lambda z: 1.0 / (z * z),
    lambda z: paddle.sign(z) * 3.0,
    lambda z: paddle.floor(z),
    lambda z: paddle.cast(paddle.ceil(z), "int32"),
    lambda z: z > 0.0,
    lambda z: paddle.where(z > 0.0, z + 2.0, z - 3.0),
    lambda z: z / paddle.abs(z),
    lambda z: paddle.cast(paddle.clip(0.1 / z, -900.0, 900.0), "int32"),
    lambda z: paddle.atan(1.0 / z),
]
# A term that is added and subtracted, for its roundings, which are larger than those of the
# difference; and sizes of differences that they take through zero and do not.
SIZES = {"float32": (1024.0, 1e-4, 0.3), "bfloat16": (32.0, 0.1, 40.0)}


def _recorded(build: Callable[[], Any], **feeds: np.ndarray) -> SubgraphRun:
    """The run of the one subgraph of a program."""
    runs = []

    def record(text: str, given: list[Any], found: Any, random: Any, *_: Any) -> None:
        runs.append(SubgraphRun(Graph.from_string(text), given, random, text))

    with pytest.MonkeyPatch.context() as patch, verified():
        patch.setattr(checks, "check_run", record)
        Program(build).run(**feeds)
    (run,) = runs
    return run


def _build(difference: Any, function: Any, dtype: str) -> list[Any]:
    x, y = (paddle.cast(paddle.static.data(name, [ROWS, COLUMNS]), dtype) for name in "xy")
    h = (x + SIZES[dtype][0]) - SIZES[dtype][0]
    z = difference(*(paddle.cast(each, "float32") for each in (h, y)))
    return [z, function(z)]


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_values_beside_a_pole_are_right_where_noise_reaches_it(dtype: str, number: int) -> None:
    _, near, far = SIZES[dtype]
    function, difference = FUNCTIONS[number], DIFFERENCES[number % len(DIFFERENCES)]
    y = 1.5 + 0.2 * floats(ROWS, COLUMNS, seed=number)
    is_near = np.arange(y.size).reshape(y.shape) % 3 == 0
    x = np.where(is_near, y + near, y + far).astype("float32")
    run = _recorded(lambda: _build(difference, function, dtype), x=x, y=y.astype("float32"))
    native, _ = run.natively()
    with paddle.base.dygraph.guard():
        found = {z: function(paddle.to_tensor(np.float32(z))).numpy() for z in (1e-9, -1e-9, 0.0)}

    def differences(where: Any, value: np.ndarray) -> list[Difference]:
        array = array_of(native[1]).copy()
        array[where] = value
        return compare(run, [native[0], tensor_of(array, array.dtype.name)], native)

    a_far_one = tuple(np.argwhere(~is_near)[0])
    for z, value in found.items():
        if np.isnan(value):
            continue
        assert not differences(is_near, value), z
        is_same = value == array_of(native[1])[a_far_one]
        assert bool(differences(a_far_one, value)) != is_same, z


def _network(x: Any) -> Any:
    first, second = (
        paddle.cast(paddle.create_parameter(shape, "float32"), "bfloat16")
        for shape in ([COLUMNS, 32], [32, COLUMNS])
    )
    hidden = paddle.matmul(F.gelu(paddle.matmul(paddle.cast(x, "bfloat16"), first)), second)
    return F.layer_norm(paddle.cast(hidden, "float32") + x, COLUMNS)


def _poles(count: int, seed: int) -> list[Any]:
    x = paddle.static.data("x", [ROWS, COLUMNS])
    h = _network(x)
    z = h - paddle.mean(h, -1, keepdim=True) * 1.0
    return [h, *(each(z) for each in random.Random(seed).sample(FUNCTIONS, count))]


@pytest.mark.parametrize("seed", range(4))
def test_networks_in_bfloat16_with_poles(seed: int) -> None:
    with verified():
        program = Program(lambda: _poles(5, seed))
        for run in range(12):
            program.run(x=floats(ROWS, COLUMNS, seed=100 * seed + run))
    assert checks.log.checked == 12
    assert (checks.log.wrong, checks.log.unchecked) == (0, {}), str(checks.log)


@pytest.mark.parametrize(
    ("name", "function", "fault"),
    [
        ("divide", 0, negated),
        ("log", 1, negated),
        ("rsqrt", 2, negated),
        ("layer_norm", 0, negated),
    ],
)
def test_faults_beside_poles_are_found(name: str, function: int, fault: Any) -> None:
    def build() -> list[Any]:
        x = paddle.static.data("x", [ROWS, COLUMNS])
        h = _network(x)
        return [FUNCTIONS[function](h - paddle.mean(h, -1, keepdim=True) * 1.0)]

    with planted(f"pd_op.{name}", fault), verified(), pytest.warns(match="wrong at"):
        Program(build).run(x=floats(ROWS, COLUMNS))
    assert checks.log.mismatches[0].operator == f"pd_op.{name}"


def test_small_faults_beside_poles_are_found_in_float32() -> None:
    def build() -> list[Any]:
        x, y = (paddle.static.data(name, [ROWS, COLUMNS]) for name in "xy")
        return [1.0 / (x * 1.25 - y * 1.25)]

    y = 1.5 + 0.2 * floats(ROWS, COLUMNS)
    x = (y * (1 + 3e-7 * (np.arange(y.size).reshape(y.shape) % 3 == 0))).astype("float32")
    x[0] += 0.25
    with planted("pd_op.divide", scaled), verified(), pytest.warns(match="wrong at pd_op.divide,"):
        Program(build).run(x=x, y=y.astype("float32"))
