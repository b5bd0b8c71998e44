"""Rendezvous of the ranks of a job: an all-gather of texts.

Rank 0 has a socket for each of the others. The store is used only to connect them: each round trip
of Paddle's takes tens of milliseconds, and a client polls for a missing key only twice a second.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paddle_ngraph.distributed.connections import Endpoint, close_in_child

# Wait of a rank for the others, as long as that of Paddle's store.
RENDEZVOUS_TIMEOUT_SECONDS = 900.0  # seconds
_LENGTH = struct.Struct(">Q")  # the format of the length of a text, which is sent before it
# The text that rank 0 sends when it begins to wait, too.
_HEARTBEAT = ""


class Rendezvous:
    """The connections of one rank. All ranks call equal methods in equal order.

    Args:
        rank: This rank.
        ranks: The number of ranks, two or more.
        endpoint: The endpoint of rank 0.

    Raises:
        OSError: Another rank is lost, or does not arrive in time.
    """

    def __init__(self, rank: int, ranks: int, endpoint: Endpoint) -> None:
        self._rank = rank
        self._ranks = ranks
        timeout = RENDEZVOUS_TIMEOUT_SECONDS
        if rank == 0:
            self._peers = endpoint.accept(range(1, ranks), timeout)
        else:
            self._peers = {0: endpoint.connect(rank, timeout)}
        for peer in self._peers.values():
            peer.settimeout(timeout)
        # A forked process takes no part in rendezvous.
        close_in_child(self)

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


def _read(peer: socket.socket, length: int) -> bytes:
    """Reads exactly ``length`` bytes. Raises EOFError if the connection is closed before."""
    data = bytearray()
    while len(data) < length:
        chunk = peer.recv(min(length - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
