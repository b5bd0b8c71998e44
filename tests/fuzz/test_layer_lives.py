"""Lives of layers in every run of the tests, always the same ones; ``make fuzz`` checks many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest

from tests.fuzz.check import Mismatch
from tests.fuzz.layer_lives import WRITERS, Engine, LayerLife, Side
from tests.fuzz.layer_steps import RandomLife, lived, random_life
from tests.fuzz.networks import PARTS, Network

NUMBERS = 12


@pytest.fixture
def life() -> Iterator[LayerLife]:
    life = LayerLife()
    yield life
    life.close()
    paddle.set_grad_enabled(True)


def _trained(life: LayerLife, how: str = "compile") -> None:
    life.do("build", family="dense", parts=["batch_norm", "dropout"])
    life.do("compile", net=0) if how == "compile" else life.do("enable", dynamic=how)
    life.do("optimizer", net=0, type="Momentum")
    life.do("forward", net=0, rows=3, times=6)
    life.do("backward", net=0)
    life.do("step", net=0)


def test_lives_of_layers_agree() -> None:
    served = 0
    for number in range(NUMBERS):
        _, runs = lived(random_life(0, number))
        served += runs > 0
    assert served >= NUMBERS * 3 // 4


@pytest.mark.parametrize("how", ["compile", "training"])
def test_the_engine_runs_in_a_life(life: LayerLife, how: str) -> None:
    _trained(life, how)
    assert life.end() > 1


@pytest.mark.parametrize("what", ["result", "gradient", "weight", "error", "random", "mode"])
def test_differences_of_the_engine_side_are_found(
    monkeypatch: pytest.MonkeyPatch, life: LayerLife, what: str
) -> None:
    original = Engine.take

    def take(self: Engine, step: str, arguments: dict[str, Any]) -> Any:
        found: Any = original(self, step, arguments)
        if step != "step":
            return found
        member = self._members[0]
        if what == "result":
            found["rate"] = found["rate"] * 1.001
        elif what == "gradient":
            with paddle.no_grad():
                member.network.first.weight.grad.scale_(1.001)
        elif what == "weight":
            with paddle.no_grad():
                member.network.first.weight[0, 0] += 0.01
        elif what == "random":
            found["random"] = found["random"] * np.float32(1.001)
        elif what == "error":
            del found["random"]
        else:
            paddle.set_grad_enabled(False)
        return found

    monkeypatch.setattr(Engine, "take", take)
    with pytest.raises(Mismatch):
        _trained(life)


def test_a_lost_interruption_is_found(monkeypatch: pytest.MonkeyPatch, life: LayerLife) -> None:
    _trained(life)
    interrupted = {"rows": 3, "seed": 1, "at": 40, "border": True, "kind": "ALRM", "grad": True}
    assert life.do("interrupted", net=0, **interrupted)
    original = Side._called

    def called(self: Side, *given: Any, **options: Any) -> Any:
        try:
            return original(self, *given, **options)
        except Exception:
            return original(self, *given, **options)

    monkeypatch.setattr(Side, "_called", called)
    with pytest.raises(Mismatch, match="interrupted by ALRM, it has raised"):
        life.do("interrupted", net=0, **interrupted)


def test_a_life_follows_from_its_number() -> None:
    first, again, other = random_life(3, 4), random_life(3, 4), random_life(3, 5)
    assert first == again != other
    assert RandomLife.of_script(first.script()) == first


@pytest.mark.parametrize("family", PARTS)
def test_parts_keep_the_shape(family: str) -> None:
    from tests.dynamic import dynamic_mode
    from tests.fuzz.networks import inputs, outputs_of

    with dynamic_mode():
        import paddle

        for name in PARTS[family]:
            network = Network(family, [name, name], "two")
            for rows in (2, 3):
                out, hidden = outputs_of(network(paddle.to_tensor(inputs(family, rows, 1))))
                before = network.first(paddle.to_tensor(inputs(family, rows, 1)))
                assert out.shape == [rows, 3] and hidden.shape == before.shape, name


@pytest.mark.parametrize("how", WRITERS)
def test_writers_write(life: LayerLife, how: str) -> None:
    life.do("build", family="dense", parts=[])
    before = life._engine.variables()
    assert life.do("write", net=0, parameter=0, how=how, seed=3)
    after = life._engine.variables()
    assert (after["net 0 first.weight"] != before["net 0 first.weight"]).any()
