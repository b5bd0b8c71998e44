"""Collectives keep one order on all ranks, however each rank's program is partitioned."""

from __future__ import annotations

import paddle
import pytest

from paddle_ngraph.distributed import first_run
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis import block_view
from tests import jobs

# Two ranks, of which only the first runs the engine.
_RANK = """
import os

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core

import paddle_ngraph

rank, ranks = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
paddle.enable_static()
paddle.set_device("cpu")
store = core.create_or_get_global_tcp_store()
core.CommContextManager.create_gloo_comm_context(store, "0", rank, ranks)
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
if rank == 0:
    paddle_ngraph.enable()
main = paddle.static.Program()
with paddle.static.program_guard(main, paddle.static.Program()):
    x = paddle.static.data("x", [4])
    first = paddle.tanh(x * 0.0) + 1.0
    dist.all_reduce(first)
    second = paddle.tanh(first * 0.0) + 10.0
    dist.all_reduce(second)
    third = paddle.tanh(x * 0.0) + 100.0
    dist.all_reduce(third)
    out = paddle.concat([first, second, third])
executor = paddle.static.Executor(paddle.CPUPlace())
for _ in range(5):
    (found,) = executor.run(main, feed={"x": np.ones(4, "float32")}, fetch_list=[out])
    np.testing.assert_array_equal(found[[0, 4, 8]], [2.0, 20.0, 200.0])
assert rank != 0 or paddle_ngraph.stats()["engine_runs"] > 0, "the engine did not run"
"""


def chains():
    """Three collectives; the third has no dependencies, so that it could come first."""
    x = paddle.static.data("x", [4], "float32")
    first = paddle.tanh(x * 0.5) + 1.0
    paddle.distributed.all_reduce(first)
    second = paddle.exp(paddle.erfinv(paddle.tanh(first * 0.1))) + 10.0
    paddle.distributed.all_reduce(second)
    third = paddle.tanh(x * 0.25) + 100.0
    paddle._C_ops.broadcast_(third, 0, 0)
    paddle._C_ops.all_reduce_(third, 0, 1)
    return paddle.concat([first, second, third])


def marked(program):
    """Gives each collective a distinct ``ring_id``."""
    for number, op in enumerate(o for o in program.global_block().ops if o.has_attr("ring_id")):
        op.set_int_attr("ring_id", number)
    return program


def rings(program):
    ops = program.global_block().ops
    return [op.attrs()["ring_id"] for op in ops if op.has_attr("ring_id")]


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(paddle.distributed, "is_initialized", lambda: True)
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        chains()
    return marked(main)


def each_partition(test):
    """Yields several partitions, as if converters were missing on one rank."""
    native = [(), ("tanh",), ("scale",), ("exp", "add"), ("tanh", "scale"), ("concat", "exp")]
    names = ["+".join(each) or "none" for each in native]
    return pytest.mark.parametrize("native", native, ids=names)(test)


@each_partition
def test_order_is_that_of_the_program(program, native, leave_native):
    leave_native(*(f"pd_op.{name}" for name in native))
    before = rings(program)
    assert len(before) == 4 and before == sorted(before)
    report = program_pass.apply(program, open_size=None)
    assert report.ops_converted > 0
    assert rings(program) == before


@each_partition
def test_a_first_run_without_other_ranks_has_the_same_subgraphs(program, native, leave_native):
    """The first run builds the functions of the first step."""
    leave_native(*(f"pd_op.{name}" for name in native))
    summed = next(op.result(0) for op in program.global_block().ops if "all_reduce" in op.name())
    silent, (fetched,) = first_run.single_rank_program(program, [summed])
    assert fetched.get_defining_op().name() == "pd_op.assign_"
    assert rings(silent) == rings(program)
    assert not any("all_reduce" in op.name() for op in silent.global_block().ops)
    graphs = []
    for each in (program, silent):
        program_pass.apply(each, open_size=None)
        engines = [op for op in each.global_block().ops if block_view.is_engine(op.name())]
        graphs.append([op.attrs()["graph"] for op in engines])
    assert graphs[0] == graphs[1] and graphs[0]


def test_all_communicating_operators_keep_their_order(program):
    nodes = block_view.BlockView(program.global_block()).nodes
    talking = [node for node in nodes if node.op.has_attr("ring_id")]
    assert talking
    assert all(block_view.COMMUNICATE in node.effects for node in talking)


@pytest.mark.slow("starts a process")
def test_two_ranks_of_which_one_runs_paddle(tmp_path):
    jobs.assert_fine(jobs.run_ranks(tmp_path, _RANK, ranks=2))
