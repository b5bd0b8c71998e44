"""16-bit floats: bfloat16 with all roundings of Paddle's kernels, float16 by fallback.

The CPU plugin keeps float16 in float32 from operator to operator, so a cast to float16 and back
would have no effect there. Operators around it still run in the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from tests.ops.harness import check
from tests.programs import Program, floats

# Operators with such kernels on Paddle's CPU, in addition to those of its oneDNN mode.
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "argsort": lambda x: paddle.argsort(x, axis=1),
    "assign": paddle.assign,
    "bilinear_interp": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "ceil": paddle.ceil,
    "concat": lambda x: paddle.concat([x, x], 1),
    "equal": lambda x: paddle.equal(x, x),
    "exp": paddle.exp,
    "floor": paddle.floor,
    "greater_than": lambda x: paddle.greater_than(x, paddle.floor(x)),
    "log2": lambda x: paddle.log2(paddle.exp(x)),
    "masked_fill": lambda x: paddle.masked_fill(x, x == x, 2.0),
    "nearest_interp": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "pool2d": lambda x: F.max_pool2d(x, 2),
    "reshape": lambda x: paddle.reshape(x, [-1]),
    "scale": lambda x: x * 0.3 + 0.1,
    "slice": lambda x: x[:, 1:2],
    "split": lambda x: paddle.split(x, [1, 2], 1)[1],
    "stack": lambda x: paddle.stack([x, x]),
    "strided_slice": lambda x: x[:, :, ::2],
    "sum": lambda x: paddle.sum(x, 1),
    "unbind": lambda x: paddle.unbind(x, 1)[0],
}
FLOAT16_ALONE = {"exp", "log2", "pool2d"}


def _through(name: str, dtype: str) -> Callable[[Any], Any]:
    def build(x: Any) -> Any:
        out = paddle.cast(OPERATORS[name](paddle.cast(x * x, dtype)), "float32")
        return out * out

    return build


@pytest.mark.parametrize("name", OPERATORS)
def test_only_float16_falls_back(name: str) -> None:
    build, x = _through(name, "float16"), {"x": floats(2, 3, 4, 4)}
    check(build, x, ["multiply"], native=["cast", name], gradients=False)


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - FLOAT16_ALONE))
def test_bfloat16_is_rounded_as_paddle_rounds(name: str) -> None:
    """One rounding more or less would be 2^-9 of a value; the tolerance is 1e-5."""
    build, x = _through(name, "bfloat16"), {"x": floats(2, 3, 4, 4)}
    check(build, x, ["multiply", "cast", name], gradients=False)


# Results or attributes of these are rounded on the way.
STEPS: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "mean": lambda x: paddle.mean(x, 1),
    "scale": lambda x: paddle.scale(x, 0.7, 0.3, bias_after_scale=False),
    "sum": paddle.sum,
}


@pytest.mark.parametrize("name", STEPS)
def test_gradients_in_bfloat16(name: str) -> None:
    def program() -> list[Any]:
        x = paddle.static.data("x", [2, 3, 10, 10])
        x.stop_gradient = False
        out = paddle.cast(STEPS[name](paddle.cast(x, "bfloat16")), "float32")
        return [out, *paddle.static.gradients([out * out * 0.37], [x])]

    found = []
    for engine in (False, True):
        paddle.seed(5)
        found.append(Program(program).run(engine, x=floats(2, 3, 10, 10)))
    assert paddle_ngraph.stats()["engine_runs"] == 1 and not paddle_ngraph.stats()["ops_native"]
    for native, ours in zip(*found):
        np.testing.assert_array_equal(ours, native)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_to_bfloat16_round_permanently(dtype: str) -> None:
    def build(x: Any) -> Any:
        return paddle.cast(paddle.cast(x * x, dtype), "float32") * x

    x = np.array([1.0001, 3.1415927, 1e-3, 270.0, 45.3], "float32")
    cast = ["cast"] if dtype == "bfloat16" else []
    check(build, {"x": x}, ["multiply", *cast], native=[] if cast else ["cast"])


def test_the_reason_names_the_dtype() -> None:
    def build(x: Any) -> Any:
        return paddle.floor(paddle.cast(x, "float16"))

    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        build(paddle.static.data("x", [3], "float32"))
    reasons = {op.type: op.reason for op in paddle_ngraph.explain(program).native}
    assert reasons["pd_op.floor"] == "input 'x' is float16, not float32"
    assert "float16" in reasons["pd_op.cast"]
