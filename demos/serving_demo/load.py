"""Sends requests to a server on 127.0.0.1, a bounded number, several at a time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

SECONDS = 120.0
"""Time limit of a request."""


@dataclass
class Load:
    """The outcome of some requests.

    Attributes:
        milliseconds: The time of each answered request, as its client sees it.
        seconds: The time of all.
        answers: The distinct answers to each body, by its index.
        failures: A sentence for each request without an answer.
        workers: The ids of the processes that have answered, the latest last.
        killed: The ids of the processes that were killed meanwhile.
    """

    milliseconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    answers: dict[int, list[Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)


async def send(
    port: int, bodies: Sequence[bytes], count: int, at_once: int, kill_every: int | None = None
) -> Load:
    """Sends ``count`` requests, ``at_once`` at a time, and none twice.

    Args:
        port: The port of the server.
        bodies: Contents of the requests, in turn.
        count: Number of requests.
        at_once: Requests in flight.
        kill_every: Sends SIGKILL to a worker each time that this many requests have been sent.
    """
    load, numbers, start = Load(), iter(range(count)), time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def client() -> None:
            for number in numbers:
                if kill_every and number % kill_every == kill_every - 1 and load.workers:
                    _kill(load)
                await _send_one(session, port, bodies, number % len(bodies), load)

        await asyncio.gather(*(client() for _ in range(at_once)))
    load.seconds = time.perf_counter() - start
    return load


async def _send_one(
    session: aiohttp.ClientSession, port: int, bodies: Sequence[bytes], index: int, load: Load
) -> None:
    start = time.perf_counter()
    try:
        url = f"http://127.0.0.1:{port}/predict"
        async with session.post(url, data=bodies[index]) as response:
            text = await response.text()
            if response.status != 200:
                load.failures.append(f"status {response.status}: {text}")
                return
            worker = int(response.headers["x-worker"])
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        load.failures.append(repr(error))
        return
    load.milliseconds.append(1e3 * (time.perf_counter() - start))
    answer, known = json.loads(text), load.answers.setdefault(index, [])
    if answer not in known:
        known.append(answer)
    if worker in load.workers:
        load.workers.remove(worker)
    load.workers.append(worker)


def _kill(load: Load) -> None:
    """Kills the worker that has answered last, of those that live."""
    while load.workers:
        worker = load.workers.pop()
        try:
            os.kill(worker, signal.SIGKILL)
        except ProcessLookupError:
            continue
        load.killed.append(worker)
        return


async def metrics(port: int) -> dict[str, float]:
    """Returns the metrics of a server: values by name, with labels if there are any."""
    url = f"http://127.0.0.1:{port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def alive_megabytes(values: dict[str, float]) -> dict[int, float]:
    """Returns the resident memory of each living worker, from the metrics, in MB by process."""
    found = {}
    for name, value in values.items():
        if name.startswith("resident_bytes{"):
            process = int(name.split('pid="')[1].split('"')[0])
            # Neither those that have ended nor gunicorn's master, which serves nothing.
            if value and os.path.exists(f"/proc/{process}"):
                found[process] = value / 2**20
    return found


def processor_seconds(processes: Iterable[int]) -> float:
    """Returns the processor time of processes until now."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
