"""The store of a job: a table of texts that all ranks read and write.

Paddle's own store listens at all addresses, and trusts whoever connects. This one has a server of
ours in rank 0, at the address of the rank, to which ranks connect as in connections.py. They speak
the protocol of Paddle's TCPStore (``phi/core/distributed/store``), so that the client of each rank
is Paddle's, which gloo needs. That client connects by itself, and without a proof: its connection
leads to this process, and is then replaced by the proved one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from paddle_ngraph.distributed import sockets
from paddle_ngraph.distributed.connections import Endpoint, FixedAddress, close_in_child
from paddle_ngraph.paddle_private.names import global_store
from paddle_ngraph.utils import signals

_LOOPBACK = "127.0.0.1"
_RETRY_SECONDS = 0.05
# The longest key or text: addresses of gloo have a few hundred bytes.
_MAX_BYTES = 1 << 24
# The protocol has the byte order and the sizes of the machine.
_INTEGER, _SIZE, _NUMBER = struct.Struct("i"), struct.Struct("N"), struct.Struct("q")


class _Command(IntEnum):
    """The requests of a client, each followed by a key."""

    ADD = 0  # and a number: adds it to that of the key; the answer is the sum
    GET = 1  # the answer is the text
    CHECK = 2  # the answer is READY or NOT_READY
    SET = 3  # and a text; no answer
    WAIT = 4  # the answer is STOP_WAIT, once there is a text


# Each group of ranks in dynamic mode writes the addresses of its members under these keys. A rank
# that has read the one of an earlier group waits for the next.
_REUSED = re.compile(rb"/[0-9]+")
_STOP_WAIT, _READY, _NOT_READY = 1, 2, 3


def open_store(
    rank: int, ranks: int, master: str, host: str, name: str, secret: str, timeout: float
) -> None:
    """Opens the store of a job, as that which Paddle uses; called by all ranks.

    Returns once all have connected.

    Args:
        rank: This rank.
        ranks: The number of ranks.
        master: ``host:port`` of the store.
        host: The address of rank 0 for this rank.
        name: The name of the job, equal on all ranks.
        secret: The secret of the job.
        timeout: The longest wait for other ranks, in seconds.

    Raises:
        OSError: A rank does not connect in time, or rank 0 cannot use the port.
    """
    port = master.rpartition(":")[2]
    # Ranks may know rank 0 by different addresses, so the proofs have none.
    address = FixedAddress(f"rank0 {port}")
    endpoint = Endpoint(address, f"ngraph/store/{name}", "rank0", secret, host, int(port))
    if rank > 0:
        return _lead_paddle_to(_connected(endpoint, rank, timeout))
    own, peer = socket.socketpair()
    peers = endpoint.accept(range(1, ranks), timeout)
    _StoreServer([peer, *peers.values()]).start()
    return _lead_paddle_to(own)


def _connected(endpoint: Endpoint, rank: int, timeout: float) -> socket.socket:
    """The connection of a rank; rank 0 may begin to listen later."""
    until = time.monotonic() + timeout
    while True:
        with signals.recognized_signals():
            try:
                return endpoint.connect(rank, max(0.001, until - time.monotonic()))
            except ConnectionRefusedError as error:
                signals.raise_if_from_outside(error)
                if time.monotonic() > until:
                    raise
        time.sleep(_RETRY_SECONDS)


class _StoreServer:
    """Serves connected ranks, in a thread."""

    def __init__(self, peers: Sequence[socket.socket]) -> None:
        self._peers = peers
        self._texts: dict[bytes, bytes] = {}
        # How often each key has been written.
        self._versions: Counter[bytes] = Counter()

    def start(self) -> None:
        """Starts the thread, which runs as long as the process."""
        for peer in self._peers:
            close_in_child(peer)
        serving = threading.Thread(target=lambda: asyncio.run(self._serve_all()), daemon=True)
        serving.start()

    async def _serve_all(self) -> None:
        self._written = asyncio.Condition()
        # A connection is closed when its client has gone, or has sent what is no request.
        await asyncio.gather(*map(self._serve, self._peers), return_exceptions=True)

    async def _serve(self, peer: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=peer)
        seen: Counter[bytes] = Counter()
        with contextlib.closing(writer):
            while True:
                await self._answer(reader, writer, seen)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Counter[bytes]
    ) -> None:
        """Answers one request.

        Args:
            reader, writer: The connection.
            seen: The version of each key in _REUSED that the client has read.

        Raises:
            ValueError: This is no request.
        """
        (number,) = _INTEGER.unpack(await reader.readexactly(_INTEGER.size))
        command = _Command(number)
        key = await _received_text(reader)
        if command == _Command.ADD:
            (more,) = _NUMBER.unpack(await reader.readexactly(_NUMBER.size))
            total = int(self._texts.get(key, b"0")) + more
            await self._set(key, b"%d" % total)
            writer.write(_NUMBER.pack(total))
        elif command == _Command.SET:
            await self._set(key, await _received_text(reader))
        elif command == _Command.CHECK:
            writer.write(_INTEGER.pack(_READY if key in self._texts else _NOT_READY))
        elif command == _Command.WAIT:
            async with self._written:
                await self._written.wait_for(lambda: self._versions[key] > seen[key])
            writer.write(_INTEGER.pack(_STOP_WAIT))
        elif key not in self._texts:
            raise ValueError("clients wait for a key before they read it")
        else:
            if _REUSED.fullmatch(key):
                seen[key] = self._versions[key]
            writer.write(_SIZE.pack(len(self._texts[key])) + self._texts[key])
        await writer.drain()

    async def _set(self, key: bytes, text: bytes) -> None:
        async with self._written:
            self._texts[key] = text
            self._versions[key] += 1
            self._written.notify_all()


async def _received_text(reader: asyncio.StreamReader) -> bytes:
    (length,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if length > _MAX_BYTES:
        raise ValueError(f"a text of {length} bytes")
    return await reader.readexactly(length)


def _lead_paddle_to(connection: socket.socket) -> None:
    """Has Paddle's client, which it creates once, use a connection to the server."""
    with connection, socket.create_server((_LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        # A client of no workers sends nothing when it is created.
        variables = {
            "PADDLE_MASTER": f"{_LOOPBACK}:{port}",
            "PADDLE_TRAINER_ID": "1",
            "PADDLE_TRAINERS_NUM": "0",
        }
        with _environment(variables):
            global_store()
        own = _descriptor_to(sockets.address_text(listener.getsockname()))
        os.dup2(connection.fileno(), own, inheritable=False)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _descriptor_to(address: str) -> int:
    """The file descriptor of the connection of this process to an address.

    Raises:
        ConnectionError: There is none.
    """
    for descriptor, (_, peer) in sockets.by_descriptor().items():
        if peer == address:
            return descriptor
    raise ConnectionError("Paddle has created its store before")
