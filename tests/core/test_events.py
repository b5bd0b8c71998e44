"""Events of runs: each reason is provoked exactly n times, and the counters add up."""

from __future__ import annotations

import gc
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphEngine, _core, flags, statistics
from paddle_ngraph.conversion import build
from paddle_ngraph.conversion.integer_checks import IntegerChecks
from paddle_ngraph.errors import ErrorCode, NgraphError
from tests.core.test_engine import relu_graph, sgd_graph
from tests.programs import Program, at_once, chain, floats, strict_runs

pytestmark = [
    pytest.mark.usefixtures("small_intervals_pay"),
    pytest.mark.filterwarnings("ignore:paddle_ngraph. Paddle runs"),
]
NUM_EVENTS = 1 << 16
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    paddle_ngraph.clear_cache()
    flags.set("ngraph_background_compile", "0")
    yield
    paddle_ngraph.clear_cache()


def counts(outcome: str) -> Counter[str]:
    """The events with this outcome, by reason, as counted in the ring."""
    return Counter(each.reason for each in paddle_ngraph.events() if each.outcome == outcome)


def assert_sums() -> None:
    """Asserts that the totals, and the events of a ring that has not wrapped, add up."""
    stats = paddle_ngraph.stats()
    assert stats["runs"] == stats["engine_runs"] + sum(
        [*stats["native"].values(), *stats["raised"].values()]
    )
    assert counts("native") == stats["native"]
    assert counts("raised") == stats["raised"]
    assert counts("engine").total() == stats["engine_runs"]
    of_subgraphs = {each.name for each in statistics.REASONS if each.is_of_subgraph}
    native = {name: count for name, count in stats["native"].items() if name in of_subgraphs}
    assert sum(native.values()) == stats["native_runs"]
    assert stats["runs_while_compiling"] == stats["native"].get("compiling", 0)
    functions = counts("function")
    assert functions["loaded"] == stats["functions_loaded"]
    assert functions["built"] + functions["built_in_background"] == stats["functions_built"]


def runs_of_chain(count: int) -> Program:
    program = Program(chain)
    for _ in range(count):
        program.run(x=floats(3, 4))
    return program


# -- reasons of subgraphs --------------------------------------------------------------------------


def engine(n: int, _: Any) -> None:
    runs_of_chain(n)


def compiling(n: int, patch: pytest.MonkeyPatch) -> None:
    is_open = threading.Event()
    held = build.BuildPass("hold", "a test decides when a function is there", lambda _: wait())
    patch.setattr(build, "PASSES", (*build.PASSES, held))

    def wait() -> None:
        assert is_open.wait(120)

    flags.set("ngraph_background_compile", "1")
    try:
        runs_of_chain(n)
    finally:
        is_open.set()
        assert paddle_ngraph.wait_for_compiles(120)


def rare_shape(n: int, patch: pytest.MonkeyPatch) -> None:
    """After 16 first shapes, a new one needs more runs for a function than there are here."""
    program = Program(
        lambda: paddle.sort(paddle.tanh(paddle.static.data("x", [-1, 4], "float32")), axis=0)
    )
    for rows in range(1, 64):
        program.run(x=floats(rows, 4))
        if paddle_ngraph.stats()["native_runs"] == n:
            break


def denied(n: int, _: Any) -> None:
    _core.fail_at("compile")
    program = Program(chain)
    plan = paddle_ngraph.transpile(program.main, program.fetches)
    with paddle.static.scope_guard(program.scope):
        for _ in range(n + 1):  # the first one finds that the function cannot be built
            program.executor.run(plan[0], feed={"x": floats(3, 4)}, fetch_list=plan[1])


def nan_check(n: int, _: Any) -> None:
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        runs_of_chain(n)
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})


def empty(n: int, _: Any) -> None:
    """A program that has engine operators runs them on empty feeds."""
    program = Program(chain)
    plan, fetches = paddle_ngraph.transpile(program.main, program.fetches)
    with paddle.static.scope_guard(program.scope):
        for _ in range(n):
            program.executor.run(plan, feed={"x": floats(0, 4)}, fetch_list=fetches)


def data(n: int, _: Any) -> None:
    _core.fail_at("data")
    runs_of_chain(n)


def overflow(n: int, _: Any) -> None:
    def wide() -> Any:
        x = paddle.static.data("x", [-1], "int32")
        return x.astype("int64") * 1000003 * 7919

    program = Program(wide)
    for _ in range(n):
        program.run(x=np.arange(1000, 1009, dtype="int32"))


