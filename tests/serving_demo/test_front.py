"""The front of demos/serving_demo, before workers that die at given requests."""

from __future__ import annotations

import asyncio

import pytest

aiohttp = pytest.importorskip("aiohttp")
web = pytest.importorskip("aiohttp.web")
front = pytest.importorskip("demos.serving_demo.front")


class Worker:
    """Accepts on a Unix socket; breaks the connection of the first ``deaths`` requests.

    It does so after it has read the request, or within its answer.
    """

    def __init__(self, deaths, within_answer=False):
        self.deaths, self.within_answer = deaths, within_answer
        self.bodies = []
        self.at_once = self.most_at_once = 0

    async def answer(self, reader, writer):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            line for line in head.lower().split("\r\n") if line.startswith("content-length")
        )
        self.bodies.append(await reader.readexactly(int(length.split(":")[1])))
        await asyncio.sleep(0)
        is_dead = len(self.bodies) <= self.deaths
        if not is_dead or self.within_answer:
            answer = b"HTTP/1.1 200 OK\r\nx-worker: 7\r\ncontent-length: 5\r\n\r\nright"
            writer.write(answer[:-3] if is_dead else answer)
            await writer.drain()
        self.at_once -= 1
        writer.close()


def statuses(tmp_path, worker, bodies, workers=1):
    """Sends requests at once through a front; returns status and text of each."""

    async def run():
        socket = tmp_path / "workers.sock"
        server = await asyncio.start_unix_server(worker.answer, socket)
        runner = web.AppRunner(front.Front(socket, workers).application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/predict"

        async def send(session, body):
            async with session.post(url, data=body) as response:
                return response.status, await response.text()

        async with aiohttp.ClientSession() as session:
            found = await asyncio.gather(*(send(session, body) for body in bodies))
        await runner.cleanup()
        server.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("within_answer", [False, True])
def test_a_request_is_repeated_where_its_worker_dies(tmp_path, within_answer):
    worker = Worker(front.ATTEMPTS - 1, within_answer)
    assert statuses(tmp_path, worker, [b"picture"]) == [(200, "right")]
    assert worker.bodies == [b"picture"] * front.ATTEMPTS


def test_a_request_that_kills_every_worker_is_given_up(tmp_path):
    worker = Worker(deaths=front.ATTEMPTS)
    ((status, _),) = statuses(tmp_path, worker, [b"picture"])
    assert status == 502
    assert len(worker.bodies) == front.ATTEMPTS


def test_workers_get_one_request_each(tmp_path):
    worker = Worker(deaths=0)
    bodies = [b"%d" % number for number in range(12)]
    assert statuses(tmp_path, worker, bodies, workers=2) == [(200, "right")] * 12
    assert sorted(worker.bodies) == sorted(bodies)
    assert worker.most_at_once <= 2


def test_a_body_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(front, "MOST_BYTES", 10)
    worker = Worker(deaths=0)
    ((status, _),) = statuses(tmp_path, worker, [b"x" * 11])
    assert (status, worker.bodies) == (413, [])
