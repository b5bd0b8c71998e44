"""Table test of the strategies by which each frontend runs programs, step by step.

A row is a subject, its steps, and the strategy that each step runs by:

``cached``: the call cache of ``Executor.run``; ``whole``: one engine operator without Paddle's
interpreter; ``planned``: engine operators on several devices without it; ``interpreter``: Paddle's
interpreter over the rewritten program; ``paddle``: the program unmodified, by Paddle. A cached call
names the strategy that it repeats, as in ``cached-planned``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.inference import Config, create_predictor

import paddle_ngraph
from paddle_ngraph import NgraphError, _core
from paddle_ngraph.conversion import denylist
from paddle_ngraph.frontends import dispatcher
from paddle_ngraph.frontends.executor.switch import SwitchedExecutor
from paddle_ngraph.frontends.executor.whole_program import (
    WholeLayer,
    WholePredictor,
    WholeProgram,
)
from paddle_ngraph.plan.data_dependency_engine import PlannedProgram
from tests.dynamic import dynamic_mode
from tests.plan.networks import two_towers
from tests.programs import Program, cores_of_plans, floats, linear_regression

pytestmark = pytest.mark.usefixtures("small_intervals_pay", "little_to_collect")

ENTRY_POINTS: list[tuple[type, str, str]] = [
    (WholeProgram, "run", "whole"),
    (WholeProgram, "run_on", "cached"),
    (PlannedProgram, "run", "planned"),
    (PlannedProgram, "run_on", "cached-planned"),
    (WholePredictor, "run", "whole"),
    (WholeLayer, "run_on", "whole"),
]


class Observer:
    """Names the strategy of a run, by the entry points that returned a result and the counters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names: list[str] = []
        for owner, method, name in ENTRY_POINTS:
            monkeypatch.setattr(owner, method, self._watched(getattr(owner, method), name))

    def _watched(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            result = original(*args)
            if result is not None and result is not False:
                self._names.append(name)
            return result

        return run

    def strategy_of(self, run: Callable[[], Any]) -> str:
        """Runs, and returns the strategy; ``error``: the run raised an error."""
        self._names.clear()
        before = _engine_calls()
        try:
            run()
        except (NgraphError, ValueError, RuntimeError):
            return "error"
        if self._names:
            return "+".join(dict.fromkeys(self._names))
        return "interpreter" if _engine_calls() > before else "paddle"


def _engine_calls() -> int:
    counts = paddle_ngraph.stats()
    return int(counts["engine_runs"] + counts["native_runs"])


# -- programs ----------------------------------------------------------------------------------


def whole() -> list[Any]:
    return [paddle.static.data("x", [-1, 4], "float32") * 2.0]


def two_results() -> list[Any]:
    x = paddle.static.data("x", [-1, 4], "float32")
    return [x * 2.0, paddle.exp(x)]


def partial() -> list[Any]:
    """``unique`` has no converter."""
    return [paddle.unique(nn.functional.relu(paddle.static.data("x", [-1, 4], "float32")) + 1.0)]


def none() -> list[Any]:
    return [paddle.unique(paddle.static.data("x", [-1, 4], "float32"))]


def returned_feed() -> list[Any]:
    x = paddle.static.data("x", [-1, 4], "float32")
    return [x, x * 2.0]


def stateful() -> list[Any]:
    return [linear_regression()]


def stochastic() -> list[Any]:
    return [nn.functional.dropout(paddle.static.data("x", [-1, 4], "float32"), 0.5)]


def branch() -> list[Any]:
    x = paddle.static.data("x", [-1, 4], "float32")
    return [paddle.static.nn.cond(x.sum() > 0.0, lambda: x * 2.0, lambda: x - 1.0)]


def calls_python() -> list[Any]:
    """A function of ``py_func``, which runs another program."""
    x = paddle.static.data("x", [-1, 4], "float32")
    block = paddle.static.default_main_program().current_block()
    result = block.create_var(name="from_python", dtype="float32", shape=[2, 4])
    nested = Program(whole)

    def run(given: Any) -> Any:
        return nested.run_as_is(x=np.array(given))[0]

    return [paddle.static.nn.py_func(run, x * 2.0, result) + 1.0]


class ExecutorSubject:
    """A program for ``Executor.run``; steps by name."""

    def __init__(self, build: Callable[[], Any], legacy: bool = False, form: str = "") -> None:
        self._legacy = legacy
        with self._mode():
            self.program = Program(build)
        self.main, self.fetches = self.program.main, self.program.fetches
        if form:
            rewritten = self._in_form(form)
            self.main, self.fetches = rewritten.program, rewritten.fetches
        self.scope = self.program.scope

    def _mode(self) -> AbstractContextManager[Any]:
        return paddle.pir_utils.OldIrGuard() if self._legacy else nullcontext()

    def _in_form(self, form: str) -> Any:
        if form == "planned":
            return paddle_ngraph.execution_plan(self.main, ["CPU:0", "CPU:1"], self.fetches)
        if form == "sliced":
            return paddle_ngraph.data_parallel(self.main, 2, self.fetches)

        class Transpiled(NamedTuple):
            program: Any
            fetches: Any

        return Transpiled(*paddle_ngraph.transpile(self.main, self.fetches))

    def _feed(self, rows: int = 2) -> dict[str, Any]:
        names = {"x": 16 if len(self.fetches) == 2 and self._is_tower() else 4}
        if self._trains():
            names["y"] = 1
        return {name: floats(rows, size) for name, size in names.items()}

    def _is_tower(self) -> bool:
        return any("linear" in name for name in self.scope.local_var_names()) and not self._trains()

    def _trains(self) -> bool:
        return any("learning_rate" in name for name in self.scope.local_var_names())

    def _call(self, feed: dict[str, Any], **options: Any) -> Any:
        with self._mode(), paddle.static.scope_guard(self.scope):
            options = {"fetch_list": self.fetches, **options}
            return self.program.executor.run(self.main, feed=feed, **options)

    def on(self) -> None:
        paddle_ngraph.enable()
        self._call(self._feed())

    def off(self) -> None:
        paddle_ngraph.disable()
        self._call(self._feed())

    def again(self) -> None:
        self._call(self._feed())

    def rows(self) -> None:
        self._call(self._feed(3))

    def odd_rows(self) -> None:
        self._call(self._feed(7))

    def empty(self) -> None:
        self._call(self._feed(0))

    def strided(self) -> None:
        self._call({name: np.asfortranarray(value) for name, value in self._feed(3).items()})

    def nested_list(self) -> None:
        self._call({name: value.tolist() for name, value in self._feed().items()})

    def wrong_dtype(self) -> None:
        self._call({name: value.astype("int32") for name, value in self._feed().items()})

    def unknown_feed(self) -> None:
        self._call({**self._feed(), "unknown": floats(1)})

    def level_of_detail(self) -> None:
        tensor = paddle.base.core.DenseTensor()
        tensor.set(floats(2, 4), paddle.CPUPlace())
        tensor.set_lod([[0, 1, 2]])
        self._call({"x": tensor}, return_numpy=False)

    def fewer_fetches(self) -> None:
        self._call(self._feed(), fetch_list=self.fetches[:1])

    def no_fetches(self) -> None:
        self._call(self._feed(), fetch_list=[])

    def fetch_by_name(self) -> None:
        self._call(self._feed(), fetch_list=[each.name for each in self.fetches])

    def tensors(self) -> None:
        self._call(self._feed(), return_numpy=False)

    def pruned(self) -> None:
        self._call(self._feed(), use_prune=True)

    def new_scope(self) -> None:
        self.scope = paddle.static.Scope()
        with paddle.static.scope_guard(self.scope), paddle_ngraph.use_ngraph(False):
            self.program.executor.run(self.program.startup)
        self._call(self._feed())

    def edited(self) -> None:
        with self._mode(), paddle.static.program_guard(self.main):
            paddle.scale(self.fetches[0], 2.0)
        self._call(self._feed())

    def new_executor(self) -> None:
        self.program.executor = paddle.static.Executor(paddle.CPUPlace())
        self._call(self._feed())

    def denied(self) -> None:
        """The function of the subgraph fails in this run."""
        paddle_ngraph.clear_cache()
        _core.fail_at("compile")
        try:
            self._call(self._feed())
        finally:
            _core.fail_at("")

    def profiled(self) -> None:
        self.program.executor.enable_job_schedule_profiler = True
        try:
            self._call(self._feed())
        finally:
            self.program.executor.enable_job_schedule_profiler = False

    def nan_checked(self) -> None:
        paddle.set_flags({"FLAGS_check_nan_inf": True})
        try:
            self._call(self._feed())
        finally:
            paddle.set_flags({"FLAGS_check_nan_inf": False})

    def other_thread(self) -> None:
        def run() -> None:
            paddle.enable_static()
            self.again()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def seventy_runs(self) -> None:
        """So many runs with small subgraphs that these are compiled."""
        for _ in range(70):
            self.again()

    def cost_model_on(self) -> None:
        paddle.set_flags({"FLAGS_ngraph_min_interval_us": 100})
        self.on()

    def many_rows(self) -> None:
        self._call(self._feed(1 << 16))

    def compiling_in_background(self) -> None:
        """A shape that is new, while Paddle may run the subgraph."""
        paddle.set_flags({"FLAGS_ngraph_background_compile": "1"})
        try:
            self._call(self._feed(5))
        finally:
            paddle.set_flags({"FLAGS_ngraph_background_compile": BACKGROUND_COMPILE})
            paddle_ngraph.wait_for_compiles()

    def closed(self) -> None:
        self.program.executor.close()
        self._call(self._feed())


BACKGROUND_COMPILE = paddle.get_flags("FLAGS_ngraph_background_compile")[
    "FLAGS_ngraph_background_compile"
]


# -- predictors --------------------------------------------------------------------------------


class PredictorSubject:
    """A saved model in a predictor."""

    def __init__(
        self, build: Callable[[], Any], folder: Path, form: str = "json", made_on: bool = True
    ) -> None:
        with paddle.pir_utils.OldIrGuard() if form == "pdmodel" else nullcontext():
            program = Program(build)
            x = program.main.global_block().var("x") if form == "pdmodel" else _data(program.main)
            with paddle.static.scope_guard(program.scope):
                save = (
                    paddle_ngraph.save_inference_model
                    if form == "engine"
                    else paddle.static.save_inference_model
                )
                arguments = [x], program.fetches, program.executor
                save(str(folder / "model"), *arguments, program=program.main)
        ending = "pdmodel" if form == "pdmodel" else "json"
        parameters = folder / "model.pdiparams"
        config = Config(
            str(folder / f"model.{ending}"), str(parameters) if parameters.exists() else ""
        )
        config.disable_glog_info()
        config.disable_onednn()
        paddle_ngraph.enable() if made_on else paddle_ngraph.disable()
        self.predictor = create_predictor(config)

    def _run(self, rows: int = 2) -> None:
        handle = self.predictor.get_input_handle("x")
        handle.reshape([rows, 4])
        handle.copy_from_cpu(floats(rows, 4))
        self.predictor.run()

    def on(self) -> None:
        paddle_ngraph.enable()
        self._run()

    def off(self) -> None:
        paddle_ngraph.disable()
        self._run()

    def again(self) -> None:
        self._run()

    def rows(self) -> None:
        self._run(3)

    def tensors(self) -> None:
        with dynamic_mode():
            self.predictor.run([paddle.to_tensor(floats(2, 4))])

    def cloned(self) -> None:
        self.original, self.predictor = self.predictor, self.predictor.clone()
        self._run()

    def nan_checked(self) -> None:
        paddle.set_flags({"FLAGS_check_nan_inf": True})
        try:
            self._run()
        finally:
            paddle.set_flags({"FLAGS_check_nan_inf": False})

    def hooked(self) -> None:
        self.predictor.register_output_hook(lambda *_: None)
        self._run()

    def other_thread(self) -> None:
        thread = threading.Thread(target=self._run)
        thread.start()
        thread.join()


def _data(main: Any) -> Any:
    return next(op for op in main.global_block().ops if op.name() == "pd_op.data").result(0)


# -- dynamic mode ------------------------------------------------------------------------------


class Network(nn.Layer):
    def __init__(self, is_partial: bool = False) -> None:
        super().__init__()
        self.linear, self._is_partial = nn.Linear(4, 3), is_partial

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.relu(self.linear(x)) * 2.0
        return paddle.erfinv(paddle.tanh(hidden)) + 1.0 if self._is_partial else hidden


class UnconvertedNetwork(nn.Layer):
    def forward(self, x: Any) -> Any:
        return paddle.erfinv(x)


class LayerSubject:
    """A layer in dynamic mode, by ``to_static``, ``jit.load`` or ``compile``."""

    def __init__(self, layer: nn.Layer, form: str, folder: Path) -> None:
        layer.eval()
        self.layer: Any = layer
        if form == "compiled":
            self.layer = paddle_ngraph.compile(layer)
        elif form != "plain":
            self.layer = paddle.jit.to_static(
                layer,
                full_graph=form != "sot",
                input_spec=None
                if form == "sot"
                else [paddle.static.InputSpec([None, 4], "float32", "x")],
            )
        if form == "loaded":
            paddle.jit.save(self.layer, str(folder / "layer"))
            self.layer = paddle.jit.load(str(folder / "layer"))
            self.layer.eval()

    def _run(self, rows: int = 2) -> None:
        with paddle.no_grad():
            self.layer(paddle.to_tensor(0.1 * floats(rows, 4))).numpy()

    def on(self) -> None:
        paddle_ngraph.enable()
        self._run()

    def off(self) -> None:
        paddle_ngraph.disable()
        self._run()

    def again(self) -> None:
        self._run()

    def rows(self) -> None:
        self._run(3)

    def empty(self) -> None:
        self._run(0)

    def training(self) -> None:
        """The forward and the backward pass of a step."""
        self.layer.train()
        self.layer(paddle.to_tensor(floats(2, 4))).sum().backward()
        self.layer.eval()

    def train_mode(self) -> None:
        self.layer.train()
        self._run()
        self.layer.eval()

    def nan_checked(self) -> None:
        paddle.set_flags({"FLAGS_check_nan_inf": True})
        try:
            self._run()
        finally:
            paddle.set_flags({"FLAGS_check_nan_inf": False})

    def denied(self) -> None:
        paddle_ngraph.clear_cache()
        _core.fail_at("compile")
        try:
            self._run()
        finally:
            _core.fail_at("")

    def other_thread(self) -> None:
        def run() -> None:
            paddle.disable_static()
            self._run()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


# -- the table ---------------------------------------------------------------------------------


def _row(steps: str, strategies: str, *subject: Any, **options: Any) -> Any:
    name = f"{subject[0].__name__}-{'-'.join(map(str, options.values()))}-{steps}"
    return pytest.param(subject, options, steps.split(), strategies.split(), id=name)


EXECUTOR_ROWS = [
    # The flag.
    _row("on again again", "whole cached cached", whole),
    _row("off again again", "paddle paddle paddle", whole),
    _row("off on again", "paddle whole cached", whole),
    _row("on off on", "whole paddle cached", whole),
    _row("on again off again on", "whole cached paddle paddle cached", whole),
    # Coverage: the whole program, a part, nothing.
    _row("on again again", "interpreter interpreter interpreter", partial),
    _row("off on off", "paddle interpreter paddle", partial),
    _row("on again again", "paddle paddle paddle", none),
    _row("on again", "interpreter interpreter", returned_feed),
    _row("on again off on", "whole cached paddle cached", stateful),
    _row("on again", "whole cached", stochastic),
    _row("on again", "whole cached", branch),
    # The call.
    _row("on rows again rows", "whole cached cached cached", whole),
    _row("on empty again", "whole paddle cached", whole),
    _row("empty on again", "paddle whole cached", whole),
    _row("on strided again", "whole whole cached", whole),
    _row("on nested_list again", "whole whole cached", whole),
    _row("on wrong_dtype again", "whole error cached", whole),
    _row("on unknown_feed again", "whole whole cached", whole),
    _row("on level_of_detail again", "whole whole cached", whole),
    _row("on fewer_fetches again", "whole whole cached", two_results),
    _row("on fewer_fetches fewer_fetches again", "whole whole cached cached", two_results),
    _row("on no_fetches again", "whole whole cached", whole),
    _row("on tensors tensors again", "whole whole whole cached", whole),
    _row("tensors on again", "paddle whole cached", whole),
    _row("on pruned again", "whole cached cached", whole),
    _row("on new_scope again", "whole whole cached", whole),
    _row("on edited again", "whole whole cached", whole),
    _row("on new_executor again", "whole whole cached", whole),
    _row("on closed", "whole error", whole),
    # Observers of operators, profilers, threads.
    _row("on nan_checked again", "whole interpreter cached", whole),
    _row("on profiled again", "whole interpreter cached", whole),
    _row("on other_thread again", "whole cached cached", whole),
    _row("on other_thread again", "interpreter interpreter interpreter", partial),
    # Failures, the cost model, compilation in the background.
    _row("on denied again again", "whole cached paddle paddle", whole),
    _row("cost_model_on again", "paddle paddle", whole),
    _row("cost_model_on seventy_runs again", "paddle whole+cached cached", whole),
    _row("cost_model_on many_rows again", "paddle whole cached", whole),
    _row("on compiling_in_background again", "whole cached cached", whole),
    # ProgramDesc programs.
    _row("on again off on", "whole cached paddle cached", whole, legacy=True),
    _row("off on again", "paddle whole cached", whole, legacy=True),
    _row("on again", "interpreter interpreter", partial, legacy=True),
    _row("on again", "paddle paddle", none, legacy=True),
    _row("on level_of_detail again", "whole paddle cached", whole, legacy=True),
    _row("on empty again", "whole paddle cached", whole, legacy=True),
    _row("on fetch_by_name fetch_by_name", "whole cached cached", whole, legacy=True),
    _row("on edited again", "whole whole cached", whole, legacy=True),
    _row("on again off", "whole cached paddle", stateful, legacy=True),
    _row("on pruned again", "whole whole cached", whole, legacy=True),
    # The named strategies are those of the nested program, which is called from Python.
    _row("on again off", "whole cached paddle", calls_python, legacy=True),
    # Programs that contain engine operators already.
    _row("off again on off", "whole cached whole cached", whole, form="transpiled"),
    _row("off again on", "interpreter interpreter interpreter", partial, form="transpiled"),
    _row(
        "off tensors nan_checked again", "whole whole interpreter cached", whole, form="transpiled"
    ),
    # Plans.
    _row(
        "off again on on",
        "planned cached-planned planned cached-planned",
        two_towers,
        form="planned",
    ),
    _row("off strided again", "planned planned cached-planned", two_towers, form="planned"),
    _row("off nan_checked again", "planned interpreter cached-planned", two_towers, form="planned"),
    _row("off profiled again", "planned interpreter cached-planned", two_towers, form="planned"),
    _row("off tensors", "planned planned", two_towers, form="planned"),
    _row("on again off off", "planned cached-planned planned cached-planned", whole, form="sliced"),
    _row("off odd_rows again", "planned error cached-planned", whole, form="sliced"),
    _row("odd_rows off", "error planned", whole, form="sliced"),
]


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> Observer:
    return Observer(monkeypatch)


@pytest.fixture(autouse=True)
def two_cores() -> Iterator[None]:
    with cores_of_plans(2):
        yield


def _play(observer: Observer, subject: Any, steps: list[str]) -> list[str]:
    return [observer.strategy_of(getattr(subject, step)) for step in steps]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("subject", "options", "steps", "strategies"), EXECUTOR_ROWS)
