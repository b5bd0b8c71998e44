"""Profiles of every frontend: nodes with operators and lines, and Paddle's operators between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import inference, nn

import paddle_ngraph
from paddle_ngraph import mkl_packed
from paddle_ngraph.profiling.profile import TimeProfile
from paddle_ngraph.utils import clock
from tests.clocks import TunerClock
from tests.dynamic import dynamic_mode
from tests.programs import Program, floats, parameter

WARM_RUNS, MOST_WARM_RUNS = 4, 20


def line_of(text: str) -> str:
    """File and line of this file with a text that occurs in it once, as a comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{__file__}:{number}"


def profiled(step: Callable[[], object]) -> TimeProfile:
    """A profile of one step, after the steps that compile its functions.

    Layers of ``enable`` are compiled after some calls by Paddle, which are timed.
    """
    for _ in range(MOST_WARM_RUNS):
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(WARM_RUNS):
            step()
            paddle_ngraph.wait_for_compiles()
        if paddle_ngraph.stats()["engine_runs"] >= before + WARM_RUNS:
            break
    with paddle_ngraph.profile() as p:
        step()
    assert p.totals["compute"] > 0, p.table()
    return p


def operators(p: TimeProfile) -> dict[str, str]:
    """The lines of the operators that nodes compute, by type."""
    return {
        type: line
        for s in p.subgraphs
        for node in s.function.nodes
        for type, line in s.operators(node)
    }


