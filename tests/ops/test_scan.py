"""Running sums and their gradients."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from tests.ops.harness import both, check, check_fallback, normal
from tests.ops.merging import merged

CASES = [((), None), ((1,), 0), ((7,), None), ((3, 5), 0), ((3, 5), -1), ((3, 5), None)]
CASES += [((2, 3, 4), 1), ((2, 1, 4, 5), 1), ((2, 1, 4, 5), 2)]


@merged
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_cumsum(shape, axis):
    check(lambda x: paddle.cumsum(x, axis), {"x": normal(shape)}, both("cumsum"))


@merged
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("flatten", [True, False])
def test_cumsum_with_all_attributes(flatten, reverse, exclusive):
    def build(x):
        return paddle._C_ops.cumsum(x, 0 if flatten else 1, flatten, exclusive, reverse)

    check(build, {"x": normal((3, 4, 2))}, both("cumsum"))


@merged
def test_cumsum_of_special_values():
    x = normal((4, 40))
    x[0, 7], x[1, 3], x[2, 5], x[2, 9], x[3, 2] = np.nan, np.inf, np.inf, -np.inf, 3e38
    check(lambda x: paddle.cumsum(x, 1), {"x": x}, both("cumsum"), dynamic={"x": [-1, 40]})
    check(lambda x: paddle.cumsum(x, 0), {"x": x}, both("cumsum"), dynamic={"x": [-1, -1]})


@merged
def test_cumsum_of_integers_falls_back():
    x = {"x": np.array([2**31 - 1, 5], "int32")}
    check_fallback(lambda x: paddle.cumsum(x, 0), x, ["cumsum"])


@merged
def test_in_place():
    x = {"x": normal((3, 4))}
    check(
        lambda x: paddle._C_ops.cumsum_(x * 1.0, 1, False, False, False),
        x,
        ["cumsum_"],
        gradients=False,
    )
