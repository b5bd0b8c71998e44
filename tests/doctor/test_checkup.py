"""``python -m paddle_ngraph doctor``: its report in words and as JSON."""

from __future__ import annotations

import copy
import json
import pickle
import sys

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from paddle_ngraph import api, flags
from paddle_ngraph.__main__ import main
from paddle_ngraph.doctor import checkup, self_test
from paddle_ngraph.ir import reasons
from paddle_ngraph.profiling.operator_calls import operator_times
from tests.dynamic import dynamic_mode
from tests.frontends.executor.test_hook import save_model


@pytest.fixture
def own_arguments(monkeypatch):
    """A script replaces the arguments and the path of the process."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def no_self_test(monkeypatch, tmp_path):
    monkeypatch.setattr(self_test, "self_tests", list)
    flags.set("ngraph_cache_dir", str(tmp_path))


def test_every_program_of_the_self_test_passes_by_the_engine():
    before = flags.get("ngraph_min_interval_us"), api.is_enabled()
    found = self_test.self_tests()
    assert len(found) == 4
    assert all(each.passed and each.engine_runs > 0 for each in found)
    assert (flags.get("ngraph_min_interval_us"), api.is_enabled()) == before


def test_a_self_test_that_the_engine_did_not_run_is_a_problem():
    failed = self_test.SelfTest("attention", 0, 0.0, 1.0, 1.0)
    wrong = self_test.SelfTest("convolutions", 9, 0.1, 1.0, 1.0)
    right = self_test.SelfTest("training step", 9, 1e-6, 1.0, 1.0)
    found = checkup.Checkup([], [failed, wrong, right])
    assert len(found.problems) == 2
    assert "'attention' failed (0 runs" in str(found)


def test_a_model_is_observed(tmp_path, capsys, no_self_test, monkeypatch):
    monkeypatch.setattr("paddle_ngraph.doctor.observation._MOST_PAIRS", 2)
    prefix = save_model(tmp_path)
    assert main(["doctor", "--json", prefix]) == 0
    found = json.loads(capsys.readouterr().out)
    observed = found["observation"]
    assert observed["kind"] == "model"
    assert observed["runs"]["engine"] > 0
    assert observed["native_run_ms"] > 0
    assert observed["converted"] > 0
    assert found["problems"] == []
    assert str(tmp_path) not in json.dumps(found)


def test_a_model_that_paddle_cannot_run_with_onednn_is_observed(
    tmp_path, capsys, no_self_test, monkeypatch
):
    """As each one with a factor of `interpolate`; `unique` leaves an operator to Paddle."""
    monkeypatch.setattr("paddle_ngraph.doctor.observation._MOST_PAIRS", 2)

    class Network(nn.Layer):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2D(3, 16, 3, padding=1)

        def forward(self, x):
            wide = F.interpolate(self.convolution(x), scale_factor=2)
            return F.relu(wide), paddle.unique(x)

    spec = paddle.static.InputSpec([None, 3, None, None], "float32", "x")
    with dynamic_mode():
        paddle.jit.save(Network(), str(tmp_path / "net"), input_spec=[spec])
    shapes = ["--shapes", "x=1x3x64x64"]
    assert main(["doctor", "--json", *shapes, str(tmp_path / "net")]) == 0
    observed = json.loads(capsys.readouterr().out)["observation"]
    assert observed["runs"]["engine"] > 0
    assert [each["type"] for each in observed["native"]] == ["unique"]


def test_a_script_is_observed(tmp_path, capsys, no_self_test, own_arguments):
    script = tmp_path / "script.py"
    script.write_text("import sys; print('of the script', sys.argv[1:])")
    with api.use_ngraph(False):
        assert main(["doctor", "--json", str(script), "--lr", "0.1"]) == 0
    printed = capsys.readouterr()
    assert "of the script ['--lr', '0.1']" in printed.err
    assert json.loads(printed.out)["observation"]["kind"] == "script"


def test_an_error_of_a_script_is_shown_and_noted(tmp_path, capsys, no_self_test, own_arguments):
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('of the script')")
    with api.use_ngraph(False):
        assert main(["doctor", str(script)]) == 1
    printed = capsys.readouterr()
    assert "of the script" in printed.err
    assert "The script ended with ValueError." in printed.out


def test_changes_are_tried_in_processes(monkeypatch):
    from paddle_ngraph.doctor.advice import Change
    from paddle_ngraph.doctor.observation import Observation

    commands = []

    def run(command, env, **_):
        commands.append((command, env))
        observed = {"kind": "model", "engine_run_ms": 1.5, "failure": ""}
        text = json.dumps({"observation": observed}) if len(commands) == 1 else "killed"
        return type("Ended", (), {"stdout": text})

    monkeypatch.setattr(checkup.subprocess, "run", run)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    observed = Observation("model", {}, {}, 0, 0, 0.0, native_run_ms=2.0, engine_run_ms=3.0)
    changes = [
        Change("Unset it.", 0.5, {"ONEDNN_MAX_CPU_ISA": None}),
        Change("Set it.", 0.3, {"FLAGS_ngraph_precision": "bf16"}),
        Change("Do it.", 0.2),
    ]
    found = checkup.measured(checkup.Checkup([], [], observed, changes), ["model"])
    assert [change.ratio for change in found.changes] == [0.5, None, None]
    assert [command[-1] for command, _ in commands] == ["model", "model"]
    assert "ONEDNN_MAX_CPU_ISA" not in commands[0][1]
    assert commands[1][1]["FLAGS_ngraph_precision"] == "bf16"
    assert "measured: 0.50 of the time" in str(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--measure"], "give one"),
        (["no_such_model"], "no_such_model"),
        (["no_such_script.py"], "there is no script"),
        (["model", "--shapes", "x=1"], "options come before a model"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, words, capsys, no_self_test):
    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_times_of_operators_are_those_of_kernels():
    import paddle

    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data("x", [32, 32], "float32")
        y = paddle.tanh(paddle.matmul(x, x))
    executor = paddle.static.Executor(paddle.CPUPlace())
    feed = {"x": np.ones((32, 32), "float32")}
    with api.use_ngraph(False):
        times = operator_times(lambda: executor.run(program, feed=feed, fetch_list=[y]))
    assert times["matmul"] > 0
    assert times["tanh"] > 0


def test_reasons_can_be_copied():
    reason = reasons.FallbackReason("no converter", "write one")
    for found in (copy.deepcopy(reason), copy.copy(reason), pickle.loads(pickle.dumps(reason))):
        assert (found, found.remedy) == (reason, reason.remedy)
