"""Messages between two processes, over a socket of their own.

A sender without a message sends a heartbeat every few seconds: the wait for a message has no limit,
and a process that is stuck or unreachable is detected.
"""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import NamedTuple

import numpy as np

from paddle_ngraph.distributed.connections import close_in_child
from paddle_ngraph.distributed.job import DistributedJob

# The dtypes of arrays in messages, by their number in the layout of an array (dtype, rank, sizes).
# All layouts of a message are sent before the arrays, which are sent as bytes.
_DTYPES: tuple[str, ...] = (
    "float32",
    "int64",
    "uint8",
    "int32",
    "bool",
    "float64",
    "float16",
    "uint16",
    "int8",
)
_DTYPES += ("int16", "complex64", "complex128")
_MAX_AXES = 9  # Paddle's limit
_HEADER = struct.Struct(">BI")  # the kind of a message, and the number of its arrays
_LAYOUT = struct.Struct(f">{2 + _MAX_AXES}q")
_MAX_ARRAYS = 1 << 16
# The maximal size of a message if the receiver gives none. Memory that is reserved for a message
# costs nothing until its bytes arrive.
_MAX_BYTES = 1 << 40
# The size of an error message, for which there is room in every link.
_MAX_SENTENCE_BYTES = 1 << 16
_HEARTBEAT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0  # the time without a byte after which the other process is lost
_CONNECTION_TIMEOUT_SECONDS = 60.0


class MessageKind(IntEnum):
    """The category of a message, which decides how the receiver handles it."""

    WAIT = 0  # heartbeat of a slow sender: another message will follow
    GET = 1  # requests the parameters, and the rows of tables with these ids
    PUSH = 2  # contains gradients for the server
    DONE = 3  # ends the link: the sender sends no other message
    ANSWER = 4
    FAILURE = 5  # contains one array: an error message in UTF-8
    START = 6  # contains the variables of which each process has a copy
    VALUES = 7  # contains values that cross stages of a pipeline


_KINDS = frozenset(MessageKind)


class Message(NamedTuple):
    """A message over a link: a category, and arrays of any shape."""

    kind: MessageKind
    arrays: Sequence[np.ndarray] = ()


def failure(sentence: str) -> Message:
    """A message that reports an error."""
    text = sentence.encode(errors="replace")[:_MAX_SENTENCE_BYTES]
    return Message(MessageKind.FAILURE, [np.frombuffer(text, np.uint8)])


def sentence_of(message: Message) -> str:
    """The error message in a failure."""
    return b"".join(each.tobytes() for each in message.arrays).decode(errors="replace")


class ProcessLink:
    """A connection of two processes. To be used by one thread.

    Args:
        peer: The socket.
        max_bytes: The maximal size of the arrays of a message; 0: any size.
    """

    def __init__(self, peer: socket.socket, max_bytes: int = 0) -> None:
        peer.settimeout(_SILENCE_SECONDS)
        self._peer = peer
        self._max_bytes = max(max_bytes, _MAX_SENTENCE_BYTES) if max_bytes else _MAX_BYTES
        close_in_child(self)

    @classmethod
    def between(
        cls, job: DistributedJob, other: int, number: int, max_bytes: int = 0
    ) -> ProcessLink:
        """Connects this rank and another one, which calls this function, too.

        Args:
            job: The job.
            other: The other rank.
            number: The id of the link, equal on both ranks.
            max_bytes: See the class.

        Raises:
            OSError: The other rank cannot be reached.
        """
        endpoint, rank = job.endpoint(f"ngraph/link/{number}"), job.placement.rank
        if rank < other:
            peer = endpoint.accept([other], _CONNECTION_TIMEOUT_SECONDS)[other]
        else:
            peer = endpoint.connect(rank, _CONNECTION_TIMEOUT_SECONDS)
        return cls(peer, max_bytes)

    def send(self, message: Message) -> None:
        """Sends a message. Raises OSError if the other process is lost."""
        arrays = list(map(np.asarray, message.arrays))
        head = [_HEADER.pack(message.kind, len(arrays)), *map(_layout, arrays)]
        self._write(memoryview(b"".join(head)))
        for array in arrays:
            if array.size:
                self._write(np.ascontiguousarray(array).reshape(-1).view("uint8").data)

    def receive(self) -> Message:
        """The next message.

        Raises:
            OSError: The other process is lost, or sends something that is no message.
        """
        number = count = 0
        while number == MessageKind.WAIT and count == 0:
            number, count = _HEADER.unpack(self._read(_HEADER.size).data)
        if number not in _KINDS or number == MessageKind.WAIT or count > _MAX_ARRAYS:
            raise ConnectionError(f"a message of kind {number} with {count} arrays was received")
        rows = _LAYOUT.iter_unpack(self._read(count * _LAYOUT.size).data) if count else ()
        layouts = [_parsed(row) for row in rows]
        num_bytes = sum(prod(shape) * dtype.itemsize for dtype, shape in layouts)
        if num_bytes > self._max_bytes:
            raise ConnectionError(
                f"a message of {num_bytes} bytes was received; the largest valid one has "
                f"{self._max_bytes}"
            )
        return Message(MessageKind(number), [self._array(*layout) for layout in layouts])

    def send_next(self, outbox: queue.SimpleQueue[Message]) -> Message:
        """Sends the next message of ``outbox``, once there is one; returns the message.

        Sends heartbeats to the peer while the queue is empty.
        """
        while True:
            try:
                message = outbox.get(timeout=_HEARTBEAT_SECONDS)
            except queue.Empty:
                message = Message(MessageKind.WAIT)
            self.send(message)
            if message.kind != MessageKind.WAIT:
                return message

    def close(self) -> None:
        """Closes the connection."""
        self._peer.close()

    def _array(self, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        data = self._read(prod(shape) * dtype.itemsize)
        if dtype == np.bool_ and (data > 1).any():
            raise ConnectionError("a bool that is neither 0 nor 1 was received")
        return data.view(dtype).reshape(shape)

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._peer.send(data) :]
        except socket.timeout as error:
            raise _lost() from error

    def _read(self, length: int) -> np.ndarray:
        data = np.empty(length, np.uint8)
        rest = data.data
        try:
            while rest:
                count = self._peer.recv_into(rest)
                if count == 0:
                    raise ConnectionError("the connection was closed")
                rest = rest[count:]
        except socket.timeout as error:
            raise _lost() from error
        return data


def _lost() -> TimeoutError:
    return TimeoutError(f"no heartbeat for {_SILENCE_SECONDS:.0f} seconds")


def _layout(array: np.ndarray) -> bytes:
    padding = [0] * (_MAX_AXES - array.ndim)
    return _LAYOUT.pack(_DTYPES.index(str(array.dtype)), array.ndim, *array.shape, *padding)


def _parsed(row: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """Dtype and shape of an array. Raises ConnectionError if there is no such array."""
    number, rank, *sizes = row
    is_valid = 0 <= number < len(_DTYPES) and 0 <= rank <= _MAX_AXES and min(sizes) >= 0
    # NumPy multiplies all sizes but zeros, for an empty array, too.
    if not is_valid or any(sizes[rank:]) or prod(max(1, size) for size in sizes) > _MAX_BYTES:
        raise ConnectionError(f"an array of the layout {list(row)} was received")
    return np.dtype(_DTYPES[number]), tuple(sizes[:rank])
