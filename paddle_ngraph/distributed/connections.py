"""Authenticated connections between the ranks of a job.

A rank listens at its own address and publishes host and port in the store; other ranks connect.
Both ends send a random number, and prove by an HMAC of both numbers that they know the
secret of the job, which itself is never sent. Until then no other data is sent or accepted.

The HMAC includes the published address. A stranger who overwrites the address in the store and
passes the proofs on is noticed: the rank that connects signs the address that it has read. The host
is reached over IPv4 only, and a listening rank whose host is a name has its port at all addresses
of its machine, so no stranger on that machine listens at the same host and port.

The launcher passes the secret in an environment variable. Without one, as under
``paddle.distributed.launch``, the listening rank publishes a random secret in the store: everybody
who can read the store can read that one.
"""

from __future__ import annotations

import errno
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
from paddle_ngraph.utils import signals

# Environment variable for the secret of the job: any text, equal on all ranks.
SECRET_VARIABLE = "PADDLE_NGRAPH_SECRET"
_MIN_SECRET_LENGTH = 16
_RANK = struct.Struct(">Q")
_NONCE_BYTES = 32
_HELLO_BYTES = _RANK.size + _NONCE_BYTES
_PROOF_BYTES = 32
# The listening rank sends this byte once it has accepted the connection.
_JOINED = b"\1"
# An address in the store.
_ADDRESS = re.compile(r"(?P<host>\S+) (?P<port>[0-9]{1,5})( (?P<secret>[0-9a-f]{64}))?")
# Hosts of which each rank knows the one IPv4 address.
_FIXED_HOST = re.compile(r"localhost|[0-9]+(\.[0-9]+){3}")
# The maximal number of unproved connections of strangers at a time. If there are more, a new
# connection replaces the oldest; a rank that is displaced connects again.
_MAX_UNPROVED = 128
_RETRY_SECONDS = 0.05


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


