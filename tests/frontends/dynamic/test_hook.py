"""``enable(dynamic=...)``: plain layers are compiled if that is faster; results match eager
mode.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache

import paddle_ngraph
from paddle_ngraph.frontends.dynamic import autotuner, tuning_policy
from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
from paddle_ngraph.frontends.dynamic.lazy import capture, trace_graph
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils import clock
from tests.clocks import Clock, TunerClock
from tests.dynamic import (
    Encoder,
    agree,
    dynamic_mode,
    floats,
    gradients,
    inputs,
    labels,
    lenet,
    lstm,
    made,
    mlp,
    set_policy,
    trained,
    values,
)
from tests.frontends.dynamic.lazy.test_captured_sizes import LanguageModel, generated
from tests.frontends.dynamic.test_compiled_layer import (
    ACTS,
    Notes,
    counts,
    hooks_a_tensor,
    in_threads,
    samples,
)

pytestmark = pytest.mark.usefixtures("little_to_collect")


# Native calls until the first captured one, and captured ones until the decision.
NATIVE, CAPTURED = 5, 7


@pytest.fixture(autouse=True)
def dynamic(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(autotuner, "_slot", autotuner._Slot())
    with dynamic_mode():
        yield
    dynamic_hook.switch(False)


@pytest.fixture
def always_pays(monkeypatch) -> Iterator[None]:
    with clock.overridden(TunerClock(monkeypatch, 0.1)):
        yield


@pytest.fixture
def never_pays(monkeypatch) -> Iterator[None]:
    with clock.overridden(TunerClock(monkeypatch, 10.0)):
        yield


def both(scenario: Callable[[], Any], runs: int = 1, dynamic: Any = True, **tolerances: Any) -> Any:
    """Runs a scenario eagerly, then with dynamic layers compiled; the engine has to run."""
    paddle.seed(11)
    expected = scenario()
    before = paddle_ngraph.stats()["engine_runs"]
    paddle_ngraph.enable(dynamic=dynamic)
    paddle.seed(11)
    results = scenario()
    paddle_ngraph.disable()
    counted = paddle_ngraph.stats()["engine_runs"] - before
    assert counted >= runs, f"the engine ran {counted} times"
    agree(results, expected, **tolerances)
    return results


def asked(layer: Any, build: Any = mlp, count: int = 14) -> list[Any]:
    with paddle.no_grad():
        return [layer(inputs(build, number)) for number in range(count)]


@pytest.mark.slow("compiles many or large functions")
def test_a_break_in_paddles_layer_is_reported_at_its_call(always_pays):
    class Drawing(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(20, 20), nn.RReLU()

        def forward(self, x: Any) -> Any:
            return self.linear(self.act(self.linear(x)))

    layer = Drawing()
    paddle_ngraph.enable(dynamic=True)
    asked(layer)
    paddle_ngraph.disable()
    (reason,) = paddle_ngraph.explain(layer).breaks
    assert "test_hook.py, line" in reason


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("build", [mlp, lenet, Encoder, lstm], ids=lambda build: build.__name__)
def test_inference_follows_the_native_layer(build, always_pays):
    def scenario():
        layer = made(build)
        answers = []
        for _ in range(3):  # weights change in between
            layer.train()
            losses = trained(layer, build, 2)
            layer.eval()
            answers += [losses, asked(layer, build)]
        return values(layer), answers

    both(scenario, runs=30)


def test_training_falls_back(always_pays):
    def scenario():
        layer = made(mlp)
        x = inputs(mlp)
        x.stop_gradient = False
        found = trained(layer, mlp, 14)
        for _ in range(14):  # unsupported in a graph
            y = layer(x)
            (gradient,) = paddle.grad(y.sum(), x, create_graph=True)
            (gradient.square().sum() + y.sum()).backward(retain_graph=True)
            y.mean().backward()
            found += [y, gradient, gradients(layer), x.grad]
        before = paddle_ngraph.stats()["engine_runs"]
        assert before == 0
        return [found, asked(layer)]

    both(scenario, runs=8)


def test_gradients_that_are_turned_on_inside(always_pays):
    class Inner(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return F.tanh(self.linear(x)) * 2.5

    class Outer(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.gradients = Inner(), []

        def forward(self, x: Any) -> Any:
            with paddle.enable_grad():
                y = self.inner(x)
                self.gradients.append(paddle.grad(y.sum(), self.inner.linear.weight)[0])
            return F.relu(self.inner(x)) + y.detach()

    def scenario():
        layer = made(Outer)
        with paddle.no_grad():
            return [[layer(floats(3, 4, seed=number)) for number in range(14)], layer.gradients]

    both(scenario, runs=5)


@pytest.mark.parametrize(
    "act", [act for act in ACTS if act is not hooks_a_tensor], ids=lambda act: act.__name__
)
def test_side_effects_run_once(act, always_pays):
    def scenario():
        layer = made(lambda: Notes(act))
        found = []
        for number in range(10):
            with paddle.no_grad():
                result = layer(floats(3, 4, seed=number))
            found += [result, values(layer), layer.calls]
        notes = [each for each in layer.notes if not isinstance(each, str)]
        return [found, notes, len(layer.notes), paddle.rand([3])]

    if act is samples:
        pytest.skip("the numbers of random and numpy.random are no one's to seed here")
    # What counts its calls computes with another number in each.
    both(scenario, runs=0 if act is counts else 2)


def test_model_fit(always_pays):
    def scenario():
        model = paddle.Model(made(mlp))
        optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
        model.prepare(optimizer, nn.CrossEntropyLoss())
        data = [(inputs(mlp, n, 8).numpy(), labels(n, 8).numpy()[:, None]) for n in range(10)]
        losses = [model.train_batch([x], [y]) for x, y in data]
        answers = [model.predict_batch([data[0][0]])[0] for _ in range(10)]
        return [loss[0] for loss in losses] + answers

    both(scenario, runs=3)


def test_generation_token_by_token(always_pays):
    def scenario():
        writer = made(LanguageModel).eval()
        with paddle.no_grad():
            return [generated(writer, 2, 16) for _ in range(8)]

    before = paddle_ngraph.stats()["functions_built"]
    both(scenario, runs=40)
    assert paddle_ngraph.stats()["functions_built"] - before <= 4


def test_sub_layers_called_from_outside(always_pays):
    def scenario():
        layer = made(mlp)
        found = []
        with paddle.no_grad():
            for number in range(10):
                x = inputs(mlp, number)
                found += [layer(x), layer[2](layer[1](layer[0](x)))]
        return found

    both(scenario, runs=4)


def test_data_parallel(always_pays):
    def scenario():
        layer = paddle.DataParallel(made(mlp))
        return [trained(layer, mlp, 4), values(layer), asked(layer)]

    both(scenario, runs=2)


# -- training ------------------------------------------------------------------------------------


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("build", [mlp, lenet, Encoder, lstm], ids=lambda build: build.__name__)
def test_training_follows_the_native_layer(build, always_pays):
    def scenario():
        layer = made(build)
        answers = []
        for _ in range(2):
            layer.train()
            losses = trained(layer, build, 14)
            layer.eval()
            answers += [losses, asked(layer, build, 6)]
        return [values(layer), answers]

    both(scenario, runs=40, dynamic="training", rtol=1e-3, atol=1e-4)


class Pair(nn.Layer):
    """A generator and a discriminator, which train each other; the whole is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 20))
        self.discriminator = nn.Sequential(nn.Linear(20, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))

    def step(self, number: int) -> list[Any]:
        parts = self.generator, self.discriminator
        one, other = (paddle.optimizer.SGD(0.05, parameters=part.parameters()) for part in parts)
        noise = floats(8, 6, seed=number)
        real = self.discriminator(floats(8, 20, seed=number))
        fake = self.discriminator(self.generator(noise).detach())
        apart = F.softplus(-real).mean() + F.softplus(fake).mean()
        apart.backward()
        other.step()
        self.clear_gradients()
        fooled = F.softplus(-self.discriminator(self.generator(noise))).mean()
        fooled.backward()
        one.step()
        self.clear_gradients()
        return [apart, fooled]


