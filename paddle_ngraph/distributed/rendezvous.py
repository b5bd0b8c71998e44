"""Rendezvous of the ranks of a job: an all-gather of texts.

Rank 0 has a socket for each of the others. Paddle's store is used only to connect them: each of its
round trips takes tens of milliseconds, and the store polls for a missing key only twice a second.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from paddle_ngraph.paddle_private.protocols import Store

# Time that a rank waits for the others, equal to the default of Paddle's store.
RENDEZVOUS_TIMEOUT_SECONDS = 900.0
_INTRODUCTION_TIMEOUT_SECONDS = 10.0
_LENGTH = struct.Struct(">Q")  # format of the length of a text, which is sent before the text
_TOKEN_BYTES = 16  # length of the token by which ranks of one job recognize each other
# An empty text: sent by rank 0 as a heartbeat, and once when it begins to wait.
_HEARTBEAT = ""

_open_rendezvous: WeakSet[Rendezvous] = WeakSet()


class Rendezvous:
    """The connections of one rank. All ranks call equal methods in equal order.

    Args:
        rank: This rank.
        ranks: The number of ranks, two or more.
        host: The address of rank 0.
        store: The store for the port of rank 0.
        key: The key in the store: equal on all ranks, and unique.

    Raises:
        OSError: Another rank is lost, or does not arrive in time.
    """

    def __init__(self, rank: int, ranks: int, host: str, store: Store, key: str) -> None:
        self._rank = rank
        self._ranks = ranks
        self._peers: dict[int, socket.socket] = {}
        _open_rendezvous.add(self)
        try:
            if rank == 0:
                self._accept(store, key)
            else:
                self._connect(store, key, host)
        except BaseException:
            self.close()
            raise

    def exchange(self, text: str) -> list[str]:
        """An all-gather of texts, by rank; blocks until all ranks have called it.

        Raises:
            OSError: Another rank is lost, or does not arrive in time. The connections are closed
                then.
        """
        if not self._peers:
            raise ConnectionError("this process is no longer connected to the other ranks")
        try:
            return self._lead(text) if self._rank == 0 else self._follow(text)
        except BaseException:
            # The connections are closed so that the other ranks notice the error, even if this
            # process continues.
            self.close()
            raise

    def close(self) -> None:
        """Closes the connections of this rank."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    # -- connection ------------------------------------------------------------------------------

    def _accept(self, store: Store, key: str) -> None:
        token = secrets.token_bytes(_TOKEN_BYTES)
        until = time.monotonic() + RENDEZVOUS_TIMEOUT_SECONDS
        with socket.create_server(("", 0), backlog=self._ranks) as listener:
            store.set(key, f"{listener.getsockname()[1]} {token.hex()}")
            while len(self._peers) < self._ranks - 1:
                listener.settimeout(max(1.0, until - time.monotonic()))
                peer, _ = listener.accept()
                rank = _identified(peer, token)
                if 0 < rank < self._ranks and rank not in self._peers:
                    peer.settimeout(RENDEZVOUS_TIMEOUT_SECONDS)
                    self._peers[rank] = _without_delay(peer)
                else:
                    peer.close()  # the process is no rank of this job, or has connected before

    def _connect(self, store: Store, key: str, host: str) -> None:
        port, token = store.get(key).decode().split()
        peer = socket.create_connection((host, int(port)), RENDEZVOUS_TIMEOUT_SECONDS)
        self._peers[0] = _without_delay(peer)
        peer.sendall(bytes.fromhex(token) + _LENGTH.pack(self._rank))

    # -- rendezvous ------------------------------------------------------------------------------

    def _lead(self, text: str) -> list[str]:
        for rank in self._peers:
            self._send(rank, [_HEARTBEAT])
        texts = {0: text, **self._receive_all()}
        answer = [texts[rank] for rank in range(self._ranks)]
        for rank in self._peers:
            self._send(rank, answer)
        return answer

    def _receive_all(self) -> dict[int, str]:
        """Receives the texts of the other ranks.

        A lost rank is noticed even after it has sent its text.
        """
        texts: dict[int, str] = {}
        until = time.monotonic() + RENDEZVOUS_TIMEOUT_SECONDS
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while len(texts) < len(self._peers):
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    late = min(self._peers.keys() - texts.keys())
                    raise TimeoutError(
                        f"rank {late} has not joined for {RENDEZVOUS_TIMEOUT_SECONDS:.0f} seconds"
                    )
                for key, _ in ready:
                    texts[key.data] = self._receive(key.data)
        return texts

    def _follow(self, text: str) -> list[str]:
        first = self._peers[0]
        first.settimeout(RENDEZVOUS_TIMEOUT_SECONDS)
        self._send(0, [text])
        self._receive(0)
        # Waits twice as long as rank 0: if another rank is late, rank 0 is the one to report it.
        first.settimeout(2 * RENDEZVOUS_TIMEOUT_SECONDS)
        return [self._receive(0) for _ in range(self._ranks)]

    def _send(self, rank: int, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        with _lost_rank_error(rank):
            self._peers[rank].sendall(b"".join(_LENGTH.pack(len(e)) + e for e in encoded))

    def _receive(self, rank: int) -> str:
        peer = self._peers[rank]
        with _lost_rank_error(rank):
            (length,) = _LENGTH.unpack(_read(peer, _LENGTH.size))
            return _read(peer, length).decode()


@contextmanager
def _lost_rank_error(rank: int) -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ConnectionError(f"rank {rank} has gone") from error


def _identified(peer: socket.socket, token: bytes) -> int:
    """The rank of a peer; -1 if the peer is not a rank of this job."""
    peer.settimeout(_INTRODUCTION_TIMEOUT_SECONDS)
    try:
        greeting = _read(peer, _TOKEN_BYTES + _LENGTH.size)
    except (OSError, EOFError):
        return -1
    (rank,) = _LENGTH.unpack(greeting[_TOKEN_BYTES:])
    return int(rank) if hmac.compare_digest(greeting[:_TOKEN_BYTES], token) else -1


def _without_delay(peer: socket.socket) -> socket.socket:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _read(peer: socket.socket, length: int) -> bytes:
    """Reads exactly ``length`` bytes. Raises EOFError if the connection is closed before."""
    data = bytearray()
    while len(data) < length:
        chunk = peer.recv(min(length - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _close_in_child() -> None:
    """Closes inherited connections in a forked process, which is no rank itself."""
    for rendezvous in list(_open_rendezvous):
        rendezvous.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
