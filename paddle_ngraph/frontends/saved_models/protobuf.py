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
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = varint(message, position)
            yield number, kind, value
            continue
        if kind == LENGTH_DELIMITED:
            length, position = varint(message, position)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ValueError("an unknown kind of field")
        if number == 0 or position + length > len(message):
            raise ValueError("a truncated field")
        yield number, kind, message[position : position + length]
        position += length


def varint(message: bytes, position: int) -> tuple[int, int]:
    """The integer at offset ``position``, and the offset after it.

    Raises:
        ValueError: There is no complete integer.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        value, position = value | (byte & 127) << shift, position + 1
        if byte < 128:
            return value, position
    raise ValueError("an unterminated number")
