"""Device rules: where operators run, the printed plan, and its clones and files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning.analysis.block_view import (
    is_sequential,
    is_trained_elsewhere,
    mark_sequential,
    mark_trained_elsewhere,
)
from paddle_ngraph.partitioning.analysis.placement import (
    core_group,
    cores_of,
    device_of,
    place_copy,
    place_on,
)
from tests.plan.networks import WIDTH, Planned, data, tower, training, two_towers
from tests.programs import Program, floats

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


def devices_of(plan, kind):
    """Where a plan runs operators of a type."""
    return [op.device for op in plan.operators if op.type == f"pd_op.{kind}"]


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(
    ("name", "cores"),
    [
        ("CPU:0", (0,)),
        ("CPU:0-3", (0, 1, 2, 3)),
        ("CPU:2,0-1", (0, 1, 2)),
        ("CPU", ()),
        ("CPU:", ()),
        ("CPU:3-1", ()),
        ("CPU:-1", ()),
        ("CPU:0-99999999", ()),
        ("cpu:0", ()),
    ],
)
def test_the_cores_of_a_group(name, cores):
    assert cores_of(name) == cores


def test_a_group_has_one_name():
    assert core_group((3, 0, 1)) == "CPU:0-1,3"
    assert cores_of(core_group((3, 0, 1))) == (0, 1, 3)


def test_devices():
    assert paddle_ngraph.devices() == ["CPU", "CPU:0", "CPU:1", "CPU:2", "CPU:3", "native"]


@pytest.mark.parametrize("name", ["CPU:0-7", "GPU", "", None, 0, "native:0", "CPU:0 ", "auto"])
def test_an_unknown_device_is_an_error_that_lists_those_there_are(name):
    program = Program(two_towers)
    for use in (
        lambda: paddle_ngraph.execution_plan(program.main, [name]),
        lambda: paddle_ngraph.execution_plan(program.main).place("matmul", name),
        lambda: paddle_ngraph.device(name).__enter__(),
        lambda: paddle_ngraph.copy(program.fetches[0], name),
    ):
        with pytest.raises(paddle_ngraph.NgraphError) as error:
            use()
        assert repr(name) in str(error.value)
        assert "CPU" in str(error.value) and "CPU:0-3" in str(error.value)
        assert "native" in str(error.value) and "automatic_plan()" in str(error.value)


# -- rules -----------------------------------------------------------------------------------------


def test_one_default_device_takes_everything():
    planned = Planned(two_towers, "CPU:2")
    assert {op.device for op in planned.plan.operators} == {"CPU:2"}
    planned.both(x=floats(4, WIDTH))


def test_without_defaults_everything_is_on_the_cpu():
    planned = Planned(two_towers)
    assert {op.device for op in planned.plan.operators} == {"CPU"}
    planned.both(x=floats(4, WIDTH))


def test_branches_are_spread_over_the_default_devices():
    def build():
        x = paddle.static.data("x", [64, 256], "float32")
        hidden = [F.relu(nn.Linear(256, 256)(x)) for _ in range(2)]
        hidden = [F.relu(nn.Linear(256, 256)(each)) for each in hidden]
        return [paddle.add_n(hidden)]

    plan = paddle_ngraph.execution_plan(Program(build).main, ["CPU:0", "CPU:1"])
    matmuls = devices_of(plan, "matmul")
    assert sorted(matmuls) == ["CPU:0", "CPU:0", "CPU:1", "CPU:1"]
    assert matmuls[:2] == matmuls[2:], "a chain changes its device"


def in_two_places():
    with paddle_ngraph.device("CPU:0"):
        first = tower(data())
        with paddle_ngraph.device("CPU:1"):
            second = tower(first)
        third = F.sigmoid(second)
    return [paddle.mean(third), first]


def test_operators_are_placed_while_a_program_is_built():
    planned = Planned(in_two_places, "CPU:3")
    assert devices_of(planned.plan, "matmul") == ["CPU:0"] * 3 + ["CPU:1"] * 3
    assert devices_of(planned.plan, "sigmoid") == ["CPU:0"]
    assert devices_of(planned.plan, "mean") == ["CPU:3"]
    planned.both(x=floats(4, WIDTH))


@pytest.mark.slow("compiles many or large functions")
def test_rules_of_the_plan_come_last_and_the_last_one_holds():
    planned = Planned(in_two_places, "CPU:3")
    planned.plan.place("matm*", "CPU:2").place("linear_1.*", "CPU:1")
    assert devices_of(planned.plan, "matmul") == ["CPU:2", "CPU:1", *["CPU:2"] * 4]
    assert devices_of(planned.plan, "relu") == ["CPU:0"] * 3 + ["CPU:1"] * 3
    planned.both(x=floats(4, WIDTH))


def test_operators_and_variables_are_placed_one_by_one():
    planned = Planned(two_towers, "CPU:0")
    operator = [op for op in planned.engine.main.global_block().ops if "matmul" in op.name()][2]
    planned.plan.place(operator, "CPU:1").place(planned.engine.fetches[0], "CPU:2")
    assert devices_of(planned.plan, "matmul").index("CPU:1") == 2
    assert devices_of(planned.plan, "matmul").count("CPU:1") == 1
    assert devices_of(planned.plan, "mean") == ["CPU:2"]
    planned.both(x=floats(4, WIDTH))


def test_the_backward_pass_and_the_update_go_with_the_forward_operator():
    plan = Planned(training, "CPU:0").plan.place("linear_1.*", "CPU:1")
    assert devices_of(plan, "matmul").count("CPU:1") == 1
    assert devices_of(plan, "matmul_grad").count("CPU:1") == 1
    assert devices_of(plan, "add_grad").count("CPU:1") == 1
    assert devices_of(plan, "adam_").count("CPU:1") == 2


@pytest.mark.parametrize("which", ["no_such_operator", "linear_9.*", 3, None, [], "x"])
def test_other_objects_are_rejected_in_one_sentence(which):
    planned = Planned(two_towers, "CPU:0")
    with pytest.raises(paddle_ngraph.NgraphError) as error:
        planned.plan.place(which, "CPU:1")
    assert "\n" not in str(error.value)
    assert {op.device for op in planned.plan.operators} == {"CPU:0"}


def test_an_operator_of_another_program_is_refused():
    another = Program(two_towers)
    other = another.main.global_block().ops[-1]
    with pytest.raises(paddle_ngraph.NgraphError, match="none of those of the program"):
        paddle_ngraph.execution_plan(Program(two_towers).main).place(other, "CPU:1")


def test_bad_programs_and_fetches_are_refused():
    program = Program(two_towers)
    with pytest.raises(paddle_ngraph.NgraphError, match="execution_plan"):
        paddle_ngraph.execution_plan(42)
    with pytest.raises(paddle_ngraph.NgraphError, match=r"fetch_list\[0\]"):
        paddle_ngraph.execution_plan(program.main, None, ["nothing"])


def test_operators_stay_with_paddle_where_they_are_placed():
    planned = Planned(two_towers, "CPU:0")
    planned.plan.place("relu", "native")
    assert set(devices_of(planned.plan, "relu")) == {"native"}
    assert "native relu" in str(planned.plan) and "placed on native Paddle" in str(planned.plan)
    planned.both(x=floats(4, WIDTH))


def test_a_plan_leaves_the_program_as_it_is():
    program = Program(training)
    before = str(program.main)
    plan = paddle_ngraph.execution_plan(program.main, ["CPU:0", "CPU:1"], program.fetches)
    assert plan.program is plan.program
    assert str(program.main) == before


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [two_towers, training], ids=["inference", "training"])
@pytest.mark.parametrize("defaults", [["CPU:0", "CPU:1"], ["CPU:0-1", "CPU:2-3"], ["CPU:0", "CPU"]])
def test_results_are_those_of_native_paddle(build, defaults):
    planned = Planned(build, defaults)
    for step in range(4):
        planned.both(x=floats(8, WIDTH, seed=step))


@pytest.mark.slow("compiles many or large functions")
def test_every_operator_on_a_device_of_its_own():
    planned = Planned(training)
    for number, kind in enumerate(("matmul", "add", "relu", "*_grad", "adam_")):
        planned.plan.place(kind, f"CPU:{number % 4}")
    assert len({op.interval for op in planned.plan.operators}) > 10
    for step in range(3):
        planned.both(x=floats(8, WIDTH, seed=step))


@pytest.mark.slow("draws many programs")
@pytest.mark.usefixtures("native_in_order")
def test_random_numbers_are_sampled_in_program_order():
    planned = Planned(lambda: training(0.3), ["CPU:0", "CPU:1"])
    assert len(planned.plan.report.intervals) > 2
    for step in range(4):
        planned.both(seed=step, x=floats(8, WIDTH, seed=step))


@pytest.mark.slow("compiles many or large functions")
def test_the_engine_switched_on_changes_nothing():
    planned = Planned(training, ["CPU:0", "CPU:1"])
    off = Planned(training, ["CPU:0", "CPU:1"])
    for step in range(3):
        x = floats(8, WIDTH, seed=step)
        with paddle_ngraph.use_ngraph():
            on = planned.run(x=x)
        for one, other in zip(on, off.run(x=x)):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow("compiles many or large functions")
def test_control_flow_and_native_operators_between():
    def build():
        x = data()
        first = tower(x)
        hidden = paddle.static.nn.cond(
            paddle.mean(x) > 0, lambda: tower(first) * 2, lambda: tower(first) - 1
        )
        return [paddle.erfinv(paddle.clip(tower(hidden), -0.5, 0.5)) + tower(x)]

    planned = Planned(build, ["CPU:0", "CPU:1"])
    assert any(op.interval is None for op in planned.plan.operators)
    planned.both(x=floats(4, WIDTH))
    planned.both(x=-floats(4, WIDTH))


# -- copies ----------------------------------------------------------------------------------------


def test_a_copy_is_put_in_where_data_changes_device():
    plan = Planned(in_two_places, "CPU:0").plan
    copies = [(op.copied_from, op.device) for op in plan.operators if op.copied_from]
    assert copies == [("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")]


def test_one_copy_serves_all_readers_of_a_device():
    def build():
        with paddle_ngraph.device("CPU:0"):
            first = F.relu(data())
        with paddle_ngraph.device("CPU:1"):
            hidden = [F.sigmoid(first), paddle.tanh(first), paddle.concat([first, first])]
        return [*hidden, first]

    planned = Planned(build)
    copies = [op for op in planned.plan.operators if op.copied_from]
    assert [op.type for op in copies] == ["pd_op.assign"]
    planned.both(x=floats(4, WIDTH))


def test_a_copy_is_written_by_hand():
    def build():
        with paddle_ngraph.device("CPU:0"):
            first = F.relu(data())
            moved = paddle_ngraph.copy(first, "CPU:1")
        with paddle_ngraph.device("CPU:1"):
            return [F.sigmoid(moved), first]

    planned = Planned(build)
    copies = [(op.copied_from, op.device) for op in planned.plan.operators if op.copied_from]
    assert copies == [("CPU:0", "CPU:1")]
    planned.both(x=floats(4, WIDTH))


@pytest.mark.slow("trains through many compiles")
def test_a_copy_carries_gradients():
    def build():
        with paddle_ngraph.device("CPU:0"):
            first = tower(data())
        with paddle_ngraph.device("CPU:1"):
            loss = paddle.mean(tower(paddle_ngraph.copy(first, "CPU:1")) ** 2)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss, first]

    planned = Planned(build, "CPU:0")
    for step in range(3):
        planned.both(x=floats(4, WIDTH, seed=step))


def test_a_copy_of_anything_else_is_refused():
    for thing in (np.zeros(3), None, "x"):
        with pytest.raises(paddle_ngraph.NgraphError, match=r"copy\(\) takes a variable"):
            paddle_ngraph.copy(thing, "CPU:1")


def test_reads_precede_later_overwrites():
    """A copy taken too early, or too late, would have another value."""

    def build():
        start = nn.initializer.Constant(1.5)
        count = paddle.create_parameter([1], "float32", default_initializer=start)
        count.stop_gradient = True
        with paddle_ngraph.device("CPU:0"):
            before = count * 2
        with paddle_ngraph.device("CPU:1"):
            paddle.increment(count)
        with paddle_ngraph.device("CPU:2"):
            after = count * 3
        with paddle_ngraph.device("CPU:3"):
            paddle.increment(count)
        return [before + after + data()]

    planned = Planned(build)
    for _ in range(3):
        planned.both(x=floats(4, WIDTH))


# -- the printed plan ------------------------------------------------------------------------------


def test_a_plan_prints_operators_intervals_devices_and_copies():
    plan = Planned(in_two_places, "CPU:0").plan
    text = str(plan)
    assert re.search(r"^\d+ operators: 3 intervals, 2 copies, 0 native operators\.$", text, re.M)
    assert re.search(r"^interval 0 on CPU:0: operators [\d, -]+: .*matmul x3", text, re.M)
    assert re.search(r"^copy \d+: CPU:0 -> CPU:1$", text, re.M)
    printed = {
        number
        for line in re.findall(r"operators ([\d, -]+):", text)
        for part in line.split(", ")
        for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    }
    assert printed >= {op.index for op in plan.operators}


def test_a_plan_exports_a_dot_graph():
    dot = Planned(in_two_places, "CPU:0").plan.place("sigmoid", "native").to_dot()
    assert dot.startswith("digraph plan {") and dot.endswith("}\n")
    assert dot.count("{") == dot.count("}")
    nodes = set(re.findall(r"^ +(op\d+) \[", dot, re.M))
    edges = re.findall(r"^  (op\d+) -> (op\d+);", dot, re.M)
    assert edges and all({a, b} <= nodes for a, b in edges)
    assert 'label="interval 0 on CPU:0"' in dot and "native" in dot


def test_explain_names_devices_of_a_program_that_is_placed():
    assert "on CPU:1" in str(paddle_ngraph.explain(Program(in_two_places).main))


def test_the_engine_heeds_devices_without_a_plan(planned_runs):
    program = Program(in_two_places)
    for step in range(3):
        program.both(x=floats(4, WIDTH, seed=step))
    assert len(planned_runs) == 3


# -- clones and files ------------------------------------------------------------------------------


def graphs_of(program):
    ops = program.global_block().ops
    return [Graph.from_string(op.attrs()["graph"]) for op in ops if "ngraph_engine" in op.name()]


def test_devices_survive_clones_and_files(tmp_path: Path):
    planned = Planned(in_two_places, "CPU:0")
    expected = planned.run(x=floats(4, WIDTH))
    devices = [graph.device for graph in graphs_of(planned.plan.program)]
    assert sorted(devices) == ["CPU:0", "CPU:0", "CPU:1"]
    assert [graph.device for graph in graphs_of(planned.plan.program.clone())] == devices
    marked = planned.engine.main.clone()
    assert "CPU:1" in {device_of(op) for op in marked.global_block().ops}
    path = str(tmp_path / "model")
    block = planned.plan.program.global_block()
    feed = next(op.result(0) for op in block.ops if op.attrs().get("name") == "x")
    with paddle.static.scope_guard(planned.engine.scope):
        paddle.static.save_inference_model(
            path,
            [feed],
            planned.plan.fetches,
            planned.engine.executor,
            program=planned.plan.program,
        )
    with paddle.static.scope_guard(paddle.static.Scope()):
        loaded, feeds, fetches = paddle.static.load_inference_model(path, planned.engine.executor)
        assert [graph.device for graph in graphs_of(loaded)] == devices
        results = planned.engine.executor.run(
            loaded, feed={feeds[0]: floats(4, WIDTH)}, fetch_list=fetches
        )
    for one, other in zip(expected, results):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow("compiles many or large functions")
def test_plans_of_one_program_are_not_mixed_up():
    """Executors, functions and graphs of one plan never serve another."""
    program = Program(two_towers)
    x = floats(4, WIDTH)
    results, texts = [], set()
    for defaults in ("CPU:0", "CPU:1", ["CPU:0", "CPU:1"], "CPU:0-3", "native"):
        plan = paddle_ngraph.execution_plan(program.main, defaults, program.fetches)
        texts |= {str([graph.to_string() for graph in graphs_of(plan.program)])}
        with paddle.static.scope_guard(program.scope):
            results.append(
                program.executor.run(plan.program, feed={"x": x}, fetch_list=plan.fetches)[0]
            )
    assert len(texts) == 5
    np.testing.assert_allclose(results, results[0], rtol=1e-5)


def test_a_device_mark_keeps_other_attributes():
    program = Program(two_towers).main
    op = next(op for op in program.global_block().ops if op.name() == "pd_op.relu")
    op.set_str_attr("struct_name", "/layer/")
    place_on(op, "CPU:1")
    assert not is_sequential(program) and not is_trained_elsewhere(program)
    mark_sequential(program)
    place_on(op, "CPU:0")
    assert not is_trained_elsewhere(program)
    mark_trained_elsewhere(program)
    mark_sequential(program)
    place_copy(op, "CPU:0-1")
    assert device_of(op) == "CPU:0-1"
    assert is_sequential(program) and is_trained_elsewhere(program.clone())
    assert "/layer/" in op.str_attr("struct_name")


def test_a_graph_with_a_bad_device_is_refused():
    text = graphs_of(Planned(two_towers, "CPU:0").plan.program)[0]
    text.device = "a\nb"
    with pytest.raises(paddle_ngraph.NgraphError, match="malformed"):
        Graph.from_string(text.to_string())
