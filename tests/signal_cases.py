"""Signals that arrive while the core calls Python. Run by tests/utils/test_signals.py.

Handlers of signals run in the main thread, which tests do not have exclusively, and a fault of this
type hangs: so this is a script of its own, ``python -m tests.signal_cases CASE``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import asyncio
import contextlib
import ctypes
import dis
import faulthandler
import gc
import importlib
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import inference
from paddle.base.layer_helper import LayerHelper

import paddle_ngraph
from paddle_ngraph import _core, caches, flags, mkl_packed
from paddle_ngraph.conversion import build, denylist, registry
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.dynamic.lazy import calls as captured_calls
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.partitioning import background_compile, program_pass
from paddle_ngraph.plan import automatic
from paddle_ngraph.profiling import recorded_inputs
from paddle_ngraph.utils import signals
from tests.programs import Program, chain, cores_of_plans, floats
from tests.zips import zip_equal

# Number of times that a timer interrupts runs of each type.
TRIES = 12

WAIT = background_compile.wait  # also where calls of it are interrupted


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip_equal(found, expected):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@contextmanager
def once_at(home: Any, name: str, act: Callable[[], None], is_late: bool) -> Iterator[list[int]]:
    """Calls ``act`` before or after the first call of a function or method.

    Args:
        home: The class, module, or name of the module of the function.
        name: The name of the function there.
        is_late: Whether ``act`` is called after the function.
    """
    home = importlib.import_module(home) if isinstance(home, str) else home
    original = getattr(home, name)
    calls: list[int] = []

    def struck(*args: Any, **kwargs: Any) -> Any:
        # Runs of the main thread build in a thread of that name, and wait.
        is_build = threading.current_thread().name == "paddle_ngraph build"
        if not is_build and threading.current_thread() is not threading.main_thread():
            return original(*args, **kwargs)
        calls.append(1)
        is_first = len(calls) == 1
        if is_first and not is_late:
            act()
        try:
            return original(*args, **kwargs)
        finally:
            if is_first and is_late:
                act()

    setattr(home, name, struck)
    try:
        yield calls
    finally:
        setattr(home, name, original)


def interrupt() -> None:
    """Ctrl-C, which the system delivers to the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


# -- each call from the core to Python ------------------------------------------------------------


def labels() -> Any:
    x = paddle.static.data("x", [-1, 4], "float32")
    label = paddle.static.data("label", [-1, 1], "int64")
    return F.cross_entropy(paddle.nn.Linear(4, 3)(x), label)


class Play:
    """A program, a run with a failure, and the result of a correct run."""

    def __init__(
        self,
        make: Callable[[], Any],
        fails_at: str = "",
        fails_from: int = 0,
        feeds: Any = None,
        background: str = "0",
        verifies: bool = False,
    ) -> None:
        self.make, self.fails_at, self.background = make, fails_at, background
        self.fails_from, self.verifies = fails_from, verifies
        self.feeds = feeds or [{"x": floats(rows, 4)} for rows in (2, 3, 5)]

    def __call__(self, module: str, name: str, is_late: bool) -> int:
        """Interrupts a call; returns the number of calls."""
        program = Program(self.make)
        expected = [program.run(False, **feed) for feed in self.feeds]
        paddle_ngraph.clear_cache()
        denylist.clear()
        flags.set("ngraph_background_compile", self.background)
        flags.set("ngraph_verify", int(self.verifies))
        met = []
        with once_at(module, name, interrupt, is_late) as calls:
            for number, (feed, right) in enumerate(zip(self.feeds, expected)):
                _core.fail_at(self.fails_at if number >= self.fails_from else "")
                try:
                    assert_close(program.run(**feed), right)
                except KeyboardInterrupt:
                    met.append(feed)
            WAIT(60)
            _core.fail_at("")
        flags.set("ngraph_background_compile", "0")
        flags.set("ngraph_verify", 0)
        if calls:
            assert len(met) == 1, f"{name}: {len(met)} of {len(calls)} calls raised it"
        before = paddle_ngraph.stats()["engine_runs"]
        if self.fails_at:  # its operators fall back
            denylist.clear()
            program = Program(self.make)
        assert denylist.count() == 0, f"{name}: an interruption is no failure"
        for feed, right in zip(self.feeds, expected):
            assert_close(program.run(**feed), right)
        assert paddle_ngraph.stats()["engine_runs"] > before, f"{name}: the engine runs again"
        return len(calls)


def by_name(module: str, name: str, is_late: bool) -> int:
    """The pass as Paddle runs it."""
    program = Program(chain)
    with once_at(module, name, interrupt, is_late) as calls:
        for is_struck in (True, False):
            passes = paddle.base.libpaddle.pir.PassManager()
            passes.add_pass("ngraph_pass", {})
            try:
                passes.run(program.main)
                assert not (calls and is_struck)
            except KeyboardInterrupt:
                assert calls and is_struck
    assert any("ngraph_engine" in op.name() for op in program.main.global_block().ops)
    return len(calls)


def cleared(module: str, name: str, is_late: bool) -> int:
    """Paddle, too, rejects the feed."""
    program = Program(labels)
    bad = {"x": floats(2, 4), "label": np.array([[0], [7]])}
    good = {"x": floats(2, 4), "label": np.array([[0], [2]])}
    right = program.run(False, **good)
    paddle_ngraph.clear_cache()
    with once_at(module, name, interrupt, is_late) as calls:
        try:
            program.run(**bad)
        except KeyboardInterrupt:
            assert calls
        except IndexError:
            assert not calls
    assert_close(program.run(**good), right)
    return len(calls)


