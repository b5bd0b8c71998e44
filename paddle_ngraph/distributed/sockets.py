"""The TCP connections of this process, those of Paddle's libraries among them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Set

from paddle_ngraph.utils import signals

# The addresses of both ends as ``host:port``: that of this process, and that of the peer.
Connection = tuple[str, str]


def by_descriptor() -> dict[int, Connection]:
    """The connections of this process over IPv4, by file descriptor."""
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        # Fails for a descriptor that is closed by now, or a socket that is not connected.
        with signals.own_errors(), contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found[descriptor] = _ends_of(descriptor)
    return {number: ends for number, ends in found.items() if ends is not None}


def _ends_of(descriptor: int) -> Connection | None:
    with socket.socket(fileno=os.dup(descriptor)) as each:
        if (each.family, each.type) != (socket.AF_INET, socket.SOCK_STREAM):
            return None
        return address_text(each.getsockname()), address_text(each.getpeername())


def connected() -> Set[Connection]:
    """The connections of this process over IPv4."""
    return set(by_descriptor().values())


def address_text(address: tuple[str, int]) -> str:
    """An address as ``host:port``."""
    return f"{address[0]}:{address[1]}"


def packed(connections: Set[Connection]) -> str:
    """Connections as a text of JSON."""
    return json.dumps(sorted(connections))


def unpacked(text: str) -> Set[Connection]:
    """The connections of a text of JSON."""
    return {(own, peer) for own, peer in json.loads(text)}
