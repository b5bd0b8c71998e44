"""Executor's key of a program: cheap to compute, and changed as soon as the program prints
differently.
"""

from __future__ import annotations

import gc

import numpy as np
import paddle
import pytest
from paddle.base import executor as paddle_executor
from paddle.static import Program

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.frontends.executor import program_key


def _program(scale: float = 2.0) -> tuple[Program, object]:
    program = Program()
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [2, 3])
        return program, paddle.scale(paddle.nn.functional.relu(x), scale)


@pytest.mark.slow("compiles many or large functions")
def test_programs_that_print_alike_have_the_same_digest() -> None:
    one, _ = _program()
    copy, _ = _program()
    assert _core.program_fingerprint(one) != _core.program_fingerprint(copy)
    assert program_key.digest(one) == program_key.digest(copy) == program_key.digest(one.clone())
    assert program_key.digest(one) != program_key.digest(_program(scale=3.0)[0])


def _append(program: Program) -> None:
    with paddle.static.program_guard(program):
        paddle.exp(program.global_block().ops[-1].result(0))


def _remove(program: Program) -> None:
    program.global_block().remove_op(program.global_block().ops[-1])


def _change_attribute(program: Program) -> None:
    program.global_block().ops[-1].set_bool_attr("bias_after_scale", False)


def _change_operand(program: Program) -> None:
    ops = program.global_block().ops
    ops[-1].operand(0).set_source(ops[0].result(0))


@pytest.mark.parametrize("change", [_append, _remove, _change_attribute, _change_operand])
def test_a_change_changes_the_digest(change) -> None:
    program, _ = _program()
    before, fingerprint = program_key.digest(program), _core.program_fingerprint(program)
    state = _core.ProgramState(program)
    assert _core.program_fingerprint(program) == fingerprint
    assert state.matches(program)
    change(program)
    assert program_key.digest(program) != before
    assert not state.matches(program)


def test_the_state_of_a_program_that_is_gone_is_of_no_other() -> None:
    program, _ = _program()
    state = _core.ProgramState(program)
    assert not state.matches(program.clone())
    del program, _
    gc.collect()
    assert not any(state.matches(_program(scale)[0]) for scale in range(3, 100))


def test_a_change_inside_of_a_branch_changes_the_digest() -> None:
    program = Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [1])
        paddle.static.nn.cond(x > 0, lambda: x + 1.0, lambda: x - 1.0)
    (branch,) = [op for op in program.global_block().ops if op.name() == "pd_op.if"]
    before = program_key.digest(program)
    inner = next(iter(branch.blocks())).ops[0]
    inner.set_bool_attr("is_checked", True)
    assert program_key.digest(program) != before


def test_executor_runs_the_current_program() -> None:
    program, fetch = _program()
    feed = {"x": np.full([2, 3], 1.5, "float32")}
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle_ngraph.use_ngraph():
        (before,) = executor.run(program, feed=feed, fetch_list=[fetch])
        with paddle.static.program_guard(program):
            more = fetch + 1.0
        (after,) = executor.run(program, feed=feed, fetch_list=[more])
    assert paddle_ngraph.stats()["engine_runs"] == 2
    np.testing.assert_array_equal(before, np.full([2, 3], 3, "float32"))
    np.testing.assert_array_equal(after, np.full([2, 3], 4, "float32"))


def test_a_program_is_printed_once(monkeypatch) -> None:
    program, fetch = _program()
    feed = {"x": np.ones([2, 3], "float32")}
    executor = paddle.static.Executor(paddle.CPUPlace())
    printed = []
    monkeypatch.setattr(
        program_key.hashlib, "blake2b", _counting(program_key.hashlib.blake2b, printed)
    )
    with paddle_ngraph.use_ngraph():
        for _ in range(5):
            executor.run(program, feed=feed, fetch_list=[fetch])
    assert len(printed) == 1


def test_a_program_that_holds_engine_operators_is_printed_once_with_the_engine_off(monkeypatch):
    program, fetch = _program()
    made, fetches = paddle_ngraph.transpile(program, fetch_list=[fetch])
    executor = paddle.static.Executor(paddle.CPUPlace())
    asked = []
    monkeypatch.setattr(program_key, "_key_of_paddle", _counting(program_key._key_of_paddle, asked))
    with paddle_ngraph.use_ngraph(False):
        for _ in range(5):
            (found,) = executor.run(
                made, feed={"x": np.ones([2, 3], "float32")}, fetch_list=fetches
            )
    np.testing.assert_array_equal(found, np.full([2, 3], 2, "float32"))
    assert len(asked) == 1
    assert paddle_ngraph.stats()["engine_runs"] == 5


def _counting(original, calls):
    def blake2b(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    return blake2b


def test_without_the_engine_the_key_is_paddles_own() -> None:
    program, fetch = _program()
    scope = paddle.static.Scope()
    key = paddle_executor._get_strong_program_cache_key_for_new_exe(program, scope, {}, [fetch])
    assert str(program) in key