def loaded(module: str, name: str, is_late: bool) -> int:
    """A function from disk."""
    program = Program(chain)
    right = program.run(False, x=floats(2, 4))
    with tempfile.TemporaryDirectory() as folder:
        flags.set("ngraph_cache_dir", folder)
        flags.set("ngraph_cache_min_ms", 0)
        program.run(x=floats(2, 4))
        paddle_ngraph.clear_cache()
        with once_at(module, name, interrupt, is_late) as calls:
            try:
                assert_close(program.run(x=floats(2, 4)), right)
                assert not calls
            except KeyboardInterrupt:
                assert calls
        assert_close(program.run(x=floats(2, 4)), right)
        flags.set("ngraph_cache_dir", "")
    return len(calls)


def awaited(module: str, name: str, is_late: bool) -> int:
    """A run that waits for the compile job of another one."""
    if name != "wait":
        return 0
    program = Program(chain)
    right = program.run(False, x=floats(2, 4))
    paddle_ngraph.clear_cache()
    may_go_on = threading.Event()
    held = build.BuildPass("hold", "until it is waited for", lambda _: may_go_on.wait(60))
    before, build.PASSES = build.PASSES, (*build.PASSES, held)
    flags.set("ngraph_background_compile", "1")
    assert_close(program.run(x=floats(2, 4)), right)
    flags.set("ngraph_background_compile", "0")
    with once_at(module, name, interrupt, is_late) as calls:
        threading.Thread(target=open_when, args=(may_go_on, calls)).start()
        assert_interrupted(program, calls)
    build.PASSES = before
    assert_close(program.run(x=floats(2, 4)), right)
    return len(calls)


