"""Messages between two processes, over gloo.

Gloo fails permanently if a message does not arrive within 30 seconds. So a sender without a message
sends a heartbeat every few seconds: the wait for a message has no limit, and a lost process is
detected.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
import paddle

from paddle_ngraph.paddle_private.names import make_gloo_group
from paddle_ngraph.paddle_private.protocols import Store

# The dtypes of arrays in messages, by their number in the header row of an array (dtype, rank,
# sizes), after which the array is sent as bytes.
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
_MAX_AXES = 9  # maximum rank of a tensor in Paddle
_HEARTBEAT_SECONDS = 5.0


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


class Message(NamedTuple):
    """A message over a link: a category, and arrays of any shape."""

    kind: MessageKind
    arrays: Sequence[np.ndarray] = ()


def failure(sentence: str) -> Message:
    """Creates a message that reports an error."""
    return Message(MessageKind.FAILURE, [np.frombuffer(sentence.encode(), np.uint8)])


def sentence_of(message: Message) -> str:
    """The error message that a message of category FAILURE contains."""
    return message.arrays[0].tobytes().decode()


class ProcessLink:
    """A connection of two processes. To be created, and used, by one thread in dynamic mode.

    Args:
        store: A separate store for the two processes: gloo's keys do not include the group.
        number: The id of the link, equal on both sides.
        side: 0 or 1.
    """

    def __init__(self, store: Store, number: int, side: int) -> None:
        self._group = make_gloo_group(store, side, 2, number)
        self._peer = 1 - side

    def send(self, message: Message) -> None:
        """Sends a message. Raises RuntimeError if the other process has ended."""
        arrays = list(map(np.asarray, message.arrays))
        self._put(np.array([message.kind, len(arrays)], "int64"))
        if arrays:
            self._put(np.array([_header(array) for array in arrays], "int64"))
        for array in arrays:
            if array.size:
                self._put(np.ascontiguousarray(array).reshape(-1).view("uint8"))

    def receive(self) -> Message:
        """Receives a message. Raises RuntimeError if the other process has ended."""
        kind, count = MessageKind.WAIT, 0
        while kind == MessageKind.WAIT:
            kind, count = self._get([2], "int64")
        headers = self._get([count, 2 + _MAX_AXES], "int64") if count else ()
        arrays = []
        for number, rank, *sizes in headers:
            dtype, shape = np.dtype(_DTYPES[number]), sizes[:rank]
            data = self._get([prod(map(int, shape)) * dtype.itemsize], "uint8")
            arrays.append(data.view(dtype).reshape(shape))
        return Message(MessageKind(kind), arrays)

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

    def _put(self, array: np.ndarray) -> None:
        self._group.send(paddle.to_tensor(array), self._peer, True).wait()

    def _get(self, shape: Sequence[int], dtype: Any) -> Any:
        if 0 in shape:
            return np.zeros(shape, dtype)
        tensor = paddle.empty([int(size) for size in shape], dtype)
        self._group.recv(tensor, self._peer, True).wait()
        return tensor.numpy()


def _header(array: np.ndarray) -> list[int]:
    return [
        _DTYPES.index(str(array.dtype)),
        array.ndim,
        *array.shape,
        *[0] * (_MAX_AXES - array.ndim),
    ]
