"""The demo of two processes, of which one is killed: nothing of that is seen in the results."""

from __future__ import annotations

import re

import pytest

from paddle_ngraph.distributed import launcher
from tests import jobs
from tests.demos.test_imdb_demo import imdb  # noqa: F401 (a fixture)


@pytest.fixture
def launch(imdb, tmp_path, monkeypatch, capfd):  # noqa: F811
    """Runs the demo; returns the output of rank 0 and the launcher, and that of rank 1."""
    monkeypatch.setenv("FLAGS_ngraph_cache_dir", "")
    monkeypatch.setenv("PYTHONPATH", str(jobs.ROOT))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def run(name: str, *arguments: str) -> tuple[str, str]:
        script = str(jobs.ROOT / "demos" / "distributed_demo" / "train.py")
        given = ["--data", str(imdb), "--epochs", "4", "--batch-size", "16", "--lr", "0.1"]
        options = launcher.LauncherOptions(
            script,
            [*given, "--every", "4", *arguments],
            ranks=2,
            max_restarts=1,
            checkpoint=str(tmp_path / name),
            log_dir=str(tmp_path / f"{name}.log"),
        )
        status = launcher.launch(options)
        out = capfd.readouterr()
        assert status == 0, out.err
        return out.out + out.err, (tmp_path / f"{name}.log" / "workerlog.1").read_text()

    return run


@pytest.mark.slow("runs a demo")
def test_a_rank_is_killed_and_nothing_is_lost(launch):
    calm, _ = launch("calm")
    first, second = launch("killed", "--kill")
    assert "[rank 1] kills itself after step 12" in second
    assert re.search(r"rank 1 was killed by SIGKILL .*; all ranks start again from step 12", first)
    begun = re.findall(r"^\[rank 0\] begins after step (\d+) of 24$", first, re.M)
    assert begun == ["0", "12"]
    progress = [
        re.findall(r"rank 0. step: (\d+) .* share: ([\d.]+)", each) for each in (calm, first)
    ]
    assert dict(progress[0]) == dict(progress[1]) and len(dict(progress[0])) == 6
    accuracies = [re.search(r"test accuracy: ([\d.]+)", each)[1] for each in (calm, first)]
    assert accuracies[0] == accuracies[1] and float(accuracies[0]) > 0.9
    assert re.search(r"engine runs: [1-9]", first) and re.search(r"engine runs: [1-9]", second)
