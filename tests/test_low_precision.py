"""float16 and bfloat16: native, as the engine would leave their roundings out.

The CPU plugin keeps such numbers in float32 from operator to operator, so a cast to float16 and
back would change nothing there. What stands around them runs in the engine all the same.
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
from tests.programs import floats

# Operators with such kernels on Paddle's CPU, beside those of its oneDNN mode.
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
DTYPES = ["float16", "bfloat16"]
FLOAT16_ALONE = {"exp", "log2", "pool2d"}
KERNELS = [(n, d) for n in OPERATORS for d in DTYPES if d == "float16" or n not in FLOAT16_ALONE]


@pytest.mark.parametrize(("name", "dtype"), KERNELS)
def test_it_stays_native_and_the_rest_does_not(name: str, dtype: str) -> None:
    def build(x: Any) -> Any:
        out = paddle.cast(OPERATORS[name](paddle.cast(x * x, dtype)), "float32")
        return out * out

    x = {"x": floats(2, 3, 4, 4)}
    check(build, x, ["multiply"], native=["cast", name], gradients=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_cast_rounds_off_stays_off(dtype: str) -> None:
    def build(x: Any) -> Any:
        return paddle.cast(paddle.cast(x * x, dtype), "float32") * x

    x = np.array([1.0001, 3.1415927, 1e-3, 270.0, 45.3], "float32")
    check(build, {"x": x}, ["multiply"], native=["cast"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reason_names_the_dtype(dtype: str) -> None:
    def build(x: Any) -> Any:
        return paddle.floor(paddle.cast(x, dtype))

    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        build(paddle.static.data("x", [3], "float32"))
    reasons = {op.type: op.reason for op in paddle_ngraph.explain(program).native}
    assert reasons["pd_op.floor"] == f"input 'x' is {dtype}, not float32"
    assert dtype in reasons["pd_op.cast"]
