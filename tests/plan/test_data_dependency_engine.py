"""The data-dependency engine: concurrency, order and errors of steps."""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import NgraphError, _core
from paddle_ngraph.paddle_private.names import is_initialized
from paddle_ngraph.plan import data_dependency_engine
from paddle_ngraph.plan.data_dependency_engine import (
    PlannedProgram,
    Schedule,
    ScheduleStep,
    _ThreadCountTuner,
)
from tests.clocks import Clock
from tests.plan.networks import WIDTH, Planned, data, tower, training, two_towers
from tests.programs import at_once, floats, is_ended
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

TIMEOUT = 600


# -- scheduling, without an engine -----------------------------------------------------------------


class Called:
    """The node of a step, which calls a function with the index of the step."""

    def __init__(self, number: int, compute: Any) -> None:
        self._number, self._compute = number, compute

    def run(self) -> tuple[()]:
        self._compute(self._number)
        return ()


def run_in_threads(steps: list[tuple[set[int], set[int]]], compute: Any, threads: int) -> Any:
    """One run of steps, each with its cores and those that it waits for; the engine that ran it."""
    made = [
        (Called(number, compute), sorted(after), [sorted(cores)], [], [])
        for number, (cores, after) in enumerate(steps)
    ]
    engine = _core.DataDependencyEngine(made, [], [])
    engine.run(threads)
    return engine


def test_steps_of_two_devices_run_at_the_same_time():
    """Each of the two waits for the other one."""
    both = threading.Barrier(2)
    run_in_threads([({0}, set()), ({1}, set())], lambda _: both.wait(TIMEOUT), 2)


def test_no_core_computes_two_steps_at_once():
    groups = [{0}, {1}, {0, 1}, {1, 2}, {3}, {0, 1, 2, 3}]
    lock, busy, clashes = threading.Lock(), set(), []

    def compute(number: int) -> None:
        cores, _ = steps[number]
        with lock:
            clashes.extend(busy & cores)
            busy.update(cores)
        with lock:
            busy.difference_update(cores)

    steps = [(groups[number % len(groups)], set()) for number in range(300)]
    run_in_threads(steps, compute, 4)
    assert not clashes and not busy


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_thousand_rounds_of_random_graphs(threads: int):
    """Every step runs once, and after all that it waits for."""
    draw = random.Random(threads)
    for _ in range(350):
        steps = []
        for number in range(100):
            after = {draw.randrange(number) for _ in range(draw.randrange(4)) if number}
            steps.append(({draw.randrange(4) for _ in range(draw.randrange(1, 3))}, after))
        done: list[int] = []
        wrong: list[int] = []

        def compute(number: int, steps=steps, done=done, wrong=wrong) -> None:
            wrong.extend(steps[number][1] - set(done))
            done.append(number)

        engine = run_in_threads(steps, compute, threads)
        assert not wrong and sorted(done) == list(range(100))
        assert len(engine.last_ms) == 100 and min(engine.last_ms) > 0
        start = time.perf_counter()
        engine.run(threads)
        ms = (time.perf_counter() - start) * 1e3
        assert max(engine.last_ms) <= ms, "none is counted from before the run"
        if threads == 1:
            assert done[:100] == list(range(100)), "program order"
            assert sum(engine.last_ms) <= ms, "none is counted while another one computes"


def test_after_a_failure_nothing_is_started_and_the_first_one_is_raised():
    both = threading.Barrier(2)
    started = []

    def compute(number: int) -> None:
        started.append(number)
        both.wait(TIMEOUT)
        raise ValueError(f"step {number}")

    steps = [({0}, set()), ({1}, set()), ({2}, {0}), ({3}, {1})]
    with pytest.raises(ValueError, match="step 0"):
        run_in_threads(steps, compute, 2)
    assert sorted(started) == [0, 1]


def test_many_short_runs_start_no_more_threads_than_they_use():
    before = len(os.listdir("/proc/self/task"))
    engine = run_in_threads([({0}, set()), ({1}, set())], lambda _: None, 2)
    for _ in range(3000):
        engine.run(2)
    assert len(os.listdir("/proc/self/task")) <= before + 4