class FixedAddress:
    """In place of a store: all ranks know the address of the endpoint beforehand.

    Args:
        text: ``"host port"``, equal on all ranks.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self, key: str) -> bytes:
        """The address, whatever the key."""
        return self._text.encode()

    def set(self, key: str, value: str) -> None:
        """Ignores the value, which is the address."""


@dataclass(frozen=True)
class Endpoint:
    """A name under which one rank of a job accepts connections of other ranks.

    Attributes:
        store: The store of the job.
        key: The key of the address in the store: equal on all ranks, and unique.
        host: The address of this rank for other ranks.
        secret: The secret of the job; empty: see the module.
        listening_host: The address of the listening rank for this one, or at which this one
            listens; empty: the published one.
        port: The port at which to listen; 0: any free one.
    """

    store: Store | FixedAddress
    key: str
    host: str
    secret: str
    listening_host: str = ""
    port: int = 0

    def accept(self, ranks: Collection[int], timeout: float) -> dict[int, socket.socket]:
        """Accepts one connection of each of these ranks.

        Raises:
            OSError: A rank has not connected within ``timeout`` seconds.
        """
        until = time.monotonic() + timeout
        secret = self.secret or secrets.token_hex(_NONCE_BYTES)
        limit = _MAX_UNPROVED + len(ranks)
        with _listener(self.listening_host or self.host, self.port, limit) as listener:
            close_in_child(listener)
            published = [self.host, str(listener.getsockname()[1])]
            text = " ".join(published if self.secret else [*published, secret])
            self.store.set(self.key, text)
            prover = _Prover(secret, self.key, text)
            return _Reception(listener, prover, ranks, limit).run(until, timeout)

    def connect(self, rank: int, timeout: float) -> socket.socket:
        """Connects this rank to the listening one.

        Raises:
            OSError: The listening rank cannot be reached within ``timeout`` seconds, or the process
                at its address does not know the secret or has not published this address.
        """
        host, port, prover = self._published()
        until = time.monotonic() + timeout
        while True:
            try:
                return _joined(rank, host, port, prover, until)
            except (ConnectionResetError, BrokenPipeError):
                # The listening rank had too many connections and dismissed this one.
                if time.monotonic() + _RETRY_SECONDS > until:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _published(self) -> tuple[str, int, _Prover]:
        """Host and port of the listening rank, and the proofs for them."""
        text = self.store.get(self.key).decode(errors="replace")
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise ConnectionError(f"the store has no address under {self.key}, but {text[:80]!r}")
        if bool(match["secret"]) is bool(self.secret):
            raise ConnectionError(f"{SECRET_VARIABLE} is not equal on all ranks")
        prover = _Prover(self.secret or match["secret"], self.key, text)
        return self.listening_host or match["host"], int(match["port"]), prover


@dataclass(frozen=True)
class _Prover:
    """Makes the proofs of a connection.

    Attributes:
        secret: The secret of the job.
        key: The key of the address in the store.
        address: The text of the address in the store.
    """

    secret: str
    key: str
    address: str

    def proof(self, role: bytes, signed: bytes) -> bytes:
        """The HMAC of both random numbers; the role prevents that an answer is sent back."""
        name = f"{self.key}\n{self.address}".encode()
        # The secret may be no valid UTF-8.
        return hmac.digest(os.fsencode(self.secret), role + signed + name, "sha256")


def _listener(host: str, port: int, backlog: int) -> socket.socket:
    if _FIXED_HOST.fullmatch(host):
        with signals.own_errors():
            try:
                return socket.create_server((host, port), backlog=backlog)
            except OSError as error:
                # The address may be that of a router, or of the host of a container, which
                # forwards.
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
    # Another machine may resolve a name to another address than this one, where /etc/hosts often
    # has a loopback address for the machine's own name.
    return socket.create_server(("", port), backlog=backlog)


def _joined(rank: int, host: str, port: int, prover: _Prover, until: float) -> socket.socket:
    """One attempt to connect a rank to the listening one."""
    peer = _connected(host, port, until)
    try:
        close_in_child(peer)
        hello = _RANK.pack(rank) + secrets.token_bytes(_NONCE_BYTES)
        peer.sendall(hello)
        answer = _read(peer, _NONCE_BYTES + _PROOF_BYTES, until)
        nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, prover.proof(b"listener", hello + nonce)):
            raise ConnectionError(
                f"the process at {host}:{port} has another secret, or did not publish this address"
            )
        peer.sendall(prover.proof(b"rank", hello + nonce))
        _read(peer, len(_JOINED), until)
        return _ready(peer)
    except BaseException:
        peer.close()
        raise


def _connected(host: str, port: int, until: float) -> socket.socket:
    """A connection to one of the IPv4 addresses of the host: the listener has no other ones."""
    *others, last = socket.gethostbyname_ex(host)[2]
    with signals.recognized_signals():
        for address in others:
            try:
                return socket.create_connection((address, port), _remaining(until))
            except OSError as error:  # the next address may answer
                signals.raise_if_from_outside(error)
    return socket.create_connection((last, port), _remaining(until))


class _Newcomer:
    """A connection that has not yet proved to be from a rank of the job."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self.peer = peer
        self.rank = -1
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._data = b""

    def advance(self, prover: _Prover, missing: Collection[int]) -> bool:
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
            self.peer.sendall(self._nonce + prover.proof(b"listener", signed))
            return False
        if not hmac.compare_digest(self._data[_HELLO_BYTES:], prover.proof(b"rank", signed)):
            raise ConnectionError("the peer has another secret")
        if self.rank not in missing:
            raise ConnectionError("another connection of the rank was faster")
        self.peer.sendall(_JOINED)
        return True


class _Reception:
    """Accepts ranks, any number of strangers among them, all at once and with one deadline."""

    def __init__(
        self, listener: socket.socket, prover: _Prover, ranks: Collection[int], limit: int
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._prover = prover
        self._limit = limit  # of unproved connections
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
        close_in_child(peer)
        if len(self._newcomers) >= self._limit:
            self._dismiss(next(iter(self._newcomers)), selector)
        self._newcomers[peer] = _Newcomer(peer)
        selector.register(peer, selectors.EVENT_READ)

    def _hear(self, newcomer: _Newcomer, selector: selectors.BaseSelector) -> None:
        with signals.own_errors():
            try:
                if not newcomer.advance(self._prover, self._missing):
                    return
            except BlockingIOError:
                return
            except OSError:
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


def _ready(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _read(peer: socket.socket, length: int, until: float) -> bytes:
    data = b""
    while len(data) < length:
        peer.settimeout(_remaining(until))
        chunk = peer.recv(length - len(data))
        if not chunk:
            raise ConnectionResetError("the listening rank has closed the connection")
        data += chunk
    return data


def _remaining(until: float) -> float:
    return max(0.001, until - time.monotonic())


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
