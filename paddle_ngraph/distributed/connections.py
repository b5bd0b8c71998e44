"""Authenticated connections between the ranks of a job.

A rank listens at its own address and publishes host and port in Paddle's store; other ranks
connect. Both ends send a random number, and prove by an HMAC of both numbers that they know the
secret of the job, which itself is never sent. Until then no other data is sent or accepted.

The launcher passes the secret in an environment variable. Without one, as under
``paddle.distributed.launch``, the listening rank publishes a random secret in the store: everybody
who can read the store can read that one.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Store

# Environment variable for the secret of the job: any text, equal on all ranks.
SECRET_VARIABLE = "PADDLE_NGRAPH_SECRET"
_MIN_SECRET_LENGTH = 16
_RANK = struct.Struct(">Q")
_NONCE_BYTES = 32
_HELLO_BYTES = _RANK.size + _NONCE_BYTES
_PROOF_BYTES = 32
# An address in the store.
_ADDRESS = re.compile(r"(?P<host>\S+) (?P<port>[0-9]{1,5})( (?P<secret>[0-9a-f]{64}))?")
# The maximal number of unproved connections at a time; a further one replaces the oldest. A rank
# sends its hello at once, so a flood of silent strangers does not displace ranks.
_MAX_UNPROVED = 128


def secret_of(variables: Mapping[str, str]) -> str:
    """The secret of the job from the environment; empty if there is none.

    Raises:
        NgraphError: The secret is short enough to be guessed.
    """
    secret = variables.get(SECRET_VARIABLE, "")
    if 0 < len(secret) < _MIN_SECRET_LENGTH:
        raise NgraphError(
            f"{SECRET_VARIABLE} has {len(secret)} characters: give a random text of at least "
            f"{_MIN_SECRET_LENGTH}, equal on all ranks"
        )
    return secret


@dataclass(frozen=True)
class Endpoint:
    """A name under which one rank of a job accepts connections of other ranks.

    Attributes:
        store: The store of the job.
        key: The key of the address in the store: equal on all ranks, and unique.
        host: The address of this rank for other ranks.
        secret: The secret of the job; empty: see the module.
    """

    store: Store
    key: str
    host: str
    secret: str

    def accept(self, ranks: Collection[int], timeout: float) -> dict[int, socket.socket]:
        """Accepts one connection of each of these ranks.

        Raises:
            OSError: A rank has not connected within ``timeout`` seconds.
        """
        until = time.monotonic() + timeout
        secret = self.secret or secrets.token_hex(_NONCE_BYTES)
        with _listener(self.host) as listener:
            published = [self.host, str(listener.getsockname()[1])]
            self.store.set(self.key, " ".join(published if self.secret else [*published, secret]))
            return _Reception(listener, self.key, secret, ranks).run(until, timeout)

    def connect(self, rank: int, timeout: float) -> socket.socket:
        """Connects this rank to the listening one.

        Raises:
            OSError: The listening rank cannot be reached within ``timeout`` seconds, or the process
                at its address does not know the secret.
        """
        host, port, secret = self._published()
        until = time.monotonic() + timeout
        peer = socket.create_connection((host, port), timeout)
        try:
            hello = _RANK.pack(rank) + secrets.token_bytes(_NONCE_BYTES)
            peer.sendall(hello)
            answer = _read(peer, _NONCE_BYTES + _PROOF_BYTES, until)
            nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
            expected = _proof(secret, b"listener", self.key, hello + nonce)
            if not hmac.compare_digest(proof, expected):
                raise ConnectionError(f"the process at {host}:{port} has another secret")
            peer.sendall(_proof(secret, b"rank", self.key, hello + nonce))
            return _ready(peer)
        except BaseException:
            peer.close()
            raise

    def _published(self) -> tuple[str, int, str]:
        """Host, port and secret of the listening rank."""
        text = self.store.get(self.key).decode(errors="replace")
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise ConnectionError(f"the store has no address under {self.key}, but {text[:80]!r}")
        if bool(match["secret"]) is bool(self.secret):
            raise ConnectionError(f"{SECRET_VARIABLE} is not equal on all ranks")
        return match["host"], int(match["port"]), self.secret or match["secret"]


def _listener(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), backlog=_MAX_UNPROVED)
    except OSError:
        # Listens everywhere if the host is no address of this machine, but one that a router or the
        # host of a container forwards.
        return socket.create_server(("", 0), backlog=_MAX_UNPROVED)


class _Newcomer:
    """A connection that has not yet proved to be from a rank of the job."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self.peer = peer
        self.rank = -1
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._data = b""

    def advance(self, key: str, secret: str, missing: Collection[int]) -> bool:
        """Reads from the connection. Returns whether the peer has proved to be ``rank``.

        Raises:
            OSError: The peer is a stranger.
        """
        wanted = _HELLO_BYTES if self.rank < 0 else _HELLO_BYTES + _PROOF_BYTES
        chunk = self.peer.recv(wanted - len(self._data))
        if not chunk:
            raise ConnectionError("the peer has left")
        self._data += chunk
        if len(self._data) < wanted:
            return False
        signed = self._data[:_HELLO_BYTES] + self._nonce
        if self.rank < 0:
            (rank,) = _RANK.unpack_from(self._data)
            if rank not in missing:
                raise ConnectionError("no such rank is missing")
            self.rank = rank
            # 64 bytes fit into the empty buffer of a new connection.
            self.peer.sendall(self._nonce + _proof(secret, b"listener", key, signed))
            return False
        if not hmac.compare_digest(self._data[_HELLO_BYTES:], _proof(secret, b"rank", key, signed)):
            raise ConnectionError("the peer has another secret")
        return True