@pytest.mark.parametrize(
    ("after", "reads", "writes", "fetches"),
    [([0], [], [], []), ([1], [], [], []), ([], [0], [], []), ([], [], [3], []), ([], [], [], [0])],
)
def test_steps_that_make_no_sense_are_an_error(after, reads, writes, fetches):
    with pytest.raises(NgraphError, match="waits for what is not before it"):
        _core.DataDependencyEngine([(None, after, [[0]], reads, writes)], [], fetches)


class Runs(Clock):
    """Runs that take as long as a test says, by the number of threads."""

    def __init__(self, **ms: float) -> None:
        super().__init__()
        self._ms = {int(name[1:]): each for name, each in ms.items()}
        self.runs: list[int] = []

    def run(self, threads: int) -> int:
        self.runs.append(threads)
        self.now += self._ms[threads] / 1e3
        return threads


@pytest.mark.parametrize(
    ("several", "one", "chosen", "tried"),
    [(0.5, 0.3, 1, 18), (0.3, 0.5, 4, 18), (9.0, 11.0, 4, 12), (11.0, 4.0, 4, 3)],
)
def test_short_runs_are_in_one_thread_where_that_is_faster(
    monkeypatch, several, one, chosen, tried
):
    clock = Runs(_4=several, _1=one)
    monkeypatch.setattr(data_dependency_engine, "_width", lambda schedule: 4)
    pace = _ThreadCountTuner(SCHEDULE, clock)
    assert [pace.run(clock.run) for _ in range(30)] == clock.runs
    assert clock.runs == [*[4] * min(tried, 9), *[1] * max(tried - 9, 0), *[chosen] * (30 - tried)]


def test_it_is_asked_again_which_number_of_threads_is_faster(monkeypatch):
    clock = Runs(_4=0.5, _1=0.3)
    monkeypatch.setattr(data_dependency_engine, "_width", lambda schedule: 4)
    pace = _ThreadCountTuner(SCHEDULE, clock)
    for _ in range(500):
        pace.run(clock.run)
    clock._ms = {4: 0.3, 1: 0.5}
    for _ in range(1000):
        pace.run(clock.run)
    assert clock.runs == [*[4] * 9, *[1] * 1009, *[4] * 9, *[1] * 9, *[4] * 464]


def test_thread_counts_of_collectives_are_not_tuned():
    collective = ScheduleStep(None, [data_dependency_engine._LINK_GROUP], frozenset(), (), (), ())  # type: ignore[arg-type]
    both = [ScheduleStep(None, [frozenset({n})], frozenset(), (), (), ()) for n in (0, 1)]  # type: ignore[arg-type]
    clock = Runs(_3=9.0, _1=0.1)
    pace = _ThreadCountTuner(dataclasses.replace(SCHEDULE, steps=[*both, collective]), clock)
    assert [pace.run(clock.run) for _ in range(30)] == [3] * 30


SCHEDULE = Schedule([], {}, {}, (), {}, False, ())


# -- programs --------------------------------------------------------------------------------------