class Network(nn.Layer):
    """Two layers, and an operator without a converter if wanted."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.breaks = nn.Linear(32, 64), nn.Linear(64, 8), breaks

    def forward(self, x: Any) -> Any:
        hidden = paddle.nn.functional.gelu(self.first(x))  # the first layer
        if self.breaks:
            hidden = hidden + paddle.unique(paddle.round(hidden)).sum()  # the break
        return paddle.tanh(self.second(hidden))  # the second layer


def executor_inference() -> Callable[[], object]:
    program = Program(lambda: Network()(paddle.static.data("x", [16, 32], "float32")))
    return lambda: program.run(x=floats(16, 32))


def executor_training() -> Callable[[], object]:
    def build() -> Any:
        loss = Network()(paddle.static.data("x", [16, 32], "float32")).square().mean()
        paddle.optimizer.Adam(0.01).minimize(loss)
        return loss

    program = Program(build)
    return lambda: program.run(x=floats(16, 32))


def transpiled_program() -> Callable[[], object]:
    def build() -> Any:
        return Network()(paddle.static.data("x", [16, 32], "float32"))

    program = Program(build)
    program.main, program.fetches = paddle_ngraph.transpile(program.main, program.fetches)
    return lambda: program.run_as_is(x=floats(16, 32))


def planned_program() -> Callable[[], object]:
    program = Program(lambda: Network()(paddle.static.data("x", [16, 32], "float32")))
    plan = paddle_ngraph.execution_plan(program.main, "CPU", program.fetches)
    program.main, program.fetches = plan.program, plan.fetches
    return lambda: program.run_as_is(x=floats(16, 32))


def lines_of_gradients(p: TimeProfile) -> dict[str, set[str]]:
    """The lines of all gradient operators in subgraphs, by type."""
    found: dict[str, set[str]] = {}
    for subgraph in p.subgraphs:
        for op in subgraph.graph.all_ops():
            if op.type.endswith("_grad"):
                name = op.type.removeprefix("pd_op.")
                found.setdefault(name, set()).add(subgraph.lines.get(op.index, ""))
    return found


def require_lines_of_gradients(p: TimeProfile) -> None:
    """Asserts that gradient operators have the lines of their forward operators."""
    found = lines_of_gradients(p)
    first, second = line_of("the first layer"), line_of("the second layer")
    assert (found["gelu_grad"], found["tanh_grad"]) == ({first}, {second}), found
    assert found["matmul_grad"] == {first, second}
    assert "" not in set().union(*found.values()), found


@pytest.mark.parametrize(
    "make",
    [executor_inference, executor_training, transpiled_program, planned_program],
)
def test_an_executor(make: Callable[[], Callable[[], object]]) -> None:
    p = profiled(make())
    found = operators(p)
    assert found["gelu"] == line_of("the first layer")
    assert found["tanh"] == line_of("the second layer")
    if make is executor_training:
        assert any(name.endswith("_grad") for name in found)
        require_lines_of_gradients(p)


def test_a_program_desc() -> None:
    with paddle.pir_utils.OldIrGuard():

        def build() -> Any:
            x = paddle.static.data("x", [16, 32])
            return nn.functional.relu(nn.Linear(32, 64)(x))

        program = Program(build)
        found = operators(profiled(lambda: program.run(x=floats(16, 32))))
    assert "relu" in found  # Paddle drops the lines when it translates the program


def test_a_predictor(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    with dynamic_mode():
        spec = [paddle.static.InputSpec([None, 32], "float32")]
        paddle.jit.save(Network(), path, input_spec=spec)
    with paddle_ngraph.use_ngraph():
        made = inference.create_predictor(inference.Config(path + ".json", path + ".pdiparams"))

        def step() -> None:
            made.get_input_handle(made.get_input_names()[0]).copy_from_cpu(floats(16, 32))
            made.run()

        p = profiled(step)
    assert {"gelu", "tanh"} <= set(operators(p)), p.table()


def test_to_static() -> None:
    with dynamic_mode(), paddle.no_grad(), paddle_ngraph.use_ngraph():
        static = paddle.jit.to_static(Network(), full_graph=True)
        found = operators(profiled(lambda: static(paddle.ones([16, 32])).numpy()))
    assert found["gelu"] == line_of("the first layer")


def test_a_loaded_layer(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    with dynamic_mode(), paddle.no_grad(), paddle_ngraph.use_ngraph():
        spec = [paddle.static.InputSpec([16, 32], "float32")]
        paddle.jit.save(Network(), path, input_spec=spec)
        loaded = paddle.jit.load(path)
        found = operators(profiled(lambda: loaded(paddle.ones([16, 32])).numpy()))
    assert {"gelu", "tanh"} <= set(found)


def training_step(network: nn.Layer) -> Callable[[], object]:
    optimizer = paddle.optimizer.SGD(0.01, parameters=network.parameters())
    x = paddle.to_tensor(floats(16, 32))

    def step() -> None:
        network(x).square().mean().backward()  # the call
        optimizer.step()
        optimizer.clear_grad()

    return step


def test_training_to_static() -> None:
    with dynamic_mode(), paddle_ngraph.use_ngraph():
        static = paddle.jit.to_static(Network(), full_graph=True)
        require_lines_of_gradients(profiled(training_step(static)))


def test_sot_has_the_line_of_the_call() -> None:
    """SOT interprets the code of the layer, which has no frames then."""
    with dynamic_mode(), paddle_ngraph.use_ngraph():
        static = paddle.jit.to_static(Network(), full_graph=False)
        p = profiled(training_step(static))
    found = {**operators(p), **lines_of_gradients(p)}
    assert found["gelu"] == line_of("the call")
    assert found["gelu_grad"] == found["tanh_grad"] == {line_of("the call")}


def test_a_model_of_high_level_training() -> None:
    new = [paddle.static.Program() for _ in "ab"]
    with dynamic_mode(), paddle_ngraph.use_ngraph(), paddle.utils.unique_name.guard("model_"):
        paddle.enable_static()
        with paddle.static.program_guard(*new):
            inputs = [paddle.static.InputSpec([16, 32], "float32", "x")]
            labels = [paddle.static.InputSpec([16, 8], "float32", "y")]
            network = Network()
            model = paddle.Model(network, inputs, labels)
            optimizer = paddle.optimizer.SGD(0.01, parameters=network.parameters())
            model.prepare(optimizer, nn.MSELoss())
            p = profiled(lambda: model.train_batch([floats(16, 32)], [floats(16, 8)]))
    require_lines_of_gradients(p)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("frontend", ["compile", "enable"])
def test_deferred_operators_have_their_lines(
    frontend: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The layers of this network are so small that by an actual clock they may stay native.
    with dynamic_mode(), clock.overridden(TunerClock(monkeypatch, 0.1)):
        network = Network(breaks=True)
        if frontend == "compile":
            network = paddle_ngraph.compile(network)
        else:
            paddle_ngraph.enable(dynamic="training" if trains else True)
        try:
            if trains:
                p = profiled(training_step(network))
            else:
                with paddle.no_grad():
                    p = profiled(lambda: network(paddle.to_tensor(floats(16, 32))).numpy())
        finally:
            paddle_ngraph.disable()
    found = operators(p)
    assert found["gelu"] == line_of("the first layer"), p.table()
    assert found["tanh"] == line_of("the second layer"), p.table()
    (row,) = [row for row in p.table().splitlines() if " unique x1" in row]
    assert row.endswith(line_of("the break"))
    if trains:
        require_lines_of_gradients(p)


def test_without_a_profile_no_line_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    from paddle_ngraph.paddle_private import call_stacks

    with dynamic_mode(), paddle.no_grad():
        compiled = paddle_ngraph.compile(Network())
        profiled(lambda: compiled(paddle.ones([16, 32])).numpy())

        def never() -> str:
            raise AssertionError("a line was noted")

        monkeypatch.setattr(call_stacks, "calling_line", never)
        before = paddle_ngraph.stats()["engine_runs"]
        compiled(paddle.ones([16, 32])).numpy()
        assert paddle_ngraph.stats()["engine_runs"] == before + 1


def test_packed_layers_are_between() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [4, 6, 32], "float32")
        outputs, _ = mkl_packed.LSTM(32, 64)(paddle.nn.functional.gelu(x * 2.0))
        return paddle.tanh(outputs @ parameter(64, 64))

    program = Program(build)
    p = profiled(lambda: program.run(x=floats(4, 6, 32)))
    assert "mkl_packed_lstm" in {call.type for call in p.calls}, p.table()
    assert "tanh" in operators(p)


def test_gradients_of_dynamic_mode_have_the_types_of_their_operators() -> None:
    with dynamic_mode():
        network = Network()
        with paddle_ngraph.profile(nodes=False) as native:
            training_step(network)()
    assert {"matmul", "matmul_grad", "gelu_grad", "sgd"} <= {
        t.rstrip("_") for t in native.operator_times
    }
    assert list(native.operator_times.values()) == sorted(native.operator_times.values())[::-1]


def test_results_of_the_first_profile_are_those_without() -> None:
    with dynamic_mode(), paddle.no_grad():
        network = Network(breaks=True)
        x = paddle.to_tensor(floats(16, 32))
        expected = network(x).numpy()
        compiled = paddle_ngraph.compile(network)
        for _ in range(WARM_RUNS):
            with paddle_ngraph.profile(nodes=False):
                np.testing.assert_allclose(compiled(x).numpy(), expected, rtol=1e-5, atol=1e-6)