class _Reception:
    """Accepts ranks, any number of strangers among them, all at once and with one deadline."""

    def __init__(
        self, listener: socket.socket, key: str, secret: str, ranks: Collection[int]
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._key = key
        self._secret = secret
        self._missing = set(ranks)
        self._newcomers: dict[socket.socket, _Newcomer] = {}  # in the order of their arrival
        self._arrived: dict[int, socket.socket] = {}

    def run(self, until: float, timeout: float) -> dict[int, socket.socket]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while self._missing:
                    ready = selector.select(max(0.0, until - time.monotonic()))
                    if not ready or time.monotonic() > until:
                        raise TimeoutError(
                            f"rank {min(self._missing)} has not joined for {timeout:.0f} seconds"
                        )
                    for each, _ in ready:
                        self._serve(each.fileobj, selector)
                return self._arrived
            except BaseException:
                for peer in self._arrived.values():
                    peer.close()
                raise
            finally:
                for peer in self._newcomers:
                    peer.close()

    def _serve(self, source: Any, selector: selectors.BaseSelector) -> None:
        if source is self._listener:
            self._admit(selector)
        elif source in self._newcomers:
            self._hear(self._newcomers[source], selector)

    def _admit(self, selector: selectors.BaseSelector) -> None:
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # nobody to admit: the peer has left already
            return
        if len(self._newcomers) >= _MAX_UNPROVED:
            self._dismiss(next(iter(self._newcomers)), selector)
        self._newcomers[peer] = _Newcomer(peer)
        selector.register(peer, selectors.EVENT_READ)

    def _hear(self, newcomer: _Newcomer, selector: selectors.BaseSelector) -> None:
        try:
            if not newcomer.advance(self._key, self._secret, self._missing):
                return
        except BlockingIOError:
            return
        except OSError:
            self._dismiss(newcomer.peer, selector)
            return
        # Another connection of the rank may have been faster.
        if newcomer.rank not in self._missing:
            self._dismiss(newcomer.peer, selector)
            return
        selector.unregister(newcomer.peer)
        del self._newcomers[newcomer.peer]
        self._missing.remove(newcomer.rank)
        self._arrived[newcomer.rank] = _ready(newcomer.peer)

    def _dismiss(self, peer: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.unregister(peer)
        del self._newcomers[peer]
        peer.close()


def _proof(secret: str, role: bytes, key: str, signed: bytes) -> bytes:
    """The HMAC of both random numbers; the role prevents that an answer is sent back."""
    return hmac.digest(secret.encode(), role + signed + key.encode(), "sha256")


def _ready(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _read(peer: socket.socket, length: int, until: float) -> bytes:
    data = b""
    while len(data) < length:
        peer.settimeout(max(0.001, until - time.monotonic()))
        chunk = peer.recv(length - len(data))
        if not chunk:
            raise ConnectionError("the listening rank has closed the connection")
        data += chunk
    return data


# -- forked processes ----------------------------------------------------------------------------

_closed_in_child: WeakSet[Any] = WeakSet()


def close_in_child(connection: Any) -> None:
    """Has a forked process call ``close()``: a connection ends with the process that made it."""
    _closed_in_child.add(connection)


def _close_all() -> None:
    for connection in list(_closed_in_child):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
