"""Rendezvous of ranks: here as threads of one process, with a table in place of Paddle's store."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from paddle_ngraph.distributed import rendezvous
from paddle_ngraph.distributed.connections import Endpoint
from paddle_ngraph.distributed.rendezvous import Rendezvous
from tests.jobs import Table

pytestmark = pytest.mark.pure

KEY = "ngraph/meetings/7"


class Ranks:
    """The ranks of a job, each with a thread."""

    def __init__(self, ranks: int):
        self._pool = ThreadPoolExecutor(ranks)
        endpoint = Endpoint(Table(), KEY, "127.0.0.1", "")
        first = self._pool.submit(Rendezvous, 0, ranks, endpoint)
        others = [self._pool.submit(Rendezvous, rank, ranks, endpoint) for rank in range(1, ranks)]
        self.all = [each.result(60) for each in (first, *others)]

    def say(self, texts: dict[int, str]) -> dict[int, Future]:
        return {n: self._pool.submit(self.all[n].exchange, text) for n, text in texts.items()}

    def end(self) -> None:
        for each in self.all:
            each.close()
        self._pool.shutdown()


@pytest.fixture
def job():
    made = []

    def make(*arguments) -> Ranks:
        made.append(Ranks(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.mark.parametrize("ranks", [2, 5])
def test_each_rank_gets_the_texts_of_all(job, ranks):
    """Also texts that fill the buffers of sockets before any rank reads."""
    met = job(ranks)
    for repetition in range(20):
        texts = [
            f"{repetition} {rank} é" * (300_000 if repetition == 7 else rank)
            for rank in range(ranks)
        ]
        said = met.say(dict(enumerate(texts)))
        assert [each.result(60) for each in said.values()] == [texts] * ranks


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_rank_that_has_gone_is_noticed_by_all(job, gone):
    met = job(3)
    waiting = met.say({rank: "here" for rank in range(3) if rank != gone})
    met.all[gone].close()
    for each in waiting.values():
        with pytest.raises(ConnectionError, match=r"rank \d has gone"):
            each.result(60)
    for rank in range(3):
        with pytest.raises(ConnectionError, match="no longer connected to the other ranks"):
            met.all[rank].exchange("again")


def test_a_rank_that_goes_after_it_has_spoken_is_noticed(job):
    met = job(3)
    said = met.say({1: "here"})
    first = met.say({0: "here"})
    peer = met.all[1]._peers[0]
    peer.shutdown(socket.SHUT_RDWR)
    for each in (*said.values(), *first.values()):
        with pytest.raises(ConnectionError, match=r"rank \d has gone"):
            each.result(60)


def test_a_rank_that_does_not_come_is_named(job, monkeypatch):
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_TIMEOUT_SECONDS", 0.5)
    said = job(3).say({0: "here", 2: "here"})
    with pytest.raises(TimeoutError, match="rank 1 has not joined for"):
        said[0].result(60)
    with pytest.raises(OSError):
        said[2].result(60)


def test_a_fork_keeps_no_connection_open(job):
    """Connections end with the process that forked, however long its children live."""
    met = job(2)
    refused, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            met.all[1].exchange("from a fork")
        except ConnectionError as error:
            os.write(answer, str(error).encode())
        signal.pause()
    try:
        assert b"no longer connected" in os.read(refused, 1000)
        said = met.say({0: "a", 1: "b"})
        assert [each.result(60) for each in said.values()] == [["a", "b"]] * 2
        waiting = met.say({0: "here"})
        met.all[1].close()
        with pytest.raises(ConnectionError, match="rank 1 has gone"):
            waiting[0].result(60)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(refused)
        os.close(answer)