@pytest.mark.slow("trains through many compiles")
def test_layers_that_train_each_other(always_pays):
    def scenario():
        pair = made(Pair)
        pairs.append(pair)
        return [[pair.step(number) for number in range(30)], values(pair)]

    pairs: list[Any] = []
    both(scenario, runs=30, dynamic="training")
    for layer in (pairs[-1].generator, pairs[-1].discriminator):
        assert paddle_ngraph.explain(layer).graphs


def test_batches_of_several_sizes_train(always_pays):
    """The last batch of an epoch is a smaller one, and one layer is called for two losses."""

    def scenario():
        layer = made(mlp)
        optimizer = paddle.optimizer.Adam(0.01, parameters=layer.parameters())
        losses = []
        for step in range(40):
            size = 5 if step % 4 == 3 else 8
            loss = F.cross_entropy(layer(inputs(mlp, step, size)), labels(step, size))
            (loss + layer(inputs(mlp, step + 100, size)).square().mean()).backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(loss)
        return [losses, values(layer)]

    both(scenario, runs=60, dynamic="training")


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_side_effects_of_training_run_once(act, always_pays):
    def scenario():
        layer = made(lambda: Notes(act))
        found = []
        for number in range(16):
            result = layer(floats(3, 4, seed=number))
            found += [result, values(layer), layer.calls]
            if not result.stop_gradient:
                result.sum().backward()
            found.append(gradients(layer))
        notes = [each for each in layer.notes if not isinstance(each, str)]
        return [found, notes, len(layer.notes), paddle.rand([3])]

    if act is samples:
        pytest.skip("the numbers of random and numpy.random are no one's to seed here")
    both(scenario, runs=0 if act is counts else 2, dynamic="training")


