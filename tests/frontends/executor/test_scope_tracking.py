"""Addresses of variables are dropped when the variables are recreated."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import paddle
import pytest
from paddle._pir_ops import set_persistable_value
from paddle.pir_utils import IrGuard, OldIrGuard

import paddle_ngraph
from paddle_ngraph.frontends.executor import interpreter, scope_tracking
from paddle_ngraph.partitioning import fallback
from tests import scope_lives
from tests.programs import Program, floats, linear_regression

# One life in so many is lived: all of them take an hour.
_LIVES_APART = os.environ.get("SCOPE_LIVES_APART", "60")


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("kind", scope_lives.KINDS)
def test_lives_of_programs_and_scopes(kind: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.scope_lives", kind, "1", _LIVES_APART],
        capture_output=True,
        text=True,
        timeout=3600,
        env={**os.environ, "FLAGS_ngraph_min_interval_us": "0", "FLAGS_ngraph_cache_dir": ""},
    )
    output = found.stdout.strip().splitlines()[-1]
    assert found.returncode == 0, f"{output}\n{found.stderr[-2000:]}"
    assert output.startswith("lived ")
    assert int(output.split()[1]) > 30, "the engine did not run"


def adam() -> Any:
    """A training step with state beside the parameters."""
    x = paddle.static.data("x", [-1, 4], "float32")
    loss = paddle.mean(paddle.square(paddle.nn.Linear(4, 1)(x) - 1.5))
    paddle.optimizer.Adam(0.1).minimize(loss)
    return loss


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The scopes of the executors that are made."""
    scopes_of: list[Any] = []
    original = interpreter.StandaloneExecutor

    def standalone_executor(place: Any, plan: Any, scope: Any) -> Any:
        scopes_of.append(scope)
        return original(place, plan, scope)

    for module in (interpreter, fallback):
        monkeypatch.setattr(module, "StandaloneExecutor", standalone_executor)
    return scopes_of


def _start(program: Program, engine: bool) -> None:
    with paddle_ngraph.use_ngraph(engine):
        program.executor.run(program.startup, scope=program.scope)


@pytest.mark.parametrize("engine", [True, False])
@pytest.mark.parametrize("style", [IrGuard, OldIrGuard])
def test_a_startup_program_that_runs_again_keeps_the_variables(style: Any, engine: bool) -> None:
    with style():
        program = Program(adam)
        for way in (False, True):
            program.run(way, x=floats(3, 4))
        names = [name for name in program.scope.local_var_names() if "moment" in name]
        held = [program.scope.find_var(name).get_tensor() for name in names]
        assert len(names) == 4
        for way in (engine, not engine, engine):
            assert all(np.array(tensor).any() for tensor in held)
            _start(program, way)
            assert not any(np.array(tensor).any() for tensor in held)
            program.run(not way, x=floats(3, 4))
    assert paddle_ngraph.stats()["engine_runs"] > 0


def _naming(scale: float) -> paddle.static.Program:
    """A program that reuses a value that it leaves in the scope, and overwrites another in
    place.
    """
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [1], "float32")
        first = x * scale
        second = paddle.nn.functional.relu(first) + 1.0
        third = paddle._C_ops.increment_(paddle.scale(second, 3.0), 5.0)
        for value, name in ((first, "first"), (second, "second"), (third, "third")):
            value.persistable = True
            set_persistable_value(value, name)
    return program


@pytest.mark.parametrize("ways", [(True, False), (False, True), (True, True), (False, False)])
def test_a_shared_name_holds_the_value_of_the_last_program(ways: tuple[bool, bool]) -> None:
    scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    programs = {scale: _naming(scale) for scale in (0.25, 0.75)}
    for number in range(3):
        for (scale, program), way in zip(programs.items(), ways):
            feed = np.full([1], 1.5 + number, "float32")
            with paddle_ngraph.use_ngraph(way):
                executor.run(program, feed={"x": feed}, scope=scope)
            first = (1.5 + number) * scale
            for name, value in (("first", first), ("second", first + 1), ("third", 3 * first + 8)):
                found = np.array(scope.find_var(name).get_tensor())
                np.testing.assert_array_equal(found, np.full([1], value, "float32"), name)
    assert paddle_ngraph.stats()["engine_runs"] >= 3 * sum(ways)


