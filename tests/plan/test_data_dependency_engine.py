"""The data-dependency engine: what runs at once, in which order, and what happens to errors."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.paddle_seam.names import is_initialized
from paddle_ngraph.plan import data_dependency_engine
from paddle_ngraph.plan.data_dependency_engine import Step, _Run
from tests.plan.networks import WIDTH, Planned, data, tower, training, two_towers
from tests.programs import at_once, floats

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

TIMEOUT = 600


# -- scheduling, without an engine -----------------------------------------------------------------


def step(cores: set[int], after: set[int]) -> Step:
    return Step(None, [frozenset(cores)], frozenset(after), (), (), ())  # type: ignore[arg-type]


def run_in_threads(run: _Run, count: int) -> None:
    helpers = [threading.Thread(target=run.work) for _ in range(count - 1)]
    for helper in helpers:
        helper.start()
    run.work()
    for helper in helpers:
        helper.join(TIMEOUT)
        assert not helper.is_alive(), "a step is never started, or never ends"


def nothing(_: int) -> None:
    pass


def test_steps_of_two_devices_run_at_the_same_time():
    """Each of the two waits for the other one."""
    both = threading.Barrier(2)
    run = _Run([step({0}, set()), step({1}, set())], lambda _: both.wait(TIMEOUT) and None, nothing)
    run_in_threads(run, 2)
    run.raise_failure()


def test_no_core_computes_two_steps_at_once():
    groups = [{0}, {1}, {0, 1}, {1, 2}, {3}, {0, 1, 2, 3}]
    lock, busy, clashes = threading.Lock(), set(), []

    def compute(number: int) -> None:
        (cores,) = steps[number].groups
        with lock:
            clashes.extend(busy & cores)
            busy.update(cores)
        with lock:
            busy.difference_update(cores)

    steps = [step(groups[number % len(groups)], set()) for number in range(300)]
    run_in_threads(_Run(steps, compute, nothing), 4)
    assert not clashes


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_thousand_rounds_of_random_graphs(threads: int):
    """Every step runs once, and after all that it waits for."""
    draw = random.Random(threads)
    for _ in range(350):
        steps = []
        for number in range(100):
            after = {draw.randrange(number) for _ in range(draw.randrange(4)) if number}
            steps.append(step({draw.randrange(4) for _ in range(draw.randrange(1, 3))}, after))
        done: list[int] = []
        wrong: list[int] = []

        def compute(number: int, steps=steps, done=done, wrong=wrong) -> None:
            wrong.extend(steps[number].after - set(done))
            done.append(number)

        run_in_threads(_Run(steps, compute, nothing), threads)
        assert not wrong and sorted(done) == list(range(100))
        if threads == 1:
            assert done == list(range(100)), "program order"


def test_after_a_failure_nothing_is_started_and_the_first_one_is_raised():
    both = threading.Barrier(2)
    started = []

    def compute(number: int) -> None:
        started.append(number)
        both.wait(TIMEOUT)
        raise ValueError(f"step {number}")

    steps = [step({0}, set()), step({1}, set()), step({2}, {0}), step({3}, {1})]
    run = _Run(steps, compute, nothing)
    run_in_threads(run, 2)
    with pytest.raises(ValueError, match="step 0"):
        run.raise_failure()
    assert sorted(started) == [0, 1]


def test_a_run_that_is_stopped_starts_nothing():
    run = _Run([step({0}, set())], lambda _: pytest.fail("it was started"), nothing)
    run.stop()
    run_in_threads(run, 2)
    run.raise_failure()


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


def test_what_reads_a_parameter_waits_for_those_that_write_it_and_before():
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


def test_threads_take_turns_on_a_planned_program(planned_runs):
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


def test_a_forked_process_has_threads_of_its_own(planned_runs):
    planned = on_two_cores()
    x = floats(4, WIDTH)
    expected = planned.run(x=x)
    engine = planned_runs[0]
    engine._process = -1  # as in a child
    before = engine._helpers
    for one, other in zip(expected, planned.run(x=x)):
        np.testing.assert_array_equal(one, other)
    assert engine._helpers is not before


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


def test_a_thread_that_outlives_the_main_one_runs_on():
    """Python's pools of threads take no more work then."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AFTER_MAIN], capture_output=True, text=True
    )
    assert "ran on" in found.stdout, found.stderr