class _Watched:
    """The core, with operators that call something before they run."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(_core, name)

    def WholeProgram(self, *args: Any) -> Any:
        program, before = _core.WholeProgram(*args), self._before

        class Operator:
            def run(self) -> Any:
                before()
                return program.run()

        return Operator()


def independent() -> list[Any]:
    x = data()
    return [tower(x), tower(x)]


def on_two_cores() -> Planned:
    planned = Planned(independent, "CPU:0")
    for number in (3, 4, 5):
        planned.plan.place(f"linear_{number}.*", "CPU:1")
    operators = planned.engine.main.global_block().ops
    for op in [op for op in operators if op.name() == "pd_op.relu"][3:]:
        planned.plan.place(op, "CPU:1")
    return planned


def test_intervals_of_two_devices_run_at_the_same_time(monkeypatch, planned_runs):
    both = threading.Barrier(2)
    watched = _Watched(lambda: both.wait(TIMEOUT))
    monkeypatch.setattr(data_dependency_engine, "_core", watched)
    planned = on_two_cores()
    assert len(planned.plan.report.intervals) == 2
    planned.both(x=floats(4, WIDTH))
    assert len(planned_runs) == 1


@pytest.mark.slow("compiles many or large functions")
def test_results_are_those_of_a_serial_run_to_the_last_bit(monkeypatch, planned_runs):
    side_by_side = Planned(training, ["CPU:0", "CPU:1"])
    serial = Planned(training, ["CPU:0", "CPU:1"])
    found = [side_by_side.run(x=floats(8, WIDTH, seed=i)) for i in range(20)]
    monkeypatch.setattr(data_dependency_engine, "_width", lambda schedule: 1)
    for number, results in enumerate(found):
        for one, other in zip(results, serial.run(x=floats(8, WIDTH, seed=number))):
            np.testing.assert_array_equal(one, other)
    assert len(planned_runs) == 40


def random_graph(draw: random.Random, intervals: int):
    """Operators on random devices that read random earlier results; some write a parameter."""

    def build() -> list[Any]:
        values = [data()]
        start = nn.initializer.Constant(0.5)
        counts = [
            paddle.create_parameter([1], "float32", default_initializer=start) for _ in range(3)
        ]
        for count in counts:
            count.stop_gradient = True
        for number in range(intervals):
            with paddle_ngraph.device(f"CPU:{number % 4 if draw.random() < 0.9 else '0-1'}"):
                one, other = draw.choice(values[-8:]), draw.choice(values)
                made = F.relu(one * draw.uniform(0.3, 0.7) - other * draw.uniform(0.3, 0.7))
                if draw.random() < 0.15:
                    made = made * draw.choice(counts)
                if draw.random() < 0.08:
                    paddle.assign(draw.choice(counts) * 0.9, draw.choice(counts))
                values.append(made)
        return [paddle.add_n(values[-10:]), values[intervals // 2]]

    return build


@pytest.mark.slow("draws many programs")
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_of_a_hundred_intervals(seed, monkeypatch, planned_runs):
    state = random.Random(seed).getstate()

    def build() -> list[Any]:
        draw = random.Random()
        draw.setstate(state)
        return random_graph(draw, 120)()

    planned, serial = Planned(build, "CPU:0"), Planned(build, "CPU:0")
    assert len(planned.plan.report.intervals) >= 100
    planned.both(x=floats(4, WIDTH, seed=99))
    serial.both(x=floats(4, WIDTH, seed=99))
    rounds = [planned.run(x=floats(4, WIDTH, seed=i)) for i in range(250)]
    monkeypatch.setattr(data_dependency_engine, "_width", lambda schedule: 1)
    for number, results in enumerate(rounds):
        for one, other in zip(results, serial.run(x=floats(4, WIDTH, seed=number))):
            np.testing.assert_array_equal(one, other)
    assert len(planned_runs) == 502


@pytest.mark.slow("compiles many or large functions")
def test_reads_and_writes_of_a_parameter_keep_their_order():
    """Updates on devices of their own: write after read, read after write, write after write."""

    def build() -> list[Any]:
        x, layer = data(), nn.Linear(WIDTH, WIDTH)
        hidden = F.relu(layer(x))
        loss = paddle.mean(layer(hidden) ** 2)
        paddle.optimizer.Momentum(0.1, 0.9).minimize(loss)
        return [loss, hidden]

    planned = Planned(build, "CPU:0")
    planned.plan.place("momentum_", "CPU:1").place("relu", "CPU:2")
    for number in range(6):
        planned.both(x=floats(8, WIDTH, seed=number))


def feed(planned: Planned, x: np.ndarray) -> None:
    planned.engine.scope.find_var("x").get_tensor().set(x, paddle.CPUPlace())


def test_memory_of_results_is_free_when_a_run_is_over(planned_runs):
    planned = Planned(two_towers, ["CPU:0", "CPU:1"])
    planned.run(x=floats(4, WIDTH))
    (engine,) = planned_runs
    feed(planned, floats(4, WIDTH))
    fetched = engine.run()
    assert [list(each.shape()) for each in fetched] == [[], [4, WIDTH]]
    assert engine._slots and not any(is_initialized(slot) for slot in engine._slots.values())
    assert not is_initialized(planned.engine.scope.find_var("x").get_tensor()), "the feed is used"


@pytest.mark.parametrize("is_garbage", [False, True])
def test_its_scope_ends_with_it(is_garbage, planned_runs):
    planned = Planned(two_towers, ["CPU:0", "CPU:1"])
    expected = planned.run(x=floats(4, WIDTH))
    engine: Any = PlannedProgram(planned_runs[0]._schedule, planned.engine.scope)
    feed(planned, floats(4, WIDTH))
    fetched = engine.run()
    scope = engine._own_scope.scope
    if is_garbage:
        engine.itself = engine
    del engine
    planned_runs.clear()
    gc.collect()
    assert is_ended(scope)
    for one, other in zip_equal(expected, fetched):
        np.testing.assert_array_equal(np.array(other), one)  # which do not go with it
    planned.both(x=floats(4, WIDTH))


def test_planned_programs_end_beside_others_that_run(planned_runs):
    planned = [Planned(two_towers, ["CPU:0", "CPU:1"]) for _ in range(3)]
    for each in planned:
        each.both(x=floats(4, WIDTH))
    schedules = [run._schedule for run in planned_runs]

    def work(number: int) -> None:
        each = planned[number]
        expected = each.run(x=floats(4, WIDTH))
        for _ in range(20):
            engine: Any = PlannedProgram(schedules[number], each.engine.scope)
            engine.itself = engine
            found = engine.run_on({"x": floats(4, WIDTH)})
            for one, other in zip_equal(expected, found):
                np.testing.assert_array_equal(other, one)
            del engine
            gc.collect(0)

    at_once(work, len(planned))


def test_an_error_reaches_the_caller_and_the_next_run_is_right(monkeypatch, planned_runs):
    planned = Planned(two_towers, ["CPU:0", "CPU:1"])
    planned.both(x=floats(4, WIDTH))
    with pytest.raises(Exception, match=r"(?i)mismatch|dimension|shape|expected|equal"):
        planned.run(x=floats(4, WIDTH + 1))
    planned.both(x=floats(4, WIDTH))
    assert len(planned_runs) == 3


def test_an_interval_that_the_engine_cannot_run_is_run_by_paddle():
    planned = Planned(two_towers, ["CPU:0", "CPU:1"])
    _core.fail_at("data")
    try:
        expected = planned.native.run(engine=False, x=floats(4, WIDTH))
        results = planned.run(x=floats(4, WIDTH))
    finally:
        _core.fail_at("")
    for one, other in zip(expected, results):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6)
    assert paddle_ngraph.stats()["native_runs"] > 0


def test_threads_run_a_planned_program_one_at_a_time(planned_runs):
    planned = Planned(two_towers, ["CPU:0", "CPU:1"])
    x = floats(4, WIDTH)
    expected = planned.run(x=x)
    engine = planned_runs[0]
    lock = threading.Lock()

    def work(_: int) -> None:
        for _ in range(20):
            with lock:  # there is one variable to feed
                feed(planned, x)
                found = [np.array(each) for each in engine.run()]
            for one, other in zip(expected, found):
                np.testing.assert_array_equal(one, other)

    at_once(work, 4)
    assert len(planned_runs) == 81


FORKED = """
import os, threading
from paddle_ngraph import _core


