"""Reader of protocol buffer messages, to check the format of a file before Paddle opens it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, LENGTH_DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}


def fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """The field number, wire type and value of every field; a value is an ``int`` or ``bytes``.

    Raises:
        ValueError: The bytes are not a message.
    """
    offset = 0
    while offset < len(message):
        key, offset = varint(message, offset)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, offset = varint(message, offset)
            yield number, wire_type, value
            continue
        if wire_type == LENGTH_DELIMITED:
            length, offset = varint(message, offset)
        elif wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            raise ValueError("an unknown type of field")
        if number == 0 or offset + length > len(message):
            raise ValueError("a truncated field")
        yield number, wire_type, message[offset : offset + length]
        offset += length


def varint(message: bytes, offset: int) -> tuple[int, int]:
    """The integer at ``offset``, and the offset after it.

    Raises:
        ValueError: There is no complete integer.
    """
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(message):
            break
        byte = message[offset]
        value, offset = value | (byte & 127) << shift, offset + 1
        if byte < 128:
            return value, offset
    raise ValueError("an unterminated number")