class Rerun:
    """A run that gives the same results each time, inside a context.

    Args:
        make: Returns the run.
        context: Returns the context of a run.
    """

    def __init__(
        self,
        make: Callable[[], Callable[[], Any]],
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.make, self.context = make, context

    def __call__(self, module: str, name: str, is_late: bool) -> int:
        """Interrupts a call; returns the number of calls."""
        paddle_ngraph.disable()
        run = self.make()
        right = run()
        paddle_ngraph.enable()
        with self.context():
            run()
        with once_at(module, name, interrupt, is_late) as calls, self.context():
            try:
                assert_close(run(), right)
                assert not calls, f"{name}: the interrupt is lost"
            except KeyboardInterrupt:
                assert calls
        assert_close(run(), right)
        return len(calls)


@contextmanager
def by_one_thread() -> Iterator[None]:
    """Has Paddle's interpreter run all operators in the thread that calls it."""
    name = "FLAGS_enable_pir_in_executor_trace_run"
    before = paddle.get_flags(name)
    paddle.set_flags({name: True})
    try:
        yield
    finally:
        paddle.set_flags(before)


@contextmanager
def verified() -> Iterator[None]:
    flags.set("ngraph_verify", 1)
    try:
        yield
    finally:
        flags.set("ngraph_verify", 0)


def kept_operator() -> Any:
    """A gradient that is not translated, and stays a ProgramDesc operator."""
    x = paddle.static.data("x", [-1, 6], "float32")
    x.stop_gradient = False
    helper = LayerHelper("eig")
    types = "complex64", "complex64", "float32", "float32"
    values, vectors, reals, product = map(helper.create_variable_for_type_inference, types)
    inputs, attributes = {"X": x, "Y": x}, {"trans_x": True}
    helper.append_op(type="matmul_v2", inputs=inputs, outputs={"Out": product}, attrs=attributes)
    matrix = product + paddle.assign(np.diag(np.arange(6, dtype="float32")))
    outputs = {"Eigenvalues": values, "Eigenvectors": vectors}
    helper.append_op(type="eig", inputs={"X": matrix}, outputs=outputs)
    helper.append_op(type="real", inputs={"X": values}, outputs={"Out": reals})
    return paddle.static.gradients(paddle.mean(reals * reals), [x])[0] * 2.0


def dynamic_layer_and_step() -> Callable[[], Any]:
    """A packed recurrent layer of dynamic mode, and a step of its optimizer."""

    def run() -> Any:
        with dynamic_mode():
            paddle.seed(5)
            layer = mkl_packed.GRU(6, 8)
            optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
            outputs, _ = layer(paddle.to_tensor(floats(2, 3, 6)))
            (outputs**2).sum().backward()
            optimizer.step()
            return [outputs.numpy(), *(each.numpy() for each in layer.parameters())]

    return run


def assert_interrupted(program: Program, calls: list[int]) -> None:
    """Runs a program, which has to make one of these calls and raise the interrupt in it."""
    try:
        program.run(x=floats(2, 4))
        raise AssertionError("no interrupt was raised")
    except KeyboardInterrupt:
        assert calls


def ever_new_shapes() -> Any:
    """Shapes without a common function."""
    x = paddle.static.data("x", [2, -1, 4], "float32")
    return paddle.tanh(paddle.sort(x * 2.0, axis=1))


def left(module: str, name: str, is_late: bool) -> int:
    """A run of a shape that has occurred too rarely for a function."""
    if name != "may_leave":
        return 0
    feeds = [{"x": floats(2, length, 4)} for length in range(2, 20)]
    return Play(ever_new_shapes, feeds=feeds)(module, name, is_late)


def rejected(module: str, name: str, is_late: bool) -> int:
    """A run whose function cannot be built."""
    if name != "outcome":
        return 0
    program = Program(chain)
    right = program.run(False, x=floats(2, 4))
    paddle_ngraph.clear_cache()
    before = build.PASSES
    build.PASSES = (*before, build.BuildPass("reject", "", reject))
    with once_at(module, name, interrupt, is_late) as calls:
        assert_interrupted(program, calls)
    build.PASSES = before
    assert_close(program.run(x=floats(2, 4)), right)
    return len(calls)


def reject(_: object) -> None:
    raise NgraphError("no function")


def open_when(gate: threading.Event, calls: list[int]) -> None:
    """Opens the gate at the first call, or after a minute."""
    until = time.monotonic() + 60
    while not calls and time.monotonic() < until:
        time.sleep(0.01)
    gate.set()


def calls(of: int, parts: int) -> None:
    """Interrupts each call before and after; fails if a call was never interrupted."""
    plays: list[Callable[[str, str, bool], int]] = [
        Play(chain),
        Play(around_fallback, feeds=[{"x": floats(rows, 6)} for rows in (2, 3, 5)]),
        Play(chain, fails_at="compile"),
        Play(chain, fails_at="compile", fails_from=2),  # a function with dynamic sizes
        Play(chain, background="1"),
        Play(chain, verifies=True),
        Play(chain, fails_at="copy", verifies=True),
        Rerun(lambda: of_program(network), recorded_inputs.recording),
        Rerun(lambda: of_program_desc_program(kept_operator), by_one_thread),
        Rerun(dynamic_layer_and_step, verified),
        Rerun(dynamic_layer_and_step, recorded_inputs.recording),
        *(by_name, cleared, loaded, awaited, left, rejected),
    ]
    for module, name in _core.python_callbacks[of::parts]:
        if name in ("NgraphError", "ErrorCode"):  # not a function
            continue
        met = sum(play(module, name, is_late) for play in plays for is_late in (False, True))
        print(name, met)
        assert met > 0, f"nothing here calls {module}.{name}"


# -- every frontend -------------------------------------------------------------------------------


def network() -> Any:
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = F.relu(paddle.nn.Linear(6, 8)(x))
    return F.softmax(paddle.nn.Linear(8, 3)(hidden))


def around_fallback() -> Any:
    """Two subgraphs around an operator that falls back, in training."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.lgamma(paddle.abs(paddle.nn.Linear(6, 4)(x)) + 1.5)
    loss = paddle.mean(paddle.nn.Linear(4, 1)(hidden) ** 2)
    paddle.optimizer.SGD(0.0).minimize(loss)
    return loss


def in_two_subgraphs() -> Any:
    x = paddle.static.data("x", [-1, 6], "float32")
    return paddle.exp(paddle.erfinv(paddle.tanh(paddle.nn.Linear(6, 4)(x)) * 0.9) + x[:, :4])


def of_program(make: Callable[[], Any]) -> Callable[[], Any]:
    program = Program(make)
    return lambda: program.run(paddle_ngraph.is_enabled(), x=floats(3, 6))


def program_desc() -> Any:
    x = paddle.static.data("x", [-1, 6], "float32")
    return paddle.static.nn.fc(x, 4, activation="tanh")


def of_program_desc_program(make: Callable[[], Any] = program_desc) -> Callable[[], Any]:
    with paddle.pir_utils.OldIrGuard():
        program = Program(make)

    def run() -> Any:
        with paddle.pir_utils.OldIrGuard():
            return program.run(paddle_ngraph.is_enabled(), x=floats(3, 6))

    return run


def of_plan() -> Callable[[], Any]:
    """Two branches on two devices, run by the data-dependency engine."""
    plain = Program(network)
    with paddle.static.scope_guard(plain.scope):
        plan = paddle_ngraph.execution_plan(plain.main, ["CPU:0", "CPU:1"], plain.fetches)
        plan.place("linear_0.*", "CPU:1")

    def run() -> Any:
        with paddle.static.scope_guard(plain.scope):
            feed = {"x": floats(3, 6)}
            return plain.executor.run(plan.program, feed=feed, fetch_list=plan.fetches)

    return run


@contextmanager
def dynamic_mode() -> Iterator[None]:
    """Dynamic mode; afterwards the mode from before, which a handler may have interrupted."""
    before = paddle.in_dynamic_mode()
    paddle.disable_static()
    try:
        yield
    finally:
        if not before:
            paddle.enable_static()


def dynamic(wrap: Callable[[Any], Any], trains: bool) -> Callable[[], Any]:
    paddle.disable_static()
    try:
        paddle.seed(5)
        layer = paddle.nn.Sequential(
            paddle.nn.Linear(6, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 3), paddle.nn.Softmax()
        )
        layer.train() if trains else layer.eval()
        wrapped = wrap(layer)
    finally:
        paddle.enable_static()

    def run() -> Any:
        with dynamic_mode():
            x = paddle.to_tensor(floats(3, 6), stop_gradient=not trains)
            if not trains:
                with paddle.no_grad():
                    return [wrapped(x).numpy()]
            out = wrapped(x)
            (out**2).sum().backward()
            return [out.numpy(), x.grad.numpy()]

    return run


def static_function(trains: bool) -> Callable[[], Any]:
    return dynamic(lambda layer: paddle.jit.to_static(layer, full_graph=True), trains)


def of_predictor(
    make: Callable[[], Any], is_by_name: bool, is_made_anew: bool = False
) -> Callable[[], Any]:
    """A predictor: switched by the flag, or with the pass that its user names."""
    folder = Path(tempfile.mkdtemp())
    program = Program(make)
    with paddle.static.scope_guard(program.scope), paddle_ngraph.use_ngraph(False):
        x = next(op.result(0) for op in program.main.global_block().ops if "data" in op.name())
        paddle.static.save_inference_model(
            str(folder / "model"), [x], program.fetches, program.executor, program=program.main
        )

    predictors: list[Any] = []

    def made(is_on: bool) -> Any:
        config = inference.Config(f"{folder}/model.json", f"{folder}/model.pdiparams")
        config.disable_glog_info()
        if is_by_name and is_on:
            config.enable_custom_passes(["ngraph_pass"])
            config.enable_new_ir(True)
            config.enable_new_executor(True)
        return inference.create_predictor(config)

    def run() -> Any:
        is_on = paddle_ngraph.is_enabled()
        with paddle_ngraph.use_ngraph(is_on and not is_by_name):
            # A new one at each call, or one for all calls.
            if not is_on or is_made_anew:
                predictor = made(is_on)
            else:
                predictor = predictors[0] if predictors else made(is_on)
                predictors[:] = [predictor]
            handle = predictor.get_input_handle(predictor.get_input_names()[0])
            handle.copy_from_cpu(floats(3, 6))
            predictor.run()
            (name,) = predictor.get_output_names()
            return [predictor.get_output_handle(name).copy_to_cpu()]

    return run


RUNNERS: dict[str, Callable[[], Callable[[], Any]]] = {
    "whole": lambda: of_program(network),
    "training": lambda: of_program(around_fallback),
    "intervals": lambda: of_program(in_two_subgraphs),
    "old": of_program_desc_program,
    "plan": of_plan,
    "to_static": lambda: static_function(False),
    "to_static, training": lambda: static_function(True),
    "compile": lambda: dynamic(paddle_ngraph.compile, False),
    "compile, training": lambda: dynamic(paddle_ngraph.compile, True),
    "predictor": lambda: of_predictor(network, False),
    "predictor, intervals": lambda: of_predictor(in_two_subgraphs, False),
    "predictor by name": lambda: of_predictor(in_two_subgraphs, True),
    "predictors": lambda: of_predictor(in_two_subgraphs, False, True),
    "predictors by name": lambda: of_predictor(in_two_subgraphs, True, True),
}


# Runners of dynamic mode.
DYNAMIC = ("to_static", "to_static, training", "compile")


def at_any_moment(name: str) -> None:
    """Interrupts runs at random times, by a timer; each later run is right."""
    run = RUNNERS[name]()
    # The runner finds its mode: an interrupt in a change of mode would leave another one.
    if name in DYNAMIC:
        paddle.disable_static()
    try:
        interrupt_at_any_moment(name, run)
    finally:
        paddle.enable_static()


def interrupt_at_any_moment(name: str, run: Callable[[], Any]) -> None:
    native = run()
    paddle_ngraph.enable()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    generator, interrupted, total = random.Random(name), 0, 0
    took = 0.0
    # More interruptions if the machine has become faster since the measurement.
    while total < TRIES or (interrupted < TRIES // 6 and total < 10 * TRIES):
        paddle_ngraph.clear_cache()
        start = time.perf_counter()
        assert_close(run(), native)
        took = max(took * 0.7, time.perf_counter() - start)
        paddle_ngraph.clear_cache()
        total += 1
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.02, 1.0) * took)
                assert_close(run(), native)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        assert paddle.in_dynamic_mode() == (name in DYNAMIC)
    paddle_ngraph.clear_cache()
    before = paddle_ngraph.stats()["engine_runs"]
    for _ in range(3):
        assert_close(run(), native)
    assert paddle_ngraph.stats()["engine_runs"] > before
    assert denylist.count() == 0
    print(name, interrupted, "of", total)
    assert interrupted >= TRIES // 6


def from_a_handler(name: str) -> None:
    """A handler runs the interrupted program when a signal arrives in a build; both are right."""
    run = RUNNERS[name]()
    native = run()
    paddle_ngraph.enable()
    found, depth = [], 0

    def handle(*_: Any) -> None:
        nonlocal depth
        if depth == 0:
            depth += 1
            found.append(run())
            depth -= 1

    signal.signal(signal.SIGUSR1, handle)
    raised = build.BuildPass("raise", "", lambda _: signal.raise_signal(signal.SIGUSR1))
    passes = build.PASSES
    for place in (0, len(passes)):
        build.PASSES = (*passes[:place], raised, *passes[place:])
        paddle_ngraph.clear_cache()
        for _ in range(3):
            assert_close(run(), native)
    build.PASSES = passes
    assert found, "no build of the main thread was interrupted"
    for results in found:
        assert_close(results, native)
    assert_close(run(), native)
    print(name, len(found))


# -- other cases ----------------------------------------------------------------------------------


def timeouts() -> None:
    """An exception of a handler reaches the user, and is no failure of a converter."""
    signal.signal(signal.SIGALRM, out_of_time)
    home = build.PASSES
    for name, make in RUNNERS.items():
        run = make()
        native = run()
        paddle_ngraph.enable()
        ring = build.BuildPass("ring", "", lambda _: signal.raise_signal(signal.SIGALRM))
        build.PASSES = (*home, ring)
        paddle_ngraph.clear_cache()
        try:
            run()
            raise AssertionError(f"{name}: it ran")
        except TimeoutError:
            pass
        build.PASSES = home
        paddle_ngraph.clear_cache()
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(3):
            assert_close(run(), native)
        assert paddle_ngraph.stats()["engine_runs"] > before
        assert denylist.count() == 0
        paddle_ngraph.disable()


def out_of_time(*_: Any) -> None:
    raise TimeoutError


def converters() -> None:
    """The import of the converters, at its 50th registration; and other exceptions of a module."""
    original, count = registry._check_roles, 0

    def check(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == 50:
            interrupt()
        original(*args)

    registry._check_roles = check
    try:
        registry.load_converters()
    except KeyboardInterrupt:
        assert count == 50
    registry.load_converters()
    assert count > 50
    program = Program(network)
    program.both(x=floats(3, 6))


def exits() -> None:
    """An exception that ends a process is no failure either."""
    program = Program(network)
    home = build.PASSES
    build.PASSES = (build.BuildPass("exit", "", lambda _: sys.exit(7)), *home)
    try:
        program.run(x=floats(3, 6))
        raise AssertionError("it ran")
    except SystemExit as error:
        assert error.code == 7
    build.PASSES = home
    program.both(x=floats(3, 6))


def in_another_thread() -> None:
    """An exception that ends the building thread ends that build; a later run submits a job."""
    program = Program(chain)
    right = program.run(False, x=floats(2, 4))
    flags.set("ngraph_background_compile", "1")
    home = build.PASSES

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    build.PASSES = (build.BuildPass("stop", "", stop), *home)
    assert_close(program.run(x=floats(2, 4)), right)
    assert paddle_ngraph.wait_for_compiles(60)
    build.PASSES = home
    assert_close(program.run(x=floats(2, 4)), right)
    assert paddle_ngraph.wait_for_compiles(60)
    assert_close(program.run(x=floats(2, 4)), right)
    assert paddle_ngraph.stats()["functions_built_in_background"] == 1
    assert paddle_ngraph.stats()["engine_runs"] == 1 and denylist.count() == 0


def during_a_build() -> None:
    """Ctrl-C while another thread builds: the main thread goes on, and so does the build."""
    program = Program(chain)
    right = program.run(False, x=floats(2, 4))
    flags.set("ngraph_background_compile", "1")
    home = build.PASSES
    may_go_on = threading.Event()
    build.PASSES = (*home, build.BuildPass("hold", "", lambda _: may_go_on.wait(60)))
    assert_close(program.run(x=floats(2, 4)), right)
    assert len(background_compile._queue) == 1
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        paddle_ngraph.wait_for_compiles()
        raise AssertionError("it was not interrupted")
    except KeyboardInterrupt:
        pass
    build.PASSES = home
    may_go_on.set()
    assert paddle_ngraph.wait_for_compiles(60)
    assert_close(program.run(x=floats(2, 4)), right)
    assert paddle_ngraph.stats()["engine_runs"] == 1


def builds_go_on() -> None:
    """Ctrl-C ends the wait for a function at once; a later run gets the function of that build."""
    run = dynamic(paddle_ngraph.compile, True)
    right = run()  # the first call is recorded, the second builds
    may_go_on = threading.Event()
    built: list[int] = []

    def hold(_: Any) -> None:
        built.append(1)
        may_go_on.wait(60)

    home = build.PASSES
    build.PASSES = (*home, build.BuildPass("hold", "", hold))
    for _ in range(2):  # the second run waits for the build of the first
        timer = threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT))
        start = time.perf_counter()
        timer.start()
        try:
            run()
            raise AssertionError("it was not interrupted")
        except KeyboardInterrupt:
            took = time.perf_counter() - start
        timer.join()
        assert took < 10, took
    assert len(built) == 1, "the second run has begun another build"
    may_go_on.set()
    before = paddle_ngraph.stats()["engine_runs"]
    for _ in range(2):
        assert_close(run(), right)
    # The forward and the backward program.
    assert paddle_ngraph.stats()["engine_runs"] == before + 4
    assert len(built) == 2 and denylist.count() == 0
    build.PASSES = home


def limits_end_waits() -> None:
    """A time limit ends the wait for a function; that run is native, a later one gets it."""
    signal.signal(signal.SIGALRM, raise_limit)
    main = threading.main_thread()
    home = build.PASSES
    for name, make in RUNNERS.items():
        paddle_ngraph.disable()
        run = make()
        native = run()
        paddle_ngraph.enable()
        held: list[bool] = []
        may_go_on = threading.Event()

        def hold(
            _: Any, held: list[bool] = held, gate: threading.Event = may_go_on, name: str = name
        ) -> None:
            if held:
                return
            held.append(True)
            assert threading.current_thread() is not main
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGALRM)
            held[0] = gate.wait(60)

        build.PASSES = (*home, build.BuildPass("hold", "", hold))
        paddle_ngraph.clear_cache()
        raised = 0
        for _ in range(3):
            try:
                assert_close(run(), native)
            except TimeLimit:
                raised += 1
                may_go_on.set()
        assert held == [True], f"{name}: the run has waited for the build"
        assert raised == 1, f"{name}: {raised}"
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(2):
            assert_close(run(), native)
        assert paddle_ngraph.stats()["engine_runs"] > before, name
        assert denylist.count() == 0
        build.PASSES = home


@contextmanager
def interrupted_build(program: Program) -> Iterator[None]:
    """Inside ``with``, the build of a function goes on that an interrupted run waited for."""
    paddle_ngraph.clear_cache()
    home = build.PASSES
    has_begun, may_go_on = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        has_begun.set()
        interrupt()
        assert may_go_on.wait(60)

    build.PASSES = (*home, build.BuildPass("hold", "", hold))
    try:
        program.run(x=floats(3, 6))
        raise AssertionError("it was not interrupted")
    except KeyboardInterrupt:
        assert has_begun.is_set()
    build.PASSES = home
    try:
        yield
    finally:
        may_go_on.set()


def weights_after_interrupted_runs() -> None:
    """The weights of an interrupted run are written, and freed, while they are read in place."""
    program = Program(network)
    program.run(False, x=floats(3, 6))
    with interrupted_build(program):
        pass
    program.both(x=floats(3, 6))
    assert paddle_ngraph.stats()["functions_with_weights_in_place"] == 1
    # The weights are as they were in later runs, but were not when they were packed.
    written = Program(network)
    right = written.run(False, x=floats(3, 6))
    before = weights_of(written)
    with interrupted_build(written):
        set_weights(written, {name: array * 0.5 + 0.1 for name, array in before.items()})
    for thread in list(background_compile._awaited_threads):
        thread.join()
    set_weights(written, before)
    for _ in range(20):  # weights that were written are constants again after 8 runs
        assert_close(written.run(x=floats(3, 6)), right)
    for _ in range(5):
        dropped = Program(network)
        dropped.run(False, x=floats(3, 6))
        with interrupted_build(dropped):
            del dropped
            gc.collect()
            others = [np.full(size, 7.0, np.float32) for size in range(1, 400)]
        program.both(x=floats(3, 6))
        del others
    # A build that an interrupted run has left caches nothing after the caches were cleared.
    with interrupted_build(program):
        paddle_ngraph.clear_cache()
    for thread in list(background_compile._awaited_threads):
        thread.join()
    assert caches.sizes()["functions"] == 0
    program.both(x=floats(3, 6))
    assert denylist.count() == 0


def weights_of(program: Program) -> dict[str, np.ndarray]:
    ops = program.main.global_block().ops
    names = [op.attrs()["parameter_name"] for op in ops if op.name() == "builtin.parameter"]
    return {name: np.array(program.scope.find_var(name).get_tensor()) for name in names}


def set_weights(program: Program, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        program.scope.find_var(name).get_tensor().set(array, paddle.CPUPlace())


# -- actions of handlers, and existing handlers ---------------------------------------------------


@contextmanager
def in_a_build(act: Callable[[], Any]) -> Iterator[Callable[[], None]]:
    """Returns a function that runs a program; each run builds a function and calls ``act``."""
    program = Program(chain)
    right = program.run(False, x=floats(2, 4))
    home = build.PASSES
    build.PASSES = (*home, build.BuildPass("act", "", lambda _: act()))

    def run() -> None:
        paddle_ngraph.clear_cache()
        try:
            results = program.run(x=floats(2, 4))
        finally:
            assert denylist.count() == 0
        assert_close(results, right)

    try:
        yield run
    finally:
        build.PASSES = home
    # A signal may have ended the wait for the build; a later run gets its function.
    before = paddle_ngraph.stats()["engine_runs"]
    assert_close(program.run(x=floats(2, 4)), right)
    assert paddle_ngraph.stats()["engine_runs"] == before + 1, "the engine did not run"


# Every category: Paddle's own DataLoader has a handler of SIGCHLD, profilers have those of timers.
SOME = [signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF, signal.SIGWINCH]
SOME += [signal.SIGUSR1, signal.SIGRTMIN]


def handlers_that_raise() -> None:
    """All handlers whose signals arrived run once, after the run."""
    came: list[int] = []

    def handle(number: int, frame: Any) -> None:
        assert frame.f_code.co_filename not in (signals.__file__, contextlib.__file__)
        came.append(number)
        raise TimeoutError(number)

    before = {number: signal.signal(number, handle) for number in SOME}

    def strike() -> None:
        for number in 3 * SOME:
            signal.raise_signal(number)
        assert not came

    with in_a_build(strike) as run:
        try:
            run()
            raise AssertionError("none has raised")
        except TimeoutError:
            # A build in another thread raises them at once; Python sorts those by number.
            assert sorted(came) == sorted(SOME)
        assert all(signal.getsignal(number) is handle for number in SOME)
    for number, handler in before.items():
        signal.signal(number, handler)


def others_settings() -> None:
    """Settings for a signal are restored after a run, in Python and in the system."""
    numbers: list[int] = []

    def note(number: int, _: Any) -> None:
        numbers.append(number)

    def note_as_well(number: int, _: Any) -> None:
        numbers.append(-number)

    # asyncio, which is notified by a byte in a file.
    notified: list[str] = []
    loop = asyncio.new_event_loop()
    loop.add_signal_handler(signal.SIGUSR1, notified.append, "came")
    with in_a_build(lambda: signal.raise_signal(signal.SIGUSR1)) as run:
        run()
    loop.run_until_complete(asyncio.sleep(0.05))
    assert notified == ["came"]
    loop.remove_signal_handler(signal.SIGUSR1)
    loop.close()
    # A handler in C that was installed before Python's.
    signal.signal(signal.SIGUSR2, note)
    with tempfile.TemporaryFile() as file, in_a_build(lambda: None) as run:
        faulthandler.register(signal.SIGUSR2, file=file, chain=False)
        run()
        signal.raise_signal(signal.SIGUSR2)
        faulthandler.unregister(signal.SIGUSR2)
        assert not numbers and file.seek(0, 2) > 0
    # A handler set during the run; and the handler found then, set again.
    signal.signal(signal.SIGHUP, note)
    found: list[Any] = []
    with signals.deferred_signals():
        found.append(signal.signal(signal.SIGHUP, note_as_well))
    assert signal.getsignal(signal.SIGHUP) is note_as_well
    signal.signal(signal.SIGHUP, found[0])
    signal.raise_signal(signal.SIGHUP)
    assert numbers == [signal.SIGHUP]
    # A handler that returns the signal to the system.
    signal.signal(signal.SIGHUP, lambda number, _: signal.signal(number, signal.SIG_IGN))
    with in_a_build(lambda: signal.raise_signal(signal.SIGHUP)) as run:
        run()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@contextmanager
def at_exchange(place: int, act: Callable[[], None], is_late: bool) -> Iterator[list[int]]:
    """Calls ``act`` before or after a handler is exchanged; records the signals exchanged."""
    original = _signal.signal
    exchanged: list[int] = []

    def exchange(number: int, handler: Any) -> Any:
        exchanged.append(number)
        is_it = len(exchanged) == place
        if is_it and not is_late:
            act()
        before = original(number, handler)
        if is_it and is_late:
            act()
        return before

    _signal.signal = exchange
    try:
        yield exchanged
    finally:
        _signal.signal = original


def at_any_exchange() -> None:
    """A signal at each exchange of a handler leaves all of them unchanged, and is handled."""
    came: list[int] = []

    def handle(number: int, _: Any) -> None:
        came.append(number)
        raise TimeoutError

    before = {number: signal.signal(number, handle) for number in SOME}
    numbers, places = (signal.SIGINT, signal.SIGALRM, signal.SIGRTMIN), range(2 * len(SOME) + 3)
    struck = 0
    for number, but_ctrl_c, place, is_late in itertools.product(
        numbers, (True, False), places, (True, False)
    ):
        came.clear()
        raised = None
        with at_exchange(place, partial(signal.raise_signal, number), is_late) as exchanged:
            try:
                with signals.deferred_signals(but_ctrl_c):
                    pass
            except (KeyboardInterrupt, TimeoutError) as error:
                raised = error
        is_struck = 1 <= place <= len(exchanged)
        assert (raised is not None) == is_struck, (number, but_ctrl_c, place, is_late)
        assert came == [number] * (is_struck and number != signal.SIGINT)
        assert all(signal.getsignal(other) is handle for other in SOME)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        struck += is_struck
    assert struck > 100
    for number, handler in before.items():
        signal.signal(number, handler)


def other_threads() -> None:
    """Threads that may set no handlers run, too, whichever thread Python considers the main one."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    failed: list[BaseException] = []

    def play() -> None:
        try:
            with in_a_build(lambda: None) as run:
                run()
        except BaseException as error:
            failed.append(error)

    original = threading.main_thread
    for main in (original, threading.current_thread):
        threading.main_thread = main
        thread = threading.Thread(target=play)
        thread.start()
        thread.join()
    threading.main_thread = original
    assert not failed, failed


def of_each(case: Callable[[str], None], names: list[str]) -> Callable[[], None]:
    def play() -> None:
        for name in names:
            paddle_ngraph.disable()
            case(name)

    return play


NAMES = list(RUNNERS)
# The rewriting of predictors' programs lets Ctrl-C through Paddle.
CREATING = [name for name in RUNNERS if not name.startswith("predictor")]
# Runners whose programs are created or rewritten by work that may be abandoned.
ABANDONED = ["whole", "training", "to_static, training", "compile", "compile, training"]


class TimeLimit(Exception):
    """An exception of the types that failures of builds have."""


def raise_limit(*_: object) -> None:
    raise TimeLimit


def interrupt_from_thread() -> None:
    in_thread(_thread.interrupt_main)


def raise_in_main_thread() -> None:
    """Raises an exception in the main thread, as a watchdog does."""
    main = ctypes.c_ulong(threading.get_ident())
    in_thread(lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(TimeLimit)))


