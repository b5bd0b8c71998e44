"""Jobs of several processes for the tests: with a time limit, and killed as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Seconds: a job that takes longer hangs, on the slowest machine.
LIMIT = 900.0
_groups = count(7000)
_reserved: list[socket.socket] = []


class Ended(NamedTuple):
    """The exit status of a process, and its output."""

    status: int
    output: str


class Table:
    """A store, as Paddle's: a reader of a missing key waits for the key."""

    def __init__(self):
        self._changed = threading.Condition()
        self._texts: dict[str, bytes] = {}

    def set(self, key: str, text: str | bytes) -> None:
        with self._changed:
            self._texts[key] = text if isinstance(text, bytes) else text.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._texts, 60)
            return self._texts[key]


def free_port() -> int:
    """A port reserved while this process lives: bound, but without a listener."""
    _reserved.append(socket.socket())
    _reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reserved[-1].bind(("", 0))
    return int(_reserved[-1].getsockname()[1])


def listening(pid: int) -> list[str]:
    """The addresses at which a process listens, as ``host:port``; of IPv6 ``*:port``."""
    sockets = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, _, state, *_, number = line.split()[1:10]
            if state == "0A" and f"socket:[{number}]" in sockets:
                host, port = local.split(":")
                address = socket.inet_ntoa(bytes.fromhex(host)[::-1]) if table == "tcp" else "*"
                found.append(f"{address}:{int(port, 16)}")
    return found


def new_group() -> int:
    """The id of a process group that this process does not contain: Paddle never releases one."""
    return next(_groups)


def of_rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment that ``paddle.distributed.launch`` gives a rank."""
    endpoints = [f"127.0.0.1:{port + number}" for number in range(ranks)]
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_LOCAL_RANK": str(rank),
        "PADDLE_LOCAL_SIZE": str(ranks),
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
    }


def run(
    folder: Path, commands: Sequence[tuple[Sequence[str], dict[str, str]]], limit: float = LIMIT
) -> list[Ended]:
    """Runs Python processes at once, each with arguments and environment variables.

    Each has a process group of its own and a file for its output; after ``limit`` seconds, or a few
    after one has failed, all groups are killed.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))
    started = []
    for number, (arguments, variables) in enumerate(commands):
        with open(folder / f"output_{number}.txt", "w") as output:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", *arguments],
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "FLAGS_ngraph_cache_dir": "",
                    "GLOG_minloglevel": "2",
                    **variables,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started.append(process)
    end = time.monotonic() + limit
    try:
        while any(process.poll() is None for process in started) and time.monotonic() < end:
            if any(process.poll() for process in started):
                end = min(end, time.monotonic() + 60)  # for reports of the others about it
            time.sleep(0.05)
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outputs = [(folder / f"output_{i}.txt").read_text() for i in range(len(started))]
    return [Ended(process.returncode, output) for process, output in zip(started, outputs)]


def run_ranks(folder: Path, script: str, ranks: int) -> list[Ended]:
    """Runs a script on each rank of a job, as ``launch`` would."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    port = free_port()
    places = [of_rank(rank, ranks, port) for rank in range(ranks)]
    return run(folder, [([str(path)], place) for place in places])


def assert_fine(ended: Sequence[Ended]) -> None:
    """Asserts that every process has ended well."""
    texts = [f"-- {each.status}\n{each.output[-4000:]}" for each in ended]
    assert all(each.status == 0 for each in ended), "\n".join(texts)
