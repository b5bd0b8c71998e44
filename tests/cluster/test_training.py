"""Trainings on a cluster of Ray whose workers and machines are lost.

The losses are, to the last bit, those of ranks of ``python -m paddle_ngraph launch``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import jobs
from tests.cluster import machines
from tests.cluster.machines import Driver, Machines
from tests.cluster.trainings import REFUSED, release

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytestmark = pytest.mark.skipif(
    bool(machines.why_impossible()), reason=machines.why_impossible() or "none"
)
SCRIPT = Path(__file__).with_name("trainings.py")


def lines(folder: Path, rank: int) -> list[list[str]]:
    path = folder / f"losses_{rank}.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def losses(folder: Path, rank: int) -> dict[int, set[str]]:
    """All losses of each step: several, if it was repeated with another result."""
    found: dict[int, set[str]] = {}
    for line in lines(folder, rank):
        if line[0].isdecimal():
            found.setdefault(int(line[0]), set()).add(line[1])
    return found


def launched(folder: Path, network: str, *options: object) -> Path:
    """The folder of the undisturbed training by the launcher of this package."""
    folder.mkdir()
    ports = [jobs.free_port() for _ in range(2)]
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    commands = []
    for rank in range(2):
        variables = jobs.of_rank(rank, 2, ports[0])
        variables["PADDLE_TRAINER_ENDPOINTS"] = ",".join(endpoints)
        variables["PADDLE_CURRENT_ENDPOINT"] = endpoints[rank]
        command = [SCRIPT, folder, "--network", network, "--launched", *options]
        commands.append(([str(each) for each in command], variables))
    jobs.assert_fine(jobs.run(folder, commands))
    return folder


def wait_for(condition: Callable[[], bool], driver: Driver, limit: float = machines.LIMIT) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert driver.process.poll() is None, driver.output()[-6000:]
        assert time.monotonic() < end, driver.output()[-6000:]
        time.sleep(0.05)


def has_trained(folder: Path, rank: int, step: int) -> Callable[[], bool]:
    return lambda: any(line[0] == str(step) for line in lines(folder, rank))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Machines 1 and 2 have one core each."""
    with Machines(tmp_path_factory.mktemp("nodes"), [1, 1]) as made:
        made.start(0, 1, 2)
        yield made


def has_moto(python: str) -> bool:
    return subprocess.run([python, "-c", "import moto.server"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def object_storage(cluster):
    """Options of a training whose storage is a server of S3 on machine 0."""
    python = os.environ.get("S3_PYTHON", sys.executable)
    if not has_moto(python):
        pytest.skip("make cluster has an environment with moto: S3_PYTHON")
    url = f"http://{cluster.address(0)}:5000"
    server = cluster.run_python("-m", "moto.server", "-H", cluster.address(0), "-p", 5000,
                                name="s3", python=python)  # fmt: skip
    wait_for(lambda: "Running on" in server.output(), server)
    return ["--s3", url, "--storage", "bucket/runs"]


@pytest.mark.parametrize(
    ("network", "storage"), [("static", "folder"), ("dynamic", "folder"), ("static", "S3")]
)
def test_a_killed_worker_makes_no_difference(cluster, tmp_path, request, network, storage):
    expected = launched(tmp_path / "launched", network)
    folder = tmp_path / "ray"
    folder.mkdir()
    options = request.getfixturevalue("object_storage") if storage == "S3" else []
    options = ["--network", network, "--held", 5, *options]
    driver = cluster.run(SCRIPT, folder, *options, name=f"{network}{storage}")
    wait_for(has_trained(folder, 1, 5), driver)
    os.kill(int(lines(folder, 1)[-1][2]), signal.SIGKILL)
    release(folder, 5)
    assert driver.wait() == 0, driver.output()[-6000:]
    for rank in range(2):
        assert losses(folder, rank) == losses(expected, rank)
        assert lines(folder, rank)[-1] == ["end"]
        starts = [int(line[1]) for line in lines(folder, rank) if line[0] == "start"]
        assert len(starts) == 2 and 4 <= starts[1] <= 7


def refusal(driver: Driver) -> str:
    assert driver.wait() == 0, driver.output()[-6000:]
    (found,) = (line for line in driver.output().splitlines() if line.startswith(REFUSED))
    return found[len(REFUSED) :]


@pytest.mark.parametrize("network", ["static", "dynamic"])
def test_ranks_that_differ_end_with_one_sentence_before_the_first_step(cluster, tmp_path, network):
    options = ["--network", network, "--difference", 0.1]
    driver = cluster.run(SCRIPT, tmp_path, *options, name=f"{network}difference")
    assert re.match(r"ranks 0 and 1 (run|train) different", refusal(driver))
    for rank in range(2):  # no rank trained, and none was started again
        assert [line[0] for line in lines(tmp_path, rank)] in ([], ["start"])