class Waits:
    def run(self):
        both.wait(60)
        return ()


engine = _core.DataDependencyEngine([(Waits(), [], [[core]], [], []) for core in (0, 1)], [], [])
for _ in range(3):
    both = threading.Barrier(2)
    engine.run(2)
    child = os.fork()
    if child == 0:
        both = threading.Barrier(2)
        engine.run(2)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("both ran")
"""


@pytest.mark.slow("starts a process")
def test_a_forked_process_has_threads_of_its_own():
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=200
    )
    assert "both ran" in found.stdout, found.stderr


AFTER_MAIN = """
import threading, time
import numpy as np, paddle, paddle_ngraph
paddle.enable_static()
x = paddle.static.data("x", [-1, 16])
towers = [paddle.static.nn.fc(x, 16, activation="relu") for _ in range(2)]
y = paddle.mean(towers[0] * towers[1])
executor = paddle.static.Executor()
executor.run(paddle.static.default_startup_program())
made = paddle_ngraph.data_parallel(paddle.static.default_main_program(), 2, [y])
feed = {"x": np.ones([8, 16], "float32")}


def run():
    return executor.run(made.program, feed=feed, fetch_list=made.fetches)[0]


first = run()


def later():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    assert run() == first == run()
    assert paddle_ngraph.stats()["engine_runs"] >= 9
    print("ran on")


threading.Thread(target=later).start()
"""


@pytest.mark.slow("starts a process")
def test_a_thread_that_outlives_the_main_one_runs_on():
    """Python's pools of threads take no more work then."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AFTER_MAIN], capture_output=True, text=True
    )
    assert "ran on" in found.stdout, found.stderr
