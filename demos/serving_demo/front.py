"""A front that loses no request: it holds each one until a worker has answered it.

A worker that dies (a crash of native code, the kernel's out-of-memory killer) breaks its
connections. The front then sends their requests to another worker, which is right for requests
that change nothing, such as those of a model. It runs no native code of models, so it does not
die with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import aiohttp
from aiohttp import web

MOST_BYTES = 32 * 2**20
"""Largest body of a request."""
ATTEMPTS = 3
"""Attempts for a request: one that kills each worker that receives it must not kill all."""
SECONDS = 60.0
"""Time limit of an attempt."""
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})


class Front:
    """Forwards requests to the workers behind a Unix socket.

    Args:
        socket: The socket on which the workers accept.
        workers: Their number, and that of the requests which they get at once: others wait here,
            where no worker takes them along when it dies.
    """

    def __init__(self, socket: Path, workers: int) -> None:
        self.retries = 0
        self._socket = socket
        self._free = asyncio.Semaphore(workers)

    def application(self) -> web.Application:
        """Returns the application of aiohttp that forwards all paths."""
        application = web.Application(client_max_size=MOST_BYTES)
        application.cleanup_ctx.append(self._session_of)
        application.router.add_route("*", "/{path:.*}", self._forward)
        return application

    async def wait_until_ready(self, seconds: float) -> None:
        """Waits until a worker has loaded its model.

        Raises:
            asyncio.TimeoutError: None has after this time.
        """

        async def wait() -> None:
            while True:
                try:
                    async with self._session.get("http://worker/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:  # nobody listens yet
                    await asyncio.sleep(0.1)

        await asyncio.wait_for(wait(), seconds)

    async def _session_of(self, application: web.Application) -> AsyncIterator[None]:
        # A connection for each request: whichever worker is idle accepts it.
        connector = aiohttp.UnixConnector(str(self._socket), limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as self._session:
            yield

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        # Health and metrics do not wait for the requests before them.
        async with nullcontext() if request.method == "GET" else self._free:
            for _ in range(ATTEMPTS):
                try:
                    return await self._attempt(request, body)
                except asyncio.TimeoutError:
                    return web.Response(status=504, text="the worker takes too long\n")
                except aiohttp.ClientError:
                    self.retries += 1
        return web.Response(status=502, text=f"{ATTEMPTS} workers have died of this request\n")

    async def _attempt(self, request: web.Request, body: bytes) -> web.Response:
        async with self._session.request(
            request.method,
            f"http://worker{request.rel_url}",
            data=body,
            headers=_end_to_end(request.headers),
        ) as answer:
            content, headers = await answer.read(), _end_to_end(answer.headers)
            return web.Response(status=answer.status, body=content, headers=headers)


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
