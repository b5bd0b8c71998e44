"""The autotuner's account, and functions that are compiled by name, by clocks of the tests."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.frontends.dynamic import (
    autotuner,
    code_identity,
    input_signature,
    tuning_policy,
)
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.measured_choice import RecordFile
from paddle_ngraph.warning_codes import LOGGER
from tests.clocks import RandomClock, TunerClock
from tests.dynamic import agree, dynamic_mode, floats, inputs, made, mlp

CHECKED = tuning_policy.POLICY.calls_before_check


@pytest.fixture(autouse=True)
def dynamic(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(autotuner, "_slot", autotuner._Slot())
    with dynamic_mode():
        paddle.set_flags({"FLAGS_ngraph_tuning_ms": 1_000_000})
        yield


def engine_runs(function: Any, calls: int, trains: bool = False) -> list[bool]:
    """Which calls the engine ran."""
    found = []
    for _ in range(calls):
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle.set_grad_enabled(trains):
            y = function(inputs(mlp))
            if trains:
                y.sum().backward()
        found.append(paddle_ngraph.stats()["engine_runs"] > before)
    return found


# -- the account -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_an_account_never_pays_more_than_its_share(seed):
    """Of calls that are drawn, captured ones only while the account is not overdrawn."""
    chance, account = random.Random(seed), autotuner.Account()
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 100})
    spent = native = 0.0
    for _ in range(1000):
        if account.is_overdrawn() or chance.random() < 0.3:
            seconds = chance.expovariate(100.0)
            account.earn(seconds)
            native += seconds
        else:
            extra = chance.uniform(-0.02, 0.05)
            account.spend(extra)
            spent = max(0.0, spent + extra)
        assert spent <= 0.1 + 0.1 * native + 0.05
    assert spent > 0.1


def test_a_negative_flag_lifts_the_limit_of_accounts():
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": -1})
    account = autotuner.Account()
    account.spend(1e9)
    assert not account.is_overdrawn()


# -- functions that are compiled by name -----------------------------------------------------------


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(("captured", "pays"), [(0.5, True), (1.5, False)])
def test_functions_compiled_by_name_are_native_where_that_is_faster(
    captured, pays, trains, monkeypatch
):
    lines: list[str] = []
    monkeypatch.setattr(LOGGER, "info", lambda text, *given: lines.append(text % given))
    with clock.overridden(TunerClock(monkeypatch, captured)):
        layer = paddle_ngraph.compile(made(mlp))
        ran = engine_runs(layer, 100, trains)
    assert ran[1:CHECKED] == [True] * (CHECKED - 1)
    assert ran[-20:] == [pays] * 20
    assert ran.count(False) >= 5, "native calls were timed"
    assert len(lines) == (not pays)
    why = paddle_ngraph.explain(layer).why_native
    assert (why is None) if pays else ("ms natively" in why)


class OtherCode(nn.Layer):
    """As ``mlp``, which has the same parameters, by code of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = made(mlp)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(("captured", "pays"), [(0.5, True), (1.5, False)])
def test_decisions_are_stored_for_the_next_process(captured, pays, trains, tmp_path, monkeypatch):
    """Layers with the code and the sizes of an earlier one start with its decision."""
    with clock.overridden(TunerClock(monkeypatch, captured)):
        engine_runs(paddle_ngraph.compile(made(mlp)), 100, trains)
        paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path)})
        engine_runs(paddle_ngraph.compile(made(mlp)), 100, trains)
        (file,) = (tmp_path / "choices").iterdir()
        layer = paddle_ngraph.compile(made(mlp))
        assert engine_runs(layer, 40, trains)[2:] == [pays] * 38
        if not pays:
            assert "an earlier process" in paddle_ngraph.explain(layer).why_native
        other = engine_runs(paddle_ngraph.compile(OtherCode()), 40, trains)
        assert other[1:CHECKED] == [True] * (CHECKED - 1), "other code is measured"
    (record,) = RecordFile(str(file)).read().values()
    assert record.uses_challenger == pays and record.seconds > 0


