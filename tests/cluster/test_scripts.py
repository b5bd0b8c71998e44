"""``python -m paddle_ngraph launch --ray``: unchanged scripts on a cluster."""

from __future__ import annotations

import re
import time

import pytest

from paddle_ngraph.distributed import launcher
from tests import jobs
from tests.cluster import machines, test_training
from tests.cluster.machines import Driver, Machines

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytestmark = pytest.mark.skipif(
    bool(machines.why_impossible()), reason=machines.why_impossible() or "none"
)
DEMO = jobs.ROOT / "demos" / "distributed_demo" / "train.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Machines 1 and 2 have four cores each, as Ray is told."""
    with Machines(tmp_path_factory.mktemp("nodes"), [4, 4]) as made:
        made.start(0, 1, 2)
        yield made


def launched(cluster: Machines, *arguments: object, name: str, ranks: int = 8) -> Driver:
    options = ["--ray", cluster.head, "--nproc", ranks, *arguments]
    return cluster.run_python("-m", "paddle_ngraph", "launch", *options, name=name)


def test_the_demo_runs_unchanged_and_a_killed_rank_starts_again(cluster, tmp_path):
    options = ["--max-restarts", 1, "--checkpoint", tmp_path / "checkpoints"]
    options += ["--log-dir", tmp_path / "logs", DEMO, "--epochs", 1, "--kill"]
    driver = launched(cluster, *options, name="demo")
    assert driver.wait() == 0, driver.output()[-6000:]
    output = driver.output()
    restart = (
        r"rank 7 on 10\.9\.0\.[23] was killed by SIGKILL.*start again from step \d+ \(restart 1"
    )
    assert re.search(restart, output), output[-6000:]
    assert len(re.findall(r"\[rank 0\] test accuracy: 0\.\d+", output)) == 1


@pytest.mark.parametrize("network", ["static", "dynamic"])
def test_a_script_has_the_losses_that_it_has_on_one_machine(cluster, tmp_path, network):
    expected = test_training.launched(tmp_path / "one", network)
    folder = tmp_path / "ray"
    folder.mkdir()
    script = [test_training.SCRIPT, folder, "--network", network, "--launched"]
    driver = launched(cluster, *script, name=f"{network}script", ranks=2)
    assert driver.wait() == 0, driver.output()[-6000:]
    for rank in range(2):
        assert test_training.losses(folder, rank) == test_training.losses(expected, rank)


@pytest.mark.parametrize("network", ["static", "dynamic"])
def test_ranks_that_differ_end_with_one_sentence_before_the_first_step(cluster, tmp_path, network):
    options = ["--max-restarts", 3, "--log-dir", tmp_path / "logs", test_training.SCRIPT, tmp_path]
    options += ["--network", network, "--launched", "--difference", 0.1]
    driver = launched(cluster, *options, name=f"{network}difference", ranks=2)
    assert driver.wait() == launcher.REJECTED, driver.output()[-6000:]
    (sentence,) = said_by_driver(driver)
    assert re.search(r"ranks 0 and 1 (run|train) different", sentence)
    starts = [test_training.lines(tmp_path, rank) for rank in range(2)]
    assert all([line[0] for line in each] in ([], ["start"]) for each in starts)


SLEEPER = """
import sys, time
from paddle_ngraph import distributed

distributed.init()
print("ready", distributed.rank(), flush=True)
time.sleep(3600)
"""


def test_a_machine_that_is_lost_is_one_sentence(cluster, tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    driver = launched(cluster, "--log-dir", tmp_path / "logs", script, name="sleeper")
    end = time.monotonic() + machines.LIMIT
    while "ready 0" not in driver.output():
        assert driver.process.poll() is None and time.monotonic() < end, driver.output()[-6000:]
        time.sleep(0.1)
    cluster.switch_off(2)
    assert driver.wait() == launcher.MACHINE_LOST, driver.output()[-6000:]
    (sentence,) = said_by_driver(driver)
    assert "10.9.0.3" in sentence and "no further restart is allowed" in sentence


def said_by_driver(driver: Driver) -> list[str]:
    """The sentences of this package that the driver itself has printed."""
    mark = "paddle_ngraph: "
    return [line for line in driver.output().splitlines() if line.startswith(mark)]
