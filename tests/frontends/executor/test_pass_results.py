"""Results of the program pass that are used again for plans of equal contents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base.executor import _add_pir_fetch_ops, _StandaloneExecutor

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist, registry
from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.paddle_private.names import PaddleJob, PaddlePlan
from paddle_ngraph.partitioning import program_pass
from tests.programs import Program, floats

SHAPE = (4, 8)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs to which the pass is applied."""
    found: list[Any] = []
    original = program_pass.apply

    def apply(program: Any, **options: Any) -> Any:
        found.append(program)
        return original(program, **options)

    monkeypatch.setattr(program_pass, "apply", apply)
    return found


def _build(factor: float = 0.5) -> Any:
    x = paddle.static.data("x", [-1, SHAPE[1]], "float32")
    weight = paddle.static.create_parameter([SHAPE[1], 3], "float32", "weight")
    return paddle.nn.functional.tanh(paddle.matmul(x, weight) * factor)


def _saved(folder: Path) -> str:
    program = Program(_build)
    feeds = [program.main.global_block().ops[i] for i in range(2)]
    x = next(op.result(0) for op in feeds if op.name() == "pd_op.data")
    path = str(folder / "model")
    with paddle.static.scope_guard(program.scope):
        paddle.static.save_inference_model(
            path, [x], program.fetches, program.executor, program=program.main
        )
    return path


def _request(path: str, x: np.ndarray, factor: float = 1.0, engine: bool = True) -> np.ndarray:
    """A model that is loaded into a new scope, its weights changed, for one run."""
    scope = paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope), paddle_ngraph.use_ngraph(engine):
        program, feeds, fetches = paddle.static.load_inference_model(path, executor)
        tensor = scope.find_var("weight").get_tensor()
        tensor.set(np.array(tensor) * np.float32(factor), paddle.CPUPlace())
        (out,) = executor.run(program, feed={feeds[0]: x}, fetch_list=fetches)
    return out


@pytest.mark.usefixtures("small_intervals_pay")
def test_models_that_are_loaded_again_are_rewritten_once(passes: list[Any], tmp_path: Path) -> None:
    path, x = _saved(tmp_path), floats(*SHAPE)
    for factor in (1.0, -2.0, 0.25):
        expected = _request(path, x, factor, engine=False)
        before = paddle_ngraph.stats()
        np.testing.assert_allclose(_request(path, x, factor), expected, rtol=1e-5, atol=1e-6)
        after = paddle_ngraph.stats()
        assert after["engine_runs"] == before["engine_runs"] + 1
        assert after["ops_converted"] > before["ops_converted"]
    assert len(passes) == 1


@pytest.mark.usefixtures("small_intervals_pay")
def test_a_pass_whose_conditions_have_changed_is_applied_again(passes: list[Any]) -> None:
    x = floats(*SHAPE)
    Program(_build).both(x=x)
    assert len(passes) == 1
    Program(lambda: _build(0.25)).both(x=x)
    assert len(passes) == 2
    with registry.without(["pd_op.tanh"]):
        report = Program(_build)
        report.both(x=x)
        assert len(passes) == 3
        assert paddle_ngraph.stats()["native_by_type"] == {"pd_op.tanh": 1}
    Program(_build).both(x=x)
    assert len(passes) == 4
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 10**9})
    native = Program(_build)
    before = paddle_ngraph.stats()["engine_runs"]
    native.run(x=x)
    assert len(passes) == 5
    assert paddle_ngraph.stats()["engine_runs"] == before


@pytest.mark.usefixtures("small_intervals_pay")
def test_a_denial_ends_a_result(passes: list[Any]) -> None:
    x = floats(*SHAPE)
    Program(_build).both(x=x)
    report = program_pass.dry_run(Program(_build).main)
    graph = report.intervals[0].graph
    assert graph is not None
    tanh = next(op for op in graph.ops if op.type == "pd_op.tanh")
    denylist.deny_operator(ConversionError(tanh, "planted"))
    Program(_build).both(x=x)
    assert len(passes) == 2
    assert paddle_ngraph.stats()["native_by_type"]["pd_op.tanh"] == 1
    denylist.clear()
    Program(_build).both(x=x)
    assert len(passes) == 3


@pytest.mark.usefixtures("small_intervals_pay")
def test_plans_name_the_jobs_of_equal_programs() -> None:
    x, found = floats(*SHAPE), []
    for job, is_on in (("default", False), ("default", True), ("forward", True)):
        program = Program(lambda: paddle.erfinv(_build() * 0.5))
        _add_pir_fetch_ops(program.main, program.fetches, "fetch")
        plan = PaddlePlan([PaddleJob(job)], {job: program.main})
        with paddle_ngraph.use_ngraph(is_on):
            executor = _StandaloneExecutor(paddle.CPUPlace(), plan, program.scope)
            program.scope.var("x").get_tensor().set(x, paddle.CPUPlace())
            found.append(executor.run(["x"])[0])
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-5, atol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] == 2


