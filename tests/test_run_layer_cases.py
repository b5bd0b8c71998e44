"""The runner of layer cases, on some cases of this file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests import run_layer_cases
from tests.layer_cases import DIFFERENT, NATIVE_TOO, SAME, SKIPPED, WAYS, differences

pytestmark = pytest.mark.pure

LAYER = """
import os
import numpy as np
import paddle
import paddle_ngraph


class LayerCase(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner = paddle.nn.Linear(4, 3)

    def forward(self, x):
        {before}
        return {{"y": paddle.tanh(self.inner(x)), "x": {after}}}


def create_numpy_inputs():
    return (np.random.random([{rows}, 4]).astype("float32"),)
"""
ON = "paddle_ngraph.is_enabled()"
# By name: the preceding statement, the second result, and the number of rows of the input.
CASES = {
    "same": ("pass", "x * 2.0", 2, SAME),
    "wrong": ("pass", f"x * (2.0 + {ON})", 2, DIFFERENT),
    "raises": (f"assert not {ON}, 'only natively'", "x", 2, DIFFERENT),
    "raises_natively": ("raise ValueError('never')", "x", 2, NATIVE_TOO),
    "crashes": (f"os._exit(7) if {ON} else None", "x", 2, DIFFERENT),
    "after_the_crash": ("pass", "x - 1.0", 2, SAME),
    "large": ("pass", "x", 5000, SKIPPED),
}


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    folder = tmp_path / "cases" / "inner"
    folder.mkdir(parents=True)
    for number, (name, (before, after, rows, _)) in enumerate(CASES.items()):
        text = LAYER.format(before=before, after=after, rows=rows)
        (folder / f"{number}_{name}.py").write_text(text)
    (folder / "7_no_case.py").write_text("x = 1")
    (folder / "__init__.py").write_text("")
    return folder.parent


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [[], ["--evaluate"]], ids=["trained", "evaluated"])
def test_outcomes(way, mode, cases, tmp_path, capsys):
    report = tmp_path / "report.json"
    options = ["--cases", str(cases), "--way", way, *mode, "--jobs", "1", "--most", "10000"]
    assert run_layer_cases.main([*options, "--report", str(report)]) == 1
    found = {Path(case["name"]).stem[2:]: case for case in json.loads(report.read_text())}
    expected = {name: case[-1] for name, case in CASES.items()} | {"no_case": SKIPPED}
    assert {name: case["outcome"] for name, case in found.items()} == expected
    for name in ("same", "after_the_crash"):
        assert way == "enable" or found[name]["engine_runs"] > 0
    assert "process ended: exit status 7" in found["crashes"]["message"]
    assert "only natively" in found["raises"]["message"]
    assert "2 same" in capsys.readouterr().out


@pytest.mark.slow("starts a process")
def test_cases_that_take_too_long_are_stopped(cases, tmp_path):
    report = tmp_path / "report.json"
    text = LAYER.format(before="import time; time.sleep(60)", after="x", rows=2)
    (cases / "slow.py").write_text(text)
    options = ["--cases", str(cases), "--only", "slow.py", "--timeout", "0.5", "--jobs", "1"]
    assert run_layer_cases.main([*options, "--report", str(report)]) == 0
    (case,) = json.loads(report.read_text())
    assert (case["outcome"], case["message"]) == (SKIPPED, "no answer within 0 s")


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "is missing"), (["--only", "no_such*"], "no file below")],
)
def test_wrong_command_lines_are_one_sentence(options, message, cases, capsys):
    folder = ["--cases", str(cases)] if options else []
    with pytest.raises(SystemExit):
        run_layer_cases.main([*folder, *options])
    assert message in capsys.readouterr().err


def test_rounding_is_judged_by_perturbed_inputs():
    native = [np.array([1.0, 1000.0], "float32"), None, 3]
    close = [np.array([1.004, 1000.0], "float32"), None, 3]
    off = [np.array([1.1, 1000.0], "float32"), None, 3]
    moved = [np.array([1.01, 1000.0], "float32"), None, 3]
    assert not differences(native, close)  # of the largest
    assert differences(native, off).startswith("result 0: 1.1")
    assert not differences(native, [np.array([1.05, 1000.0], "float32"), None, 3], moved)
    assert differences(native, off, moved)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([None], "None instead of float32[2]"),
        ([np.zeros(2, "float64")], "float64[2] instead of float32[2]"),
        ([np.zeros(2, "float32")] * 2, "2 results instead of 1"),
        ([np.array([0, np.nan], "float32")], "nan instead of 0.0"),
    ],
)
def test_differences_are_named(found, message):
    assert message in differences([np.zeros(2, "float32")], found)
