"""Connections between ranks, with strangers at both ends. Ranks are threads of one process."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.distributed import connections
from paddle_ngraph.distributed.connections import SECRET_VARIABLE, Endpoint
from paddle_ngraph.distributed.job import RankPlacement
from tests import jobs
from tests.jobs import Table

pytestmark = pytest.mark.pure

KEY = "ngraph/link/7"
HOST = "127.0.0.1"
SECRET = "a secret of the job"
RANKS = [1, 2]
HELLO, PROOF = 40, 32
SECONDS = 20.0


class Place:
    """Two ranks that connect to rank 0, which accepts them in a thread."""

    def __init__(self, secret: str, timeout: float = SECONDS):
        self.endpoint = Endpoint(Table(), KEY, HOST, secret)
        self._pool = ThreadPoolExecutor(3)
        self.accepting = self._pool.submit(self.endpoint.accept, RANKS, timeout)
        self.address = self.endpoint.store.get(KEY).decode()
        self.port = int(self.address.split()[1])

    def meet(self) -> None:
        """Connects both ranks, and sends a word in each direction."""
        both = [self._pool.submit(self.endpoint.connect, rank, SECONDS) for rank in (1, 2)]
        accepted, found = self.accepting.result(60), [each.result(60) for each in both]
        assert sorted(accepted) == [1, 2]
        for rank, peer in zip((1, 2), found):
            accepted[rank].sendall(b"to %d" % rank)
            assert peer.recv(100) == b"to %d" % rank
            peer.sendall(b"from %d" % rank)
            assert accepted[rank].recv(100) == b"from %d" % rank
        for peer in (*accepted.values(), *found):
            peer.close()
        self._pool.shutdown()


# -- strangers that connect ----------------------------------------------------------------------


def hello_of(draw: random.Random, rank: int | None = None) -> bytes:
    return struct.pack(">Q", draw.choice([1, 2]) if rank is None else rank) + draw.randbytes(32)


def received(peer: socket.socket, length: int) -> bytes:
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < length and (chunk := peer.recv(length - len(data))):
            data += chunk
    return data


def silent(peer: socket.socket, draw: random.Random) -> None:
    """Sends nothing."""


def another_protocol(peer: socket.socket, draw: random.Random) -> None:
    peer.sendall(draw.choice([b"GET / HTTP/1.0\r\n\r\n", bytes(1000), draw.randbytes(5000)]))


def part_of_a_hello(peer: socket.socket, draw: random.Random) -> None:
    peer.sendall(hello_of(draw)[: draw.randrange(HELLO)])


def no_such_rank(peer: socket.socket, draw: random.Random) -> None:
    peer.sendall(hello_of(draw, draw.choice([0, 3, 1 << 32, 1 << 63, (1 << 64) - 1])))


def wrong_proof(peer: socket.socket, draw: random.Random) -> None:
    peer.sendall(hello_of(draw) + draw.randbytes(draw.choice([PROOF, PROOF - 1, 1000])))


def echoed_proof(peer: socket.socket, draw: random.Random) -> None:
    """Sends the listener's own proof back."""
    peer.sendall(hello_of(draw))
    peer.sendall(received(peer, 32 + PROOF)[32:])


def damaged_proof(peer: socket.socket, draw: random.Random) -> None:
    """Has all but a part of a proof: that of another key, address, or secret by one bit."""
    hello = hello_of(draw)
    peer.sendall(hello)
    nonce = received(peer, 32 + PROOF)[:32]
    changed = bytearray(SECRET.encode())
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(7)
    host, port = peer.getpeername()
    address = f"{host} {port}"
    known = draw.choice(
        [
            (SECRET, KEY + "0", address),
            (SECRET, KEY, f"{host} {port ^ 1}"),
            (SECRET, KEY, f"localhost {port}"),
            (changed.decode(), KEY, address),
            ("", KEY, address),
        ]
    )
    peer.sendall(connections._Prover(*known).proof(b"rank", hello + nonce))


def slow(peer: socket.socket, draw: random.Random) -> None:
    def drip() -> None:
        with contextlib.suppress(OSError):
            for byte in hello_of(draw):
                peer.sendall(bytes([byte]))
                time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()


def gone(peer: socket.socket, draw: random.Random) -> None:
    """Resets the connection."""
    peer.sendall(hello_of(draw)[: draw.randrange(HELLO + 1)])
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


