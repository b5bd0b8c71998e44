"""Background compilation: runs fall back until the function is ready, with Paddle's results."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import build, denylist
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import background_compile, fallback
from paddle_ngraph.utils import clock
from tests.clocks import Clock
from tests.dynamic import dynamic_mode, twice
from tests.programs import Program, at_once, chain, floats, linear_regression, strict_runs
from tests.zips import zip_equal

SECONDS = 10  # a test that waits longer has failed


@pytest.fixture(autouse=True)
def in_background() -> Iterator[None]:
    """Compiles everything possible in the background, without leftovers of other tests."""
    before = {name: flags.get(name) for name in ("ngraph_background_compile", "ngraph_cache_dir")}
    paddle_ngraph.clear_cache()
    flags.set("ngraph_background_compile", "1")
    yield
    _core.fail_at("")
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    for name, value in before.items():
        flags.set(name, value)
    paddle_ngraph.clear_cache()


class Gate:
    """Blocks builds until it is opened, so that a test decides when a function is ready."""

    def __init__(self) -> None:
        self.reached, self._is_open = threading.Event(), threading.Event()
        self._is_for_all = True

    def hold(self, draft: Draft) -> None:
        """The pass that blocks."""
        if self._is_for_all or "compiles" in threading.current_thread().name:
            self.reached.set()
            assert self._is_open.wait(SECONDS)

    def let_on(self) -> None:
        """Lets those builds continue that runs wait for."""
        self._is_for_all = False

    def open(self) -> None:
        """Opens permanently; returns when no build is left."""
        self._is_open.set()
        assert paddle_ngraph.wait_for_compiles(SECONDS)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate at which builds wait."""
    found = Gate()
    held = build.BuildPass("hold", "a test decides when a function is there", found.hold)
    monkeypatch.setattr(build, "PASSES", (*build.PASSES, held))
    yield found
    found.open()


def counts() -> tuple[int, int, int]:
    """Returns engine runs, fallback runs, and functions built in the background."""
    stats = paddle_ngraph.stats()
    return (
        stats["engine_runs"],
        stats["runs_while_compiling"],
        stats["functions_built_in_background"],
    )


def assert_close(expected: list[np.ndarray], found: list[np.ndarray]) -> None:
    """Compares up to rounding errors, which training propagates."""
    for one, other in zip_equal(expected, found):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


# -- programs ------------------------------------------------------------------------------------


def network() -> Any:
    """Weights, a list, a shape that is read by value."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.nn.functional.relu(paddle.nn.Linear(6, 8)(x))
    parts = paddle.split(hidden, [3, -1], 1)
    return paddle.concat(parts[::-1], 1), paddle.reshape(parts[1], [paddle.shape(x)[0], 5])


def convolutions() -> Any:
    """Batch normalization in training, pooling; Adam."""
    x = paddle.static.data("x", [-1, 3, 8, 8], "float32")
    hidden = paddle.nn.BatchNorm2D(16)(paddle.nn.Conv2D(3, 16, 3, padding=1)(x))
    hidden = paddle.nn.functional.max_pool2d(paddle.nn.functional.relu(hidden), 2)
    loss = paddle.mean(paddle.nn.Linear(256, 2)(paddle.flatten(hidden, 1)) ** 2)
    paddle.optimizer.Adam(0.01, epsilon=1e-3).minimize(loss)
    return loss


def dropped() -> Any:
    """Random numbers, and momentum."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.nn.functional.dropout(paddle.nn.Linear(6, 16)(x), 0.4)
    loss = paddle.mean(paddle.nn.Linear(16, 1)(hidden) ** 2)
    paddle.optimizer.Momentum(0.05).minimize(loss)
    return loss, hidden


