"""float64 tensors that are only filled, moved and selected before a cast to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from tests.programs import Program, floats
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


def causal(x: Any) -> Any:
    """A mask as formula decoders build it, of a size that a run knows."""
    length = paddle.shape(x)[1]
    mask = paddle.full([length, length], -1.7e308, "float64")
    place = paddle.arange(length)
    mask = mask.masked_fill(place.unsqueeze(0) <= place.unsqueeze(1), 0.1)
    return mask[None, None].expand([2, 1, length, length])


def selected(x: Any) -> Any:
    third = paddle.full([3, 4], 1.0 / 3.0, "float64")
    return paddle.where(third > 0, third, paddle.cast(x[0, :3] > 0, "float64")).transpose([1, 0])


def of_bools(x: Any) -> Any:
    return paddle.tril(paddle.cast(x > 0, "float64").reshape([-1, 4])[1:]).flatten()


MASKS = {"causal": causal, "of bools": of_bools}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_rounded_first(name: str) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [2, 5, 4], "float32")
        mask = paddle.cast(MASKS[name](x), "float32")
        return [mask, x[0, 0, 0] + mask]

    program = Program(build)
    report = paddle_ngraph.explain(program.main)
    assert not report.native and len(report.intervals) == 1, report
    feed = {"x": floats(2, 5, 4)}
    for one, other in zip_equal(program.run(engine=False, **feed), program.both(**feed)):
        np.testing.assert_array_equal(other, one)


def test_float64_stays_where_it_is_read_or_computed() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [2, 5, 4], "float32")
        mask = causal(x)
        total = paddle.cast(mask[0, 0] + paddle.cast(x[0, 0, 0], "float64"), "float32")
        return [paddle.cast(mask, "float32") + x[0, 0, 0], mask, total]

    program = Program(build)
    feed = {"x": floats(2, 5, 4)}
    rounded, mask, total = program.run(engine=False, **feed)
    found = program.both(**feed)
    assert [each.dtype for each in found] == ["float32", "float64", "float32"]
    for one, other in zip_equal([rounded, mask, total], found):
        np.testing.assert_array_equal(other, one)
    assert any("float64" in op.reason for op in paddle_ngraph.explain(program.main).native)


def test_a_comparison_in_float64_is_not_rounded() -> None:
    program = Program(
        lambda: paddle.cast(selected(paddle.static.data("x", [2, 5, 4], "float32")), "float32")
    )
    feed = {"x": floats(2, 5, 4)}
    np.testing.assert_array_equal(program.run(**feed)[0], program.run(engine=False, **feed)[0])


def test_a_fill_by_a_computed_number_stays_in_float64() -> None:
    """The number is a difference of close ones: of float32, little would be left."""

    def build() -> Any:
        number = paddle.static.data("number", [1], "float64")[0]
        filled = paddle.full([2, 3], number * (1.0 + 1e-9) - number, "float64")
        return [paddle.cast(filled, "float32"), number + 1.0]

    program, feed = Program(build), {"number": np.array([1.0 / 3.0])}
    for one, other in zip_equal(program.run(engine=False, **feed), program.run(**feed)):
        np.testing.assert_array_equal(other, one)