STRANGERS = [
    silent, another_protocol, part_of_a_hello, no_such_rank, wrong_proof, echoed_proof,
    damaged_proof, slow, gone,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_strangers_are_no_ranks_and_delay_none(seed):
    """Strangers of all kinds are connected before the ranks, and stay connected."""
    draw = random.Random(seed)
    place = Place(SECRET)
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        for _ in range(draw.choice([1, 10, 30])):
            peer = stack.enter_context(socket.create_connection((HOST, place.port), SECONDS))
            with contextlib.suppress(OSError):
                draw.choice(STRANGERS)(peer, draw)
        assert not place.accepting.done()
        place.meet()
    assert time.monotonic() - begin < SECONDS / 2


def test_a_crowd_of_strangers_is_limited():
    place = Place(SECRET)
    with contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection((HOST, place.port), SECONDS))
            for _ in range(connections._MAX_UNPROVED + len(RANKS) + 20)
        ]
        place.meet()
        assert crowd[0].recv(1) == b"", "the oldest is dismissed"


def test_a_displaced_rank_connects_again(monkeypatch):
    """Rank 1 waits for a core after its proof is due, until strangers have displaced it."""
    place = Place(SECRET)
    displaced = threading.Event()
    read = connections._read

    def late(peer: socket.socket, length: int, until: float) -> bytes:
        if not displaced.is_set():
            displaced.set()
            for _ in range(connections._MAX_UNPROVED + len(RANKS) + 20):
                crowd.append(stack.enter_context(socket.create_connection((HOST, place.port))))
            assert crowd[0].recv(1) == b"", "the oldest is dismissed"
        return read(peer, length, until)

    monkeypatch.setattr(connections, "_read", late)
    crowd: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        place.meet()
    assert displaced.is_set()


def test_all_ranks_of_a_large_job_are_unproved_at_once():
    ranks = range(1, 2 * connections._MAX_UNPROVED)
    endpoint = Endpoint(Table(), KEY, HOST, SECRET)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        accepting = pool.submit(endpoint.accept, ranks, 1.0)
        port = int(endpoint.store.get(KEY).split()[1])
        peers = []
        for rank in ranks:
            peers.append(stack.enter_context(socket.create_connection((HOST, port))))
            peers[-1].sendall(hello_of(random.Random(rank), rank))
        assert all(len(received(peer, 32 + PROOF)) == 32 + PROOF for peer in peers)
        with pytest.raises(BlockingIOError):  # the oldest is not dismissed
            peers[0].recv(1, socket.MSG_DONTWAIT)
        with pytest.raises(TimeoutError):
            accepting.result(60)