def test_backward_passes_that_are_repeated(always_pays):
    def scenario():
        layer, found = made(mlp), []
        for number in range(20):
            y = layer(inputs(mlp, number))
            y.mean().backward(retain_graph=True)
            y.square().sum().backward()
            found += [y, gradients(layer)]
            layer.clear_gradients()
        return found

    both(scenario, runs=40, dynamic="training")


def test_calls_in_a_backward_pass_fall_back(always_pays):
    """A call in the backward pass may be a recomputation; the first call is the traced one."""

    def scenario():
        layer, found = made(mlp), []
        for number in range(20):
            x = inputs(mlp, number)
            x.stop_gradient = False
            y = recompute(layer, x, use_reentrant=number % 2 == 0)
            y.square().mean().backward()
            found += [y, x.grad, gradients(layer)]
        return found

    both(scenario, runs=0, dynamic="training")


class Timed(Clock):
    """Sets the seconds that forward and backward passes of a layer take."""

    def __init__(self, monkeypatch: Any) -> None:
        super().__init__()
        self.forward = {False: 1.0, True: 1.0}  # by whether it is captured
        self.backward = dict(self.forward)
        self._is_captured = False
        self._run = capture.TraceCache.run
        monkeypatch.setattr(capture.TraceCache, "run", lambda *given: self._captured(*given))

    def _captured(self, captures: Any, function: Any, args: Any, kwargs: Any) -> Any:
        self._is_captured = True
        return self._run(captures, function, args, kwargs)

    def step(self, layer: Any, x: Any) -> bool:
        """Whether the call was captured."""
        self._is_captured = False
        hook = layer.register_forward_post_hook(lambda *_: self._take(self.forward))
        y = layer(x)
        hook.remove()
        y.register_hook(lambda gradient: self._take(self.backward))
        y.sum().backward()
        return self._is_captured

    def _take(self, seconds: dict[bool, float]) -> None:
        self.now += seconds[self._is_captured]


@pytest.fixture
def timed(monkeypatch) -> Iterator[Timed]:
    made = Timed(monkeypatch)
    with clock.overridden(made):
        yield made


