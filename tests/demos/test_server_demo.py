"""The demo of the parameter server: 1 server and 2 trainers."""

from __future__ import annotations

import re

import pytest

from tests import jobs
from tests.demos.test_imdb_demo import imdb  # noqa: F401 (a fixture)


@pytest.mark.slow("runs a demo")
def test_one_server_and_two_trainers(imdb, tmp_path):  # noqa: F811
    command = [str(jobs.ROOT / "demos" / "server_demo" / "train.py"), "--data", str(imdb)]
    command += ["--epochs", "6", "--batch-size", "16", "--lr", "0.1"]
    port = jobs.free_port()
    ended = jobs.run(tmp_path, [(command, jobs.of_rank(rank, 3, port)) for rank in range(3)])
    jobs.assert_fine(ended)
    server, *trainers = (each.output for each in ended)
    updates, accuracy = re.search(r"updates: (\d+); test accuracy: ([\d.]+)", server).groups()
    assert int(updates) == 36
    assert float(accuracy) > 0.9
    for rank, output in enumerate(trainers, 1):
        losses = [float(each) for each in re.findall(r"average loss: ([\d.]+)", output)]
        assert len(losses) == 6 and losses[-1] < 0.5 * losses[0]
        assert f"[trainer {rank}] epoch: 6" in output
        assert re.search(r"engine runs: [1-9]", output)