def test_a_stored_decision_is_measured_again_after_a_drift(tmp_path, monkeypatch):
    times = TunerClock(monkeypatch, 1.5)
    with clock.overridden(times):
        paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path)})
        engine_runs(paddle_ngraph.compile(made(mlp)), 100)
        times.native, times.captured = 3.0, 1.5
        layer = paddle_ngraph.compile(made(mlp))
        ran = engine_runs(layer, 560)
    assert not any(ran[:500]) and all(ran[-20:])


def test_the_identity_of_a_layer_is_its_code_and_its_parts():
    class Net(nn.Layer):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer = nn.Linear(4, width)

        def forward(self, x: Any) -> Any:
            return self.layer(x) * 2.0

    class Same(Net):
        pass

    def identity(net: Any) -> str:
        return code_identity.identity_of(nn.Layer.__call__, net)

    assert identity(Net(3)) == identity(Net(3))
    assert identity(Net(3)) != identity(Net(4))
    assert identity(Net(3)) != identity(Same(3))
    other = Net(3)
    other.layer = nn.Sequential(other.layer)
    assert identity(other) != identity(Net(3))
    functions = [lambda x: x * 2.0, lambda x: x * 3.0, lambda x: (lambda: x * 2.0)()]
    assert len({code_identity.identity_of(each, None) for each in functions}) == 3


@pytest.mark.parametrize("native", [1.0, 1e-4], ids=["long", "short"])
def test_a_decision_is_measured_again(native, monkeypatch):
    """A function that was slower pays once its calls are faster, and the numbers are the same."""
    times = TunerClock(monkeypatch, 1.5 * native)
    times.native = native
    expected = made(mlp)(inputs(mlp))
    with clock.overridden(times):
        layer = paddle_ngraph.compile(made(mlp))
        assert not any(engine_runs(layer, 100)[-20:])
        times.captured = 0.5 * native
        ran = engine_runs(layer, 1100)
        assert ran[-20:] == [True] * 20
        assert ran[: ran.index(True)].count(True) <= 11, "seldom"
    agree(layer(inputs(mlp)), expected)


@pytest.mark.parametrize("trains", [False, True])
def test_short_native_calls_are_seldom_looked_at(trains, monkeypatch):
    """Their times are in the account, and calls with other inputs are looked at."""
    looks: list[Any] = []
    of = input_signature.of
    monkeypatch.setattr(input_signature, "of", lambda given: looks.append(given) or of(given))
    times = TunerClock(monkeypatch, 1.5e-4)
    times.native = 1e-4
    with clock.overridden(times):
        layer = paddle_ngraph.compile(made(mlp))
        ran = engine_runs(layer, 100, trains)
        assert any(ran[:40]) and not any(ran[-40:])
        account = layer.forward._tuner.account
        before, looks[:] = account.native_seconds, []
        assert not any(engine_runs(layer, 320, trains))
        assert len(looks) <= 40
        assert 300e-4 <= account.native_seconds - before <= 340e-4
        looks.clear()
        with paddle.no_grad():
            for rows in (3, 5, 7):
                layer(paddle.ones([rows, *inputs(mlp).shape[1:]]))
        assert len(looks) == 3


def test_one_graph_stays_one_graph(monkeypatch):
    with clock.overridden(TunerClock(monkeypatch, 1.5)):
        layer = paddle_ngraph.compile(made(mlp), full_graph=True)
        assert all(engine_runs(layer, 60)[1:])


def test_a_build_is_put_off_until_its_time_is_available(monkeypatch):
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 10})
    with clock.overridden(TunerClock(monkeypatch, 0.1)):
        layer = paddle_ngraph.compile(made(mlp))
        ran = engine_runs(layer, 30)
    assert not any(ran[:3]) and any(ran)


