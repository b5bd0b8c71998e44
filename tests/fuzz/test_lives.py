"""Lives in every run of the tests, always the same ones; ``make fuzz`` checks many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paddle_ngraph
from tests.fuzz import layers, lives
from tests.fuzz.check import Mismatch
from tests.fuzz.lives import Engine, Life, Side, view_of
from tests.fuzz.shares import ROOT, State


@pytest.mark.slow("draws lives of programs")
def test_lives_agree(tmp_path: Path) -> None:
    """Runs in separate processes: a crash ends one of them, and is reported."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--lives", "16", "--jobs", "2"]
    state = tmp_path / "state.json"
    done = subprocess.run(
        [*command, "--state", str(state)], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert State.read(state).passed("lives") >= 16  # a share samples some lives again


@pytest.fixture
def life() -> Any:
    life = Life()
    yield life
    life.close()


@pytest.mark.parametrize("name", layers.LAYERS)
@pytest.mark.parametrize("old", [False, True])
def test_paddle_runs_every_layer(tmp_path: Path, name: str, old: bool) -> None:
    if old and name not in layers.OLD:
        return
    side = Side(tmp_path)
    train = None if name in layers.FEED_WRITERS else "SGD"
    for program, optimizer in enumerate((None, train)):
        side.build([("linear", 0), (name, 1)], train=optimizer, old=old)
        assert side.run(program)["fetch 1"].shape == (3, layers.WIDTH)
    for rows in (1, 7):
        assert side.run(0, rows=rows)["fetch 1"].shape == (rows, layers.WIDTH)
    side.clone(0)
    np.testing.assert_array_equal(side.run(2, again=True)["fetch 1"].shape, (3, layers.WIDTH))


@pytest.mark.parametrize("how", lives.WRITERS)
def test_every_writer_writes(tmp_path: Path, how: str) -> None:
    side = Side(tmp_path)
    side.build([("wide", 0)])
    before = side.variables()["variable wide"]
    side.write("wide", how, seed=4)
    after = side.variables()["variable wide"]
    assert (after != before).any()
    assert np.array_equal(np.array(side._tensor("wide", side._scope)), after)


def _trained(life: Life) -> None:
    life.do("build", layers=[("linear", 0), ("wide", 1)], train="Momentum")
    for rows in (3, 5, 2):
        life.do("run", program=0, rows=rows, seed=rows)


@pytest.mark.slow("compiles many or large functions")
def test_a_life_without_faults_ends_well(life: Life) -> None:
    _trained(life)
    life.do("save", program=0, slot=0)
    life.do("scope", number=1)
    life.do("run", program=0)
    life.do("scope", number=0)
    life.do("load", slot=0)
    life.do("run", program=0, thread=True)
    assert life.end() >= 5


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("interleaved", [True, False])
def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch, interleaved: bool) -> None:
    original = Engine.run
    monkeypatch.setattr(
        Engine,
        "run",
        lambda self, program, **options: {
            name: value * np.float32(1.001) if name == "fetch 1" else value
            for name, value in original(self, program, **options).items()
        },
        raising=False,
    )
    life = Life(interleaved)
    with pytest.raises(Mismatch, match="fetch 1"):
        _trained(life)
        life.end()
    life.close()


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("what", ["parameter", "feed", "kept result", "error", "one error"])
def test_differences_of_the_engine_side_are_found(
    monkeypatch: pytest.MonkeyPatch, life: Life, what: str
) -> None:
    original = Side.run

    def run(self: Engine, program: int, **options: Any) -> Any:
        found = original(self, program, **options)
        if what == "parameter":
            view_of(self._tensor("wide", self._scope))[7, 9] += 0.01
        elif what == "feed":
            found["fed array"][0, 0] += 0.01
        elif what == "kept result":
            self._kept[0][0][...] = 9.0
        elif what == "error" or self.engine:
            raise ValueError("an error")
        return found

    monkeypatch.setattr(Side if what == "one error" else Engine, "run", run, raising=False)
    with pytest.raises(Mismatch):
        _trained(life)


@pytest.mark.parametrize("writes", [False, True])
def test_an_error_leaves_the_state_unchanged(
    monkeypatch: pytest.MonkeyPatch, life: Life, writes: bool
) -> None:
    """Plain Paddle may have written variables before it raised; the engine no others."""
    _trained(life)

    def run(self: Side, program: int, **options: Any) -> Any:
        if writes or not self.engine:
            view = view_of(self._tensor("wide", self._scope))
            view[3, 4] += 2.0 if self.engine else 1.0
        raise ValueError("an error")

    monkeypatch.setattr(Side, "run", run)
    if writes:
        with pytest.raises(Mismatch, match="neither as they were"):
            life.do("run", program=0)
        return
    assert not life.do("run", program=0)
    life.do("write", name="wide", how="set")  # the sides differ from now on
    assert life.end() >= 3


def test_an_engine_that_does_not_run_is_found(monkeypatch: pytest.MonkeyPatch, life: Life) -> None:
    monkeypatch.setattr(Engine, "_switched", lambda self: paddle_ngraph.use_ngraph(False))
    _trained(life)
    with pytest.raises(Mismatch, match="did not run"):
        life.end()


def test_rounding_alone_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    native = np.ones(3, "float32")
    twins = [native * np.float32(1 + 1e-4)]
    engine = np.array([1.0003, 1.01, np.nan], "float32")
    assert lives._explained(native, engine, twins).tolist() == [True, False, False]


def test_unneeded_steps_are_removed() -> None:
    steps = [f"life.do('run', program={n})" for n in range(13)]
    text = lives.script(True, False, [f"'run', program={n}" for n in range(13)])
    needed = {steps[3], steps[11]}
    small = lives.shrunk(text, lambda fewer: needed <= set(fewer.splitlines()))
    assert [line for line in small.splitlines() if "run" in line and "life.do" in line] == [
        steps[3],
        steps[11],
    ]


@pytest.mark.slow("compiles many or large functions")
def test_reading_a_variable_has_no_side_effect(life: Life) -> None:
    _trained(life)
    life.do("build", layers=[("linear", 0), ("wide", 1)])
    paddle_ngraph.reset_stats()
    for _ in range(4):
        life.do("run", program=1)
    assert paddle_ngraph.stats()["functions_with_weights"] > 0


@pytest.mark.slow("draws lives of programs")
def test_a_life_continues_in_a_new_process() -> None:
    life = Life(disk=True)
    try:
        _trained(life)
        life.do("build", layers=[("linear", 0), ("wide", 1)])
        life.do("run", program=1)
        life.do("clear")
        life.do("run", program=1)
        assert paddle_ngraph.stats()["functions_loaded"] > 0
        life.in_new_process()
    finally:
        life.close()
