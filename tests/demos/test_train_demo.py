"""The demo of a line and of digits: both engines, their agreement, and rejected input."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paddle_ngraph
from demos import networks, running
from demos.train_demo import train
from paddle_ngraph import api, installation

SCRIPT = Path(train.__file__)
STEP = re.compile(r"\[(\w+)\] step: (\d+) loss: (\d+\.\d+)")


def losses(output: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for engine, _, loss in STEP.findall(output):
        found.setdefault(engine, []).append(float(loss))
    return found


@pytest.mark.slow("runs a demo")
@pytest.mark.parametrize(("task", "steps"), [("fit_a_line", 100), ("mnist", 8)])
def test_both_engines_train_alike(task, steps, capsys):
    status = train.main(["--task", task, "--steps", str(steps), "--log-every", "1"])
    output, errors = capsys.readouterr()
    assert (status, errors) == (0, "")
    assert paddle_ngraph.stats()["engine_runs"] >= steps
    curves = losses(output)
    assert [len(curves["native"]), len(curves["ngraph"])] == [steps, steps]
    assert curves["ngraph"][-1] < 0.9 * curves["ngraph"][0]
    np.testing.assert_allclose(curves["ngraph"], curves["native"], rtol=1e-3)
    assert "speed-up" in output


@pytest.mark.slow("runs a demo")
def test_the_line_fits(capsys):
    assert train.main(["--task", "fit_a_line", "--engine", "ngraph"]) == 0
    (error,) = re.findall(r"test MSE +([\d.]+)", capsys.readouterr().out)
    # The variance of the prices is 84.
    assert float(error) < 30


def test_native_alone_needs_no_engine(capsys, monkeypatch):
    monkeypatch.setattr(running, "load_engine", lambda: pytest.fail("the engine is asked for"))
    assert train.main(["--task", "fit_a_line", "--steps", "2", "--engine", "native"]) == 0
    assert set(losses(capsys.readouterr().out)) == {"native"}


def test_losses_that_part_are_an_error(capsys, monkeypatch):
    right = running.Trainer.train_step

    def wrong(self, batch):
        right(self, batch)
        if self.engine == running.NGRAPH:
            self.losses[-1] *= 1.001
        return self.losses[-1]

    monkeypatch.setattr(running.Trainer, "train_step", wrong)
    assert train.main(["--task", "fit_a_line", "--steps", "5"]) == 1
    assert "error: the losses of the two engines part by" in capsys.readouterr().err


def test_parameters_that_part_are_an_error():
    network = networks.build_network(
        networks.linear_regression,
        networks.mean_squared_error,
        networks.regression_inputs(2),
        lambda: networks.sgd(0.1),
    )
    weights = running.initial_weights(network, seed=0)
    trainers = [running.Trainer(network, "native", weights) for _ in range(2)]
    batch = (np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))
    for trainer in trainers:
        trainer.train_step(batch)
    running.compare(*trainers, weights, running.STEADY).check()
    moved = trainers[1].parameters()["linear_0.w_0"] * np.float32(1.01)
    trainers[1].set_parameters({"linear_0.w_0": moved})
    with pytest.raises(running.DemoError, match=r"linear_0\.w_0 differs between the two engines"):
        running.compare(*trainers, weights, running.STEADY).check()


def test_nan_is_no_agreement():
    with pytest.raises(running.DemoError, match="at step 3"):
        running.Agreement(float("nan"), 3, 0.0, "w").check()


def test_an_engine_that_is_unavailable_is_an_error(monkeypatch):
    api.warn_unavailable.cache_clear()
    monkeypatch.setattr(installation, "why_unavailable", lambda: "it is not here.")
    with pytest.raises(running.DemoError, match=r"not there \(.*: it is not here\. \[NG101\]\)"):
        running.load_engine()


def test_an_engine_that_does_not_run_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(running, "switched_to", lambda engine: contextlib.nullcontext())
    assert train.main(["--task", "fit_a_line", "--steps", "2"]) == 1
    assert "error: the engine was switched on but ran nothing" in capsys.readouterr().err


def test_a_batch_larger_than_the_data_is_an_error(capsys):
    arguments = ["--task", "fit_a_line", "--engine", "native", "--batch-size", "1000"]
    assert train.main(arguments) == 1
    assert "--batch-size 1000 is more than the 405 training rows" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_an_error(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert train.main(["--plot", str(tmp_path / "loss.png")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.slow("runs a demo")
def test_a_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "loss.png"
    arguments = ["--task", "fit_a_line", "--steps", "5", "--engine", "native", "--plot", str(plot)]
    assert train.main(arguments) == 0
    assert (tmp_path / "loss_fit_a_line.png").stat().st_size > 1000


@pytest.mark.slow("runs a demo")
def test_the_script_runs_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--task" in done.stdout
