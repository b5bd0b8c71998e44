"""Parameter files: damaged ones raise NgraphError and nothing else."""

from __future__ import annotations

import math
import os
import random
import struct
from pathlib import Path

import pytest

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models import parameter_file

FLOAT32 = 5


def serialized(*level_sizes: int, shape: tuple[int, ...] = (2, 3)) -> bytes:
    """A float32 tensor in Paddle's format, with LoD levels that claim these sizes."""
    levels = b"".join(struct.pack("<Q", size) + bytes(min(size, 64)) for size in level_sizes)
    message = bytes([1 << 3, FLOAT32]) + b"".join(bytes([2 << 3, size]) for size in shape)
    header = struct.pack("<IQ", 0, len(level_sizes)) + levels
    elements = bytes(4 * math.prod(shape))
    return header + struct.pack("<Ii", 0, len(message)) + message + elements


def shapes(path: Path, contents: bytes) -> list[parameter_file.Shape]:
    path.write_bytes(contents)
    return list(parameter_file.tensors_in(str(path)))


def test_intact_files_are_read(tmp_path):
    contents = serialized() + serialized(16, 24, shape=(4,))
    assert shapes(tmp_path / "p", contents) == [(2, 3), (4,)]


@pytest.mark.parametrize("size", [1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_level_beyond_the_end_of_the_file_is_damage(tmp_path, size):
    for contents in (serialized(size), serialized(16, size), serialized() + serialized(size)):
        with pytest.raises(NgraphError, match="is damaged"):
            shapes(tmp_path / "p", contents)


def test_no_damage_raises_another_error():
    generator = random.Random(1)
    intact = serialized(16) + serialized()
    rejected = 0
    with open(os.memfd_create("parameters"), "wb") as in_memory:
        path = Path(f"/proc/self/fd/{in_memory.fileno()}")
        for _ in range(2000):
            contents = bytearray(intact)
            at = generator.randrange(len(intact) - 8)
            value = generator.choice([0, 1, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1])
            size = generator.choice([1, 4, 8])
            contents[at : at + size] = struct.pack("<Q", value)[:size]
            try:
                shapes(path, bytes(contents[: generator.choice([len(intact), at + 4])]))
            except NgraphError:
                rejected += 1
    assert rejected > 500