def in_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


INTERRUPTIONS: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
    "SIGALRM": (partial(signal.raise_signal, signal.SIGALRM), TimeLimit),
    "Ctrl-C": (interrupt, KeyboardInterrupt),
    "interrupt_main": (interrupt_from_thread, KeyboardInterrupt),
    "other thread": (raise_in_main_thread, TimeLimit),
}

# Functions and methods that run while programs are created, by the names of runners.
MAKING_GRAPHS = (
    (trace_graph, "partition_stages"),
    (trace_graph.TraceStage, "_layer"),
    (trace_graph.TraceStage, "_append"),
    (to_static_hook._LayerPrograms, "rewritten"),
    (program_pass, "_partition_block"),
    (program_pass, "rewriting_of"),
)


def while_programs_are_created(names: list[str]) -> None:
    """Interruptions of each type, once before and once after a function: each is raised once."""
    signal.signal(signal.SIGALRM, raise_limit)
    met = 0
    for name, (home, place), (kind, (act, expected)), is_late in itertools.product(
        names, MAKING_GRAPHS, INTERRUPTIONS.items(), (False, True)
    ):
        paddle_ngraph.disable()
        run = RUNNERS[name]()
        native = run()
        paddle_ngraph.enable()
        raised = 0
        with once_at(home, place, act, is_late) as calls:
            for _ in range(3):
                try:
                    assert_close(run(), native)
                except expected:
                    raised += 1
        assert raised == min(len(calls), 1), (
            f"{name}, {place}, {kind}, {is_late}: raised {raised} times"
        )
        met += raised
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(2):
            assert_close(run(), native)
        assert paddle_ngraph.stats()["engine_runs"] > before, f"{name}, {place}, {kind}: native"
        assert denylist.count() == 0
    print(met)
    assert met >= len(names) * len(INTERRUPTIONS)