def embedding() -> Any:
    return paddle.nn.Embedding(10, 3)(paddle.static.data("ids", [-1], "int64")) * 2.0


def check(n: int, patch: pytest.MonkeyPatch) -> None:
    """A converter checks more than Paddle does."""
    original = IntegerChecks.require_range

    def narrower(self: Any, op: Any, name: str, low: Any, high: Any, **more: Any) -> None:
        original(self, op, name, low, 5, **more)

    patch.setattr(IntegerChecks, "require_range", narrower)
    program = Program(embedding)
    for _ in range(n):
        program.run(ids=np.array([1, 7]))


def out_of_memory(n: int, _: Any) -> None:
    for _ in range(n):
        _core.fail_at("bind")
        runs_of_chain(1)
        paddle_ngraph.clear_cache()


def not_built(n: int, _: Any) -> None:
    for _ in range(n):
        _core.fail_at("compile")
        runs_of_chain(1)
        paddle_ngraph.clear_cache()


def run_failed(n: int, _: Any) -> None:
    for _ in range(n):
        _core.fail_at("run")
        runs_of_chain(1)
        paddle_ngraph.clear_cache()


def interrupted(n: int, patch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    patch.setattr(build, "PASSES", (build.BuildPass("stop", "a test interrupts", interrupt),))
    for _ in range(n):
        with pytest.raises(KeyboardInterrupt):
            runs_of_chain(1)


def strict(n: int, _: Any) -> None:
    _core.fail_at("compile")
    with strict_runs():
        for _ in range(n):
            with pytest.raises(OSError, match="fault"):
                runs_of_chain(1)


def partial_write(n: int, _: Any) -> None:
    _core.fail_at("write")
    step = NgraphEngine(sgd_graph())
    for _ in range(n):
        io = step.build_ng_io([np.array(0.5, "float32"), floats(10), floats(10)])
        with pytest.raises(NgraphError, match="writing states") as failure:
            step.run(io)
        # Those of the error while states were written.
        assert (failure.value.code, failure.value.op_id) == (ErrorCode.INT32_OVERFLOW, 0)


def out_of_bounds(n: int, _: Any) -> None:
    def put() -> Any:
        x, ids = (paddle.static.data(*each) for each in (("x", [6]), ("ids", [2], "int64")))
        return paddle.index_put(x * 2.0, [ids], paddle.tanh(x[:2]), accumulate=True)

    program = Program(put)
    for _ in range(n):
        with pytest.raises(ValueError, match="index_put"):
            program.run(x=floats(6), ids=np.array([0, 2**20]))


def paddle_raised(n: int, _: Any) -> None:
    program = Program(embedding)
    for _ in range(n):
        with pytest.raises(ValueError, match="Variable value"):
            program.run(ids=np.array([1, 10]))


def engine_raised(n: int, _: Any) -> None:
    """The graph lacks the attributes that Paddle needs."""
    _core.fail_at("run")
    relu = NgraphEngine(relu_graph())
    for _ in range(n):
        with pytest.raises(NgraphError, match="fault"):
            relu.run(relu.build_ng_io([floats(3, 4)]))


def built(n: int, _: Any) -> None:
    for _ in range(n):
        runs_of_chain(1)
        paddle_ngraph.clear_cache()


def built_in_background(n: int, _: Any) -> None:
    flags.set("ngraph_background_compile", "1")
    for _ in range(n):
        runs_of_chain(1)
        assert paddle_ngraph.wait_for_compiles(120)
        paddle_ngraph.clear_cache()


def loaded(n: int, _: Any) -> None:
    """Each process finds the function of the first one on disk."""
    with tempfile.TemporaryDirectory() as folder:
        flags.set("ngraph_cache_dir", folder)
        flags.set("ngraph_cache_min_ms", 0)
        for _ in range(n + 1):
            runs_of_chain(1)
            paddle_ngraph.clear_cache()
    assert paddle_ngraph.stats()["functions_built"] == 1


OF_SUBGRAPHS: dict[str, Callable[[int, Any], None]] = {
    **{
        provoke.__name__: provoke
        for provoke in (
            *(engine, compiling, rare_shape, denied, nan_check, empty, overflow, check),
            *(out_of_memory, not_built, run_failed, interrupted, strict, partial_write),
            *(out_of_bounds, paddle_raised, engine_raised),
            *(built, built_in_background, loaded),
        )
    },
    "input": data,
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("reason", OF_SUBGRAPHS)
def test_a_reason_is_counted_as_often_as_it_occurs(reason, seed, monkeypatch):
    n = int(np.random.default_rng([seed, *map(ord, reason)]).integers(1, 6))
    paddle_ngraph.reset_stats()
    OF_SUBGRAPHS[reason](n, monkeypatch)
    assert Counter(each.reason for each in paddle_ngraph.events())[reason] == n
    assert_sums()


def test_every_reason_of_subgraphs_is_tested():
    known = {each.name for each in statistics.REASONS if each.is_of_subgraph}
    assert known == OF_SUBGRAPHS.keys() | {"forked"}


def test_a_process_that_was_forked_during_a_run_falls_back():
    """A run of another thread holds locks that nobody releases in the child."""
    program, other = runs_of_chain(1), Program(chain)
    expected = program.run(engine=False, x=floats(3, 4))[0]

    def child_falls_back() -> bool:
        paddle_ngraph.reset_stats()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = [program.run(x=floats(3, 4))[0] for _ in range(3)]
        native = paddle_ngraph.stats()["native"]
        is_right = all(np.allclose(each, expected, atol=1e-6) for each in found)
        return is_right and native == {"forked": 3} and "[NG205]" in str(caught[0].message)

    _core.fail_at("run", blocks=True)
    thread = threading.Thread(target=other.run, kwargs={"x": floats(3, 4)})
    thread.start()
    gc.disable()  # Paddle's executors cannot end in the child
    try:
        while _core.num_blocked_threads() == 0:
            time.sleep(0.01)
        if (child := os.fork()) == 0:
            signal.alarm(120)
            os._exit(0 if child_falls_back() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        gc.enable()
        _core.fail_at("")
        thread.join()
    program.both(x=floats(3, 4))


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_process_that_was_forked_beside_a_busy_thread_falls_back(is_busy):
    """A thread that runs may be one of TBB's, with a lock that nobody releases in the child."""
    program = runs_of_chain(1)

    def reasons_of_child() -> dict[str, int]:
        paddle_ngraph.reset_stats()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.run(x=floats(3, 4))
        return paddle_ngraph.stats()["native"]

    def falls_back() -> bool:
        if (child := os.fork()) == 0:
            signal.alarm(120)
            os._exit({(): 0, ("forked",): 1}.get((*reasons_of_child(),), 2))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1)
        return status == 1

    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # without the GIL

    thread = threading.Thread(target=compute)
    gc.disable()  # Paddle's executors cannot end in the child
    try:
        if is_busy:
            thread.start()
            time.sleep(0.1)
            assert falls_back()
        else:  # on a busy machine threads wait for a processor, so one of many forks has to do
            assert not all(falls_back() for _ in range(50))
    finally:
        is_over.set()
        gc.enable()
        if is_busy:
            thread.join()
    program.both(x=floats(3, 4))


# -- sums ------------------------------------------------------------------------------------------


def test_sums_are_equal_in_8_threads_and_after_they_have_ended():
    graphs = [relu_graph(salt=thread) for thread in range(8)]
    engines = [NgraphEngine(graph) for graph in graphs]
    each = [int(count) for count in np.random.default_rng().integers(1, 40, 8)]
    program = int(_core.Reason.EMPTY_FEED)
    paddle_ngraph.reset_stats()

    def work(thread: int) -> None:
        for _ in range(each[thread]):
            engines[thread].run(engines[thread].build_ng_io([floats(3, 4)]))
            _core.record_event(program, 8 + thread, _core.ticks())

    at_once(work, 8)
    stats, events = paddle_ngraph.stats(), paddle_ngraph.events()
    assert stats["engine_runs"] == sum(each) == stats["native"]["empty_feed"]
    assert_sums()
    found = Counter(event.subgraph for event in events if event.outcome == "engine")
    assert sorted(found.values()) == sorted(each)
    assert [event.number for event in events] == sorted({event.number for event in events})
    by_thread = Counter(event.thread for event in events if event.reason == "empty_feed")
    assert sum(by_thread.values()) == sum(each)
    # Threads that begin later continue the totals of those that have ended.
    at_once(work, 8)
    assert paddle_ngraph.stats()["engine_runs"] == 2 * sum(each)


def test_sums_are_equal_after_the_ring_has_wrapped():
    relu = NgraphEngine(relu_graph())
    empty, hooks = int(_core.Reason.EMPTY_FEED), int(_core.Reason.HOOKS)
    extra = int(np.random.default_rng().integers(1, 1000))
    paddle_ngraph.reset_stats()
    relu.run(relu.build_ng_io([floats(3, 4)]))
    at_once(lambda _: [_core.record_event(empty, 1, 0) for _ in range(NUM_EVENTS // 4)], 4)
    for _ in range(extra):
        _core.record_event(hooks, 1, 0)
    stats, events = paddle_ngraph.stats(), paddle_ngraph.events()
    assert stats["native"] == {"empty_feed": NUM_EVENTS, "hooks": extra}
    assert stats["engine_runs"] == 1
    assert stats["runs"] == 1 + NUM_EVENTS + extra and stats["native_runs"] == 0
    assert len(events) <= NUM_EVENTS and events[-1].reason == "hooks"
    assert Counter(event.reason for event in events)["hooks"] == extra
    assert len(paddle_ngraph.events(3)) == 3 and paddle_ngraph.events(0) == []


def test_no_event_is_torn(tmp_path):
    """A program in C++: threads write while one reads, over several rounds of the ring."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip("needs a compiler")
    sources = [ROOT / "tests/core/events.cc", ROOT / "paddle_ngraph/core/engine/events.cc"]
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    build = [*compiler, *options, "-I", ROOT / "paddle_ngraph", *sources, "-o", tmp_path / "a"]
    subprocess.run(build, check=True)
    run = subprocess.run([tmp_path / "a"], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_an_event_has_the_time_of_its_run():
    before = time.monotonic_ns()
    runs_of_chain(3)
    after = time.monotonic_ns()
    runs = [each for each in paddle_ngraph.events() if each.outcome == "engine"]
    (build,) = [each for each in paddle_ngraph.events() if each.reason == "built"]
    assert runs[0].start_ns <= build.start_ns < build.start_ns + build.ns <= runs[1].start_ns
    assert len({each.subgraph for each in [*runs, build]}) == 1
    # The clock of events is converted to that of Python, with an error of the conversion.
    slack = 10_000_000
    assert before - slack <= runs[0].start_ns and runs[-1].start_ns + runs[-1].ns <= after + slack


def test_a_reset_forgets_events_and_keeps_the_function():
    program = runs_of_chain(2)
    paddle_ngraph.reset_stats()
    assert paddle_ngraph.events() == [] and paddle_ngraph.stats()["runs"] == 0
    program.run(x=floats(3, 4))
    assert [each.outcome for each in paddle_ngraph.events()] == ["engine"]


def child_continues() -> bool:
    """In a forked process: whether the counters go on, and the ring has room for all events."""
    before = paddle_ngraph.stats()
    for _ in range(NUM_EVENTS + 1):
        _core.record_event(int(_core.Reason.LOD_FEED), 3, 0)
    now = paddle_ngraph.stats()
    return (
        (before["engine_runs"], before["native"].get("lod_feed")) == (2, None)
        and now["native"] == {**before["native"], "lod_feed": NUM_EVENTS + 1}
        and len(paddle_ngraph.events()) == NUM_EVENTS
    )


def test_a_forked_process_continues_the_counters():
    """Another thread writes an event while the process forks."""
    relu, hooks, stop = NgraphEngine(relu_graph()), int(_core.Reason.HOOKS), threading.Event()
    for _ in range(2):
        relu.run(relu.build_ng_io([floats(3, 4)]))

    def record() -> None:
        while not stop.is_set():
            _core.record_event(hooks, 2, 0)

    writer = threading.Thread(target=record)
    writer.start()
    gc.disable()  # Paddle's executors cannot end in the child
    try:
        for _ in range(5):
            if (child := os.fork()) == 0:
                os._exit(0 if child_continues() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        gc.enable()
        stop.set()
        writer.join()
    assert "lod_feed" not in paddle_ngraph.stats()["native"]


def test_a_forked_process_takes_the_totals_of_threads_that_it_lacks():
    hooks, barrier, stop = int(_core.Reason.HOOKS), threading.Barrier(41), threading.Event()

    def record() -> None:
        _core.record_event(hooks, 2, 0)
        barrier.wait()
        stop.wait()

    threads = [threading.Thread(target=record) for _ in range(40)]
    for thread in threads:
        thread.start()
    barrier.wait()
    last = max(each.thread for each in paddle_ngraph.events())
    gc.disable()  # Paddle's executors cannot end in the child
    try:
        child = os.fork()
        if child == 0:
            other = threading.Thread(target=_core.record_event, args=(hooks, 2, 0))
            other.start()
            other.join()
            os._exit(0 if paddle_ngraph.events(1)[0].thread <= last else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        gc.enable()
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("arguments", [(), (0, 0), (len(statistics.REASONS), 0, 0), (-1, 0, 0)])
def test_an_event_has_a_known_reason(arguments):
    with pytest.raises((TypeError, ValueError)):
        _core.record_event(*arguments)
    assert paddle_ngraph.events() == []