@pytest.mark.parametrize(
    ("forward", "backward", "pays"), [(1.5, 0.1, True), (0.1, 2.5, False), (0.9, 0.9, True)]
)
def test_the_backward_pass_counts(forward, backward, pays, timed):
    layer = made(mlp)
    timed.forward[True], timed.backward[True] = forward, backward
    paddle_ngraph.enable(dynamic="training")
    captured = [timed.step(layer, inputs(mlp, number)) for number in range(30)]
    assert any(captured) and captured[-10:] == [pays] * 10
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_batches_of_several_lengths_are_tried_side_by_side(timed):
    """As long as their longest texts: each length takes as many calls as it would alone."""
    layer = made(mlp)
    timed.forward[True] = 0.5
    paddle_ngraph.enable(dynamic="training")
    captured = [
        [timed.step(layer, inputs(mlp, number, size)) for size in (3, 5, 7, 8)]
        for number in range(15)
    ]
    assert captured[:NATIVE] == [[False] * 4] * NATIVE
    assert captured[NATIVE:] == [[True] * 4] * (15 - NATIVE)
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_a_build_that_is_too_expensive_delays_its_own_inputs_only(timed, monkeypatch):
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 10_000})
    layer = made(mlp)
    timed.forward[True] = 0.1
    paddle_ngraph.enable(dynamic="training")

    def captured(size: int, calls: int) -> list[bool]:
        return [timed.step(layer, inputs(mlp, number, size)) for number in range(calls)]

    assert captured(3, 9)[-2:] == [True] * 2, "not decided, but it has a graph"
    set_policy(monkeypatch, build_seconds_per_program=float("inf"))
    assert captured(4, 10)[-3:] == [False] * 3
    assert captured(3, 6) == [True] * 6
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_a_function_that_may_not_be_tried_delays_no_other(timed, monkeypatch):
    layer, other = made(mlp), made(mlp)
    paddle_ngraph.enable(dynamic="training")
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 10_000})
    set_policy(monkeypatch, build_seconds_per_program=float("inf"))
    [timed.step(layer, inputs(mlp, number)) for number in range(12)]
    set_policy(monkeypatch, build_seconds_per_program=0.0)
    assert any([timed.step(other, inputs(mlp, number)) for number in range(12)])
    assert paddle_ngraph.stats()["engine_runs"] > 0


