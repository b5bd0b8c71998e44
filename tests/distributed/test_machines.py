"""``launch`` on several machines: a launcher on each, here all on loopback."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.distributed import launcher, machines
from paddle_ngraph.distributed.connections import SECRET_VARIABLE
from paddle_ngraph.distributed.machines import Place, place_of
from tests import jobs
from tests.distributed.test_launch import PRELUDE, said_by

SECRET = secrets.token_hex(16)


class Launchers:
    """Launchers of machines 0 and 1, each a process."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.master = f"127.0.0.1:{jobs.free_port()}"
        self.started: list[subprocess.Popen[str]] = []
        (folder / "script.py").write_text(PRELUDE + textwrap.dedent(script))

    def start(self, node: int, *options: object, secret: str = SECRET, nodes: int = 2) -> None:
        given = ["--nnodes", nodes, "--node-rank", node, "--master", self.master, *options]
        command = ["-m", "paddle_ngraph", "launch", "--nproc", 1, *given, "script.py"]
        variables = {**os.environ, "PYTHONPATH": str(jobs.ROOT), SECRET_VARIABLE: secret}
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", *map(str, command)],
                cwd=self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    def ended(self) -> list[tuple[int, str]]:
        """The exit statuses and outputs, by order of start."""
        found = []
        for each in self.started:
            output, _ = each.communicate(timeout=jobs.LIMIT)
            found.append((each.returncode, output))
        return found

    def kill(self) -> None:
        for each in self.started:
            each.kill()
            each.communicate()


@pytest.fixture
def launchers(tmp_path):
    made = []

    def make(script: str) -> Launchers:
        made.append(Launchers(tmp_path, script))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.mark.slow("starts several processes")
def test_ranks_of_two_machines_know_their_place(launchers):
    job = launchers(
        """
        keys = ["LOCAL_RANK", "LOCAL_SIZE", "NNODES", "NODE_RANK"]
        print(rank, ranks, *(os.environ[f"PADDLE_{key}"] for key in keys), flush=True)
        ends = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
        assert os.environ["PADDLE_CURRENT_ENDPOINT"] == ends[rank] and len(ends) == 2
        assert os.environ["PADDLE_MASTER"] == ends[0]
        open(f"{rank}.secret", "w").write(os.environ["PADDLE_NGRAPH_SECRET"])
        """
    )
    job.start(1)
    job.start(0)
    assert [status for status, _ in job.ended()] == [0, 0]
    assert "1 2 0 1 2 1" in (job.folder / "log" / "workerlog.1").read_text()
    first, second = ((job.folder / f"{rank}.secret").read_text() for rank in range(2))
    assert first == second != SECRET and len(first) == 64, "each start has a secret of its own"


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_killed_rank_is_named_on_both_machines(launchers, restarts):
    job = launchers(
        """
        if rank == 1 and restart == 0:
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if restart == 0:
            time.sleep(900)
        """
    )
    for node in range(2):
        job.start(node, "--max-restarts", restarts)
    (first, of_first), (second, of_second) = job.ended()
    assert first == second == 1 - restarts
    assert said_by(of_first) == said_by(of_second)
    sentence, *more = said_by(of_first)
    assert re.match(r"rank 1 on 127.0.0.1 was killed by SIGKILL", sentence) and not more
    assert ("restart 1 of 1" in sentence) is bool(restarts)
    assert ("last words" in of_second) and ("last words" not in of_first)


@pytest.mark.slow("starts several processes")
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_machine_is_named(launchers, lost):
    job = launchers("time.sleep(900)")
    for node in range(2):
        job.start(node, "--max-restarts", 3)
    while not all((job.folder / f"{rank}.starts").exists() for rank in range(2)):
        time.sleep(0.05)
    job.started[lost].kill()
    status, output = job.ended()[1 - lost]
    assert status == launcher.MACHINE_LOST
    (sentence,) = said_by(output)
    assert re.match(rf"machine {lost} \(127.0.0.1\) has gone", sentence)
    for rank in range(2):
        pid = int((job.folder / f"{rank}.starts").read_text().split()[0])
        assert not Path(f"/proc/{pid}").exists() or wait_for_end(pid)