@pytest.mark.usefixtures("small_intervals_pay")
def test_equal_programs_in_threads(passes: list[Any]) -> None:
    """Each thread has scopes of its own, with other weights."""
    x, failures = floats(*SHAPE), []
    programs = [Program(_build) for _ in range(8)]
    expected = []
    for number, each in enumerate(programs):
        tensor = each.scope.find_var("weight").get_tensor()
        tensor.set(np.array(tensor) + np.float32(number), paddle.CPUPlace())
        expected.append(each.run(engine=False, x=x)[0])
    programs[0].both(x=x)

    def run(number: int) -> None:
        for _ in range(5):
            (out,) = programs[number].run_as_is(x=x)
            if not np.allclose(out, expected[number], rtol=1e-5, atol=1e-6):
                failures.append(number)

    with paddle_ngraph.use_ngraph(True):
        threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert len(passes) == 1
    assert paddle_ngraph.stats()["engine_runs"] == 1 + 8 * 5


def test_larger_feeds_end_a_result_of_the_cost_model(passes: list[Any]) -> None:
    small, large = floats(1, SHAPE[1]), floats(200_000, SHAPE[1])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 50, "FLAGS_ngraph_cache_dir": ""})
    # Equal programs are built by one line: call stacks are part of a program.
    programs = [Program(_build) for _ in range(4)]
    for each in programs[:2]:
        each.run(x=small)
    assert len(passes) == 1
    assert paddle_ngraph.stats()["engine_runs"] == 0
    for each in programs[2:]:
        each.both(x=large)
    assert len(passes) == 2


# -- the digest ---------------------------------------------------------------------------------


def _varied() -> Any:
    """A program with attributes of all kinds, parameters, and nested blocks."""
    x = paddle.static.data("x", [-1, 3, 8, 8], "float32")
    y = paddle.nn.functional.conv2d(x, paddle.static.create_parameter([4, 3, 3, 3], "float32", "w"))
    y = paddle.nn.functional.leaky_relu(paddle.nn.functional.max_pool2d(y, 2), 0.25)
    y = paddle.nn.functional.dropout(y, 0.5, training=True).flatten(1)
    y = paddle.clip(paddle.topk(y, 3)[0].astype("float64"), -1.5, 2.5)
    y = paddle.static.nn.cond(
        y.sum() > 0, lambda: paddle.scale(y, 2.0), lambda: paddle.concat([y, y], 0)[:1] + 0.125
    )
    count = paddle.zeros([1], "int64")
    return paddle.static.nn.while_loop(
        lambda i, v: (i < 3).all(), lambda i, v: (i + 1, paddle.cumsum(v, -1)), [count, y]
    )[1]


def _operators(program: Any) -> list[Any]:
    pending, found = [program.global_block()], []
    while pending:
        block = pending.pop(0)
        for op in block.ops:
            found.append(op)
            pending += list(op.blocks()) if op.num_regions() else []
    return found


# By the type of the attribute. Paddle has no setter for floats in Python.
_CHANGES: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bool: ("set_bool_attr", lambda value: not value),
    int: ("set_int_attr", lambda value: value + 1),
    str: ("set_str_attr", lambda value: value + "'"),
}


def test_programs_of_equal_contents_have_equal_digests() -> None:
    one, other = Program(_varied), Program(_varied)
    digest = _core.program_digest(one.main)
    assert len(digest) == 32
    assert digest == _core.program_digest(one.main.clone())
    assert _core.program_digest(one.startup) != digest
    assert digest == _core.program_digest(other.main)


def test_every_attribute_of_every_operator_is_in_the_digest() -> None:
    program = Program(_varied).main
    digest, changed = _core.program_digest(program), 0
    for index, op in enumerate(_operators(program)):
        for name, value in op.attrs().items():
            if type(value) not in _CHANGES:
                continue
            setter, change = _CHANGES[type(value)]
            copy = program.clone()
            target = _operators(copy)[index]
            assert _core.program_digest(copy) == digest
            getattr(target, setter)(name, change(value))
            assert _core.program_digest(copy) != digest, f"{op.name()}.{name}"
            changed += 1
    assert changed > 25


@pytest.mark.parametrize("factor", [0.5, float(np.nextafter(np.float32(0.5), np.float32(1)))])
def test_the_last_bit_of_a_float_is_in_the_digest(factor: float) -> None:
    mine, other = (Program(partial(_build, each)).main for each in (factor, 0.5))
    is_equal = _core.program_digest(mine) == _core.program_digest(other)
    assert is_equal == (factor == 0.5)


def test_every_operand_is_in_the_digest() -> None:
    program = Program(_varied).main
    digest, changed = _core.program_digest(program), 0
    count = len(program.global_block().ops)
    for index in range(count):
        for number in range(program.global_block().ops[index].num_operands()):
            copy = program.clone()
            ops = copy.global_block().ops
            before = ops[index].operand_source(number)
            other = next(
                value
                for op in ops[:index]
                for value in op.results()
                if value.initialized() and not value.is_same(before)
            )
            ops[index].operand(number).set_source(other)
            assert _core.program_digest(copy) != digest, ops[index].name()
            changed += 1
    assert changed > 15


def test_types_and_removed_operators_are_in_the_digest() -> None:
    def build(shape: list[int], dtype: str) -> bytes:
        main = Program(lambda: paddle.static.data("x", shape, dtype)).main
        return bytes(_core.program_digest(main))

    found = [build([2, 3], "float32"), build([2, -1], "float32"), build([2, 3], "float64")]
    assert len(set(found)) == 3
    program = Program(_build).main
    digest = _core.program_digest(program)
    program.global_block().remove_op(program.global_block().ops[-1])
    assert _core.program_digest(program) != digest
