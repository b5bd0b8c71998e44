"""The zoo's runner: shares, results in a file, children that crash or hang, and the judge."""

from __future__ import annotations

import functools
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
from tests.zoo import child, forms, networks, packages, records, training
from tests.zoo.families import FAMILIES, Input, Make, NetworkFamily

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


def _wrong(truth, native, engine):
    tensors, layers = training.Distances(), training.Distances()
    tensors.add(truth, native, engine)
    layers.add(*([training.by_layer(step) for step in run] for run in (truth, native, engine)))
    return set(training.wrong_tensors(tensors, layers))


def test_a_gradient_of_zero_is_judged_within_its_layer():
    truth = _gradients(0.5, 0.0)
    native = _gradients(0.5, 3e-8)
    bias = "step 0: the gradient of layer.bias"
    assert not _wrong(truth, native, _gradients(0.5, 3e-6))
    assert _wrong(truth, native, _gradients(0.5, 3e-2)) == {bias}
    assert bias in _wrong(truth, native, _gradients(0.6, 3e-6))
    # Native Paddle has digits of this one.
    native = _gradients(0.5, 3e-8, other=1e-4)
    found = _wrong(truth, native, _gradients(0.5, 3e-6, other=5e-3))
    assert found == {"step 0: the gradient of next.weight"}


class _Chaotic:
    """Training of a network in which rounding decides ties, and by an engine with a fault.

    Args:
        often: The share of tensors that a tie changes.
        fault: What the engine's first gradient is multiplied by.
        seed: Of the ties.
    """

    def __init__(self, often: float, fault: float, seed: int) -> None:
        self._often, self._fault = often, fault
        self._draw = np.random.default_rng(seed)
        self.runs = Counter[str]()

    def __call__(self, family, scales, engine=False, dtype="float32"):
        return SimpleNamespace(run=functools.partial(self._run, engine, dtype))

    def _run(self, engine, dtype, native=(), weights=0):
        self.runs["engine" if engine else dtype] += 1
        values = {
            f"the gradient of layer{number}.weight": np.linspace(1, 2, 4) for number in range(50)
        }
        for name, value in values.items() if dtype == "float32" else ():
            tie = self._draw.random() < self._often
            size = 10 ** self._draw.uniform(-3.5, -1.5) if tie else 1e-5
            values[name] = (value + size * self._draw.choice([-2, 2], 4)).astype("float32")
        if engine:
            values["the gradient of layer0.weight"] *= self._fault
        return [Run({}, values)]


def _judged():
    natively = training.Training(LENET, [1.0])
    return training.judge(LENET, [1.0], natively, natively.run())[2]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("often", [0, 0.05, 0.3, 0.6, 0.9, 1])
def test_a_fault_is_found_among_near_ties(monkeypatch, often, seed):
    monkeypatch.setattr(training, "Training", right := _Chaotic(often, 1.0, seed))
    assert not _judged()
    assert bool(right.runs["float64"]) == bool(often)
    monkeypatch.setattr(training, "Training", faulty := _Chaotic(often, 1.5, seed))
    assert _judged().keys() == {"step 0: the gradient of layer0.weight"}
    assert faulty.runs["engine"] == training.WEIGHTS


class _Faulty(training.Training):
    """Training of which the engine multiplies a tensor by a factor."""

    fault = ("", 1.0)

    def __init__(self, *args, engine=False, **keywords):
        super().__init__(*args, **keywords)
        self._engine = engine

    def run(self, *args, **keywords):
        """Changes the results of what the engine is said to train."""
        runs = super().run(*args, **keywords)
        for run in runs if self._engine else ():
            run.values[self.fault[0]] *= self.fault[1]
        return runs


@pytest.mark.parametrize(
    ("name", "factor"),
    [("the loss", 1.01), ("the gradient of network.fc.0.bias", 0.99), ("network.fc.0.bias", 1.01)],
)
def test_a_fault_in_a_result_a_gradient_or_an_update_is_found(monkeypatch, name, factor):
    monkeypatch.setattr(_Faulty, "fault", (name, np.float32(factor)))
    monkeypatch.setattr(training, "Training", _Faulty)
    monkeypatch.setattr(training, "WEIGHTS", 2)
    with dynamic_mode():
        assert _judged().keys() == {f"step {step}: {name}" for step in range(training.STEPS)}


def test_each_step_of_training_starts_from_the_native_state():
    with dynamic_mode():
        natively = training.Training(LENET, [1.0])
        native = natively.run()
        assert len(native) == training.STEPS
        for other in (natively, training.Training(LENET, [1.0])):
            assert set(training.apart(native, other.run(native)).values()) == {0.0}
        truth = training.Training(LENET, [1.0], dtype="float64").run(native)
        assert {value.dtype for run in truth for value in run.values.values()} == {
            np.dtype("float64")
        }
        assert max(training.apart(truth, native).values()) < 1e-3
        other = natively.run(weights=1)
        assert 1e-4 < training.apart(native, other)["step 0: the loss"] < 1e-1


class _Padded(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(2, 2)

    def forward(self, value):
        """Joins a result with new zeros."""
        return [paddle.concat([self.linear(value), paddle.zeros([2, 1])], axis=1)]


def _normalizing(size):
    shape = (2, 2, size, size)
    return NetworkFamily(
        "tests",
        f"normalizing{size}",
        "none",
        2026,
        Make(f"{__name__}:_Normalizing"),
        (Input(shape),),
    )


class _Normalizing(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.normalization = paddle.nn.BatchNorm2D(2)

    def forward(self, value):
        """Normalizes the batch."""
        return [self.normalization(value)]


@pytest.mark.parametrize(("size", "batch"), [(1, 8), (2, 2)])
def test_no_normalization_of_two_numbers_hides_gradients(size, batch):
    family = _normalizing(size)
    with dynamic_mode():
        trained = training.Training(family, [1.0])
        assert [value.shape for value in networks.arrays(family)] == [(2, 2, size, size)]
        assert [value.shape for value in networks.training_arrays(family)] == [
            (batch, 2, size, size)
        ]
        assert all(np.isfinite(run.values["the loss"]) for run in trained.run())


def test_tensors_that_a_network_makes_have_its_dtype():
    padded = NetworkFamily(
        "tests", "padded", "none", 2026, Make(f"{__name__}:_Padded"), (Input((2, 2)),)
    )
    with dynamic_mode():
        (run, *_) = training.Training(padded, [1.0], dtype="float64").run()
        assert run.values["the loss"].dtype == "float64"
        assert paddle.get_default_dtype() == "float32"


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