def test_only_executors_of_the_variables_are_recreated(made: list[Any]) -> None:
    def of_name(name: str) -> Any:
        x = paddle.static.data(f"x_{name}", [-1, 4], "float32")
        weight = paddle.static.create_parameter([4], "float32", name=name)
        return [paddle.erfinv(x * 0.1) * weight]

    programs = {name: Program(lambda name=name: of_name(name)) for name in ("one", "two", "three")}
    programs["two"].scope = programs["one"].scope
    paddle_ngraph.enable()
    _start(programs["two"], True)
    for name, program in programs.items():
        program.run_as_is(**{f"x_{name}": floats(3, 4)})
    programs["one"].scope.erase(["one"])
    made.clear()
    for name in ("two", "three"):
        programs[name].run_as_is(**{f"x_{name}": floats(3, 4)})
    assert not made
    _start(programs["one"], True)
    programs["one"].run_as_is(x_one=floats(3, 4))
    assert len(made) == 2
    assert paddle_ngraph.stats()["engine_runs"] >= 6


def test_bindings_go_with_the_executors() -> None:
    gc.collect()
    before = len(scope_tracking._bindings)
    program = Program(linear_regression)
    for engine in (True, False):
        program.run(engine, x=floats(3, 4), y=floats(3, 1))
    assert len(scope_tracking._bindings) > before
    assert paddle_ngraph.stats()["engine_runs"] == 1
    del program
    gc.collect()
    assert len(scope_tracking._bindings) == before


def test_a_missing_variable_raises_and_can_come_back() -> None:
    program = Program(linear_regression)
    feed = {"x": floats(3, 4), "y": floats(3, 1)}
    before = program.run(**feed)[0]
    program.run(False, **feed)
    names = program.scope.local_var_names()
    for engine in (True, False):
        program.scope.erase(names)
        with pytest.raises(Exception, match="linear_0"):
            program.run(engine, **feed)
    paddle.seed(3)
    _start(program, True)
    np.testing.assert_allclose(program.run(**feed)[0], before, rtol=1e-6)
    assert paddle_ngraph.stats()["engine_runs"] >= 2


INITIALIZERS = {
    "constant": lambda start: start.Constant(0.5),
    "uniform": lambda start: start.Uniform(-1.0, 1.0),
    "normal": lambda start: start.Normal(),
    "cut off": lambda start: start.TruncatedNormal(),
    "assigned": lambda start: start.Assign(floats(32, 8)),
    "orthogonal": lambda start: start.Orthogonal(),
    "identity": lambda start: start.Assign(np.eye(32, 8, dtype="float32")),
}


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", INITIALIZERS)
def test_a_startup_program_run_again_writes_where_variables_are(name, held):
    """Views see the write, as in plain Paddle."""

    def build():
        start = INITIALIZERS[name](paddle.nn.initializer)
        x = paddle.static.data("x", [-1, 32], "float32")
        w = paddle.static.create_parameter([32, 8], "float32", "w", default_initializer=start)
        loss = paddle.mean(paddle.matmul(x, w) ** 2)
        paddle.optimizer.Adam(0.1).minimize(loss)
        return [loss]

    found = []
    for engine in (False, True):
        program = Program(build)
        tensor = program.scope.find_var("w").get_tensor()
        with paddle.base.dygraph.guard():
            view = np.from_dlpack(paddle.Tensor(tensor)) if held else None
        kept = tensor._ptr()
        losses = []
        for step in range(4):
            with paddle.static.scope_guard(program.scope), paddle_ngraph.use_ngraph(engine):
                paddle.seed(step)
                program.executor.run(program.startup)
            started = program.variable("w")
            is_there = program.scope.find_var("w").get_tensor()._ptr() == kept
            if held and is_there:
                np.testing.assert_array_equal(view, started)
            losses.append(program.run(engine, x=floats(4, 32, seed=step))[0])
        found.append((is_there, losses))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
