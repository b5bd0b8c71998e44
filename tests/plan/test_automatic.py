"""The automatic plan: measurements decide, here those of a fake stopwatch."""

from __future__ import annotations

import threading

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.plan import automatic, data_dependency_engine, devices
from paddle_ngraph.plan.automatic import SubgraphTimes
from paddle_ngraph.simulation.events import total_ms
from tests.plan.networks import WIDTH, data, tower, training, two_towers
from tests.programs import Program, floats

pytestmark = pytest.mark.usefixtures("small_intervals_pay")
GROUPS, SLICES = "2 core groups", "2 slices"
PIPELINE, LONGER = (f"pipeline of {n} stages, {m} slices" for n, m in ((2, 2), (4, 4)))


class Given:
    """A stopwatch that shows given times.

    Args:
        of_step: The milliseconds of each interval, by plan; 50 if it is not there.
        of_run: The milliseconds of a run, by plan; 60 if it is not there.
    """

    def __init__(self, of_step: dict[str, float], **of_run: float) -> None:
        self._of_step = of_step
        self._of_run = of_run
        self.timed: list[str] = []
        self.candidates: dict[str, automatic.CandidatePlan] = {}

    def steps(self, candidate):
        self.candidates[candidate.name] = candidate
        ms = [self._of_step.get(candidate.name, 50.0)] * len(candidate.schedule.steps)
        return SubgraphTimes(ms, ms, 0.5)

    def run(self, candidate):
        self.timed.append(candidate.name)
        return self._of_run.get(candidate.name.replace(" ", "_"), 60.0)


def choosing(name: str) -> Given:
    """A stopwatch that makes a plan the fastest."""
    return Given({name: 0.01}, **{name.replace(" ", "_"): 1.0})


def planned(build, stopwatch=None, **feed):
    """A program, and its automatic plan."""
    program = Program(build)
    with paddle.static.scope_guard(program.scope):
        plan = automatic.automatic_plan(
            program.main, feed, program.fetches, program.scope, stopwatch
        )
    return program, plan


def option(plan, name):
    (found,) = [each for each in plan.options if each.name == name]
    return found


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(
    ("of_step", "serial", "chosen"),
    [
        ({GROUPS: 1.0, SLICES: 9.0}, 10.0, GROUPS),
        ({GROUPS: 9.0, SLICES: 1.0}, 10.0, SLICES),
        ({GROUPS: 9.0, SLICES: 9.0, PIPELINE: 1.0}, 10.0, PIPELINE),
        ({GROUPS: 9.0, SLICES: 9.0, PIPELINE: 9.0}, 5.0, "serial"),
    ],
)
def test_measured_intervals_decide(of_step, serial, chosen):
    given = {name.replace(" ", "_"): 4.0 for name in (GROUPS, SLICES, PIPELINE)} | {
        "serial": serial
    }
    stopwatch = Given(of_step, **given)
    _, plan = planned(two_towers, stopwatch, x=floats(8, WIDTH))
    assert plan.chosen == chosen
    assert stopwatch.timed == list(dict.fromkeys(["serial", chosen])), "others are far off"
    assert str(plan).startswith(f"{chosen}: the fastest when measured.\n")
    assert "4 slices: predicted" in str(plan) and "too far from the best" in str(plan)


@pytest.mark.slow("compiles many or large functions")
def test_a_prediction_models_concurrency():
    stopwatch = Given({GROUPS: 4.0, SLICES: 6.0})
    _, plan = planned(two_towers, stopwatch, x=floats(8, WIDTH))
    assert len(stopwatch.candidates[GROUPS].schedule.steps) == 3, (
        "two towers, and what compares them"
    )
    assert option(plan, GROUPS).predicted_ms == 4 + 4 + 0.5
    slices = stopwatch.candidates[SLICES]
    assert option(plan, SLICES).predicted_ms == total_ms(slices.tasks([6.0] * 99)) + 0.5
    halves = [step for step in slices.schedule.steps if len(step.groups) == 2]
    assert len(halves) == 2, "a slice for each half of the cores"
    assert option(plan, SLICES).predicted_ms == 6 * (len(slices.schedule.steps) - 1) + 0.5


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(("groups", "chosen"), [(8.0, GROUPS), (10.0, "serial")])
def test_close_predictions_are_measured(groups, chosen):
    stopwatch = Given({GROUPS: 4.8}, **{"serial": 9.0, "2_core_groups": groups})
    _, plan = planned(two_towers, stopwatch, x=floats(8, WIDTH))
    assert stopwatch.timed == ["serial", GROUPS] and plan.chosen == chosen
    assert option(plan, GROUPS).measured_ms == groups
    assert option(plan, SLICES).measured_ms is None


