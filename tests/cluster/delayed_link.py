"""Passes frames between two network interfaces, each after a delay.

Run as ``python delayed_link.py INTERFACE INTERFACE SECONDS`` by root, until it is killed. It stands
for ``tc netem``, which many kernels lack.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 0x0003
# linux/if_packet.h. With the header, frames keep what the kernel has yet to do to them: checksums,
# and the division into packets.
_SOL_PACKET, _PACKET_VNET_HEADER, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_LARGEST_FRAME = (1 << 16) + 128


def _opened(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    for option in (_PACKET_VNET_HEADER, _PACKET_IGNORE_OUTGOING):
        opened.setsockopt(_SOL_PACKET, option, 1)
    opened.bind((interface, _ALL_PROTOCOLS))
    return opened


def main(first: str, second: str, delay: float) -> None:
    """Passes frames in both directions, without end."""
    ends = [_opened(first), _opened(second)]
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], wait)[0]:
            frame = end.recv(_LARGEST_FRAME)
            waiting.append((time.monotonic() + delay, ends[end is ends[0]], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, frame = waiting.popleft()
            end.send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
