"""Static clusters: a launcher on each of two machines, and ranks that are killed, stuck or lost.

No Ray is needed. The losses are, to the last bit, those of an undisturbed job on one machine.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from paddle_ngraph.distributed import launcher
from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from tests import jobs
from tests.cluster import machines
from tests.cluster.machines import Driver, Machines
from tests.cluster.test_training import SCRIPT, has_trained, launched, lines, losses, wait_for
from tests.cluster.trainings import release
from tests.distributed.test_launch import said_by

pytestmark = [
    pytest.mark.skipif(bool(machines.why_impossible()), reason=machines.why_impossible() or "none"),
    pytest.mark.slow("starts jobs on two machines"),
]
PORT, HELD = 6070, 5
_numbers = itertools.count()  # of launchers, each with a file for its output
# What a launcher is told of its place: options, and variables of a scheduler.
Place = tuple[list[object], dict[str, object]]


def by_options(cluster: Machines, node: int) -> Place:
    master = f"{cluster.address(1)}:{PORT}"
    return ["--nnodes", 2, "--node-rank", node, "--master", master], {}


def by_slurm(cluster: Machines, node: int) -> Place:
    """The variables of a step of srun(1) on two machines."""
    return [], {
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NUM_NODES": 2,
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_STEP_NODELIST": f"{cluster.address(1)},{cluster.address(2)}",
        "SLURM_NODEID": node,
        "SLURM_JOB_ID": 4711,
    }


def by_open_mpi(cluster: Machines, node: int) -> Place:
    """The variables of mpirun(1) with a process on each machine."""
    options: list[object] = ["--master", f"{cluster.address(1)}:{PORT}"]
    return options, {
        "OMPI_COMM_WORLD_SIZE": 2,
        "OMPI_COMM_WORLD_RANK": node,
        "OMPI_COMM_WORLD_LOCAL_SIZE": 1,
    }


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, secrets.token_hex(16))
    with Machines(tmp_path, [1, 1]) as made:
        yield made


def start(
    cluster: Machines,
    folder: Path,
    *options: object,
    place: Callable[[Machines, int], Place] = by_options,
    script: tuple[object, ...] = (),
) -> list[Driver]:
    """A launcher on machines 1 and 2, each of one rank."""
    started = []
    for node in range(2):
        placed, variables = place(cluster, node)
        log = ["--log-dir", folder / f"log_{node}"]
        arguments = ["--nproc", 1, *placed, *log, *options, *(script or (SCRIPT, folder))]
        command = ["-m", "paddle_ngraph", "launch", *arguments]
        name = f"launcher{next(_numbers)}"
        started.append(
            cluster.run_python(*command, name=name, number=node + 1, variables=variables)
        )
    return started


def ended(drivers: list[Driver], status: int) -> str:
    """The sentence with which all launchers have ended."""
    found = []
    for each in drivers:
        assert each.wait() == status, each.output()[-6000:]
        found.append(said_by(each.output()))
    first, second = found
    assert first == second and len(first) == 1, found
    return first[0]


FAULTS = {
    signal.SIGKILL: r"rank 1 on 10\.9\.0\.3 was killed by SIGKILL",
    signal.SIGSTOP: r"rank 1 on 10\.9\.0\.3 is stuck: it has had no heartbeat for \d+ seconds",
}


@pytest.mark.parametrize(
    ("fault", "place", "network"),
    [
        (signal.SIGKILL, by_options, "dynamic"),
        (signal.SIGSTOP, by_options, "static"),
        (signal.SIGKILL, by_slurm, "static"),
        (signal.SIGSTOP, by_open_mpi, "dynamic"),
    ],
)
def test_a_rank_that_is_killed_or_stuck_makes_no_difference(
    cluster, tmp_path, fault, place, network
):
    expected = launched(tmp_path / "expected", network)
    folder = tmp_path / "job"
    folder.mkdir()
    script = (SCRIPT, folder, "--network", network, "--launched", "--saved", "--held", HELD)
    options = ["--max-restarts", 1, "--checkpoint", folder / "checkpoints"]
    drivers = start(cluster, folder, *options, place=place, script=script)
    wait_for(has_trained(folder, 1, HELD), drivers[1])
    os.kill(int(lines(folder, 1)[-1][2]), fault)
    release(folder, HELD)
    sentence = ended(drivers, 0)
    assert re.match(FAULTS[fault] + r".*start again from step \d+ \(restart 1 of 1\)", sentence)
    for rank in range(2):
        assert losses(folder, rank) == losses(expected, rank)
        assert [int(line[1]) > 3 for line in lines(folder, rank) if line[0] == "start"] == [
            False,
            True,
        ]


def test_a_machine_whose_link_is_cut_is_named_on_both(cluster, tmp_path):
    script = (SCRIPT, tmp_path, "--launched", "--held", HELD)
    drivers = start(cluster, tmp_path, "--max-restarts", 3, script=script)
    wait_for(has_trained(tmp_path, 1, HELD), drivers[1])
    cluster.cut(2)
    for own, other in ((0, 1), (1, 0)):
        assert drivers[own].wait() == launcher.MACHINE_LOST, drivers[own].output()[-6000:]
        (sentence,) = said_by(drivers[own].output())
        address = re.escape(cluster.address(other + 1))
        assert re.match(rf"machine {other} \({address}\) has gone", sentence)


def test_machines_that_cannot_form_a_job_are_one_sentence(cluster, tmp_path):
    """No rank is started: another version, no AVX2, an address where nobody is."""
    version = jobs.ROOT / "paddle_ngraph" / "version.py"
    other, processor = tmp_path / "version.py", tmp_path / "cpuinfo"
    other.write_text(version.read_text().replace('__version__ = "', '__version__ = "9.'))
    processor.write_text(Path("/proc/cpuinfo").read_text().replace(" avx2", ""))
    script = (SCRIPT, tmp_path, "--launched")

    cluster.before_start[2] = f"mount --bind {other} {version}"
    sentence = ended(start(cluster, tmp_path, script=script), 2)
    assert re.match(r"machine 0 \(10.9.0.2\) has 0\S* .*machine 1 \(10.9.0.3\) has 9\.", sentence)

    cluster.before_start[2] = f"mount --bind {processor} /proc/cpuinfo"
    sentence = ended(start(cluster, tmp_path, script=script), 2)
    assert sentence == "machine 1 (10.9.0.3) cannot run: its processor has no AVX2"

    del cluster.before_start[2]
    alone = ["--nnodes", 2, "--node-rank", 1, "--master", f"10.9.0.99:{PORT}", SCRIPT, tmp_path]
    command = ["-m", "paddle_ngraph", "launch", "--nproc", 1, *alone]
    launcher_alone = cluster.run_python(*command, name="alone", number=2)
    assert launcher_alone.wait() == 2, launcher_alone.output()[-6000:]
    assert "machine 0 cannot be reached at 10.9.0.99:6070" in launcher_alone.output()
    assert lines(tmp_path, 0) == lines(tmp_path, 1) == []
