"""Loops as decoders of text have them: random ones are one operator, as PIR and as ProgramDesc.

Counters are int64, rows and words are written in place or appended to a list, data ends the loop
early, and branches inside select one of two values or compute one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base.layer_helper import LayerHelper
from paddle.static.nn.control_flow import ConditionalBlock

import paddle_ngraph
from tests.programs import Program, floats, parameter
from tests.zips import zip_equal

WIDTH, WORDS, STEPS = 6, 7, 5
OLD = "ProgramDesc"


def append(kind: str, inputs: dict[str, Any], dtype: Any, /, **attributes: Any) -> Any:
    """Appends a ProgramDesc operator, and returns its only output."""
    helper = LayerHelper(kind)
    out = helper.create_variable_for_type_inference(dtype)
    helper.append_op(type=kind, inputs=inputs, outputs={"Out": [out]}, attrs=attributes)
    return out


class OfPir:
    """The operators of a decoder, as functions of Paddle."""

    matmul = staticmethod(paddle.matmul)
    equal = staticmethod(paddle.equal)
    logical_and = staticmethod(paddle.logical_and)
    cond = staticmethod(paddle.static.nn.cond)

    def softmax(self, x: Any) -> Any:
        return paddle.nn.functional.softmax(x)

    def best(self, x: Any, dtype: str) -> Any:
        return paddle.argmax(x, axis=1, dtype=dtype)

    def all_rows_have_any(self, x: Any) -> Any:
        return paddle.all(paddle.any(x, axis=-1))

    def is_above(self, x: Any, limit: float) -> Any:
        return paddle.mean(x) > limit

    def with_column(self, x: Any, place: Any, column: Any) -> Any:
        return paddle.static.setitem(x, (slice(None), paddle.reshape(place, [])), column)


class OfProgramDesc(OfPir):
    """Operators as Paddle 2 wrote them, for which Paddle 3 has lost its functions."""

    def matmul(self, x: Any, y: Any) -> Any:
        return append("matmul_v2", {"X": x, "Y": y}, "float32", trans_x=False, trans_y=False)

    def logical_and(self, x: Any, y: Any) -> Any:
        return append("logical_and", {"X": x, "Y": y}, "bool")

    def best(self, x: Any, dtype: str) -> Any:
        number = {"int32": 2, "int64": 3}[dtype]
        options = {"axis": 1, "keepdims": False, "flatten": False, "dtype": number}
        return append("arg_max", {"X": x}, dtype, **options)

    def all_rows_have_any(self, x: Any) -> Any:
        rows = append("reduce_any", {"X": x}, "bool", dim=[-1], keep_dim=False, reduce_all=False)
        return append("reduce_all", {"X": rows}, "bool", dim=[0], keep_dim=False, reduce_all=True)

    def is_above(self, x: Any, limit: float) -> Any:
        mean = append("mean", {"X": x}, "float32")
        limit = paddle.full([], limit, "float32")
        return append("less_than", {"X": limit, "Y": mean}, "bool", axis=-1)

    def with_column(self, x: Any, place: Any, column: Any) -> Any:
        inputs = {"Input": x, "ValueTensor": column, "StartsTensorList": [place]}
        inputs["EndsTensorList"] = [place + 1]
        options = {"axes": [1], "steps": [1], "decrease_axes": [1], "starts": [], "ends": []}
        return append("set_value", inputs, x.dtype, none_axes=[], dtype=int(x.dtype), **options)

    def cond(self, condition: Any, on_true: Any, on_false: Any) -> Any:
        """A ``conditional_block`` for each side, and a ``select_input``."""
        opposite = append("logical_not", {"X": condition}, "bool")
        results = []
        for runs_if, side in ((opposite, on_false), (condition, on_true)):
            outer = paddle.static.default_main_program().current_block()
            with ConditionalBlock([runs_if], is_scalar_condition=True).block():
                inner = side()
                result = outer.create_var(dtype=inner.dtype, shape=inner.shape)
                paddle.assign(inner, output=result)
            results.append(result)
        mask = append("cast", {"X": condition}, "int32", in_dtype=0, out_dtype=2)
        selected = append("select_input", {"X": results, "Mask": mask}, results[0].dtype)
        selected.desc.set_shape(results[0].shape)
        return selected


class Decoder:
    """A random greedy decoder: its form depends on a seed.

    Args:
        seed: The seed.
        ops: The operators.
    """

    def __init__(self, seed: int, ops: OfPir) -> None:
        draw = np.random.default_rng(seed)
        self.ops = ops
        self.dtype = str(draw.choice(["int32", "int64"]))
        self.first = int(draw.integers(3))
        self.keeps = str(draw.choice(["rows", "array", "both"]))
        self.stops, self.branches, self.splits, self.slices = draw.integers(2, size=4).astype(bool)
        # A variable that only iterations assign; before the loop, another shape holds its place.
        self.assigns = isinstance(ops, OfProgramDesc) and bool(draw.integers(2))

    def build(self) -> Any:
        x = paddle.static.data("x", [-1, WIDTH], "float32")
        self.end_token = paddle.static.data("end", [1], self.dtype)
        self.weights = [parameter(WIDTH, WIDTH, seed=n) for n in range(2)]
        self.out, self.words = parameter(WIDTH, WORDS, seed=8), parameter(WORDS, WIDTH, seed=7)
        rows = paddle.shape(x)[0]
        ids = paddle.full([rows, STEPS], -1, self.dtype)
        kept = paddle.full([rows, STEPS, WIDTH], 0.0, "float32")
        self.array = paddle.tensor.create_array("float32")
        self.limit = paddle.full([], self.first + STEPS - 1, "int64")
        start = [paddle.full([], self.first, "int64"), paddle.full([], 0, "bool"), x * 1.0]
        start += [paddle.full([rows], 0, self.dtype), ids, kept]
        start += [paddle.full([1], 1.77e27, "float32")] if self.assigns else []
        ends = list(paddle.static.nn.while_loop(self.goes_on, self.body, start))
        if self.keeps != "rows":
            ends.append(paddle.tensor.manipulation.tensor_array_to_tensor(self.array, axis=1)[0])
        if self.slices:
            count = paddle.cast(ends[0] - self.first, "int32")
            ends.append(paddle.slice(ends[4], [1], [0], [count]) + 1)
        return ends

    def goes_on(self, i: Any, flag: Any, *_: Any) -> Any:
        more = i < self.limit + 1
        if not self.stops:
            return more
        return self.ops.logical_and(more, self.ops.equal(flag, paddle.full([], 0, "bool")))

    def body(self, i: Any, flag: Any, h: Any, word: Any, ids: Any, kept: Any, *_: Any) -> Any:
        ops = self.ops
        x = paddle.nn.functional.embedding(word, self.words)
        h = ops.softmax(ops.matmul(h + x, self.weights[0]))
        if self.splits:
            one, other = paddle.split(h, 2, axis=1)
            h = paddle.concat([other, one * 1.5], axis=1)
        if self.branches:
            before = h
            h = ops.cond(
                ops.is_above(before, 0.2),
                lambda: ops.matmul(before, self.weights[1]),
                lambda: before * 0.5,
            )
        logits = ops.matmul(h, self.out)
        word = ops.best(logits, self.dtype)
        place = i - self.first
        ids = ops.with_column(ids, place, word)
        if self.keeps != "array":
            kept = ops.with_column(kept, place, h)
        if self.keeps != "rows":
            index = paddle.reshape(place, [1])
            paddle.tensor.array_write(paddle.unsqueeze(h, 1), index, self.array)
        if self.stops:
            flag = ops.cond(
                ops.all_rows_have_any(ops.equal(ids, self.end_token)),
                lambda: paddle.full([], 1, "bool"),
                lambda: paddle.assign(flag),
            )
        return [i + 1, flag, h, word, ids, kept, *([logits] if self.assigns else [])]


@pytest.mark.parametrize("form", ["PIR", OLD])
@pytest.mark.parametrize("seed", range(8))
def test_a_random_decoder_runs_in_the_engine(seed: int, form: str) -> None:
    decoder = Decoder(seed, OfProgramDesc() if form == OLD else OfPir())
    guard = paddle.pir_utils.OldIrGuard() if form == OLD else contextlib.nullcontext()
    with guard:
        program = Program(decoder.build)
        report = paddle_ngraph.explain(program.main)
        assert not report.native, report
        loops = [interval for interval in report.intervals if "pd_op.while" in interval.types]
        # A slice after the loop as long as the number of iterations is another subgraph.
        assert len(loops) == 1 and len(report.intervals) <= 1 + decoder.slices
        for rows, end in [(2, 0), (3, 4), (1, 99)]:
            feed = {
                "x": floats(rows, WIDTH, seed=rows + seed),
                "end": np.array([end], decoder.dtype),
            }
            expected = program.run(engine=False, **feed)
            before = paddle_ngraph.stats()
            found = program.run(**feed)
            after = paddle_ngraph.stats()
            assert after["native_runs"] == before["native_runs"]
            assert after["engine_runs"] - before["engine_runs"] == len(report.intervals)
            for one, other in zip_equal(expected, found):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                if one.dtype.kind in "ib":
                    np.testing.assert_array_equal(other, one)
                np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-6)


def branches_of_one_condition() -> list[Any]:
    """Two branches of one condition, of which the second reads the first, and a selection."""
    ops = OfProgramDesc()
    x = paddle.static.data("x", [-1, WIDTH], "float32")
    condition = ops.is_above(x, 0.0)
    first = ops.cond(condition, lambda: x + 1.0, lambda: x * 3.0)
    outer = first * 0.5
    mask = append("cast", {"X": condition}, "int32", in_dtype=0, out_dtype=2)
    selected = append("select_input", {"X": [outer, first], "Mask": mask}, "float32")
    second = ops.cond(condition, lambda: outer - 1.0, lambda: outer * 0.25)
    return [first, selected, second]


def test_branches_of_one_condition_are_one_subgraph() -> None:
    with paddle.pir_utils.OldIrGuard():
        program = Program(branches_of_one_condition)
        report = paddle_ngraph.explain(program.main)
        assert not report.native and len(report.intervals) == 1, report
        for sign in (1, -1):
            program.both(x=sign * np.abs(floats(2, WIDTH)))