def around_fallback() -> Any:
    """Two subgraphs around an operator that falls back."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.lgamma(paddle.abs(paddle.nn.Linear(6, 4)(x)) + 1.5)
    loss = paddle.mean(paddle.nn.Linear(4, 1)(hidden) ** 2)
    paddle.optimizer.SGD(0.05).minimize(loss)
    return loss


def decoder() -> Any:
    """A loop whose body is a subgraph."""
    x = paddle.static.data("x", [3, 6], "float32")
    layer = paddle.nn.Linear(6, 6)
    _, out = paddle.static.nn.while_loop(
        lambda i, s: i < 3,
        lambda i, s: [i + 1, paddle.tanh(layer(s)) + s * 0.5],
        [paddle.full([1], 0, "int64"), x],
    )
    return out


SHAPES: dict[Callable[[], Any], list[tuple[int, ...]]] = {
    network: [(2, 6), (3, 6), (5, 6), (7, 6)],
    convolutions: [(2, 3, 8, 8), (4, 3, 8, 8)],
    dropped: [(4, 6), (2, 6), (9, 6)],
    around_fallback: [(4, 6), (2, 6), (8, 6)],
    decoder: [(3, 6)],
}


def life(make: Callable[[], Any], engine: bool, random: np.random.Generator) -> Any:
    """Runs on random shapes, with occasional waits for builds; returns all results, and states."""
    program, shapes = Program(make), SHAPES[make]
    paddle.seed(7)
    results = []
    for number in range(14):
        shape = shapes[random.integers(len(shapes))]
        if random.random() < 0.3:
            paddle_ngraph.wait_for_compiles(SECONDS)
        results.append(program.run(engine, x=floats(*shape, seed=number)))
    paddle_ngraph.wait_for_compiles(SECONDS)
    for number, shape in enumerate(shapes * 2):
        paddle_ngraph.wait_for_compiles(SECONDS)
        results.append(program.run(engine, x=floats(*shape, seed=number)))
    names = sorted(n for n in program.scope.local_var_names() if ".w_" in n or ".b_" in n)
    return [*results, [program.variable(name) for name in names]]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_runs_equal_paddles_before_and_after_the_build(make, seed, native_in_order):
    native = life(make, False, np.random.default_rng(seed))
    paddle_ngraph.reset_stats()
    found = life(make, True, np.random.default_rng(seed))
    for expected, results in zip_equal(native, found):
        assert_close(expected, results)
    engine, fallbacks, built = counts()
    assert fallbacks > 0 and built > 0 and engine >= len(SHAPES[make])
    assert paddle_ngraph.stats()["native_runs"] == fallbacks
    assert paddle_ngraph.stats()["functions_built"] == built


@pytest.mark.slow("compiles many or large functions")
def test_alternating_programs_and_shapes(native_in_order):
    def lives(engine: bool) -> Any:
        random = np.random.default_rng(3)
        programs = [(Program(make), SHAPES[make]) for make in (network, convolutions, dropped)]
        paddle.seed(5)
        for number in range(30):
            program, shapes = programs[random.integers(3)]
            shape = shapes[random.integers(len(shapes))]
            yield program.run(engine, x=floats(*shape, seed=number))

    native = list(lives(False))
    paddle_ngraph.reset_stats()
    for expected, results in zip_equal(native, lives(True)):
        assert_close(expected, results)
    assert counts()[1] > 0


# -- runs that wait ------------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
def test_no_run_waits_for_a_build(gate):
    program = Program(chain)
    for number in range(4):
        program.run(x=floats(3, 4, seed=number))
        assert gate.reached.wait(SECONDS)
        assert counts() == (0, number + 1, 0)
    gate.open()
    program.both(x=floats(3, 4))
    assert counts() == (1, 4, 1)


@pytest.mark.parametrize("when", ["0", "1"])
def test_the_flag_decides(when):
    flags.set("ngraph_background_compile", when)
    Program(chain).run(x=floats(3, 4))
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert counts() == ((1, 0, 0) if when == "0" else (0, 1, 1))


def test_another_value_is_an_error_that_lists_the_values():
    program = Program(chain)
    flags.set("ngraph_background_compile", "yes")
    with pytest.raises(ValueError, match=r"background_compile=yes: use auto, 1 or 0"):
        program.run(x=floats(3, 4))


def test_strict_runs_wait():
    with strict_runs():
        Program(chain).run(x=floats(3, 4))
    assert counts() == (1, 0, 0)


@pytest.mark.parametrize("why", ["the flag is off", "runs are strict", "Paddle cannot run it"])
def test_a_waiting_run_uses_the_awaited_function(gate, monkeypatch, why):
    """Another run's function, which is compiled in the background concurrently."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    def wait(timeout: float | None = None) -> bool:  # the build ends while the run waits
        monkeypatch.setattr(background_compile, "wait", before)
        opening.start()
        return before(timeout)

    program, x = Program(network), floats(3, 6)
    native = program.run(engine=False, x=x)
    program.run(x=floats(3, 6, seed=1))
    assert gate.reached.wait(SECONDS)
    opening, before = threading.Thread(target=gate.open), background_compile.wait
    monkeypatch.setattr(background_compile, "wait", wait)
    flags.set("ngraph_background_compile", "0" if why == "the flag is off" else "1")
    flags.set("ngraph_strict", why == "runs are strict")
    if why == "Paddle cannot run it":
        monkeypatch.setattr(fallback.FallbackProgram, "run", fail)
    try:
        assert_close(native, program.run(x=x))
    finally:
        flags.set("ngraph_strict", False)
    opening.join()
    assert counts() == (1, 1, 1)
    assert paddle_ngraph.stats()["functions_built"] == 1


