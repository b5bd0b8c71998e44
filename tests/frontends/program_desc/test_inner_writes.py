"""Variables of ProgramDesc programs that an operator in a branch is the first to write.

Paddle itself requires that variables have contents before a loop writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import static
from paddle.base.layer_helper import LayerHelper
from paddle.static.nn.control_flow import ConditionalBlock

import paddle_ngraph
from tests.programs import Program, floats


@pytest.fixture(autouse=True)
def old_ir():
    with paddle.pir_utils.OldIrGuard():
        yield


def variable(name: str, persistable: bool = False) -> Any:
    """A variable of the outermost block that no operator has written."""
    block = static.default_main_program().global_block()
    shape = [-1, 64]
    return block.create_var(name=name, dtype="float32", shape=shape, persistable=persistable)


def start() -> tuple[Any, Any, Any]:
    """An operand, whether its sum is positive, and whether it is not."""
    x = static.data("x", [-1, 32], "float32")
    hidden = F.relu(static.nn.fc(x, 64))
    total = paddle.reshape(F.relu(x), [-1])[0:1]
    zero = paddle.full([1], 0.0)
    return hidden, total > zero, total <= zero


def branch(condition: Any) -> Any:
    return ConditionalBlock([condition], is_scalar_condition=True).block()


def unread_in_a_branch() -> list[Any]:
    hidden, is_positive, _ = start()
    kept = paddle.assign(hidden)
    unread = variable("unread")
    with branch(is_positive):
        paddle.assign(hidden * 2.0, output=unread)
        paddle.assign(unread + 1.0, output=kept)
    return [kept * 3.0]


def unread_in_both_branches() -> list[Any]:
    """Each reads what itself has written, in the same variable."""
    hidden, is_positive, is_not = start()
    kept = paddle.assign(hidden)
    unread = variable("unread")
    for condition, factor in ((is_positive, 2.0), (is_not, 3.0)):
        with branch(condition):
            paddle.assign(hidden * factor, output=unread)
            paddle.assign(unread * 0.5, output=unread)
            paddle.assign(unread + 1.0, output=kept)
    return [kept * 3.0]


def written_in_both_branches() -> list[Any]:
    """One of two branches, and no `select_input`."""
    hidden, is_positive, is_not = start()
    chosen = variable("chosen")
    with branch(is_positive):
        paddle.assign(hidden * 2.0, output=chosen)
    with branch(is_not):
        paddle.assign(hidden - 1.0, output=chosen)
    return [chosen * 3.0, hidden + chosen]


def read_under_the_same_condition() -> list[Any]:
    hidden, is_positive, _ = start()
    chosen, kept = variable("chosen"), paddle.assign(hidden)
    with branch(is_positive):
        paddle.assign(hidden * 2.0, output=chosen)
        paddle.assign(chosen * chosen, output=chosen)
    with branch(is_positive):
        paddle.assign(chosen - 1.0, output=kept)
    return [kept * 2.0]


def nested() -> list[Any]:
    hidden, is_positive, _ = start()
    outer, inner, kept = variable("outer"), variable("inner"), paddle.assign(hidden)
    with branch(is_positive):
        with branch(is_positive):
            paddle.assign(hidden * 2.0, output=inner)
            paddle.assign(inner + 1.0, output=outer)
        paddle.assign(outer * 2.0, output=kept)
    return [kept + 1.0]


def kept_by_a_branch() -> list[Any]:
    """As the learning rates of `Switch`: a variable that outlives the run, or is overwritten."""
    hidden, is_positive, _ = start()
    kept = static.create_global_var([1], 0.5, "float32", persistable=True, name="kept")
    with branch(is_positive):
        paddle.assign(paddle.full([1], 0.25), output=kept)
    return [hidden * kept]


def unread_result() -> list[Any]:
    """Two branches with two results each, of which an export retains the reader of one."""
    hidden, is_positive, is_not = start()
    results = [variable(name) for name in "abcd"]
    for condition, pair, factor in ((is_positive, results[:2], 2.0), (is_not, results[2:], 3.0)):
        with branch(condition):
            for result in pair:
                paddle.assign(hidden * factor, output=result)
    helper = LayerHelper("select_input")
    selected = helper.create_variable_for_type_inference("float32", shape=[-1, 64])
    inputs = {"X": [results[2], results[0]], "Mask": is_positive.astype("int32")}
    helper.append_op(type="select_input", inputs=inputs, outputs={"Out": selected})
    return [selected * 3.0]


def asks_for_elements() -> list[Any]:
    """A block that runs if all its inputs have elements: here, if a number is positive."""
    hidden, *_ = start()
    kept = paddle.assign(hidden)
    x = static.default_main_program().global_block().var("x")
    helper = LayerHelper("where_index")
    found = helper.create_variable_for_type_inference("int64")
    condition = paddle.reshape(x, [-1]) > paddle.full([1], 0.0)
    helper.append_op(type="where_index", inputs={"Condition": condition}, outputs={"Out": found})
    with ConditionalBlock([hidden], is_scalar_condition=False).block():
        paddle.assign(hidden + paddle.mean(paddle.cast(found, "float32")), output=kept)
    with ConditionalBlock([hidden], is_scalar_condition=False).block():
        paddle.assign(kept * 2.0, output=kept)
    return [kept * 3.0]


def one_variable_in_several_blocks() -> list[Any]:
    """Each block declares a variable that outlives a run: in a scope, they are one."""
    hidden, is_positive, is_not = start()
    kept = static.create_global_var([64], 0.5, "float32", persistable=True, name="kept")
    other = static.create_global_var([1], 0.5, "float32", persistable=True, name="other")
    for condition, factor in ((is_positive, 2.0), (is_not, 0.25)):
        with branch(condition):
            block = static.default_main_program().current_block()
            same = block.create_var(name="kept", dtype="float32", shape=[64], persistable=True)
            paddle.assign(same * factor + 1.0, output=same)
            paddle.assign(other + factor, output=other)
    main = static.default_main_program()
    main.global_block()._remove_var("other")  # blocks alone declare this one
    for block in main.blocks[1:]:
        block.create_var(name="other", dtype="float32", shape=[1], persistable=True)
    return [hidden * kept, kept + 1.0]


PROGRAMS = [
    *(unread_in_a_branch, unread_in_both_branches, written_in_both_branches),
    *(read_under_the_same_condition, nested, kept_by_a_branch, unread_result),
    *(asks_for_elements, one_variable_in_several_blocks),
]


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("build", PROGRAMS)
def test_the_program_runs_in_the_engine(build):
    native, engine = Program(build), Program(build)
    report = paddle_ngraph.explain(engine.main)
    assert report.intervals, report
    assert not any(op.reason.startswith("the program") for op in report.native), report
    for seed, sign in enumerate((1.0, -1.0, 1.0)):
        feed = {"x": sign * np.abs(floats(2 + seed, 32, seed=seed))}
        for expected, found in zip(native.run(False, **feed), engine.run(True, **feed)):
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
        for name in {"kept", "other"}.intersection(engine.scope.local_var_names()):
            np.testing.assert_allclose(engine.variable(name), native.variable(name), 1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def body(kind: str, hidden: Any, is_positive: Any, write: Callable[[], None]) -> None:
    """Calls ``write`` within a branch or a loop, or in one of them within another."""
    if kind == "branch":
        with branch(is_positive):
            write()
    elif kind == "loop":
        step, end = paddle.full([1], 0.0), paddle.full([1], 3.0)
        goes_on = step < end
        with static.nn.control_flow.While(goes_on).block():
            write()
            paddle.increment(step)
            paddle.assign(step < end, output=goes_on)
    else:
        outer, inner = kind.split(" in ")
        body(inner, hidden, is_positive, lambda: body(outer, hidden, is_positive, write))


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("kind", ["branch", "loop", "branch in branch", "branch in loop"])
def test_a_variable_that_only_a_block_declares_is_written(kind):
    def build() -> list[Any]:
        hidden, is_positive, _ = start()
        static.create_global_var([64], 0.5, "float32", persistable=True, name="kept")
        main = static.default_main_program()

        def write() -> None:
            kept = main.current_block().create_var(
                name="kept", dtype="float32", shape=[64], persistable=True
            )
            paddle.assign(paddle.mean(hidden, 0), output=kept)

        body(kind, hidden, is_positive, write)
        main.global_block()._remove_var("kept")
        return [hidden * 2.0]

    native, engine = Program(build), Program(build)
    for seed, sign in enumerate((1.0, -1.0, 1.0)):
        feed = {"x": sign * np.abs(floats(2 + seed, 32, seed=seed))}
        for program, uses in ((native, False), (engine, True)):
            program.run(uses, **feed)
        np.testing.assert_allclose(engine.variable("kept"), native.variable("kept"), 1e-5, 1e-6)
    # Paddle's translation of a branch loses the write, so the branch is left to Paddle.
    assert paddle_ngraph.stats()["engine_runs"] > 0 or "branch" in kind