@pytest.mark.parametrize("name", ["serial", GROUPS, SLICES, "4 slices", PIPELINE, LONGER])
@pytest.mark.parametrize("build", [two_towers, training])
def test_results_are_those_of_native(build, name):
    x = floats(8, WIDTH)
    program, plan = planned(build, choosing(name), x=x)
    assert plan.chosen == name
    native = Program(build)
    before = paddle_ngraph.stats()["engine_runs"]
    for _ in range(3):
        expected = native.run(engine=False, x=x)
        results = program.executor.run(
            plan.program, feed={"x": x}, fetch_list=plan.fetches, scope=program.scope
        )
        for one, other in zip(expected, results):
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6)
    assert paddle_ngraph.stats()["engine_runs"] >= before + 3, "the engine did not run"


@pytest.mark.slow("compiles many or large functions")
def test_it_measures_and_changes_nothing():
    paddle.seed(5)
    program = Program(training)
    names = [p.name for p in program.main.global_block().all_parameters()]
    before = {name: program.variable(name) for name in names}
    state = paddle.get_rng_state("cpu")[0].current_seed()
    with paddle.static.scope_guard(program.scope):
        plan = paddle_ngraph.automatic_plan(program.main, {"x": floats(8, WIDTH)}, program.fetches)
    assert paddle.get_rng_state("cpu")[0].current_seed() == state
    for name in names:
        np.testing.assert_array_equal(program.variable(name), before[name])
    tried = [each for each in plan.options if not each.reason]
    assert {each.name for each in tried} >= {"serial", GROUPS, SLICES, "4 slices", PIPELINE, LONGER}
    assert all(each.predicted_ms > 0 for each in tried if each.name != "serial")
    measured = {each.name: each.measured_ms for each in tried if each.measured_ms is not None}
    assert plan.chosen == min(measured, key=measured.__getitem__)
    assert min(measured.values()) > 0


def one_tower():
    return [paddle.mean(tower(data()))]


def one_layer():
    return [paddle.nn.functional.relu(data())]


def summed():
    """A sum over samples: slices would give its mean over slices."""
    return [paddle.sum(tower(data()))]


def attention():
    """Softmax takes the bias of keys out again: its gradient is rounding, whose sign Adam takes."""
    x = data()
    found = []
    for _ in range(2):
        keys = paddle.static.create_parameter([5, WIDTH], "float32")
        bias = paddle.static.create_parameter([WIDTH], "float32", is_bias=True)
        scores = paddle.matmul(tower(x) * 3.0, keys + bias, transpose_y=True)
        found.append(paddle.nn.functional.softmax(scores))
    loss = paddle.mean((found[0] * found[1]) ** 2) * 100.0
    paddle.optimizer.Adam(0.01, epsilon=1e-12).minimize(loss)
    return [loss]


@pytest.mark.slow("compiles many or large functions")
def test_rounding_is_no_difference():
    _, plan = planned(attention, choosing(GROUPS), x=floats(8, WIDTH))
    assert option(plan, GROUPS).reason == ""
    assert plan.chosen == GROUPS