def test_runs_wait_inside_compile_synchronously(gate):
    program, other = Program(chain), Program(network)
    program.run(x=floats(3, 4))
    assert gate.reached.wait(SECONDS)
    opening = threading.Timer(0.0, gate.open)
    opening.start()
    with background_compile.compile_synchronously():  # the build ends first
        program.run(x=floats(3, 4))
        other.run(x=floats(2, 6))
    opening.join()
    assert counts() == (2, 1, 1)
    other.run(x=floats(3, 6))
    assert counts()[1] == 2


class Interrupted(BaseException):
    pass


class Interrupting:
    """A profiler that raises at an event after which Python runs handlers of signals."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.left -= event in ("call", "c_return")
        if self.left == 0:
            raise Interrupted


def test_an_interrupted_pause_ends():
    """A lock that stays locked would block the next call of a dynamic layer forever."""
    queue = background_compile._CompileQueue()
    for number in itertools.count(1):
        probe = Interrupting(number)
        try:
            sys.setprofile(probe)
            with queue.paused():
                assert not queue.is_accepting()
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
        assert queue.is_accepting(), f"interrupted at event {number}"
        waiting = threading.Thread(target=queue.wait, daemon=True)
        waiting.start()
        waiting.join(SECONDS)
        assert not waiting.is_alive(), f"the lock is locked after event {number}"
        if probe.left > 0:
            break
    assert number > 5


def test_auto_compiles_long_builds_in_the_background():
    def deep() -> Any:
        x = paddle.static.data("x", [-1, 4], "float32")
        for _ in range(20):
            x = paddle.tanh(x) * 1.5
        return x

    flags.set("ngraph_background_compile", "auto")
    Program(deep).run(x=floats(3, 4))  # a build of 80 ms, a run of 0.1 ms
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert counts() == (0, 1, 1)
    Program(linear_regression).run(x=floats(3, 4), y=floats(3, 1))  # equal bits in each process
    assert counts() == (1, 1, 1)


def test_auto_uses_measured_times():
    graph, texts = Graph([], [], [], [], []), []
    flags.set("ngraph_background_compile", "auto")
    program = Program(chain)
    original, background_compile.wants = (
        background_compile.wants,
        lambda text, *_: texts.append(text) or False,
    )
    try:
        program.run(x=floats(3, 4))
    finally:
        background_compile.wants = original
    assert counts() == (1, 0, 0) and not graph.ops
    expected = (
        background_compile._facts(texts[-1]).operators * background_compile._queue.us_per_operator
    )
    assert background_compile.wants(texts[-1], [(3, 4)], int(expected / 25))
    assert not background_compile.wants(texts[-1], [(3, 4)], int(expected / 15))


@pytest.mark.parametrize(("builds", "seconds", "waits"), [(1, 1.0, False), (8, 0.0, True)])
def test_auto_estimates_builds_from_earlier_ones(builds, seconds, waits, monkeypatch):
    time = Clock()
    timed = build.BuildPass("timed", "it takes so long", lambda _: time.advance(seconds))
    monkeypatch.setattr(build, "PASSES", (*build.PASSES, timed))
    with clock.overridden(time):
        for number in range(builds):
            Program(lambda factor=number + 2.0: chain() * factor).run(x=floats(3, 4))
            assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert counts() == (0, builds, builds)
    flags.set("ngraph_background_compile", "auto")
    Program(lambda: chain() - 1.0).run(x=floats(3, 4))
    assert counts()[:2] == ((1, builds) if waits else (0, builds + 1))


def test_unchecked_indices_do_not_fall_back():
    """The engine raises where Paddle's kernel would write out of bounds."""

    def build() -> Any:
        x = paddle.static.data("x", [4, 3], "float32")
        rows = paddle.static.data("rows", [2], "int64")
        return paddle.index_put(x, (rows,), paddle.ones([2, 3]))

    program = Program(build)
    with pytest.raises(Exception, match="out of range"):
        program.run(x=floats(4, 3), rows=np.array([0, 9]))
    assert counts()[1] == 0
    program.both(x=floats(4, 3), rows=np.array([0, 3]))