@pytest.mark.slow("compiles many or large functions")
def test_a_layer_with_many_lengths_does_not_block_trials_of_others(timed):
    first, second = made(mlp), made(mlp)
    timed.forward[True] = 0.5
    paddle_ngraph.enable(dynamic="training")
    tried: list[bool] = []
    for number in range(110):  # no length comes often enough to be decided
        timed.step(first, inputs(mlp, number, 1 + number // 6))
        tried.append(timed.step(second, inputs(mlp, number)))
    assert tried[-20:] == [True] * 20
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_one_layer_is_tried_at_a_time(timed):
    """Backward passes that became faster are no merit of another layer."""
    first, second = made(mlp), made(mlp)
    timed.backward[True] = 0.1
    paddle_ngraph.enable(dynamic="training")
    tried: list[int] = []
    for number in range(60):
        x = inputs(mlp, number)
        for which, layer in enumerate((first, second)):
            timed.forward[True] = 0.5 if layer is first else 5.0
            if timed.step(layer, x):
                tried.append(which)
    settled = tried.index(1)
    assert tried[:settled].count(0) >= CAPTURED, "the first is decided before the second is tried"
    assert tried.count(1) == CAPTURED and tried[-5:] == [0] * 5
    assert paddle_ngraph.stats()["engine_runs"] > 0


@pytest.mark.parametrize("mode", [True, "training"])
@pytest.mark.parametrize("pays", ["always_pays", "never_pays"])
def test_in_a_job_no_choice_depends_on_times(mode, pays, request, monkeypatch):
    """The results are native, bit by bit, in all calls; a layer that is prepared by name is not."""
    request.getfixturevalue(pays)

    def scenario():
        layer = made(mlp)
        return [trained(layer, mlp, 12), values(layer), asked(layer)]

    expected = scenario()
    monkeypatch.setattr(background_compile._queue, "_pauses", {background_compile._queue})
    paddle_ngraph.enable(dynamic=mode)
    agree(scenario(), expected, rtol=0, atol=0)
    assert paddle_ngraph.stats()["engine_runs"] == 0
    with trace_graph.building_in_jobs(lambda operators: True):
        asked(paddle_ngraph.compile(made(mlp)))
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_unknown_modes_are_rejected():
    with pytest.raises(paddle_ngraph.NgraphError, match='"training"'):
        paddle_ngraph.enable(dynamic="everything")


# -- decisions -------------------------------------------------------------------------------------


def test_it_stays_native_where_that_is_faster(never_pays):
    layer = made(mlp)
    expected = asked(made(mlp), count=20)
    paddle_ngraph.enable(dynamic=True)
    agree(asked(layer, count=20), expected)
    runs = paddle_ngraph.stats()["engine_runs"]
    assert runs > 0, "it was tried"
    asked(layer, count=5)
    assert paddle_ngraph.stats()["engine_runs"] == runs
    report = paddle_ngraph.explain(layer)
    assert report.why_native and "ms natively" in str(report)


def test_one_kind_of_inputs_is_decided_alone(ticking, monkeypatch):
    """The clock of this test says that batches of 17 are faster natively, and others are not."""
    original = capture.TraceCache.run

    def run(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        ticking.now += 5.0 if args[1].shape[0] == 17 else -0.75  # beside the native 1.0
        return original(self, function, args, kwargs)

    def called(size: int) -> int:
        before = paddle_ngraph.stats()["engine_runs"]
        layer(inputs(mlp, 0, size))
        return paddle_ngraph.stats()["engine_runs"] - before

    monkeypatch.setattr(capture.TraceCache, "run", run)
    layer = made(mlp)
    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for _ in range(12):
            called(17), called(5)
        assert (called(17), called(5)) == (0, 1)


class Ticking(Clock):
    """A native call takes a second; one that is captured takes ``more``, too.

    Attributes:
        captured: How many were.
    """

    def __init__(self, monkeypatch: Any) -> None:
        super().__init__(tick=1.0)
        self.more, self.captured = 0.0, 0
        original = capture.TraceCache.run

        def run(captures: Any, function: Any, args: Any, kwargs: Any) -> Any:
            self.captured += 1
            self.now += self.more
            return original(captures, function, args, kwargs)

        monkeypatch.setattr(capture.TraceCache, "run", run)


@pytest.fixture
def ticking(monkeypatch) -> Iterator[Ticking]:
    made = Ticking(monkeypatch)
    with clock.overridden(made):
        yield made


@pytest.mark.parametrize(("more", "pays"), [(-0.06, True), (-0.04, False)])
def test_layers_that_are_five_percent_faster_are_compiled(more, pays, ticking):
    """By the clock of decisions."""
    ticking.more, layer, x = more, made(mlp).eval(), inputs(mlp)
    tuner = autotuner.Tuner(trains=False)

    def runs(count: int) -> int:
        before = paddle_ngraph.stats()["engine_runs"]
        for _ in range(count):
            agree(tuner.run(nn.Layer.__call__, (layer, x), {}), expected)
        return paddle_ngraph.stats()["engine_runs"] - before

    with paddle.no_grad():
        expected = layer(x)
        assert runs(NATIVE) == 0
        assert runs(CAPTURED) == CAPTURED - 1, "one is recorded"
        assert runs(3) == 3 * pays


SIZES = {
    "one": lambda number: 6,
    "two": lambda number: 5 + number % 2,
    "some": lambda number: 2 + number % 9,
    "growing": lambda number: 2 + number,
    "again and again": lambda number: 2 + number % 40,
}


@pytest.mark.parametrize("more", [0.5, 10.0])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_trying_takes_a_share_of_the_native_time(size, more, ticking, monkeypatch):
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 0})
    set_policy(monkeypatch, build_seconds_per_operator=1.0)
    ticking.more, layer = more, made(mlp)
    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for number in range(400):
            layer(inputs(mlp, number, size(number)))
            native = number + 1 - ticking.captured
            assert ticking.captured * more <= 0.1 * native + more
    assert ticking.captured > 0
    if more < 1.0:
        assert paddle_ngraph.stats()["engine_runs"] > 0


def test_graphs_are_made_when_there_was_time_for_it(ticking, monkeypatch):
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 1000})
    set_policy(monkeypatch, build_seconds_per_operator=2.0)
    layer = made(mlp)
    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for _ in range(20):
            layer(inputs(mlp))
        assert ticking.captured == 2, "a call was recorded, and a graph was put off"
        assert paddle_ngraph.stats()["engine_runs"] == 0
        assert "it has run for" in str(paddle_ngraph.explain(layer))
        for _ in range(100):
            layer(inputs(mlp))
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_captured_calls_that_are_not_decided_follow_each_other(ticking, monkeypatch):
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 0})
    choice = dataclasses.replace(tuning_policy.POLICY.choice, pairs=100, burst=100)
    set_policy(monkeypatch, build_seconds_per_operator=0.0, resume_seconds=5.0, choice=choice)
    ticking.more, layer, ways = 0.5, made(mlp), ""
    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for _ in range(400):
            before = ticking.captured
            layer(inputs(mlp))
            ways += "c" if ticking.captured > before else "n"
    _, *bursts = re.findall("c+", ways.rstrip("c"))
    assert len(bursts) > 2 and all(len(burst) >= 10 for burst in bursts), ways