OPTIMIZERS = [
    *("SGD", "Momentum", "Adam", "AdamW", "Lamb", "NAdam", "RAdam", "Adamax", "Adagrad"),
    *("Adadelta", "RMSProp"),
]


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("reduce", "reason"), [("mean", ""), ("sum", "differ from those of the serial plan")]
)
def test_gradients_are_compared_whatever_the_optimizer_makes_of_them(
    monkeypatch, optimizer, reduce, reason
):
    """An update of Adam is equally large with half of a gradient, as slices of a sum have."""
    monkeypatch.setattr(devices, "usable_cores", lambda: (0, 1))

    def build():
        hidden = tower(data())
        getattr(paddle.optimizer, optimizer)(learning_rate=0.01).minimize(
            getattr(paddle, reduce)(hidden**2)
        )
        return [hidden]

    _, plan = planned(build, choosing("serial"), x=floats(8, WIDTH))
    assert reason in option(plan, SLICES).reason and bool(reason) == bool(
        option(plan, SLICES).reason
    )


def dropped():
    return two_towers(dropout=0.5)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(
    ("build", "batch", "name", "reason"),
    [
        (one_tower, 8, GROUPS, "has no 2 independent branches"),
        (two_towers, 8, "4 core groups", "has no 4 independent branches"),
        (two_towers, 7, SLICES, "the batch is not divisible into 2 slices"),
        (summed, 8, SLICES, "its results differ from those of the serial plan"),
        (dropped, 8, SLICES, "its results differ from those of the serial plan"),
        (two_towers, 6, LONGER, "the batch is not divisible into 4 slices"),
        (one_layer, 8, PIPELINE, "too few operators compute something of the data: 1 in the"),
        (summed, 8, PIPELINE, "its results differ from those of the serial plan"),
        (dropped, 8, PIPELINE, "its results differ from those of the serial plan"),
    ],
)
def test_rejected_options_and_their_reasons(build, batch, name, reason):
    _, plan = planned(build, choosing(name), x=floats(batch, WIDTH))
    assert reason in option(plan, name).reason
    assert f"{name}: excluded: " in str(plan)
    assert plan.chosen != name


# -- pipelines -----------------------------------------------------------------------------------


def stages_of(candidate, *groups):
    """The steps of each stage, in program order."""
    steps = candidate.schedule.steps
    return [[s for s in steps if s.groups == [frozenset(cores)]] for cores in groups]


@pytest.mark.slow("compiles many or large functions")
def test_the_prediction_of_a_pipeline_counts_how_it_fills_and_drains():
    stopwatch = Given({PIPELINE: 4.0, LONGER: 3.0})
    _, plan = planned(one_tower, stopwatch, x=floats(8, WIDTH))
    mean = 1
    assert option(plan, PIPELINE).predicted_ms == 4.0 * (2 + 1 + mean) + 0.5
    assert option(plan, LONGER).predicted_ms == 3.0 * (4 + 3 + mean) + 0.5
    assert f"{PIPELINE}: predicted 16.5 ms, measured 60 ms" in str(plan)
    assert f"{LONGER}: predicted 24.5 ms, which is too far from the best to be measured" in str(
        plan
    )


@pytest.mark.slow("compiles many or large functions")
def test_a_stage_runs_beside_the_one_before(monkeypatch, planned_runs):
    """The second slice in the first stage and the first slice in the second wait for each other."""
    program, plan = planned(one_tower, choosing(PIPELINE), x=floats(8, WIDTH))
    both = threading.Barrier(2)
    meeting = {frozenset({0, 1}): 2, frozenset({2, 3}): 1}
    made = {}
    interval = data_dependency_engine._interval

    class Meeting:
        def __init__(self, operator):
            self._operator = operator

        def run(self):
            both.wait(600)
            return self._operator.run()

    def watched(step, given):
        operator = interval(step, given)
        (cores,) = step.groups
        made.setdefault(cores, []).append(operator)
        return Meeting(operator) if len(made[cores]) == meeting.get(cores) else operator

    monkeypatch.setattr(data_dependency_engine, "_interval", watched)
    planned_runs.clear()
    x = floats(8, WIDTH)
    (result,) = program.executor.run(
        plan.program, feed={"x": x}, fetch_list=plan.fetches, scope=program.scope
    )
    assert len(planned_runs) == 1 and [len(made[cores]) for cores in meeting] == [2, 2]
    np.testing.assert_allclose(result, program.run(engine=False, x=x)[0], rtol=2e-5)