def failures_are_classified_by_place() -> None:
    """Work of which any error is a failure: what comes from outside is raised, and is none."""
    signal.signal(signal.SIGALRM, raise_limit)
    program = Program(chain)
    feed = {"x": floats(8, 4)}

    def plan() -> Any:
        with paddle.static.scope_guard(program.scope):
            return paddle_ngraph.automatic_plan(program.main, feed, program.fetches)

    def save() -> None:
        with tempfile.TemporaryDirectory() as folder, paddle.static.scope_guard(program.scope):
            paddle_ngraph.save_inference_model(
                f"{folder}/model",
                [op.result(0) for op in program.main.global_block().ops if "data" in op.name()],
                program.fetches,
                program.executor,
                program=program.main,
                input_shapes={"x": [8, 4]},
            )

    works: tuple[tuple[Callable[[], Any], Any, str], ...] = (
        (plan, automatic, "_core_groups"),
        (save, paddle.static.Executor, "run"),
    )
    for (work, home, place), kind in itertools.product(works, ("SIGALRM", "other thread")):
        act, expected = INTERRUPTIONS[kind]
        with once_at(home, place, act, is_late=True) as calls:
            try:
                work()
                raise AssertionError(f"{place}, {kind}: nothing was raised")
            except expected:
                assert calls
        work()
    assert denylist.count() == 0