@pytest.mark.parametrize("captured", [False, True])
def test_a_single_outlier_does_not_decide(captured, ticking):
    ticking.more, layer, calls = -0.5, made(mlp), itertools.count(1)
    outlier = NATIVE + CAPTURED if captured else NATIVE
    layer.register_forward_pre_hook(lambda *_: preempt(next(calls)))

    def preempt(number: int) -> None:
        ticking.now += {True: 100.0, False: -0.9}[captured] if number == outlier else 0.0

    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for _ in range(100):
            layer(inputs(mlp))
    assert ticking.captured == 100 - NATIVE


@pytest.mark.parametrize("pays", [True, False])
def test_kinds_that_come_seldom_are_decided_together(pays, ticking):
    ticking.more, layer = -0.75 if pays else 5.0, made(mlp)

    def called(*sizes: int) -> int:
        before = paddle_ngraph.stats()["engine_runs"]
        for size in sizes:
            layer(inputs(mlp, size, size))
        return paddle_ngraph.stats()["engine_runs"] - before

    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for _ in range(7):
            called(*range(9, 32))
        assert called(*range(9, 32)) == (23 if pays else 0)
        assert called(8, 33) == 0, "sizes of another bucket are decided alone"
    assert paddle_ngraph.stats()["functions_built"] <= 3