@pytest.mark.parametrize("answered", [0, 1, 32 + PROOF])
def test_a_rank_is_connected_only_once_that_is_confirmed(answered):
    """The listening process leaves after a part of its answer, and then for good."""
    store = Table()

    def listen(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        listener.close()
        with peer:
            hello, nonce = received(peer, HELLO), bytes(32)
            proof = connections._Prover(SECRET, KEY, address).proof(b"listener", hello + nonce)
            peer.sendall((nonce + proof)[:answered])

    listener = socket.create_server((HOST, 0))
    address = f"{HOST} {listener.getsockname()[1]}"
    store.set(KEY, address)
    thread = threading.Thread(target=listen, args=(listener,))
    thread.start()
    with pytest.raises(ConnectionRefusedError):
        Endpoint(store, KEY, HOST, SECRET).connect(1, SECONDS)
    thread.join()


def test_one_deadline_for_all():
    place = Place(SECRET, timeout=1.0)
    begin = time.monotonic()
    with socket.create_connection((HOST, place.port), SECONDS) as peer:
        slow(peer, random.Random(1))
        with pytest.raises(TimeoutError, match="rank 1 has not joined for 1 seconds"):
            place.accepting.result(60)
    assert time.monotonic() - begin < SECONDS / 2


# -- strangers that listen -----------------------------------------------------------------------


def nothing(hello: bytes, draw: random.Random, published: str) -> bytes:
    return b""


def noise(hello: bytes, draw: random.Random, published: str) -> bytes:
    return draw.randbytes(draw.choice([1, 63, 64, 65, 1000]))


def own_proof(hello: bytes, draw: random.Random, published: str) -> bytes:
    nonce = draw.randbytes(32)
    secret, role, key, address = draw.choice(
        [
            ("", b"listener", KEY, published),
            (SECRET, b"rank", KEY, published),
            (SECRET, b"listener", "another key", published),
            (SECRET, b"listener", KEY, f"{HOST} 1"),
        ]
    )
    return nonce + connections._Prover(secret, key, address).proof(role, hello + nonce)


def echo(hello: bytes, draw: random.Random, published: str) -> bytes:
    return hello + hello


@pytest.mark.parametrize("seed", range(20))
def test_a_stranger_that_listens_learns_nothing(seed):
    """The store is overwritten, so that a rank connects to a stranger."""
    draw = random.Random(seed)
    answer = draw.choice([nothing, noise, own_proof, echo])
    store = Table()
    heard = []

    def listen(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        listener.close()
        with peer, contextlib.suppress(OSError):
            heard.append(received(peer, HELLO))
            peer.sendall(answer(heard[0], draw, published))
            peer.shutdown(socket.SHUT_WR)
            heard.append(received(peer, 1000))

    with socket.create_server((HOST, 0)) as listener:
        published = f"{HOST} {listener.getsockname()[1]}"
        store.set(KEY, published)
        thread = threading.Thread(target=listen, args=(listener,))
        thread.start()
        with pytest.raises(OSError):
            Endpoint(store, KEY, HOST, SECRET).connect(1, 5.0)
        thread.join()
    assert len(heard[0]) == HELLO and b"".join(heard[1:]) == b""


@pytest.mark.parametrize("secret", [SECRET, "\udcff" * 32])
def test_a_stranger_cannot_relay_the_proofs(secret):
    """The store is overwritten: a stranger passes all bytes on between a rank and the listener."""
    endpoint = Endpoint(Table(), KEY, HOST, secret)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)

    with ThreadPoolExecutor(4) as pool, socket.create_server((HOST, 0)) as listener:
        accepting = pool.submit(endpoint.accept, [1], 2.0)
        port = int(endpoint.store.get(KEY).split()[1])
        endpoint.store.set(KEY, f"{HOST} {listener.getsockname()[1]}")
        connecting = pool.submit(endpoint.connect, 1, SECONDS)
        victim, _ = listener.accept()
        with victim, socket.create_connection((HOST, port), 5.0) as upstream:
            victim.settimeout(5.0)
            pumps = [pool.submit(pump, *each) for each in ((victim, upstream), (upstream, victim))]
            with pytest.raises(ConnectionError, match="another secret, or did not publish this"):
                connecting.result(60)
            with pytest.raises(TimeoutError):
                accepting.result(60)
            for each in pumps:
                each.result(60)


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"here", b"here ", b"here 0x10", b"here 65536", b"here -1", b"here 1 2", b"\0",
        b"here 99999999999999999999", "here \u0661".encode(), b"a b c d", b"here 1\n",
        b"\xff 1 \xff",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(text):
    store = Table()
    store.set(KEY, text)
    with pytest.raises(ConnectionError, match="the store has no address under ngraph/link/7"):
        Endpoint(store, KEY, HOST, SECRET).connect(1, 5.0)


# -- secrets and addresses -----------------------------------------------------------------------


def test_the_secret_is_not_in_the_store():
    place = Place(SECRET)
    assert place.endpoint.store.get(KEY).decode() == f"{HOST} {place.port}"
    place.meet()


def test_without_a_secret_the_store_has_a_new_one():
    texts = set()
    for _ in range(2):
        place = Place("")
        texts.add(place.endpoint.store.get(KEY).split()[2])
        place.meet()
    assert len(texts) == 2


@pytest.mark.parametrize("secrets", [(SECRET, ""), ("", SECRET)])
def test_a_secret_that_not_all_ranks_have_is_a_sentence(secrets):
    place = Place(secrets[0], timeout=0.5)
    with pytest.raises(ConnectionError, match=f"{SECRET_VARIABLE} is not equal on all ranks"):
        Endpoint(place.endpoint.store, KEY, HOST, secrets[1]).connect(1, 5.0)
    with pytest.raises(TimeoutError):
        place.accepting.result(60)


def test_a_secret_may_be_any_bytes(monkeypatch):
    monkeypatch.setitem(os.environb, SECRET_VARIABLE.encode(), bytes(range(200, 232)))
    Place(connections.secret_of(os.environ)).meet()


def test_a_short_secret_is_refused():
    with pytest.raises(NgraphError, match="has 15 characters: give a random text of at least 16"):
        connections.secret_of({SECRET_VARIABLE: "a" * 15})
    assert connections.secret_of({}) == ""


def listening_at(port: int) -> list[str]:
    """The addresses at which a socket listens on a port, as the kernel prints them."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        if state == "0A" and local.endswith(f":{port:04X}"):
            found.append(local.partition(":")[0])
    return found


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (HOST, "0100007F"),
        ("localhost", "0100007F"),
        ("127.0.1.1", "0101007F"),
        ("192.0.2.1", "00000000"),
        ("node0", "00000000"),
        (socket.gethostname(), "00000000"),
    ],
)
def test_a_rank_listens_at_its_own_address(host, address):
    """At every address if its own is none of this machine (that of a router), or is a name."""
    endpoint = Endpoint(Table(), KEY, host, SECRET)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(endpoint.accept, [1], 0.5)
        assert listening_at(int(endpoint.store.get(KEY).split()[1])) == [address]
        with pytest.raises(TimeoutError):
            accepting.result(60)


def test_a_rank_may_know_the_listening_one_by_another_host():
    """The published one is then signed, but not used."""
    place = Place(SECRET)
    elsewhere = Endpoint(Table(), KEY, "node0.invalid", SECRET)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(elsewhere.accept, [1], SECONDS)
        assert elsewhere.store.get(KEY).startswith(b"node0.invalid ")
        with pytest.raises(OSError):
            elsewhere.connect(1, SECONDS)
        replace(elsewhere, listening_host=HOST).connect(1, SECONDS).close()
        accepting.result(60)[1].close()
    place.meet()


def test_a_stranger_at_the_ipv6_address_of_a_host_gets_no_connection(monkeypatch):
    """``localhost`` has two addresses, the rank listens at one of them."""
    resolve = socket.getaddrinfo

    def ipv6_first(host, port, *arguments, **named):
        first = [resolve("::1", port, type=socket.SOCK_STREAM)[0]] if host == "localhost" else []
        return [*first, *resolve(host, port, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", ipv6_first)
    endpoint = Endpoint(Table(), KEY, "localhost", SECRET)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        accepting = pool.submit(endpoint.accept, [1], SECONDS)
        port = int(endpoint.store.get(KEY).split()[1])
        with contextlib.suppress(OSError):  # no IPv6
            stack.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6))
        endpoint.connect(1, 5.0).close()
        accepting.result(60)[1].close()


def sockets_at(port: int) -> int:
    """The number of sockets of this process that have a port."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
            found += each.family == socket.AF_INET and each.getsockname()[1] == port
    return found


def test_a_fork_has_no_listener_and_no_peer():
    """A rank that has ended is noticed at once, even if its children live on."""
    place = Place(SECRET, timeout=1.0)
    with socket.create_connection((HOST, place.port)) as peer:
        peer.sendall(hello_of(random.Random(1), 1))
        received(peer, 32 + PROOF)
        said, answer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(answer, b"%d" % sockets_at(place.port))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(answer)
        with open(said) as file:
            assert file.read() == "0"
        assert sockets_at(place.port) == 2
        with pytest.raises(TimeoutError):
            place.accepting.result(60)


def _placed(**changes: str) -> RankPlacement:
    variables = {
        **jobs.of_rank(1, 2, 6170),
        "PADDLE_MASTER": "192.0.2.1:6170",
        "PADDLE_CURRENT_ENDPOINT": "192.0.2.2:6171",
        **changes,
    }
    return RankPlacement.of_environment({n: v for n, v in variables.items() if v})


def test_ranks_of_one_machine_use_loopback():
    assert _placed().host == _placed().first_host == "127.0.0.1"
    two_machines = {"PADDLE_LOCAL_SIZE": "1", "PADDLE_LOCAL_RANK": "0"}
    assert _placed(**two_machines).host == "192.0.2.2"
    assert _placed(**two_machines).first_host == "192.0.2.1"
    assert _placed(**two_machines, PADDLE_TRAINER_ID="0").host == "192.0.2.1"
    assert _placed(PADDLE_LOCAL_SIZE="").host == "192.0.2.2", "nobody says that it is one machine"