@contextmanager
def counting_safe_points(at: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Calls ``act`` before a safe point of work that may be abandoned; records all of these."""
    original = signals.safe_point
    found: list[int] = []

    def safe_point() -> None:
        if signals._is_abandonable.value:
            found.append(1)
            if len(found) == at:
                act()
        original()

    signals.safe_point = safe_point
    try:
        yield found
    finally:
        signals.safe_point = original


def programs_are_abandoned(names: list[str]) -> None:
    """At a signal, no safe point is passed: its handler runs, and later calls make the program."""
    signal.signal(signal.SIGALRM, raise_limit)
    generator = random.Random(3)
    for name, (act, expected) in itertools.product(names, INTERRUPTIONS.values()):
        with counting_safe_points(0, lambda: None) as found:
            paddle_ngraph.disable()
            run = RUNNERS[name]()
            native = run()
            paddle_ngraph.enable()
            for _ in range(3):
                run()
        assert len(found) > 10, name
        for at in (1, len(found), *generator.sample(range(1, len(found)), 6)):
            paddle_ngraph.disable()
            run = RUNNERS[name]()
            run()
            paddle_ngraph.enable()
            raised = 0
            with counting_safe_points(at, act) as found:
                for _ in range(3):
                    try:
                        assert_close(run(), native)
                    except expected:
                        raised += 1
                        assert len(found) == at, f"{name}: {at} of {len(found)} safe points"
            assert raised == 1, f"{name}, {at}: raised {raised} times"
            before = paddle_ngraph.stats()["engine_runs"]
            for _ in range(2):
                assert_close(run(), native)
            assert paddle_ngraph.stats()["engine_runs"] > before, f"{name}, {at}: native"
            assert denylist.count() == 0


def harmless_handlers_abandon_nothing() -> None:
    """A handler that raises nothing, called often: it ends the creation of programs only once."""
    came: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    run = dynamic(paddle_ngraph.compile, True)
    native = run()
    original = signals.safe_point

    def safe_point() -> None:
        signal.raise_signal(signal.SIGALRM)
        original()

    signals.safe_point = safe_point
    for _ in range(2):
        assert_close(run(), native)
    signals.safe_point = original
    assert paddle_ngraph.stats()["engine_runs"] == 2 and len(came) == 2, came


def where_autograd_calls() -> None:
    """Paddle replaces the message of an exception that its calls in a backward pass raise."""
    run = dynamic(paddle_ngraph.compile, True)
    native = run()
    paddle_ngraph.enable()
    for _ in range(4):
        assert_close(run(), native)
    assert paddle_ngraph.stats()["engine_runs"] > 0
    with once_at(gradients._GraphRun, "_is_written", interrupt, is_late=False) as calls:
        try:
            run()
            raise AssertionError("the run was not interrupted")
        except KeyboardInterrupt:
            pass
    assert calls == [1]

    generator, interrupted = random.Random(1), 0
    for _ in range(300):
        timer = threading.Timer(generator.uniform(0, 0.005), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            run()
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
    assert interrupted == 300
    for _ in range(4):
        assert_close(run(), native)


def gradients_stay_on() -> None:
    """Ctrl-C at any point of sections without gradients, which are enabled again afterwards."""

    def play() -> None:
        for is_on in (False, True):
            with captured_calls.gradients_enabled(is_on):
                assert paddle.is_grad_enabled() == is_on

    points = interrupt_each_point(play)
    print(points)
    assert points > 5


def interrupt_each_point(play: Callable[[], None]) -> int:
    """Calls a function again and again, with Ctrl-C at another point; returns their number.

    The points are those at which Python runs handlers: after calls, and after jumps backwards.
    Gradients are enabled after each call.
    """
    opcodes = {each.offset: each.opname for each in dis.get_instructions(play)}
    for at in itertools.count(1):
        passed, before = 0, ""

        def trace(frame: Any, event: str, _: Any, at: int = at) -> Any:
            nonlocal passed, before
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code is play.__code__:
                passed += before.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE"))
                before = opcodes.get(frame.f_lasti, "")
                if passed == at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        try:
            sys.settrace(trace)
            play()
            return at - 1
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert paddle.is_grad_enabled(), at
    raise AssertionError


CASES: dict[str, Callable[[], None]] = {
    **{f"calls, {n}": partial(calls, n, 4) for n in range(4)},
    **{f"at any moment, {n}": of_each(at_any_moment, NAMES[n::3]) for n in range(3)},
    "from a handler": of_each(from_a_handler, NAMES),
    **{
        f"while programs are created, {n}": partial(while_programs_are_created, CREATING[n::3])
        for n in range(3)
    },
    **{
        f"programs are abandoned, {n}": partial(programs_are_abandoned, ABANDONED[n::3])
        for n in range(3)
    },
    **{
        case.__name__: case
        for case in (
            *(timeouts, converters, exits, in_another_thread, during_a_build, builds_go_on),
            *(limits_end_waits, weights_after_interrupted_runs),
            *(handlers_that_raise, others_settings, at_any_exchange, other_threads),
            *(where_autograd_calls, gradients_stay_on, failures_are_classified_by_place),
            harmless_handlers_abandon_nothing,
        )
    },
}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(240, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    paddle.enable_static()
    flags.set("ngraph_min_interval_us", 0)
    flags.set("ngraph_cache_dir", "")
    with cores_of_plans(2):
        CASES[sys.argv[1]]()
    print("done")
