"""Events of runs by Paddle as a whole: each reason is provoked exactly n times in each frontend."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import inference, nn

import paddle_ngraph
from paddle_ngraph import _core, flags, statistics
from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
from paddle_ngraph.frontends.dynamic import tuning_policy
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from paddle_ngraph.frontends.predictor import switch as predictor_switch
from paddle_ngraph.frontends.predictor.model import Model
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.partitioning import last_runs, program_pass
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.lru_cache import LRUCache
from tests.core.test_events import assert_sums
from tests.dynamic import dynamic_mode, set_policy
from tests.frontends.predictor import test_hook as models
from tests.programs import Program, at_once, chain, floats, with_a_block_as_attribute

pytestmark = pytest.mark.usefixtures("small_intervals_pay")


class Life(NamedTuple):
    """The surroundings of a scenario.

    Attributes:
        n: How often it has to provoke its reason.
        patch, folder: As pytest gives them.
    """

    n: int
    patch: pytest.MonkeyPatch
    folder: Path


Scenario = Callable[[Life], Any]
SCENARIOS: dict[str, Scenario] = {}


def provokes(reason: _core.Reason) -> Callable[[Scenario], Scenario]:
    """Decorates a scenario, whose name begins with that of a frontend."""

    def add(scenario: Scenario) -> Scenario:
        SCENARIOS[f"{statistics.REASONS[int(reason)].name}: {scenario.__name__}"] = scenario
        return scenario

    return add


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    paddle_ngraph.clear_cache()
    flags.set("ngraph_background_compile", "0")
    yield
    dynamic_hook.switch(False)
    paddle_ngraph.clear_cache()


# -- Executor --------------------------------------------------------------------------------------


def legacy(build: Callable[[], Any]) -> Program:
    with paddle.pir_utils.OldIrGuard():
        return Program(build)


def dense() -> Any:
    return paddle.static.nn.fc(paddle.static.data("x", [-1, 4], "float32"), 3)


def cannot_be_converted() -> Any:
    return paddle.erfinv(paddle.static.data("x", [-1, 4], "float32"))


@provokes(_core.Reason.NOT_CONVERTIBLE)
def executor_of_unknown_operators(life: Life) -> Program:
    program = Program(cannot_be_converted)
    for _ in range(life.n):
        program.run(x=np.clip(floats(3, 4), -0.9, 0.9))
    return program


@provokes(_core.Reason.COST_RULE)
def executor_of_small_programs(life: Life) -> Program:
    flags.set("ngraph_min_interval_us", 10**6)
    program = Program(chain)
    for _ in range(life.n):
        program.run(x=floats(3, 4))
    return program


@provokes(_core.Reason.EMPTY_FEED)
def executor_of_empty_feeds(life: Life) -> Program:
    program = Program(chain)
    program.run(x=floats(3, 4))
    for _ in range(life.n):
        program.run(x=floats(0, 4))
    return program


@provokes(_core.Reason.LOD_FEED)
def executor_of_lod_feeds(life: Life) -> Program:
    program = legacy(dense)
    with paddle.pir_utils.OldIrGuard():
        for _ in range(life.n):
            x = paddle.base.create_lod_tensor(floats(3, 4), [[1, 2]], paddle.CPUPlace())
            with paddle.static.scope_guard(program.scope), paddle_ngraph.use_ngraph():
                program.executor.run(
                    program.main, {"x": x}, fetch_list=program.fetches, return_numpy=False
                )
    return program


@provokes(_core.Reason.MISSING_VARIABLE)
def executor_of_missing_feeds(life: Life) -> Program:
    program = legacy(dense)
    with paddle.pir_utils.OldIrGuard():
        program.run(x=floats(3, 4))
        for _ in range(life.n):
            with pytest.raises((RuntimeError, ValueError, OSError)):
                program.run()
    return program


@provokes(_core.Reason.UNTRANSLATABLE)
def executor_of_damaged_programs(life: Life) -> Program:
    def build() -> Any:
        return with_a_block_as_attribute(paddle.static.data("x", [3, 4], "float32"))

    program = legacy(build)
    with paddle.pir_utils.OldIrGuard():
        for _ in range(life.n):
            program.run(x=floats(3, 4))
    return program


# -- predictors ------------------------------------------------------------------------------------


def predicted(life: Life, config: Any, feed: dict[str, np.ndarray]) -> Any:
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config)
    for _ in range(life.n):
        models.predict(predictor, feed)
    return config


@provokes(_core.Reason.CONFIGURATION)
def predictor_of_another_backend(life: Life) -> Any:
    config = models.config_of(models.save(life.folder, models.convnet))
    config.enable_mkldnn_bfloat16()
    return predicted(life, config, models.images())


@provokes(_core.Reason.SAMPLES)
def predictor_of_random_numbers(life: Life) -> Any:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 6], "float32")
        first = paddle.tanh(x) + paddle.uniform([1], min=0.0, max=1.0)
        # Paddle's predictors may run two subgraphs in any order.
        return [x], [paddle.exp(paddle.unique(first)) + paddle.randn([1])]

    return predicted(life, models.config_of(models.save(life.folder, build)), models.rows())


@provokes(_core.Reason.WRITES_PARAMETERS)
def predictor_of_a_counter(life: Life) -> Any:
    files = models.save(life.folder, models.plus_parameter)
    models.count_runs(files)
    return predicted(life, models.config_of(files), models.rows())


@provokes(_core.Reason.ONEDNN)
def predictor_of_single_operators(life: Life) -> Any:
    # Otherwise some of the runs measure the engine.
    life.patch.setattr(Model, "may_measure", lambda self: False)
    build = models.shaken(pieces=5, depth=1)
    return predicted(life, models.config_of(models.save(life.folder, build)), models.rows())


@provokes(_core.Reason.COST_RULE)
def predictor_of_small_programs(life: Life) -> Any:
    flags.set("ngraph_min_interval_us", 10**6)
    files = models.save(life.folder, models.convnet)
    return predicted(life, models.config_of(files), models.images())


@provokes(_core.Reason.NOT_CONVERTIBLE)
def predictor_of_unknown_operators(life: Life) -> Any:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 6], "float32")
        return [x], [paddle.erfinv(x)]

    return predicted(life, models.config_of(models.save(life.folder, build)), models.rows())


@provokes(_core.Reason.NOT_REWRITTEN)
def predictor_whose_pass_fails(life: Life) -> Any:
    config = models.config_of(models.save(life.folder, models.convnet))

    def fail(_: Any) -> None:
        raise RuntimeError("the pass fails")

    life.patch.setattr(Model, "_engine_config", fail)
    return predicted(life, config, models.images())


@provokes(_core.Reason.HOOKS)
def predictor_with_hooks(life: Life) -> Any:
    config = models.config_of(models.save(life.folder, models.convnet))
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config)
    predictor.register_output_hook(lambda op, name, tensor: None)
    for _ in range(life.n):
        models.predict(predictor, models.images())
    return config


@provokes(_core.Reason.FILES_CHANGED)
def predictor_of_changed_files(life: Life) -> Any:
    files = models.save(life.folder, models.convnet)
    config = models.config_of(files)
    predictor = inference.create_predictor(config)
    models.cut(files[1], 0.5)
    paddle_ngraph.enable()
    with pytest.warns(UserWarning, match="have changed since"):
        for _ in range(life.n):
            models.predict(predictor, models.images())


@provokes(_core.Reason.ENGINE_FAILED)
def predictor_whose_engine_fails(life: Life) -> Any:
    config = models.config_of(models.save(life.folder, models.convnet))
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config)

    def fail(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    life.patch.setattr(predictor_switch, "run_engine", fail)
    with pytest.warns(UserWarning, match="no such instruction"):
        for _ in range(life.n):
            models.predict(predictor, models.images())
    return config


# -- to_static -------------------------------------------------------------------------------------


class Tanh(nn.Layer):
    def forward(self, x: Any) -> Any:
        return paddle.tanh(x) * 2.0


class Erfinv(nn.Layer):
    def forward(self, x: Any) -> Any:
        return paddle.erfinv(x)


def static(life: Life, layer: Any, *sizes: int) -> Any:
    spec = [paddle.static.InputSpec([None, 4], "float32")]
    made = paddle.jit.to_static(layer.eval(), input_spec=spec, full_graph=True)
    paddle_ngraph.enable()
    for size in sizes:
        made(paddle.to_tensor(np.clip(floats(size, 4), -0.9, 0.9)))
    paddle_ngraph.disable()
    return made


@provokes(_core.Reason.EMPTY_FEED)
def to_static_of_empty_inputs(life: Life) -> Any:
    return static(life, Tanh(), *[0] * life.n)


@provokes(_core.Reason.NOT_CONVERTIBLE)
def to_static_of_unknown_operators(life: Life) -> Any:
    return static(life, Erfinv(), *[3] * life.n)


@provokes(_core.Reason.COST_RULE)
def to_static_of_small_programs(life: Life) -> Any:
    flags.set("ngraph_min_interval_us", 10**6)
    return static(life, Tanh(), *[3] * life.n)


@provokes(_core.Reason.NOT_REWRITTEN)
def to_static_whose_pass_fails(life: Life) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the pass fails")

    life.patch.setattr(program_pass, "apply", fail)
    static(life, Tanh(), *[3] * life.n)


@provokes(_core.Reason.CONFIGURATION)
def to_static_of_another_backend(life: Life) -> None:
    life.patch.setattr(to_static_hook, "_fallback_reason", lambda _: "it is compiled by CINN")
    static(life, Tanh(), *[3] * life.n)


# -- captured functions ----------------------------------------------------------------------------


def x_of(gradient: bool = False) -> Any:
    return paddle.to_tensor(floats(3, 4), stop_gradient=not gradient)


def captured(life: Life, function: Callable[..., Any], gradient: bool = False) -> Any:
    """A compiled function after n calls and a first one, which records the trace."""
    compiled = paddle_ngraph.compile(function)
    for _ in range(life.n + 1):
        compiled(x_of(gradient))
    return compiled


@provokes(_core.Reason.GUARD)
def capture_of_new_constants(life: Life) -> Any:
    """Slopes, which open traces do not take as inputs."""
    compiled = paddle_ngraph.compile(lambda x, slope: F.leaky_relu(paddle.tanh(x), slope))
    for number in range(life.n):
        compiled(x_of(), number + 0.5)
    return compiled


@provokes(_core.Reason.NEW_RESULTS)
def capture_of_new_results(life: Life) -> Any:
    held = []

    def function(x: Any, number: int) -> Any:
        for index in range(life.n):
            x = paddle.tanh(x)
            if index == number:
                held.append(x)
        return paddle.exp(x)

    compiled = paddle_ngraph.compile(function)
    for number in (-1, -1, *range(life.n)):
        compiled(x_of(), number)
    return compiled


@provokes(_core.Reason.NO_GRAPH)
def capture_whose_build_fails(life: Life) -> Any:
    def fail(_: Any) -> None:
        raise RuntimeError("no program")

    life.patch.setattr(trace_graph.TraceStage, "_build", fail)
    return captured(life, paddle.tanh)


@provokes(_core.Reason.SIGNAL)
def capture_whose_build_is_abandoned(life: Life) -> Any:
    def abandon(_: Any) -> None:
        raise signals.Abandoned

    life.patch.setattr(trace_graph.TraceStage, "_build", abandon)
    return captured(life, paddle.tanh)


@provokes(_core.Reason.OTHER_THREAD)
def capture_while_another_thread_trains(life: Life) -> Any:
    life.patch.setattr(trace_graph, "_may_train", lambda: False)
    return captured(life, paddle.tanh, gradient=True)


@provokes(_core.Reason.SHARED_MEMORY)
def capture_of_shared_statistics(life: Life) -> Any:
    life.patch.setattr(trace_graph.TraceGraph, "_has_aliased_statistics", lambda *_: True)
    return captured(life, nn.BatchNorm1D(4).forward)


@provokes(_core.Reason.NOT_CAPTURED)
def capture_under_hooks_of_saved_tensors(life: Life) -> Any:
    compiled = paddle_ngraph.compile(paddle.tanh)
    with paddle.autograd.saved_tensors_hooks(lambda x: x, lambda x: x):
        for _ in range(life.n):
            compiled(x_of())
    return compiled


@provokes(_core.Reason.OPERATOR_CHECKS)
def capture_while_paddle_checks(life: Life) -> None:
    compiled = paddle_ngraph.compile(paddle.tanh)
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        for _ in range(life.n):
            compiled(x_of())
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})


# -- layers of dynamic mode ------------------------------------------------------------------------


# Of a layer, before it is tried, and until it is decided.
NATIVE_CALLS, CAPTURED_CALLS = 5, 7


def called(layer: Any, count: int, training: bool = False) -> Any:
    paddle_ngraph.enable(dynamic="training" if training else True)
    with contextlib.nullcontext() if training else paddle.no_grad():
        for _ in range(count):
            layer(x_of(training))
    return layer


@provokes(_core.Reason.TIMING)
def dynamic_while_paddle_is_timed(life: Life) -> Any:
    choice = replace(tuning_policy.POLICY.choice, pairs=100, burst=100)
    set_policy(life.patch, choice=choice)
    return called(Tanh(), life.n)


@provokes(_core.Reason.BUDGET)
def dynamic_without_budget(life: Life) -> Any:
    flags.set("ngraph_tuning_ms", 0)
    set_policy(life.patch, native_share=-1.0)
    return called(Tanh(), NATIVE_CALLS + life.n)


@provokes(_core.Reason.SLOWER)
def dynamic_that_is_slower_compiled(life: Life) -> Any:
    choice = replace(tuning_policy.POLICY.choice, min_gain=float("inf"))
    set_policy(life.patch, choice=choice)
    layer = called(Tanh(), NATIVE_CALLS + CAPTURED_CALLS)
    assert "slower" not in paddle_ngraph.stats()["native"]
    return called(layer, life.n)


@provokes(_core.Reason.INNER_LAYERS)
def dynamic_whose_inner_layers_are_tuned(life: Life) -> Any:
    layer = called(nn.Sequential(Tanh()), 1)
    vars(layer)[dynamic_hook._TUNER_ATTRIBUTE].latest._give_up("a test")
    return called(layer, life.n)


@provokes(_core.Reason.IN_BACKWARD)
def dynamic_in_a_backward_pass(life: Life) -> None:
    """Only the outermost layer counts."""
    life.patch.setattr(gradients._backward, "depth", 1)
    called(nn.Sequential(Tanh(), Tanh()), life.n, training=True)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_reason_is_counted_as_often_as_it_occurs(scenario, seed, monkeypatch, tmp_path):
    reason = scenario.partition(":")[0]
    n = int(np.random.default_rng([seed, *map(ord, scenario)]).integers(1, 6))
    is_dynamic = re.search("to_static|capture|dynamic", SCENARIOS[scenario].__name__)
    with dynamic_mode() if is_dynamic else contextlib.nullcontext():
        paddle_ngraph.reset_stats()
        explained = SCENARIOS[scenario](Life(n, monkeypatch, tmp_path))
        found = Counter(each.reason for each in paddle_ngraph.events())
        assert found[reason] == n, found
        assert_sums()
        if explained is None:
            return
        target = explained.main if isinstance(explained, Program) else explained
        text = str(paddle_ngraph.explain(target))
    sentence = next(each.sentence for each in statistics.REASONS if each.name == reason)
    assert f"{n} native ({sentence})" in text


def test_every_reason_of_whole_runs_is_tested():
    known = {each.name for each in statistics.REASONS if not each.is_of_subgraph}
    assert known == {name.partition(":")[0] for name in SCENARIOS}


def test_explain_shows_the_last_runs():
    """Before the counters were events, 100 % ran through nGraph where every run was native."""
    program = Program(chain)
    assert "(100.0%) run through nGraph" in str(paddle_ngraph.explain(program.main))
    program.run(x=floats(0, 4))
    _core.fail_at("data")
    program.run(x=floats(3, 4))
    _core.fail_at("")
    text = str(paddle_ngraph.explain(program.main))
    assert "(100.0%) could run through nGraph" in text
    assert "\nLast runs: 1 native (an input was empty).\nLatest: empty_feed " in text
    assert "\n    Last runs: 1 native (an input had no data, a LoD or an undeclared dtype)." in text
    program.run(x=floats(3, 4))
    text = str(paddle_ngraph.explain(program.main))
    assert "(100.0%) run through nGraph" in text and "Last runs: 1 engine, 1 native (an" in text
    (interval,) = paddle_ngraph.explain(program.main).intervals
    assert [run.reason for run in interval.last_runs.runs] == ["input", "engine"]
    assert [function.reason for function in interval.last_runs.functions] == ["built"]


def test_no_event_without_the_flag(tmp_path):
    program = Program(cannot_be_converted)
    paddle_ngraph.reset_stats()
    program.run(engine=False, x=floats(3, 4) * 0)
    with dynamic_mode():
        Tanh()(x_of())
        paddle.jit.to_static(Tanh(), full_graph=True)(x_of())
    predictor = inference.create_predictor(models.config_of(models.save(tmp_path, models.convnet)))
    models.predict(predictor, models.images())
    assert paddle_ngraph.events() == []


def test_programs_run_natively_in_8_threads():
    each = [int(count) for count in np.random.default_rng().integers(1, 20, 8)]
    programs = [Program(chain) for _ in each]
    paddle_ngraph.enable()
    paddle_ngraph.reset_stats()

    def work(thread: int) -> None:
        for _ in range(each[thread]):
            programs[thread].run_as_is(x=floats(0, 4))
            programs[thread].run_as_is(x=floats(3, 4))

    at_once(work, 8)
    stats = paddle_ngraph.stats()
    assert stats["native"] == {"empty_feed": sum(each)} and stats["engine_runs"] == sum(each)
    assert_sums()


def test_programs_that_differ_in_an_attribute_or_a_shape_have_separate_runs() -> None:
    flags.set("ngraph_min_interval_us", 10**6)

    def scaled(by: float, size: int) -> Program:
        return Program(lambda: paddle.scale(paddle.static.data("x", [3, size], "float32"), by))

    ran, *others = programs = [scaled(2.0, 4), scaled(3.0, 4), scaled(2.0, 5)]
    ran.run(x=floats(3, 4))
    reports = [str(paddle_ngraph.explain(program.main)) for program in programs]
    assert ["Last runs: 1 native" in report for report in reports] == [True, False, False]
    others[0].run(x=floats(3, 4))
    assert "Last runs: 1 native" in str(paddle_ngraph.explain(others[0].main))


def test_reports_know_more_subgraphs_than_the_cache_of_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(last_runs, "_keys", LRUCache(1))
    programs = [
        Program(lambda by=by: paddle.tanh(paddle.static.data("x", [3, 4], "float32")) * by)
        for by in (2.0, 3.0, 4.0)
    ]
    for program in programs:
        program.run(x=floats(3, 4))
    for program in programs:
        (interval,) = paddle_ngraph.explain(program.main).intervals
        assert interval.last_runs.count("engine") == 1
