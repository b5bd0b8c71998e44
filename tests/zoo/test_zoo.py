"""The zoo's runner: shares, results in a file, children that crash or hang, and the judge."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import _C_ops as operators

import paddle_ngraph
from tests.dynamic import dynamic_mode
from tests.kernel_call_programs import kernels_called
from tests.models.comparing import Run
from tests.programs import Program
from tests.zoo import __main__ as zoo
from tests.zoo import child, forms, packages, records, training
from tests.zoo.families import FAMILIES

LENET = next(family for family in FAMILIES if family.name == "LeNet")
RIGHT = {**records.EMPTY, "family": LENET.id, "form": "predictor", "outcome": "equal", "why": ""}


def test_families_are_many_and_of_many_packages():
    assert len(FAMILIES) >= 60
    assert len({family.id for family in FAMILIES}) == len(FAMILIES)
    assert len({family.package for family in FAMILIES}) >= 8
    assert len({family.task for family in FAMILIES}) >= 6


def test_the_packages_are_pinned():
    lines = (records.ROOT / "requirements" / "zoo.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert {family.package for family in FAMILIES} - {"paddlepaddle"} <= pinned


def test_shares_are_all_families():
    shares = [zoo.share_of(FAMILIES, f"{number}/8") for number in range(1, 9)]
    assert sorted(f.id for share in shares for f in share) == sorted(f.id for f in FAMILIES)
    for share in ("0/8", "9/8", "1", "a/b"):
        with pytest.raises(ValueError, match="is no share"):
            zoo.share_of(FAMILIES, share)


def test_timed_families_are_of_every_task_decade_and_package():
    timed = zoo.timed_families(FAMILIES)
    assert len(timed) == zoo.TIMED_FAMILIES
    assert {family.task for family in timed} == {family.task for family in FAMILIES}
    assert {family.package for family in timed} == {family.package for family in FAMILIES}


def test_time_in_kernel_calls_is_native():
    """Also in loops: a function of kernel calls and little else covers little."""

    def build() -> Any:
        x = paddle.static.data("x", [2, 4, 8, 8], "float32")
        n = paddle.static.data("n", [1], "int64")
        y = operators.shuffle_channel(paddle.exp(x), 2)
        return paddle.static.nn.while_loop(
            lambda i, y: i < n,
            lambda i, y: [i + 1, paddle.tanh(operators.mode(y, -1, True)[0] + y)],
            [paddle.zeros([1], "int64"), y],
        )[1]

    with kernels_called():
        report = paddle_ngraph.explain(Program(build).main)
    assert report.native == [] and report.ops_native == 2
    times = Counter(exp=10, shuffle_channel=40, mode=30, tanh=20)
    record = SimpleNamespace(outcome="equal", coverage=None, left={}, why="")
    forms._cover(SimpleNamespace(native_times=times), record, report)
    assert record.coverage == pytest.approx(0.3)
    assert record.left == {"shuffle_channel": 0.4, "mode": 0.3}


def test_a_run_resumes(tmp_path):
    results = records.Results(tmp_path / "results.jsonl")
    results.add({**RIGHT, "revision": "old"})
    results.add({**RIGHT, "form": "compile", "outcome": "wrong", "revision": "old"})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"family": "cut sho')
    again = records.Results(tmp_path / "results.jsonl")
    every = ("predictor", "compile", "training")
    assert again.missing(LENET, every, "new") == ["compile", "training"]
    assert again.missing(LENET, every, "old") == ["training"]
    again.compact()
    assert records.Results(tmp_path / "results.jsonl").records == results.records
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_the_page_lists_failures_and_reasons(tmp_path):
    results = records.Results(tmp_path / "results.jsonl")
    results.add({**RIGHT, "coverage": 0.9, "left": {"unique": 0.1}})
    results.add({**RIGHT, "form": "Executor", "outcome": "wrong", "why": "result 0 is far | off"})
    results.add({**RIGHT, "form": records.TIMED[0], "ratio": 0.5, "why": "engine 1 ms"})
    text = records.page(results)
    assert "| LeNet | paddlepaddle | classification | 1998 |  |  | = | **wrong** |" in text
    assert "wrong: result 0 is far / off: LeNet (Executor)" in text
    assert "- results that are not wrong: 1 of 2" in text
    assert "- exports with 95 % of native time in the engine: 0 of 1" in text
    assert "- timed forms within 5 % of Paddle's best: 1 of 1" in text
    assert "| paddlepaddle/LeNet | 0.50 |  |" in text
    assert "engine 1 ms" not in text
    results.add({**RIGHT, "form": records.TIMED[1], "ratio": 1.5, "why": "engine 3 ms"})
    assert "| paddlepaddle/LeNet | 0.50 | **1.50** |" in records.page(results)
    assert f"- paddlepaddle/LeNet, {records.TIMED[1]}: engine 3 ms" in records.page(results)
    assert "- `unique`: 0.10" in text


def test_a_form_that_crashes_does_not_keep_others_from_running(tmp_path, monkeypatch):
    (tmp_path / "faulty_child.py").write_text(
        f"""
import json, os, sys
for form in sys.argv[2:]:
    print({child.MARK!r} + json.dumps(form), flush=True)
    if form == "compile":
        os.abort()
    record = dict(family=sys.argv[1], form=form, outcome="equal", why="", revision="")
    print({child.MARK!r} + json.dumps(record), flush=True)
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wanted = ["predictor", "compile", "training"]
    found = list(zoo.run_family(LENET, wanted, module="faulty_child"))
    assert [record["form"] for record in found] == wanted
    assert [record["outcome"] for record in found] == ["equal", "fails", "equal"]
    assert "code -6" in found[1]["why"]


