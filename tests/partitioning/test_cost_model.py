"""The cost model: subgraphs that are too small to pay fall back, and only those."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.ir.graph import Graph, Op, TensorSpec
from paddle_ngraph.partitioning import cost_model, program_pass
from tests.programs import Program


@pytest.fixture(autouse=True)
def rule() -> Iterator[None]:
    before = flags.get("ngraph_min_interval_us")
    flags.set("ngraph_min_interval_us", flags.FLAGS["ngraph_min_interval_us"].default)
    yield
    flags.set("ngraph_min_interval_us", before)


@pytest.mark.slow("compiles many or large functions")
def test_other_tests_disable_the_cost_model() -> None:
    assert os.environ[flags.FLAGS["ngraph_min_interval_us"].key] == "0"


def _chain(*shape: int, length: int = 1) -> Graph:
    specs = [TensorSpec(i, "float32", shape) for i in range(length + 1)]
    ops = [Op("pd_op.relu", i, {"x": (specs[i],)}, {"out": (specs[i + 1],)}) for i in range(length)]
    return Graph(ops, inputs=specs[:1], states=[], outputs=specs[-1:], state_outputs=[])


def test_the_estimate_grows_with_operators_and_elements() -> None:
    assert cost_model.native_us(_chain(4)) < cost_model.native_us(_chain(4, length=2))
    assert cost_model.native_us(_chain(4)) < cost_model.native_us(_chain(100_000))
    assert cost_model.native_us(_chain(-1, 4), open_size=3) == cost_model.native_us(_chain(3, 4))


@pytest.mark.parametrize(
    "op_type, multiplies_matrices",
    [
        *((name, True) for name in ("matmul_with_flatten", "multi_dot", "conv2d_grad", "einsum")),
        *((name, False) for name in ("multiply", "multiply_grad", "multiplex", "multinomial")),
    ],
)
def test_matmuls_cost_their_multiplications(op_type: str, multiplies_matrices: bool) -> None:
    specs = [TensorSpec(i, "float32", (512, 512)) for i in range(3)]
    op = Op(f"pd_op.{op_type}", 0, {"x": (specs[0],), "y": (specs[1],)}, {"out": (specs[2],)})
    graph = Graph([op], inputs=specs[:2], states=[], outputs=specs[2:], state_outputs=[])
    estimate, accesses = cost_model.us_of_run(graph, 1), cost_model.native_us(graph)
    assert (estimate > 2 * accesses) == multiplies_matrices


def test_the_reason_names_the_estimate_and_the_flag() -> None:
    reason = cost_model.reason_against(_chain(4))
    assert reason is not None
    assert "about 8 us" in reason and "FLAGS_ngraph_min_interval_us=60" in reason
    assert cost_model.reason_against(_chain(4, length=20)) is None
    flags.set("ngraph_min_interval_us", 0)
    assert cost_model.reason_against(_chain(4)) is None


def _program(*shape: int, length: int = 1):
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        value = paddle.static.data("x", list(shape))
        for _ in range(length):
            value = F.relu(value)
    return program, value


def _runs(executor, program, fetch, *shape: int) -> int:
    """Returns the number of engine runs; the result must be right."""
    x = np.random.default_rng(0).standard_normal(shape, "float32")
    before = paddle_ngraph.stats()["engine_runs"]
    with paddle_ngraph.use_ngraph():
        (found,) = executor.run(program, feed={"x": x}, fetch_list=[fetch])
    np.testing.assert_array_equal(found, np.maximum(x, 0))
    return paddle_ngraph.stats()["engine_runs"] - before


@pytest.mark.parametrize("length, runs", [(1, 0), (20, 1)])
def test_a_short_program_falls_back(length: int, runs: int) -> None:
    program, fetch = _program(4, length=length)
    report = paddle_ngraph.explain(program)
    assert report.has_small_interval == (runs == 0)
    assert ("too little for the engine to pay" in str(report)) == (runs == 0)
    executor = paddle.static.Executor(paddle.CPUPlace())
    assert _runs(executor, program, fetch, 4) == runs


def test_a_dynamic_dimension_takes_the_fed_size() -> None:
    program, fetch = _program(-1, 1000)
    executor = paddle.static.Executor(paddle.CPUPlace())
    assert _runs(executor, program, fetch, 20, 1000) == 0
    assert _runs(executor, program, fetch, 79, 1000) == 0, "it has not grown by much"
    assert _runs(executor, program, fetch, 80, 1000) == 1
    assert _runs(executor, program, fetch, 20, 1000) == 1, "it is not looked at again"


def test_feeds_of_a_program_desc_program_count() -> None:
    with paddle.pir_utils.OldIrGuard():
        program, fetch = _program(-1, 1000)
        executor = paddle.static.Executor(paddle.CPUPlace())
        assert _runs(executor, program, fetch, 20, 1000) == 0
        assert _runs(executor, program, fetch, 400, 1000) == 1


@pytest.mark.parametrize("is_program_desc", [False, True])
def test_frequent_whole_programs_are_compiled(is_program_desc: bool) -> None:
    with paddle.pir_utils.OldIrGuard() if is_program_desc else nullcontext():
        program, fetch = _program(4)
        executor = paddle.static.Executor(paddle.CPUPlace())
        runs = [_runs(executor, program, fetch, 4) for _ in range(80)]
    assert runs == [0] * 64 + [1] * 16


@pytest.mark.parametrize(("width", "pays"), [(16, False), (1024, True)])
def test_subgraphs_pay_for_the_operators_that_a_translation_keeps(width: int, pays: bool) -> None:
    def build() -> list[Any]:
        hidden = paddle.nn.functional.relu(
            paddle.static.nn.fc(paddle.static.data("x", [64, width], "float32"), width)
        )
        block = paddle.static.default_main_program().current_block()
        kept = block.create_var(name="kept", dtype="float32", shape=[64, width])
        paddle.static.py_func(lambda x: np.array(x) * 2.0, hidden, kept)
        return [paddle.static.nn.fc(kept, width) * 2.0]

    with paddle.pir_utils.OldIrGuard():
        program, feed = Program(build), np.ones((64, width), "float32")
        report = paddle_ngraph.explain(program.main)
        expected, found = (program.run(is_on, x=feed)[0] for is_on in (False, True))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    assert ("operators that the translation keeps" in str(report)) != pays
    assert (paddle_ngraph.stats()["engine_runs"] > 0) == pays


def test_frequent_subgraphs_among_fallback_operators_fall_back() -> None:
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        fetch = paddle.unique(paddle.nn.functional.relu(paddle.static.data("x", [4])))
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle_ngraph.use_ngraph():
        for _ in range(80):
            (found,) = executor.run(program, feed={"x": np.ones(4, "float32")}, fetch_list=[fetch])
    np.testing.assert_array_equal(found, [1.0])
    assert paddle_ngraph.stats()["engine_runs"] == paddle_ngraph.stats()["ops_converted"] == 0


@pytest.mark.parametrize(
    ("dtype", "count"), [("float32", 3), ("float64", 0), ("int64", 0), ("int32", 0)]
)
def test_onednn_has_kernels_of_some_dtypes(
    leave_native: Callable[..., None], dtype: str, count: int
) -> None:
    """Operators of others, such as sizes and coordinates, lose nothing beside the engine."""
    leave_native("pd_op.add", "pd_op.concat", "pd_op.reshape")
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [4, 6], dtype)
        paddle.reshape(paddle.concat([x + x, x]), [6, 8])
    report = program_pass.dry_run(program)
    assert [op.type for op in report.native] == ["pd_op.add", "pd_op.concat", "pd_op.reshape"]
    assert report.onednn_kernels == count


def test_kernel_calls_lose_kernels_of_onednn() -> None:
    flags.set("ngraph_min_interval_us", 0)
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        hidden = paddle.static.data("x", [1, 8, 16, 16], "float32")
        for _ in range(3):
            hidden = F.relu(paddle._C_ops.shuffle_channel(hidden, 2))
    report = program_pass.dry_run(program)
    assert report.kernel_calls == ["pd_op.shuffle_channel"] * 3
    assert report.onednn_kernels == 3
