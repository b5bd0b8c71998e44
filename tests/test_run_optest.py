"""The runner of Paddle's operator tests, on a small source tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import run_optest
from tests.run_optest import FAILED, NATIVE_TOO, PASSED, SKIPPED, Case, Manifest, Runner

_TESTS = """
import os
import unittest

import numpy as np
import paddle
import paddle_ngraph
from helper import SHAPE


def run(dtype="float32"):
    paddle.enable_static()
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        y = paddle.tanh(paddle.static.data("x", SHAPE, dtype))
        feed = {"x": np.ones(SHAPE, dtype)}
        return paddle.static.Executor(paddle.CPUPlace()).run(main, feed=feed, fetch_list=[y])[0]


class TestRuns(unittest.TestCase):
    began = False

    def test_a_engine(self):
        TestRuns.began = True
        np.testing.assert_allclose(run(), np.tanh(np.ones(SHAPE)), rtol=1e-5)

    def test_b_wrong_with_the_engine(self):
        self.assertFalse(paddle_ngraph.is_enabled())

    def test_c_wrong_natively_too(self):
        self.fail("always")

    @unittest.skip("not here")
    def test_d_skipped(self):
        pass

    def test_e_crashes_with_the_engine(self):
        if paddle_ngraph.is_enabled():
            os._exit(7)

    def test_f_after_the_crash(self):
        run()

    def test_g_float64(self):
        run("float64")

    def test_i_wrong_with_the_engine_and_natively_when_it_runs_alone(self):
        self.assertTrue(self.began and not paddle_ngraph.is_enabled())


class TestWhole(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        if paddle_ngraph.is_enabled():
            raise AssertionError("wrong with the engine")

    def test_h(self):
        pass


if __name__ == "__main__":
    unittest.main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("paddle")
    folder = root / "test" / "legacy_test"
    folder.mkdir(parents=True)
    (folder / "test_small_op.py").write_text(_TESTS)
    (folder / "helper.py").write_text("SHAPE = [2, 3]\n")
    return root


@pytest.fixture(scope="module")
def cases(source: Path) -> dict[str, Case]:
    manifest = Manifest({"cases": {"test_small_op.py::*test_b_*": "known"}})
    path = source / "test" / "legacy_test" / "test_small_op.py"
    found = Runner(900.0, manifest).run(path)
    return {case.name.split("_")[1]: case for case in found}


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("a", PASSED),
        ("b", SKIPPED),
        ("c", NATIVE_TOO),
        ("d", SKIPPED),
        ("e", FAILED),
        ("f", PASSED),
        ("g", PASSED),
        ("h", PASSED),
        ("i", FAILED),
        ("", FAILED),  # tearDownClass
    ],
)
def test_every_case_has_its_outcome(cases: dict[str, Case], case: str, outcome: str) -> None:
    assert cases[case].outcome == outcome, cases[case].message


@pytest.mark.slow("starts a process")
def test_engine_runs_are_reported(cases: dict[str, Case]) -> None:
    assert cases["a"].engine_runs == 1
    assert cases["a"].converted == ["pd_op.tanh"]
    assert cases["g"].engine_runs == 0
    assert "float64" in cases["g"].native["pd_op.tanh"]


def test_the_reason_of_a_crash(cases: dict[str, Case]) -> None:
    assert "the process ended with 7" in cases["e"].message


def test_a_case_at_the_time_limit_is_run_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attempt(
        _: Runner, __: Path, ___: bool, only: list[str], *rest: object
    ) -> tuple[dict[str, Case], str | None, str | None]:
        if only:
            return {"slow": Case("slow", PASSED)}, None, None
        return {"first": Case("first", PASSED)}, "slow", "stopped after 0 s"

    monkeypatch.setattr(Runner, "_attempt", attempt)
    found = Runner(0.0, Manifest({})).run(Path("test_small_op.py"))
    outcomes = {case.name: case.outcome for case in found}
    assert outcomes == {"first": PASSED, "slow": PASSED, "the rest of the file": SKIPPED}


def test_table_and_verdict(
    cases: dict[str, Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert run_optest._conclude({"test_small_op.py": list(cases.values())}, report) == 1
    printed = capsys.readouterr().out
    assert "4 passed, 3 failed, 3 skipped" in printed
    assert "FAILED test_small_op.py::TestRuns.test_e_crashes_with_the_engine" in printed
    assert len(json.loads(report.read_text())["test_small_op.py"]) == 10


def test_a_wrong_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_optest.main(["--paddle-source", str(tmp_path)])
    assert "is no folder" in capsys.readouterr().err


def test_the_manifest_gives_reasons() -> None:
    data = json.loads(run_optest.MANIFEST.read_text())
    assert set(data) == {"files", "cases"}
    assert all(reason for part in data.values() for reason in part.values())