def softplus_in_bfloat16(x: Any) -> Any:
    """Paddle's kernel is oneDNN's, which has other results."""
    return paddle.nn.functional.softplus(x)


def prelu_in_bfloat16(x: Any) -> Any:
    """Paddle's kernel is oneDNN's, which raises."""
    return paddle.nn.functional.prelu(x, paddle.ones([1], "bfloat16"))


def in_a_branch(x: Any) -> Any:
    """Inside another operator."""

    def branch() -> Any:
        return softplus_in_bfloat16(x)

    return paddle.static.nn.cond(paddle.sum(x.astype("float32")) > -1e9, branch, lambda: x)


@pytest.mark.parametrize("operator", [softplus_in_bfloat16, prelu_in_bfloat16, in_a_branch])
def test_bfloat16_waits(operator):
    def build() -> Any:
        x = paddle.static.data("x", [2, 32], "float32")
        return operator(x.astype("bfloat16")).astype("float32") * 2.0

    program = Program(build)
    first, second = (program.run(x=floats(2, 32)) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert counts() == (2, 0, 0)


def test_runs_wait_while_weight_copies_fill_the_limit(gate):
    """Indices that Paddle would not check, and in ``auto`` training programs."""

    def build() -> Any:
        x = paddle.static.data("x", [4, 3], "float32")
        rows = paddle.static.data("rows", [2], "int64")
        return paddle.index_put(x, (rows,), paddle.ones([2, 3]))

    before = flags.get("ngraph_cache_mb")
    flags.set("ngraph_cache_mb", 0)
    try:
        Program(network).run(x=floats(2, 6))
        assert gate.reached.wait(SECONDS) and counts() == (0, 1, 0)
        gate.let_on()
        flags.set("ngraph_background_compile", "auto")
        with pytest.raises(Exception, match="out of range"):
            Program(build).run(x=floats(4, 3), rows=np.array([0, 9]))
        Program(linear_regression).run(x=floats(3, 4), y=floats(3, 1))
    finally:
        flags.set("ngraph_cache_mb", before)
    assert counts()[1] == 1 and paddle_ngraph.stats()["native_runs"] == 1


# -- weights -------------------------------------------------------------------------------------


def test_weights_written_during_a_build_are_not_in_the_function(gate):
    program = Program(network)
    name = next(n for n in program.scope.local_var_names() if ".w_" in n)
    x = floats(2, 6)
    first = program.run(x=x)
    assert gate.reached.wait(SECONDS)
    before = program.variable(name)
    program.scope.find_var(name).get_tensor().set(before * 3.0 + 1.0, paddle.CPUPlace())
    gate.open()
    after = program.run(x=x)  # the function has the weights of the first run
    assert np.abs(after[0] - first[0]).max() > 0.1
    assert_close(program.run(False, x=x), after)
    program.scope.find_var(name).get_tensor().set(before, paddle.CPUPlace())
    assert_close(first, program.run(x=x))
    for _ in range(6):
        assert paddle_ngraph.wait_for_compiles(SECONDS)
        assert_close(first, program.run(x=x))
    assert counts()[0] > 0


def test_a_training_and_an_inference_program():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 6], "float32")
        y = paddle.nn.Linear(6, 3)(x)
        inference = paddle.static.default_main_program().clone()
        loss = paddle.mean(y * y)
        paddle.optimizer.SGD(0.1).minimize(loss)
        shared.append((inference, loss))
        return loss

    def lives(engine: bool) -> Any:
        shared.clear()
        program = Program(build)
        (inference, _), x = shared[0], floats(4, 6)
        fetched = inference.global_block().ops[-1].results()[0]
        for _ in range(8):
            yield program.run(engine, x=x)
            with paddle.static.scope_guard(program.scope), paddle_ngraph.use_ngraph(engine):
                yield program.executor.run(inference, feed={"x": x}, fetch_list=[fetched])
            if engine:
                paddle_ngraph.wait_for_compiles(SECONDS)

    shared: list[Any] = []
    native = list(lives(False))
    paddle_ngraph.reset_stats()
    for expected, found in zip_equal(native, lives(True)):
        assert_close(expected, found)
    assert counts()[0] > 0 and counts()[1] > 0


