"""Tables of positions: the numbers that Paddle computes, or none."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_ngraph.conversion.analysis.position_tables import table_of
from paddle_ngraph.ir.graph import Op, TensorSpec

NAMES = [
    *("add", "bitwise_and", "bitwise_or", "equal", "greater_equal", "greater_than", "less_equal"),
    *("less_than", "logical_and", "logical_or", "maximum", "minimum", "multiply", "not_equal"),
    "subtract",
]


def native(name: str, *tables: np.ndarray) -> Any:
    """The result of Paddle's function; ``None`` if Paddle has no kernel for the dtype."""
    try:
        return getattr(paddle, name)(*map(paddle.to_tensor, tables)).numpy()
    except (RuntimeError, TypeError) as error:
        assert re.search("is not registered|[Dd]ata ?[Tt]ype", str(error)), error
        return None


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_tables_of_two_tables_are_those_of_paddle(name: str, dtype: str) -> None:
    draw = np.random.default_rng(len(name))
    tables = [draw.integers(-2, 3, shape).astype(dtype) for shape in ((4, 1), (1, 4))]
    paddle.disable_static()
    try:
        expected = native(name, *tables)
    finally:
        paddle.enable_static()
    result = TensorSpec(2, dtype if expected is None else str(expected.dtype), (4, 4))
    inputs = {
        n: (TensorSpec(i, dtype, table.shape),) for i, (n, table) in enumerate(zip("xy", tables))
    }
    op = Op(f"pd_op.{name}", 0, inputs, {"out": (result,)})
    found = table_of(op, dict(zip("xy", tables)), [4, 1], [4, 4], True)
    if expected is not None:
        assert found is not None
        np.testing.assert_array_equal(found, expected)