def test_calls_are_native_while_the_account_is_overdrawn(monkeypatch):
    """Of a layer whose calls record new operators, and take long."""

    class Other(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(20, 20), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return nn.functional.elu(self.linear(x), 1.0 + self.calls)

    paddle.set_flags({"FLAGS_ngraph_tuning_ms": 5000})
    times = TunerClock(monkeypatch, 10.0)
    with clock.overridden(times), paddle.no_grad():
        layer = paddle_ngraph.compile(made(Other))
        for number in range(200):
            layer(floats(4, 20, seed=number))
    captured = (times.now - 200) / 9
    assert 1 <= captured <= 5


# -- effects of calls ------------------------------------------------------------------------------


class Recorder(nn.Layer):
    """A layer that calls itself, notes each call, and raises in some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20)
        self.seen: list[Any] = []

    def forward(self, x: Any, number: float, fails: bool, depth: int) -> Any:
        self.seen.append((number, depth))
        y = nn.functional.tanh(self.linear(x)) * number
        if fails:
            raise KeyError(number)
        return y + self(x * 0.5, number, False, depth - 1) if depth else y


def recorded_calls(layer: Any, chance: random.Random, trains: bool) -> list[Any]:
    """Results, gradients and errors of random calls."""
    found: list[Any] = []
    for call in range(40):
        x = floats(chance.randint(2, 4), 20, seed=call)
        x.stop_gradient = not trains or chance.random() < 0.3
        number, fails = chance.choice([1.0, chance.random()]), chance.random() < 0.2
        with paddle.set_grad_enabled(trains):
            try:
                y = layer(x, number, fails, chance.choice([0, 0, 2]))
            except KeyError as error:
                found.append(error.args)
                continue
            found.append(y)
            if trains:
                y.square().sum().backward()
                found.append(x.grad)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threads", [1, 2])
def test_each_call_runs_once_whatever_the_times_are(seed, threads):
    """By clocks that are drawn, so that sides are tried, decided and changed at random calls."""
    trains = seed % 2 == 1
    paddle.set_flags({"FLAGS_ngraph_tuning_ms": (10, 1000, 1_000_000)[seed // 2]})
    layer, native = paddle_ngraph.compile(made(Recorder)), made(Recorder)
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        found[number] = recorded_calls(layer, random.Random(number), trains)

    before = paddle_ngraph.stats()["engine_runs"]
    with clock.overridden(RandomClock(seed)):
        others = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
        for each in others:
            each.start()
        work(0)  # in this thread: of those that train, the first one of the process has graphs
        for each in others:
            each.join()
    for number in range(threads):
        agree(found[number], recorded_calls(native, random.Random(number), trains))
    assert sorted(layer.seen) == sorted(native.seen)
    # Two threads share the clock, so that the times of each are left to chance.
    assert seed < 2 or threads > 1 or paddle_ngraph.stats()["engine_runs"] > before


def test_a_call_within_another_one_is_part_of_it(monkeypatch):
    """Neither timed nor captured by itself, and without an entry in the account."""
    with clock.overridden(TunerClock(monkeypatch, 1.5)), paddle.no_grad():
        layer = paddle_ngraph.compile(made(Recorder))
        for call in range(100):
            layer(floats(2, 20, seed=call), 1.0, False, 3)
    earned = layer.forward._tuner.account.native_seconds
    assert earned < 101
    assert len(layer.seen) == 400
    assert "ms natively" in paddle_ngraph.explain(layer).why_native


def test_the_time_of_a_call_that_raises_decides_nothing(monkeypatch):
    """Calls that raise are as fast as none else, natively."""
    times = TunerClock(monkeypatch, 0.5)
    with clock.overridden(times), paddle.no_grad():
        layer = paddle_ngraph.compile(made(Recorder))
        for call in range(200):
            times.native = 0.001 if call % 2 else 1.0
            try:
                layer(floats(2, 20, seed=call), 1.0, call % 2 == 1, 0)
            except KeyError:
                continue
    assert paddle_ngraph.explain(layer).why_native is None