# -- other frontends -----------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("when", ["at once", "in the middle", "late"])
def test_a_backward_pass_after_a_fallback_forward_pass(when):
    """One pass may have its function before the other."""

    def scenario() -> list[Any]:
        net = paddle.nn.Sequential(
            paddle.nn.Conv2D(3, 16, 3), paddle.nn.BatchNorm2D(16), paddle.nn.ReLU(),
            paddle.nn.Flatten(), paddle.nn.Linear(576, 3), paddle.nn.Dropout(0.3),
        )  # fmt: skip
        static = paddle.jit.to_static(net, full_graph=True)
        update = paddle.optimizer.Momentum(0.01, parameters=net.parameters())
        found = []
        for number in range(5):
            loss = paddle.mean(static(paddle.to_tensor(floats(2, 3, 8, 8, seed=number))) ** 2)
            if when == "in the middle" or (when == "late" and number == 2):
                paddle_ngraph.wait_for_compiles(SECONDS)
            loss.backward()
            if when == "at once":
                paddle_ngraph.wait_for_compiles(SECONDS)
            update.step()
            update.clear_grad()
            found.append(loss.numpy())
        net.eval()
        for number in range(4):
            found.append(static(paddle.to_tensor(floats(3, 3, 8, 8, seed=number))).numpy())
            paddle_ngraph.wait_for_compiles(SECONDS)
        return [*found, *(each.numpy() for each in net.parameters())]

    with dynamic_mode():
        twice(scenario, runs=4)
    assert counts()[1] >= 2 and counts()[2] >= 2


def test_a_predictor(tmp_path):
    program = Program(network)
    x = next(op for op in program.main.global_block().ops if op.name() == "pd_op.data").result(0)
    prefix = str(tmp_path / "model")
    with paddle.static.scope_guard(program.scope), paddle_ngraph.use_ngraph(False):
        paddle.static.save_inference_model(
            prefix, [x], program.fetches, program.executor, program=program.main
        )
    config = paddle.inference.Config(prefix + ".json", prefix + ".pdiparams")
    config.disable_glog_info()
    with paddle_ngraph.use_ngraph():
        predictor = paddle.inference.create_predictor(config)
        for number, rows in enumerate([2, 2, 3, 3, 4, 4]):
            fed = floats(rows, 6, seed=number)
            predictor.get_input_handle("x").reshape(list(fed.shape))
            predictor.get_input_handle("x").copy_from_cpu(fed)
            predictor.run()
            names = predictor.get_output_names()
            found = [predictor.get_output_handle(name).copy_to_cpu() for name in names]
            assert_close(program.run(False, x=fed), found)
            assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert counts()[0] >= 3 and counts()[1] >= 2


def test_slices_of_a_batch():
    native, sliced = Program(linear_regression), Program(linear_regression)
    made = paddle_ngraph.data_parallel(sliced.main, 2, sliced.fetches)
    with paddle.static.scope_guard(sliced.scope), paddle_ngraph.use_ngraph():
        for number in range(6):
            fed = {"x": floats(4, 4, seed=number), "y": floats(4, 1, seed=number)}
            found = sliced.executor.run(made.program, feed=fed, fetch_list=made.fetches)
            assert_close(native.run(False, **fed), found)
            if number % 3 == 2:
                assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert counts()[0] > 0 and counts()[1] > 0


# -- failures ------------------------------------------------------------------------------------


