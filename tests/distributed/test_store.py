"""The store of a job: its server, for ranks and for whoever sends something else."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.distributed import job, sockets, store
from paddle_ngraph.distributed.job import RankPlacement
from tests import jobs

ADD, GET, CHECK, SET, WAIT = range(5)
STOP_WAIT, READY, NOT_READY = 1, 2, 3


def packed(text: bytes) -> bytes:
    return struct.pack("N", len(text)) + text


def request(command: int, key: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("i", command) + packed(key) + rest


class Client:
    """A client in place of Paddle's."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        self.connection = connection
        self._file = connection.makefile("rb")

    def ask(self, layout: str, *given) -> int:
        self.connection.sendall(request(*given))
        return self.read(layout)

    def read(self, layout: str) -> int:
        return struct.unpack(layout, self._file.read(struct.calcsize(layout)))[0]

    def set(self, key: bytes, text: bytes) -> None:
        self.connection.sendall(request(SET, key, packed(text)))

    def get(self, key: bytes) -> bytes:
        return self._file.read(self.ask("N", GET, key))

    def is_closed(self) -> bool:
        return self._file.read(1) == b""


@pytest.fixture
def clients():
    pairs = [socket.socketpair() for _ in range(3)]
    store._StoreServer([peer for _, peer in pairs]).start()
    yield [Client(own) for own, _ in pairs]
    for own, _ in pairs:
        own.close()


@pytest.mark.pure
def test_all_ranks_read_the_texts_of_one(clients):
    first, second, third = clients
    assert first.ask("i", CHECK, b"key") == NOT_READY
    second.connection.sendall(request(WAIT, b"key"))
    third.connection.sendall(request(WAIT, b"key"))
    first.set(b"key", b"\0 text")
    assert second.read("i") == third.read("i") == first.ask("i", WAIT, b"key") == STOP_WAIT
    assert first.ask("i", CHECK, b"key") == READY
    assert second.get(b"key") == third.get(b"key") == b"\0 text"
    sums = [each.ask("q", ADD, b"number", struct.pack("q", 5)) for each in clients]
    assert sums == [5, 10, 15] and first.get(b"number") == b"15"


@pytest.mark.pure
def test_a_rank_waits_for_the_address_of_the_next_group(clients):
    """Paddle overwrites the addresses of the group before, and would read those."""
    first, second, third = clients
    first.set(b"/0", b"one")
    assert (second.ask("i", WAIT, b"/0"), second.get(b"/0")) == (STOP_WAIT, b"one")
    second.connection.sendall(request(WAIT, b"/0"))
    assert third.ask("i", WAIT, b"/0") == STOP_WAIT
    first.set(b"/0", b"two")
    assert second.read("i") == STOP_WAIT
    assert second.get(b"/0") == third.get(b"/0") == b"two"


STRANGE: dict[str, Callable[[random.Random], bytes]] = {
    "no such command": lambda draw: request(draw.choice([-1, 5, 1 << 30]), b"key"),
    "a missing key": lambda draw: request(GET, draw.randbytes(9)),
    "a key of any size": lambda draw: struct.pack("iN", WAIT, draw.randrange(1 << 25, 1 << 63)),
    "a text of any size": lambda draw: (
        request(SET, b"key") + struct.pack("N", draw.randrange(1 << 25, 1 << 63))
    ),
    "a text in place of a number": lambda draw: request(ADD, b"text", struct.pack("q", 1)),
    "another protocol": lambda draw: b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.pure
@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_request_closes_its_connection_and_no_other(clients, kind):
    first, second, third = clients
    first.set(b"text", b"no number")
    second.connection.sendall(STRANGE[kind](random.Random(4)))
    assert second.is_closed()
    third.connection.sendall(request(SET, b"half")[:7])
    first.set(b"key", b"text")
    assert first.get(b"key") == b"text"


# -- a whole job ---------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
import paddle
from paddle_ngraph import distributed
from tests import jobs

rank, folder = os.environ["PADDLE_TRAINER_ID"], sys.argv[1]
with open(f"{folder}/pid_{rank}", "w") as file:
    file.write(str(os.getpid()))
while rank == "1" and not os.path.exists(f"{folder}/go"):
    time.sleep(0.05)
distributed.init(dynamic=True)
group = paddle.distributed.new_group([0, 1])
values = []
for each in (None, group):
    tensor = paddle.ones([2]) * (distributed.rank() + 1)
    paddle.distributed.all_reduce(tensor, group=each)
    values.append(tensor.numpy().tolist())
with open(f"{folder}/result_{rank}", "w") as file:
    json.dump([values, jobs.listening(os.getpid())], file)
distributed.barrier()
"""


def disturb(port: int, draw: random.Random) -> None:
    """Sends what no rank would to a port, and leaves the connection open."""
    for make in (*STRANGE.values(), lambda draw: b"", lambda draw: draw.randbytes(300)):
        peer = socket.create_connection(("127.0.0.1", port))
        _open.append(peer)
        peer.sendall(make(draw))


_open: list[socket.socket] = []


@pytest.mark.slow("starts two ranks, under a launcher")
def test_a_job_listens_at_its_own_address_and_ignores_strangers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = ["-m", "paddle_ngraph", "launch", "--nproc", "2", "--log-dir", str(tmp_path / "log")]
    path = os.pathsep.join(filter(None, [str(jobs.ROOT), os.getenv("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *command, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
    )
    try:
        end, found = time.monotonic() + jobs.LIMIT, []
        while not found:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
            if (tmp_path / "pid_0").exists():
                found = jobs.listening(int((tmp_path / "pid_0").read_text() or 0))
        assert {each.partition(":")[0] for each in found} == {"127.0.0.1"}
        for each in found:
            disturb(int(each.partition(":")[2]), random.Random(5))
        (tmp_path / "go").touch()
        assert process.wait(jobs.LIMIT) == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        for peer in _open:
            peer.close()
    for rank in range(2):
        values, listening = json.loads(Path(tmp_path / f"result_{rank}").read_text())
        assert values == [[3, 3]] * 2 and listening == []


# -- connections of gloo -------------------------------------------------------------------------


def checked(monkeypatch, *found: list[list[str]]) -> None:
    """Compares connections of ranks, as each of them does."""
    member = job.DistributedJob(RankPlacement(0, len(found), 0, len(found), "127.0.0.1:1"))
    monkeypatch.setattr(member, "exchange", lambda text: list(map(json.dumps, found)))
    member._check_peers(set())


@pytest.mark.pure
def test_a_connection_that_no_rank_has_is_one_sentence(monkeypatch):
    first, second = [["a:1", "b:2"], ["a:3", "c:4"]], [["b:2", "a:1"]]
    checked(monkeypatch, first, second, [["c:4", "a:3"]])
    with pytest.raises(NgraphError, match="rank 0 is connected to c:4, which is no rank") as e:
        checked(monkeypatch, first, second, [])
    assert "\n" not in str(e.value)


@pytest.mark.pure
def test_connections_of_a_process_are_those_with_a_peer():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socketpair()[0]:
        before = sockets.connected()
        with socket.create_connection(server.getsockname()) as client:
            made = sockets.connected() - before
            ends = [sockets.address_text(each.getsockname()) for each in (client, server)]
            assert made == {tuple(ends)}
            assert sockets.unpacked(sockets.packed(made)) == made
