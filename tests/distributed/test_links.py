"""Messages between two processes, valid and damaged ones. The processes are threads here."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from paddle_ngraph.distributed import link
from paddle_ngraph.distributed.link import Message, MessageKind, ProcessLink

pytestmark = pytest.mark.pure

HEADER = 5  # bytes


@contextlib.contextmanager
def pair(max_bytes: int = 0) -> Iterator[tuple[ProcessLink, ProcessLink]]:
    ours, theirs = socket.socketpair()
    first, second = ProcessLink(ours, max_bytes), ProcessLink(theirs, max_bytes)
    try:
        yield first, second
    finally:
        first.close()
        second.close()


def random_array(draw: random.Random) -> np.ndarray:
    shape = [draw.choice([0, 1, 1, 2, 3, 5]) for _ in range(draw.randrange(4))]
    dtype = draw.choice([*link._DTYPES, "float32", "int64"])
    data = np.frombuffer(draw.randbytes(16 * max(1, int(np.prod(shape)))), "uint8")
    if dtype == "bool":
        data = data & 1
    count = int(np.prod(shape))
    return data[: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def random_message(draw: random.Random) -> Message:
    kinds = [kind for kind in MessageKind if kind != MessageKind.WAIT]
    return Message(draw.choice(kinds), [random_array(draw) for _ in range(draw.randrange(4))])


def bytes_of(message: Message) -> bytes:
    with pair() as (sender, receiver):
        sender.send(message)
        sender._peer.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: receiver._peer.recv(1 << 16), b""))


def assert_equal(found: Message, expected: Message) -> None:
    assert found.kind == expected.kind and len(found.arrays) == len(expected.arrays)
    for array, wanted in zip(found.arrays, expected.arrays):
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_as_they_were_sent(seed):
    draw = random.Random(seed)
    messages = [random_message(draw) for _ in range(20)]
    messages.append(Message(MessageKind.VALUES, [np.ones((1 << 20, 3), "float32")]))
    with pair() as (sender, receiver):
        thread = threading.Thread(target=lambda: list(map(sender.send, messages)))
        thread.start()
        for message in messages:
            assert_equal(receiver.receive(), message)
        thread.join()


# -- damaged messages ----------------------------------------------------------------------------


LIMITS = (0, 1, 2, 9, 10, 11, 12, 255, 1 << 16, (1 << 16) + 1, 1 << 31, (1 << 32) - 1)
WIDE_LIMITS = (*LIMITS, -1, 1 << 40, 1 << 61, (1 << 63) - 1, -(1 << 63))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Other numbers in the header and the layouts, other bits, then a part or more bytes."""
    changed = bytearray(data)
    num_numbers = 11 * struct.unpack_from(">BI", data)[1]
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        kind = draw.randrange(6)
        if kind == 0:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[0] = draw.randrange(256)
        elif kind == 2:
            struct.pack_into(">I", changed, 1, draw.choice(LIMITS))
        elif num_numbers:
            at = HEADER + 8 * draw.randrange(num_numbers)
            struct.pack_into(">q", changed, at, draw.choice(WIDE_LIMITS))
    if draw.randrange(3) == 0:
        del changed[draw.randrange(len(changed)) :]
    return bytes(changed + draw.randbytes(draw.choice([0, 0, 1, 200])))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_messages_are_errors_or_other_messages(seed):
    """Each byte string is a valid message, or an OSError, in little time and memory."""
    draw = random.Random(seed)
    for _ in range(50):
        data = damaged(bytes_of(random_message(draw)), draw)
        with pair(max_bytes=1 << 20) as (sender, receiver):
            sender._peer.sendall(data)
            sender._peer.shutdown(socket.SHUT_WR)
            try:
                found = receiver.receive()
            except OSError:
                continue
            assert found.kind in MessageKind and found.kind != MessageKind.WAIT
            assert sum(array.nbytes for array in found.arrays) <= 1 << 20
            with pair() as (again, other):
                threading.Thread(target=again.send, args=(found,)).start()
                assert_equal(other.receive(), found)


def test_sizes_in_a_header_take_no_memory():
    header = struct.pack(">BI11q", MessageKind.VALUES, 1, 2, 1, 1 << 39, *[0] * 8)
    for limit in (1 << 20, 0):
        with pair(limit) as (sender, receiver):
            sender._peer.sendall(header + b"abc")
            sender._peer.shutdown(socket.SHUT_WR)
            with pytest.raises((OSError, MemoryError)):
                receiver.receive()
    tracemalloc.start()
    with pair() as (sender, receiver):
        sender._peer.sendall(struct.pack(">BI", MessageKind.VALUES, (1 << 32) - 1))
        with pytest.raises(ConnectionError, match="of kind 7 with 4294967295 arrays"):
            receiver.receive()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", "é".encode(), b"x" * (1 << 20)])
def test_sentences_may_be_any_bytes(text):
    with pair(max_bytes=10) as (sender, receiver):
        sentence = text.decode(errors="replace")
        sender.send(link.failure(sentence))
        assert link.sentence_of(receiver.receive()) == sentence.encode()[: 1 << 16].decode(
            errors="replace"
        )
    assert link.sentence_of(Message(MessageKind.FAILURE)) == ""


# -- lost processes ------------------------------------------------------------------------------


def test_heartbeats_come_while_nothing_is_sent(monkeypatch):
    monkeypatch.setattr(link, "_HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(link, "_SILENCE_SECONDS", 2.0)
    outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with pair() as (sender, receiver):
        threading.Thread(target=sender.send_next, args=(outbox,)).start()
        threading.Timer(2.5, outbox.put, args=(Message(MessageKind.ANSWER),)).start()
        assert receiver.receive().kind == MessageKind.ANSWER


def test_a_silent_process_is_lost(monkeypatch):
    monkeypatch.setattr(link, "_SILENCE_SECONDS", 0.2)
    with pair() as (sender, receiver):
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match="no heartbeat for 0 seconds"):
            receiver.receive()
        with pytest.raises(TimeoutError):
            sender.send(Message(MessageKind.VALUES, [np.zeros(1 << 24)]))
        assert time.monotonic() - begin < 10
        sender.close()
        with pytest.raises(ConnectionError):
            receiver.receive()