@contextmanager
def package_warnings() -> Iterator[list[str]]:
    """Returns the warnings of the package."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(w.message) for w in caught if "paddle_ngraph" in str(w.message)]


def test_the_next_run_reports_a_failed_build():
    program = Program(network)
    native = program.run(False, x=floats(2, 6))
    _core.fail_at("compile")
    with package_warnings() as texts:
        for _ in range(4):
            assert_close(native, program.run(x=floats(2, 6)))
            assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert len(texts) == 1 and "pd_op.matmul" in texts[0] and "a fault was injected" in texts[0]
    assert counts() == (0, 1, 0)
    reasons = {op.type: op.reason for op in paddle_ngraph.explain(program.main).native}
    assert "nGraph could not compile its interval" in reasons["pd_op.matmul"]
    _core.fail_at("")
    denylist.clear()
    paddle_ngraph.clear_cache()
    program = Program(network)
    program.run(x=floats(2, 6))
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    program.both(x=floats(2, 6))


def test_a_run_of_other_shapes_reports_a_failed_build():
    program = Program(network)
    _core.fail_at("compile")
    with package_warnings() as texts:
        for rows in range(2, 8):
            native = program.run(False, x=floats(rows, 6))
            assert_close(native, program.run(x=floats(rows, 6)))
            assert paddle_ngraph.wait_for_compiles(SECONDS)
    _core.fail_at("")
    assert len(texts) == 1 and "a fault was injected" in texts[0]
    assert counts()[1] == 1


def test_a_run_that_only_paddle_fails_waits_for_the_engine(monkeypatch):
    """The random numbers are those that the engine would have sampled first."""

    def build() -> Any:
        x = paddle.static.data("x", [8, 8], "float32")
        return paddle.nn.functional.dropout(x, 0.5) * 2.0

    def fail(*_: Any) -> None:
        paddle.base.core.default_cpu_generator().random()
        raise RuntimeError("no such kernel")

    program = Program(build)
    paddle.seed(5)
    expected = program.run(False, x=floats(8, 8))
    paddle.seed(5)
    monkeypatch.setattr(fallback.FallbackProgram, "run", fail)
    np.testing.assert_array_equal(program.run(x=floats(8, 8))[0], expected[0])
    assert counts() == (1, 0, 0)
    assert paddle_ngraph.stats()["functions_built"] == 1
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert paddle_ngraph.stats()["functions_built"] == 1


def test_errors_of_paddle_while_compiling_are_raised():
    program = Program(network)
    with pytest.raises(Exception) as native:
        program.run(False, x=floats(2, 5))
    with package_warnings() as texts:
        for _ in range(3):
            with pytest.raises(type(native.value)):
                program.run(x=floats(2, 5))
            assert paddle_ngraph.wait_for_compiles(SECONDS)
    assert not texts
    program.run(x=floats(2, 6))
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    program.both(x=floats(2, 6))


def test_a_run_waits_if_paddle_lacks_an_operator():
    """A graph with operators that only converters know."""
    program = Program(chain)
    texts: list[str] = []
    original, background_compile.wants = (
        background_compile.wants,
        lambda text, *_: texts.append(text) or False,
    )
    try:
        program.run(x=floats(3, 4))
    finally:
        background_compile.wants = original
    graph = Graph.from_string(texts[-1])
    for op in graph.ops:
        object.__setattr__(op, "form", None)
    engine = paddle_ngraph.NgraphEngine(graph.to_string())
    io = engine.build_ng_io([floats(3, 4)])
    before = counts()
    engine.run(io)
    np.testing.assert_allclose(
        io.results()[0], np.exp(np.maximum(floats(3, 4), 0) * 2 + 1), rtol=1e-5
    )
    assert counts() == (before[0] + 1, before[1], before[2])


# -- caches --------------------------------------------------------------------------------------


def test_a_cleared_cache_stays_empty(gate):
    program = Program(chain)
    program.run(x=floats(3, 4))
    assert gate.reached.wait(SECONDS)
    paddle_ngraph.clear_cache()
    gate.open()
    assert paddle_ngraph.cache_info().currsize == 0
    program.run(x=floats(3, 4))
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    program.both(x=floats(3, 4))


def test_weight_copies_of_compile_jobs_are_bounded(gate):
    before = flags.get("ngraph_cache_mb")
    flags.set("ngraph_cache_mb", 0)
    try:
        programs = [Program(network) for _ in range(3)]
        for program in programs:
            program.run(x=floats(2, 6))
        gate.open()
        assert counts() == (0, 3, 1)
    finally:
        flags.set("ngraph_cache_mb", before)
    for program in programs:
        program.run(x=floats(2, 6))
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    for program in programs:
        program.both(x=floats(2, 6))


def test_the_next_process_loads_functions_without_fallback(tmp_path):
    least = flags.get("ngraph_cache_min_ms")
    flags.set("ngraph_cache_dir", str(tmp_path))
    flags.set("ngraph_cache_min_ms", 0)
    try:
        for expected in ((0, 1, 1), (1, 0, 0)):
            paddle_ngraph.clear_cache()
            paddle_ngraph.reset_stats()
            Program(network).run(x=floats(2, 6))
            assert paddle_ngraph.wait_for_compiles(SECONDS)
            assert counts() == expected
        assert paddle_ngraph.stats()["functions_loaded"] == 1
    finally:
        flags.set("ngraph_cache_min_ms", least)


def test_a_saved_model_comes_with_its_functions(tmp_path):
    program = Program(network)
    x = next(op for op in program.main.global_block().ops if op.name() == "pd_op.data").result(0)
    with paddle.static.scope_guard(program.scope):
        paddle_ngraph.save_inference_model(
            str(tmp_path / "model"), [x], program.fetches, program.executor,
            program=program.main, input_shapes={"x": [2, 6]},
        )  # fmt: skip
    assert counts()[1] == 0 and counts()[0] == 1
    assert list(tmp_path.rglob("*.ngraph"))


def test_explain_reports_background_builds(gate):
    program = Program(lambda: chain() - 0.25)
    assert paddle_ngraph.explain(program.main).intervals[0].runs_while_compiling is None
    for _ in range(3):
        program.run(x=floats(3, 4))
    assert paddle_ngraph.explain(program.main).intervals[0].runs_while_compiling == 3
    gate.open()
    program.run(x=floats(3, 4))
    report = paddle_ngraph.explain(program.main)
    assert report.intervals[0].runs_while_compiling == 3
    assert "compiled in the background: 3 runs native meanwhile" in str(report)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_no_job_waits_for_a_thread_that_failed_to_start(raised, monkeypatch):
    def fail(*_: Any) -> None:
        raise raised

    program = Program(chain)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(raised) if raised is KeyboardInterrupt else nullcontext():
        program.run(x=floats(3, 4))
    monkeypatch.undo()
    assert paddle_ngraph.wait_for_compiles(0.0)
    program.run(x=floats(3, 4))
    assert paddle_ngraph.wait_for_compiles(SECONDS)
    program.both(x=floats(3, 4))


# -- threads, forks and the end of a process -----------------------------------------------------


def test_threads_fall_back_until_the_one_build_ends(gate):
    programs = [Program(chain) for _ in range(4)]
    expected = programs[0].run(False, x=floats(3, 4))

    def work(number: int) -> None:
        for _ in range(3):
            assert_close(expected, programs[number].run_as_is(x=floats(3, 4)))

    with paddle_ngraph.use_ngraph():
        at_once(work)
        assert counts() == (0, 12, 0)
        gate.open()
        at_once(work)
    assert counts() == (12, 12, 1)


SCRIPT = """
import os, sys, threading
import numpy as np, paddle
import paddle_ngraph
from paddle_ngraph.conversion import build
from tests.programs import Program, chain, floats