@pytest.mark.usefixtures("nothing_cached")
def test_executor(
    observer: Observer,
    subject: tuple[Any, ...],
    options: dict[str, Any],
    steps: list[str],
    strategies: list[str],
) -> None:
    assert _play(observer, ExecutorSubject(*subject, **options), steps) == strategies


@pytest.mark.filterwarnings("ignore")
def test_executor_in_a_forked_child(observer: Observer) -> None:
    subject = ExecutorSubject(whole)
    assert _play(observer, subject, ["on", "again"]) == ["whole", "cached"]
    child = os.fork()
    if child == 0:
        os._exit(_play(observer, subject, ["again", "off", "on"]) != ["cached", "paddle", "cached"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PREDICTOR_ROWS = [
    _row("on again again", "interpreter whole whole", whole),
    _row("on off on off", "interpreter paddle whole paddle", whole),
    _row("off on again", "paddle interpreter whole", whole, made_on=False),
    _row("on rows again", "interpreter whole whole", whole),
    _row("on again", "interpreter interpreter", partial),
    _row("on again", "paddle paddle", none),
    _row("on tensors again", "interpreter interpreter whole", whole),
    _row("on cloned again", "interpreter interpreter whole", whole),
    _row("on again nan_checked again", "interpreter whole interpreter whole", whole),
    _row("on again hooked again", "interpreter whole paddle paddle", whole),
    _row("on again other_thread", "interpreter whole whole", whole),
    _row("on again off", "interpreter whole paddle", whole, form="pdmodel"),
    _row("on off again", "interpreter interpreter interpreter", whole, form="engine"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("subject", "options", "steps", "strategies"), PREDICTOR_ROWS)
def test_predictor(
    observer: Observer,
    tmp_path: Path,
    subject: tuple[Any, ...],
    options: dict[str, Any],
    steps: list[str],
    strategies: list[str],
) -> None:
    assert _play(observer, PredictorSubject(subject[0], tmp_path, **options), steps) == strategies


LAYER_ROWS = [
    _row("on again again", "whole whole whole", Network, form="static"),
    _row("off on off on", "paddle whole paddle whole", Network, form="static"),
    _row("on rows empty again", "whole whole paddle whole", Network, form="static"),
    _row("on training again", "whole interpreter whole", Network, form="static"),
    _row("training off training", "paddle paddle paddle", Network, form="static"),
    _row("on train_mode", "whole interpreter", Network, form="static"),
    _row("on nan_checked again", "whole interpreter whole", Network, form="static"),
    _row("on denied again again", "whole whole paddle paddle", Network, form="static"),
    _row("on other_thread again", "whole whole whole", Network, form="static"),
    _row("on again off", "whole whole paddle", Network, form="sot"),
    _row("on again off", "whole whole paddle", Network, form="loaded"),
    _row("on again off", "interpreter interpreter paddle", Network, True, form="static"),
    _row("on again", "paddle paddle", UnconvertedNetwork, form="static"),
    _row("on again", "paddle paddle", Network, form="plain"),
    _row("on again off", "paddle whole whole", Network, form="compiled"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("subject", "options", "steps", "strategies"), LAYER_ROWS)
@pytest.mark.usefixtures("in_dynamic_mode", "nothing_cached")
def test_layer(
    observer: Observer,
    tmp_path: Path,
    subject: tuple[Any, ...],
    options: dict[str, Any],
    steps: list[str],
    strategies: list[str],
) -> None:
    build, *arguments = subject
    layer = LayerSubject(build(*arguments), options["form"], tmp_path)
    assert _play(observer, layer, steps) == strategies
    denylist.clear()


def test_dispatch_stops_at_the_first_strategy_that_handles_a_run() -> None:
    tried: list[int] = []

    def strategy(index: int) -> Callable[[str], Any]:
        def run(name: str) -> Any:
            tried.append(index)
            return dispatcher.NOT_HANDLED if index == 0 else None

        return run

    assert dispatcher.dispatch(map(strategy, range(3)), "a run") is None
    assert tried == [0, 1]


@pytest.mark.parametrize("legacy", [False, True], ids=["PIR", "ProgramDesc"])
def test_a_run_has_the_flag_of_its_call(
    observer: Observer, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    """Another thread may change the flag after the feeds were copied in the format of one value."""
    subject = ExecutorSubject(whole, legacy=legacy)
    run = SwitchedExecutor.run

    def switched_off(self: SwitchedExecutor, *args: Any) -> Any:
        paddle_ngraph.disable()
        return run(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(SwitchedExecutor, "run", switched_off)
        assert observer.strategy_of(subject.on) == "whole"
    assert observer.strategy_of(subject.again) == "paddle"