def test_a_layer_whose_operators_are_others_in_each_call_is_given_up():
    """The sub-layers are then the outermost."""

    class Renamed(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.factor = made(mlp), 0.5

        def forward(self, x: Any) -> Any:
            return F.elu(self.inner(x), self.factor)

    def scenario():
        layer, found = made(Renamed), []
        for number in range(70):
            layer.factor = 1.5 + number
            with paddle.no_grad():
                found.append(layer(inputs(mlp, number)))
        layers.append(layer)
        return found

    layers: list[Any] = []
    both(scenario, runs=5)
    assert "no two of its calls" in str(paddle_ngraph.explain(layers[-1]))


# -- switches, threads, copies -------------------------------------------------------------------


def test_the_switch_acts_at_the_next_call(always_pays):
    layer, x = made(mlp), inputs(mlp)

    def runs(count: int = 14) -> int:
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle.no_grad():
            for _ in range(count):
                layer(x)
        return paddle_ngraph.stats()["engine_runs"] - before

    assert runs() == 0
    paddle_ngraph.enable()
    assert runs() == 0, "plain layers only when asked for"
    paddle_ngraph.enable(dynamic=True)
    assert runs() > 0 and runs() == 14
    with paddle_ngraph.use_ngraph(False):
        assert runs() == 0
    assert runs() == 14
    paddle_ngraph.disable()
    assert runs() == 0


@pytest.mark.slow("runs several threads for a while")
def test_threads(always_pays):
    shared, native = made(mlp).eval(), made(mlp).eval()
    own = [made(mlp, number).eval() for number in range(8)]
    expected = [[asked(native), asked(made(mlp, number).eval())] for number in range(8)]
    paddle_ngraph.enable(dynamic=True)
    results = in_threads(lambda number: [asked(shared), asked(own[number])])
    agree(results, expected)
    # How many of these are native depends on when a thread is alone to make a graph.
    agree([asked(shared), asked(own[7])], expected[7])
    before = paddle_ngraph.stats()["engine_runs"]
    results = in_threads(lambda number: [asked(shared), asked(own[7])])
    paddle_ngraph.disable()
    agree(results, 8 * [expected[7]])
    assert paddle_ngraph.stats()["engine_runs"] == before + 8 * 2 * 14


def test_threads_that_train():
    expected = [trained(made(mlp, number), mlp, 8) for number in range(8)]
    layers = [made(mlp, number) for number in range(8)]
    paddle_ngraph.enable(dynamic=True)
    results = in_threads(lambda number: trained(layers[number], mlp, 8))
    agree(results, expected)
    asked(made(mlp))
    assert paddle_ngraph.stats()["engine_runs"] > 0, "alone again, a thread has its graphs"


def test_copies_and_pickles_begin_anew(always_pays):
    layer = made(mlp)
    paddle_ngraph.enable(dynamic=True)
    expected = asked(layer)[:1]
    for reference in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        agree(asked(reference, count=1), expected)
        assert reference._ngraph_wrapping.latest.traces.graphs() == []
    assert list(layer.state_dict()) == list(made(mlp).state_dict())
    assert paddle_ngraph.stats()["engine_runs"] > 0


def test_static_and_compiled_layers_are_left_to_themselves(always_pays):
    static = paddle.jit.to_static(made(mlp), full_graph=True)
    compiled = paddle_ngraph.compile(made(mlp))
    expected = made(mlp)(inputs(mlp))
    paddle_ngraph.enable(dynamic=True)
    compiled(inputs(mlp))
    for layer in (static, compiled):
        agree(layer(inputs(mlp)), expected)
        assert not dynamic_hook.is_known(layer)
    assert paddle_ngraph.stats()["engine_runs"] == 2


class Inner(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20)

    def forward(self, x: Any) -> Any:
        return paddle.tanh(self.linear(x))


class InARow(nn.Layer):
    """Calls layers of its own, before and behind the places at which SOT ends a graph."""

    def __init__(self, ends: int) -> None:
        super().__init__()
        self.first, self.second, self.third = Inner(), nn.Sequential(Inner(), Inner()), Inner()
        self.ends, self.seen = ends, []

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        if self.ends > 0:
            self.seen.append(float(x.sum()))
        x = self.second(x)
        if self.ends > 1:
            self.seen.append(float(x.sum()))
        return self.third(x)


class InALoop(InARow):
    """Python runs it, if a graph ends in the loop, and SOT sees each layer that it calls."""

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate([self.first, self.second, self.third]):
            x = layer(x)
            if number < self.ends:
                self.seen.append(float(x.sum()))
        return x


class AndCompiled(InARow):
    def __init__(self, ends: int) -> None:
        super().__init__(ends)
        self.second = paddle_ngraph.compile(Inner())


def reset_sot_cache() -> None:
    OpcodeExecutorCache().clear()
    for each in (Inner, InARow, InALoop, nn.Sequential):
        # Else it gives frames up in which it has found no graph a few times.
        paddle.base.core.sot_set_with_graph(each.forward.__code__)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(
    ("kind", "ends", "is_function"),
    [
        (InARow, 0, False),
        (InARow, 2, False),
        (InALoop, 2, False),
        (InALoop, 2, True),
        (AndCompiled, 2, False),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_sot_reads_layers_as_ever(trains, kind, is_function, ends, always_pays):
    """SOT reads the code of the callees of a layer, or of each frame after a graph break."""

    def play() -> Any:
        reset_sot_cache()
        layer = made(lambda: kind(ends))
        called = (lambda x: layer(x) * 2.0) if is_function else layer
        network = paddle.jit.to_static(called, full_graph=False)
        results = []
        with paddle.set_grad_enabled(trains):
            for step in range(4):
                found = network(inputs(mlp, step))
                results.append(found)
                if trains:
                    found.sum().backward()
                    results.append(gradients(layer))
        return results, layer.seen

    def runs(dynamic: bool) -> int:
        before = paddle_ngraph.stats()["engine_runs"]
        paddle_ngraph.enable(dynamic=dynamic)
        play()
        paddle_ngraph.disable()
        return paddle_ngraph.stats()["engine_runs"] - before

    both(play, runs=4)
    assert runs(dynamic=True) == runs(dynamic=False)


def test_saving_a_layer_is_as_ever(tmp_path, always_pays):
    layer = made(mlp)
    paddle_ngraph.enable(dynamic=True)
    expected = asked(layer)[0]
    spec = [paddle.static.InputSpec([None, 20], "float32")]
    paddle.jit.save(layer, str(tmp_path / "model"), input_spec=spec)
    agree(paddle.jit.load(str(tmp_path / "model"))(inputs(mlp, 0)), expected)
    assert paddle_ngraph.stats()["engine_runs"] > 0


# -- layers in layers ------------------------------------------------------------------------------


class Features(nn.Layer):
    """A layer that receives a whole batch, and only uses the pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Conv2D(3, 3, 3, padding=1) for _ in range(6)])

    def forward(self, x: Any, boxes: Any) -> Any:
        return self.body(x)


class Detector(nn.Layer):
    """A body for pictures, and as many boxes as there are on them: hardly two batches are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = Features(), nn.Linear(4, 3)

    def forward(self, x: Any, boxes: Any) -> Any:
        return self.features(x, boxes).mean() + self.head(boxes).square().mean()


def detected(layer: Any, of_body: Callable[[int], int]) -> list[Any]:
    """The losses of steps with other numbers of boxes, on pictures of these sizes."""
    optimizer = paddle.optimizer.SGD(0.01, parameters=layer.parameters())
    losses = []
    for step in range(
        2 * (tuning_policy.POLICY.min_profiled_shapes + tuning_policy.POLICY.profiled_calls) + 12
    ):
        loss = layer(floats(1, 3, 8, of_body(step), seed=step), floats(2 + step, 4, seed=step))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss)
    return [*losses, values(layer)]


@pytest.fixture
def any_share(monkeypatch) -> None:
    """However little of the time a layer takes."""
    set_policy(monkeypatch, min_inner_time_share=0.0)


def test_a_layer_is_compiled_of_which_others_are_given_other_inputs(always_pays, any_share):
    layers = []

    def scenario():
        layers.append(made(Detector))
        return detected(layers[-1], lambda step: 8)

    both(scenario, runs=6, dynamic="training")
    assert "fewer input signatures" in str(paddle_ngraph.explain(layers[-1]))
    assert paddle_ngraph.explain(layers[-1].features.body).graphs


def test_layers_that_are_given_as_many_kinds_of_inputs_are_no_better(always_pays, any_share):
    layers = []

    def scenario():
        layers.append(made(Detector))
        return detected(layers[-1], lambda step: 8 + step)

    both(scenario, runs=0, dynamic="training")
    assert not dynamic_hook.is_known(layers[-1].features.body)
