"""Strangers at the store of a job: ``python -m tests.cluster.strangers HOST PORT JOB SECRET``.

They stay connected until rank 0 closes their connections.
"""

from __future__ import annotations

import random
import secrets
import socket
import struct
import sys
from contextlib import suppress

from paddle_ngraph.distributed.connections import Endpoint, FixedAddress
from tests.distributed.test_store import SET, STRANGE, packed, request

SENT, CLOSED = "all strangers have sent", "all strangers are disconnected"
_SECONDS = 30.0


def sent(draw: random.Random) -> list[bytes]:
    """The messages of strangers, one for each connection."""
    hello = struct.pack(">Q", 1) + draw.randbytes(32)  # in the name of rank 1
    return [
        *(make(draw) for make in STRANGE.values()),
        *(draw.randbytes(size) for size in (0, 1, 39, 72, 5000)),
        hello,
        hello + draw.randbytes(32),
        # Paddle's own client has no proof; the keys are those that a group of ranks writes.
        b"".join(request(SET, b"/%d" % rank, packed(b"stale")) for rank in range(2)),
    ]


def main() -> None:
    host, port, job, secret = sys.argv[1:]
    peers = []
    for data in sent(random.Random(6)):
        peers.append(socket.create_connection((host, int(port)), _SECONDS))
        peers[-1].sendall(data)
    # The token of another job, and that of this job for an earlier start.
    for name, token in ((job, secrets.token_hex(32)), (secrets.token_hex(8), secret)):
        address = FixedAddress(f"rank0 {port}")
        endpoint = Endpoint(address, f"ngraph/store/{name}", "rank0", token, host)
        try:
            endpoint.connect(1, _SECONDS).close()
        except ConnectionError as error:
            print(error, flush=True)
        else:
            raise SystemExit("a stranger has joined")
    print(SENT, flush=True)
    for peer in peers:
        peer.settimeout(None)
        with suppress(ConnectionError):
            while peer.recv(1 << 16):
                pass
    print(CLOSED, flush=True)


if __name__ == "__main__":
    main()
