"""The files of stored functions (core/engine/disk_cache.cc), read and written with any contents."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from paddle_ngraph import _core

MAGIC = b"NGRAPHF5"
_BLOCK = 4 << 20


@dataclass(frozen=True)
class StoredFile:
    """The sections of a file: OpenVINO's blob, 64-bit words, and the key."""

    blob: bytes
    words: tuple[int, ...]
    key: bytes

    @classmethod
    def of(cls, contents: bytes) -> StoredFile:
        blob_bytes, num_words, key_bytes = struct.unpack("<3Q", contents[-32:-8])
        assert contents[-8:] == MAGIC
        words_end = blob_bytes + 8 * num_words
        assert words_end + key_bytes + 64 == len(contents)
        words = struct.unpack(f"<{num_words}q", contents[blob_bytes:words_end])
        return cls(contents[:blob_bytes], words, contents[words_end : words_end + key_bytes])

    def with_words(self, words: tuple[int, ...]) -> StoredFile:
        return replace(self, words=words)

    def contents(self, secret: bytes) -> bytes:
        """The file, authenticated by the secret of a user, or the identity of a model."""
        words = struct.pack(f"<{len(self.words)}q", *self.words)
        sizes = struct.pack("<3Q", len(self.blob), len(self.words), len(self.key)) + MAGIC
        parts = [sizes, words, self.key]
        parts += [self.blob[at : at + _BLOCK] for at in range(0, len(self.blob), _BLOCK)]
        code = _core.digest(b"".join(map(_core.digest, parts)), secret)
        return self.blob + words + self.key + code + sizes

    @property
    def name(self) -> str:
        graph, _, instance = self.key.rpartition(b"\n")
        names = [_core.digest(each).hex()[:32] for each in (graph, instance)]
        return "-".join(names) + ".ngraph"


def secret_path() -> Path:
    """The file with the user's secret."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "paddle_ngraph" / "secret"