def test_a_form_that_hangs_is_recorded_with_the_limit(monkeypatch):
    def hang(command, timeout, **options):
        started = f"{child.MARK}{json.dumps(command[-1])}\n"
        raise subprocess.TimeoutExpired(command, timeout, started.encode(), b"a warning\n")

    monkeypatch.setattr(subprocess, "run", hang)
    (found,) = zoo.run_family(LENET, ["enable"], seconds=5)
    assert (found["form"], found["outcome"]) == ("enable", "fails")
    assert "none within 5 s: a warning" in found["why"]


def test_absent_modules_are_found_and_no_others():
    packages.allow_absent()
    try:
        absent = sorted(n for n in packages.ABSENT if n not in sys.modules)[0]
        module = importlib.import_module(absent)
        assert issubclass(module.AnyClass, object)
        assert module.decorate(len) is len or callable(module.decorate)
        assert importlib.util.find_spec("no_module_of_this_name") is None
    finally:
        sys.meta_path.pop()


def test_a_patch_is_applied_once_and_to_its_own_release(tmp_path):
    patch = packages.Patch("package/module.py", "old", "new", "why")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("old = old\n")
    assert packages.apply(patch, tmp_path)
    assert not packages.apply(patch, tmp_path)
    assert (tmp_path / "package" / "module.py").read_text() == "new = new\n"
    (tmp_path / "package" / "module.py").write_text("other\n")
    with pytest.raises(ValueError, match="has no 'old'"):
        packages.apply(patch, tmp_path)


class _Rounding:
    """A subject of which native Paddle's own results part by as much."""

    def __init__(self, rounding: float) -> None:
        self.rounding = [rounding]


@pytest.mark.parametrize(("rounding", "outcome"), [(0.0, "wrong"), (1e-3, "equal")])
def test_a_difference_is_judged_by_native_runs(rounding, outcome):
    expected = [np.ones((2, 3), "float32")]
    actual = [expected[0] + np.float32(2e-3)]
    record = forms.Record(LENET.id, "predictor")
    forms.judge(record, expected, actual, _Rounding(rounding))
    assert record.outcome == outcome
    assert record.error == pytest.approx(2e-3, rel=1e-3)


@pytest.mark.parametrize(
    "actual",
    [
        [np.ones((3, 2), "float32")],
        [np.ones((2, 3), "float64")],
        [np.full((2, 3), np.nan, "float32")],
        [],
    ],
)
def test_shapes_dtypes_and_nan_differ(actual):
    assert forms.differences([np.ones((2, 3), "float32")], actual) == [np.inf]


def _gradients(weight, bias, other=0.0):
    values = {
        "the gradient of layer.weight": np.array([1.0, weight]),
        "the gradient of layer.bias": np.array([bias]),
        "the gradient of next.weight": np.array([1.0 + other]),
    }
    return [Run({}, values)]


def test_a_gradient_of_zero_is_judged_within_its_layer():
    truth = _gradients(0.5, 0.0)
    native = _gradients(0.5, 3e-8)
    bias = "step 0: the gradient of layer.bias"
    assert training.right_within_layers(truth, native, _gradients(0.5, 3e-6)) == {bias}
    assert not training.right_within_layers(truth, native, _gradients(0.5, 3e-2))
    assert not training.right_within_layers(truth, native, _gradients(0.6, 3e-6))
    # Native Paddle has digits of this one.
    native = _gradients(0.5, 3e-8, other=1e-3)
    found = training.right_within_layers(truth, native, _gradients(0.5, 3e-6, other=5e-3))
    assert found == {bias}


def test_each_step_of_training_starts_from_the_native_state():
    with dynamic_mode():
        native = training.train(LENET, [1.0])
        again = training.train(LENET, [1.0], native=native)
        assert len(native) == training.STEPS
        assert set(training.apart(native, again).values()) == {0.0}
        truth = training.train(LENET, [1.0], native=native, dtype="float64")
        assert {value.dtype for run in truth for value in run.values.values()} == {
            np.dtype("float64")
        }
        assert max(training.apart(truth, native).values()) < 1e-3
        nudged = training.train(LENET, [1.0], native=native, nudge=0)
        assert 0 < max(training.apart(native, nudged, exactly=True).values()) < 1e-3


def test_integers_of_a_network_keep_their_dtype():
    with dynamic_mode():
        network = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.BatchNorm1D(2))
        network[0].register_buffer("index", paddle.to_tensor([[1, 0]]))
        for dtype in ("float32", "float64"):
            training.set_dtype(network, dtype)
            found = {n: str(v.dtype).rpartition(".")[2] for n, v in network.state_dict().items()}
            assert found.pop("0.index") == "int64"
            assert set(found.values()) == {dtype}
            assert network[0].index.tolist() == [[1, 0]]


@pytest.mark.slow("runs a whole network in each way")
def test_a_network_of_paddle_itself(tmp_path):
    found = {record["form"]: record for record in zoo.run_family(LENET, zoo.FORMS)}
    assert found.keys() == set(zoo.FORMS)
    assert {found[form]["outcome"] for form in zoo.FORMS if form != "enable"} == {"equal"}, found
    for form in records.EVALUATED:
        assert found[form]["coverage"] == 1
        assert found[form]["engine_runs"]
