"""Parameter files: a sequence of Paddle's serialized tensors.

Only headers are read: to join files, and to reject a damaged file before Paddle reads it.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.protobuf import LENGTH_DELIMITED, VARINT, fields, varint
from paddle_ngraph.utils import signals

# The bytes per element of each data type, by its id in VarType of Paddle's framework.proto.
_BYTES_PER_ELEMENT = {
    0: 1,
    1: 2,
    2: 4,
    3: 8,
    4: 2,
    5: 4,
    6: 8,
    20: 1,
    21: 1,
    22: 2,
    23: 8,
    24: 16,
    32: 1,
    33: 1,
}
# Ids of the fields of Paddle's message VarType.TensorDesc: dtype and dimensions.
_DTYPE, _DIMS = 1, 2
# The maximum plausible size of a tensor's header in bytes: larger headers are errors.
_MAX_HEADER_BYTES = 4096

Shape = tuple[int, ...]


class StoredTensor(NamedTuple):
    """The shape of a tensor in a file, and the place of its elements."""

    shape: Shape
    offset: int
    num_bytes: int


def check_file(path: str) -> None:
    """Rejects a truncated or damaged parameter file, from which Paddle would read arbitrary values.

    Raises:
        NgraphError: The file is truncated or damaged. A missing file is reported by Paddle.
    """
    if os.path.isfile(path):
        list(tensors_in(path))


def leads_out(name: str) -> bool:
    """Whether a parameter's file, which has its name, is outside of the model's folder."""
    return os.path.isabs(name) or ".." in name.split("/") or "\0" in name


def check_files(folder: str, names: Iterable[str]) -> None:
    """Rejects truncated files of one parameter each; Paddle ignores bytes after the parameter."""
    for name in itertools.filterfalse(leads_out, names):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            next(tensors_in(path), None)


def tensors_in(path: str) -> Iterator[Shape]:
    """The shape of each tensor of a file.

    Raises:
        NgraphError: The file is damaged.
    """
    return (tensor.shape for tensor in stored_tensors(path))


def stored_tensors(path: str) -> Iterator[StoredTensor]:
    """The tensors of a file, without their elements.

    Raises:
        NgraphError: The file is damaged.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while file.tell() < size:
            with signals.own_errors():
                try:
                    shape, num_bytes = _header(file, size)
                except (struct.error, IndexError, ValueError):
                    raise NgraphError(f"{path} is damaged, or not a parameter file") from None
            if file.tell() + num_bytes > size:
                raise NgraphError(
                    f"{path} is truncated: {file.tell() + num_bytes - size} bytes are missing"
                )
            offset = file.tell()
            file.seek(num_bytes, os.SEEK_CUR)
            yield StoredTensor(shape, offset, num_bytes)


def _header(file: BinaryIO, size: int) -> tuple[Shape, int]:
    """Reads the header of a tensor in a file of ``size`` bytes.

    Returns:
        The shape of the tensor, and the size of its elements in bytes.
    """
    version, levels = _read(file, "<IQ")
    if version != 0 or levels > _MAX_HEADER_BYTES:
        raise ValueError
    for _ in range(levels):  # skips the levels of the LoD
        (level_bytes,) = _read(file, "<Q")
        if level_bytes > size - file.tell():
            raise ValueError
        file.seek(level_bytes, os.SEEK_CUR)
    version, length = _read(file, "<Ii")
    if version != 0 or not 0 < length <= _MAX_HEADER_BYTES:
        raise ValueError
    message = file.read(length)
    if len(message) < length:
        raise ValueError
    shape: list[int] = []
    dtype = None
    for number, wire_type, value in fields(message):
        if number == _DTYPE and wire_type == VARINT:
            dtype = value
        elif number == _DIMS and wire_type == VARINT:
            shape.append(value)
        elif number == _DIMS and wire_type == LENGTH_DELIMITED:
            shape += _packed(value)
        else:
            raise ValueError
    if dtype not in _BYTES_PER_ELEMENT or any(size >= 1 << 63 for size in shape):
        raise ValueError
    return tuple(shape), math.prod(shape) * _BYTES_PER_ELEMENT[dtype]


def _read(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _packed(message: bytes) -> Iterator[int]:
    offset = 0
    while offset < len(message):
        value, offset = varint(message, offset)
        yield value