paddle.enable_static()
turns = sys.getswitchinterval()
reached, opened = threading.Event(), threading.Event()

def hold(draft):
    reached.set()
    opened.wait()

build.PASSES = (*build.PASSES, build.BuildPass("hold", "a test decides when it ends", hold))
program = Program(chain)
expected = program.run(False, x=floats(3, 4))
np.testing.assert_allclose(program.run(x=floats(3, 4))[0], expected[0], rtol=1e-5)
assert reached.wait(60)
"""

FORKING = """
child = os.fork()
if child == 0:
    try:  # the child has no build: it waits for none, and has no orders
        assert paddle_ngraph.wait_for_compiles(60)
        paddle_ngraph.clear_cache()
        paddle_ngraph.explain(program.main)
        assert sys.getswitchinterval() == turns
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
opened.set()
assert paddle_ngraph.wait_for_compiles(60)
program.both(x=floats(3, 4))
print("done")
"""

# Jobs that wait behind the build are not built any more.
ENDING = """
Program(lambda: chain() * 2.0).run(x=floats(3, 4))
threading.Thread(target=lambda: (threading.main_thread().join(), opened.set())).start()
import atexit
atexit.register(lambda: print("built", paddle_ngraph.stats()["functions_built"], "done"))
"""

# Ctrl-C while Python waits for the build, after the end of the main thread.
INTERRUPTED = """
import signal, time
def interrupt():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    time.sleep(0.1)
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
    opened.set()