@pytest.mark.slow("compiles many or large functions")
def test_a_stage_waits_for_its_slice_alone():
    stopwatch = choosing(PIPELINE)
    planned(one_tower, stopwatch, x=floats(8, WIDTH))
    candidate = stopwatch.candidates[PIPELINE]
    first, second = stages_of(candidate, {0, 1}, {2, 3})
    assert [step.after for step in first] == [frozenset()] * 2
    numbers = [candidate.schedule.steps.index(step) for step in first]
    assert [step.after for step in second] == [frozenset({number}) for number in numbers]


class Uneven(Given):
    """A stopwatch that shows stages of which the first takes much longer."""

    def steps(self, candidate):
        shown = super().steps(candidate)
        ms = [9.0 if step.groups[0] == {0, 1} else 1.0 for step in candidate.schedule.steps]
        return shown._replace(concurrent=ms)


@pytest.mark.slow("compiles many or large functions")
def test_measured_times_move_the_cut():
    sizes = []
    for stopwatch in (choosing(PIPELINE), Uneven({})):
        planned(one_tower, stopwatch, x=floats(8, WIDTH))
        steps = stages_of(stopwatch.candidates[PIPELINE], {0, 1}, {2, 3})
        sizes.append([len(Graph.from_string(stage[0].node.graph).ops) for stage in steps])
    (one, other), (shorter, longer) = sizes
    assert abs(one - other) <= 2
    assert shorter < one and longer > other and shorter + longer == one + other


@pytest.mark.slow("compiles many or large functions")
def test_a_pipeline_refuses_a_batch_that_does_not_divide():
    program, plan = planned(training, choosing(PIPELINE), x=floats(8, WIDTH))
    with pytest.raises(
        paddle_ngraph.NgraphError, match="7 samples, which are not divisible among 2"
    ):
        program.executor.run(
            plan.program,
            feed={"x": floats(7, WIDTH)},
            fetch_list=plan.fetches,
            scope=program.scope,
        )


@pytest.mark.slow("draws many programs")
def test_random_numbers_are_those_of_a_serial_run():
    x = floats(8, WIDTH)
    program, plan = planned(dropped, choosing(GROUPS), x=x)
    assert plan.chosen == GROUPS
    serial = Program(dropped)
    paddle.seed(9)
    expected = serial.run(x=x)
    paddle.seed(9)
    results = program.executor.run(
        plan.program, feed={"x": x}, fetch_list=plan.fetches, scope=program.scope
    )
    for one, other in zip(expected, results):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6)


@pytest.mark.slow("compiles many or large functions")
def test_plans_with_fallback_operators_are_measured_as_a_whole():
    def build():
        x = data()
        with paddle_ngraph.device("native"):
            middle = paddle.tanh(x)
        return [paddle.mean(tower(middle) + tower(middle))]

    stopwatch = Given({}, **{"serial": 3.0, "2_core_groups": 2.0})
    _, plan = planned(build, stopwatch, x=floats(8, WIDTH))
    assert stopwatch.timed == ["serial", GROUPS] and GROUPS not in stopwatch.candidates
    assert plan.chosen == GROUPS and option(plan, GROUPS).predicted_ms is None
    assert "serial: measured 3 ms" in str(plan) and f"{GROUPS}: measured 2 ms" in str(plan)


def test_a_missing_variable_is_an_error():
    program = Program(training)
    with pytest.raises(paddle_ngraph.NgraphError, match="run the startup program first"):
        paddle_ngraph.automatic_plan(
            program.main, {"x": floats(8, WIDTH)}, program.fetches, paddle.static.Scope()
        )


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(
    "pick",
    [
        lambda h: paddle.gather(h, paddle.full([1], 5, "int64")),  # IndexError
        lambda h: paddle.reshape(h, [8, WIDTH]),  # ValueError
    ],
    ids=["a row", "a shape"],
)
def test_a_plan_that_fails_leaves_the_others(pick):
    """No slice has that many rows."""

    def build():
        return paddle.mean(pick(tower(data())))

    _, plan = planned(build, choosing(SLICES), x=floats(8, WIDTH))
    assert plan.chosen != SLICES and option(plan, SLICES).reason