def wait_for_end(pid: int) -> bool:
    """The kernel kills the ranks of a launcher that is killed."""
    while Path(f"/proc/{pid}").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    return True


@pytest.mark.slow("starts several processes")
def test_a_signal_ends_the_launchers_of_all_machines(launchers):
    job = launchers("time.sleep(900)")
    for node in range(2):
        job.start(node)
    while not all((job.folder / f"{rank}.starts").exists() for rank in range(2)):
        time.sleep(0.05)
    job.started[1].send_signal(signal.SIGTERM)
    assert [status for status, _ in job.ended()] == [128 + signal.SIGTERM] * 2


@pytest.mark.slow("starts several processes")
def test_strangers_do_not_join(launchers, monkeypatch):
    job = launchers("print('fine', flush=True)")
    job.start(0)
    host, port = job.master.split(":")
    strangers = []
    while not strangers:
        try:
            strangers.append(socket.create_connection((host, int(port)), 5))
        except ConnectionRefusedError:
            time.sleep(0.05)
    strangers += [socket.create_connection((host, int(port)), 5) for _ in range(3)]
    strangers[0].sendall(b"\xff" * 4096)
    strangers[1].sendall(b"\x00\x00\x00\x00\x00\x00\x00\x01" + b"x" * 64)
    strangers[2].sendall(b"GET / HTTP/1.0\r\n\r\n")
    job.start(1, secret="another secret of someone")
    (status, output) = job.started[1].wait(jobs.LIMIT), job.started[1].communicate()[0]
    assert status == 2 and "machine 0 cannot be reached at 127.0.0.1" in output
    job.started.pop()
    job.start(1)
    assert [status for status, _ in job.ended()] == [0, 0]
    for each in strangers:
        each.close()


def test_a_secret_is_required(monkeypatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with (
        pytest.raises(NgraphError, match="PADDLE_NGRAPH_SECRET is missing in the environment"),
        machines.joined(Place(2, 0, "127.0.0.1:1"), 1, 30),
    ):
        pass


def test_an_address_that_does_not_answer_is_one_sentence(monkeypatch):
    monkeypatch.setattr(machines, "JOIN_TIMEOUT_SECONDS", 0.0)
    place = Place(2, 1, f"127.0.0.1:{jobs.free_port()}")
    with pytest.raises(NgraphError, match=r"machine 0 cannot be reached at 127.0.0.1:.*start a la"):
        machines.Link(place, SECRET, 1, 30)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (Place(0), "--nnodes 0 --node-rank 0: machines are counted from 0"),
        (Place(2, 2, "a:1"), "--nnodes 2 --node-rank 2"),
        (Place(2, 0), "--master '': give host:port"),
        (Place(2, 0, "host"), "--master 'host': give host:port"),
        (Place(2, 0, "host:70000"), "--master 'host:70000': give host:port"),
    ],
)
def test_invalid_places_are_refused(place, what):
    with pytest.raises(NgraphError, match=re.escape(what)):
        place.check()


SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "12345",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("cn[07-09,12],gpu3", "cn07"),
        ("cn[3,5]", "cn3"),
        ("a-b.example[1-2]", "a-b.example1"),
    ],
)
def test_the_variables_of_slurm(hosts, first):
    found = place_of({**SLURM, "SLURM_STEP_NODELIST": hosts})
    assert found == Place(3, 2, f"{first}:29345")


def test_the_variables_of_open_mpi():
    assert place_of(OPEN_MPI) == Place(2, 1, "")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"},
        {**SLURM, "SLURM_STEP_ID": "batch"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_one_machine_without_a_scheduler(variables):
    assert place_of(variables) == Place()


@pytest.mark.parametrize(
    "variables",
    [{**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}],
)
def test_several_launchers_on_a_machine_are_refused(variables):
    with pytest.raises(NgraphError, match=r"launchers are started on \d machines: start one on"):
        place_of(variables)