threading.Thread(target=interrupt, daemon=True).start()
import atexit
atexit.register(lambda: print("done"))
"""

RAISING = ENDING + "\nraise SystemExit(0)\n"


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize(
    "script", [FORKING, ENDING, RAISING, INTERRUPTED], ids=["fork", "end", "exit", "interrupted"]
)
def test_a_process_that_forks_or_ends_during_a_build(script):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + script],
        env={**os.environ, "FLAGS_ngraph_background_compile": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.endswith("done\n")
    assert script in (FORKING, INTERRUPTED) or "built 1" in done.stdout


# Blocks before the linker: libraries of the engine load slowly, which a forked process can see.
SLOW_LINKER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

volatile int loads, loading;

void* dlopen(const char* name, int mode) {
  void* (*load)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  if (!name || !(strstr(name, "openvino") || strstr(name, "tbb"))) return load(name, mode);
  ++loads;
  ++loading;
  usleep(100000);
  void* const loaded = load(name, mode);
  --loading;
  return loaded;
}
"""

FORKING_EVER = """
import ctypes
import os
import threading
import paddle
import paddle_ngraph
from paddle_ngraph.conversion import build
from tests.programs import Program, chain, floats

linker, may_go_on = ctypes.CDLL(None), threading.Event()
loads, loading = (ctypes.c_int.in_dll(linker, name) for name in ("loads", "loading"))
held = build.BuildPass("hold", "until forks begin", lambda _: may_go_on.wait())
build.PASSES = (*build.PASSES, held)
paddle.enable_static()
program = Program(chain)
program.run(x=floats(3, 4))
before, ended, forks = loads.value, False, 0
may_go_on.set()
while not ended:
    ended = paddle_ngraph.wait_for_compiles(0.01)
    child = os.fork()
    if child == 0:
        os._exit(loading.value)
    assert os.waitpid(child, 0)[1] == 0
    forks += 1
program.both(x=floats(3, 4))
assert loads.value > before and forks > 1, (before, loads.value, forks)
"""


@pytest.mark.slow("starts a process")
def test_a_fork_during_a_build_has_no_half_loaded_library(tmp_path):
    """The linker cannot load any other library there."""
    compiler = shutil.which("cc")
    assert compiler, "the tests need a C compiler"
    source, library = tmp_path / "linker.c", tmp_path / "linker.so"
    source.write_text(SLOW_LINKER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    places = Path(paddle.__file__).parent / "libs"  # the linker sees none of Paddle's own any more
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING_EVER],
        env={
            **os.environ,
            "FLAGS_ngraph_background_compile": "1",
            "FLAGS_ngraph_cache_dir": "",
            "LD_PRELOAD": str(library),
            "LD_LIBRARY_PATH": str(places),
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_short_switch_interval_is_unchanged():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)  # reads as 0, and cannot be set again
    try:
        with background_compile._short_switch_interval():
            assert sys.getswitchinterval() == 0
        assert sys.getswitchinterval() == 0
    finally:
        sys.setswitchinterval(before)


class _WaitedBuild:
    """A build that a waiting run looks at this often before it is over."""

    def __init__(self, looks: int, clock: Clock, seconds: float) -> None:
        self._looks, self._clock, self._seconds = looks, clock, seconds

    def begin(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self._clock.advance(self._seconds)
        self._looks -= 1
        return self._looks < 0


@pytest.mark.parametrize(("seconds", "lines"), [(0.1, 0), (0.5, 2)])
def test_a_long_wait_for_a_function_is_logged_once(seconds, lines, caplog):
    own = Clock()
    logger = logging.getLogger("paddle_ngraph")
    logger.addHandler(caplog.handler)
    try:
        with clock.overridden(own), caplog.at_level(logging.INFO, "paddle_ngraph"):
            build = _WaitedBuild(10, own, seconds)
            assert background_compile.wait_for_build(build, "") is True
    finally:
        logger.removeHandler(caplog.handler)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == lines
    if lines:
        assert "a run waits while its function is compiled" in texts[0]
        assert texts[1] == "the function was compiled in 5.5 s"
