"""The hashes of the core: BLAKE3 by its published test vectors, and by a slow implementation."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError

KEY = b"whats the Elvish word for friend"
# Length of the input, first bytes of the digest, and of the keyed digest: from test_vectors.json of
# https://github.com/BLAKE3-team/BLAKE3.
VECTORS = [
    (0, "af1349b9f5f9a1a6a0404dea36dcc949", "92b2b75604ed3c761f9d6f62392c8a92"),
    (1, "2d3adedff11b61f14c886e35afa03673", "6d7878dfff2f485635d39013278ae14f"),
    (1023, "10108970eeda3eb932baac1428c7a216", "c951ecdf03288d0fcc96ee3413563d8a"),
    (1024, "42214739f095a406f3fc83deb889744a", "75c46f6f3d9eb4f55ecaaee480db732e"),
    (1025, "d00278ae47eb27b34faecf67b4fe263f", "357dc55de0c7e382c900fd6e320acc04"),
    (2048, "e776b6028c7cd22a4d0ba182a8bf6220", "879cf1fa2ea0e79126cb1063617a05b6"),
    (2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3", "9f29700902f7c86e514ddc4df1e3049f"),
    (3073, "7124b49501012f81cc7f11ca069ec922", "68dede9bef00ba89e43f31a6825f4cf4"),
    (8193, "bab6c09cb8ce8cf459261398d2e7aef3", "954a2a75420c8d6547e3ba5b98d963e6"),
    (31744, "62b6960e1a44bcc1eb1a611a8d6235b6", "efa53b389ab67c593dba624d898d0f73"),
    (102400, "bc3e3d41a1146b069abffad3c0d44860", "1c35d1a5811083fd7119f5d5d1ba027b"),
]
WORDS_OF_ROOTS = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A)
INITIAL = np.array([*WORDS_OF_ROOTS, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32)
PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
COLUMNS_AND_DIAGONALS = [
    *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
]


def painted(length: int) -> bytes:
    return (bytes(range(251)) * (length // 251 + 1))[:length]


def rotated(words: np.ndarray, bits: int) -> np.ndarray:
    return (words >> np.uint32(bits)) | (words << np.uint32(32 - bits))


def compressed(
    values: np.ndarray, blocks: np.ndarray, counters: np.ndarray, size: int, flags: int
) -> np.ndarray:
    """Compresses many blocks at once: ``values`` [n, 8], ``blocks`` [n, 16], ``counters`` [n]."""
    count = len(values)
    state = np.empty((16, count), np.uint32)
    state[:8], state[8:12] = values.T, INITIAL[:4, None]
    state[12], state[13], state[14], state[15] = counters, counters >> 32, size, flags
    words = blocks.T
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(COLUMNS_AND_DIAGONALS):
            for word, bits in ((words[2 * i], (16, 12)), (words[2 * i + 1], (8, 7))):
                state[a] += state[b] + word
                state[d] = rotated(state[d] ^ state[a], bits[0])
                state[c] += state[d]
                state[b] = rotated(state[b] ^ state[c], bits[1])
        words = words[PERMUTATION]
    return (state[:8] ^ state[8:]).T


def root(nodes: np.ndarray) -> np.ndarray:
    """The root over two or more chunks: neighbours merge, and an odd last one goes up a level."""
    while len(nodes) > 1:
        pairs = nodes[: len(nodes) // 2 * 2].reshape(-1, 16)
        flags = 4 | 8 if len(nodes) == 2 else 4
        values = np.tile(INITIAL, (len(pairs), 1))
        parents = compressed(values, pairs, np.zeros(len(pairs), np.int64), 64, flags)
        nodes = np.concatenate([parents, nodes[2 * len(pairs) :]])
    return nodes


def slow_digest(data: bytes) -> bytes:
    """The BLAKE3 digest of two or more whole chunks of 1024 bytes."""
    blocks = np.frombuffer(data, "<u4").reshape(-1, 16, 16)
    values = np.tile(INITIAL, (len(blocks), 1))
    for i in range(16):
        flags = {0: 1, 15: 2}.get(i, 0)
        values = compressed(values, blocks[:, i], np.arange(len(blocks)), 64, flags)
    return root(values).tobytes()


@pytest.mark.parametrize(("length", "digest", "keyed"), VECTORS)
def test_digests_are_those_of_the_specification(length, digest, keyed):
    assert _core.digest(painted(length)).hex().startswith(digest)
    assert _core.digest(painted(length), KEY).hex().startswith(keyed)


@pytest.mark.parametrize("chunks", [2, 17, 255, 256, 257, 511, 512, 769])
def test_digests_of_several_subtrees(chunks):
    data = painted(1024 * chunks)
    assert _core.digest(data) == slow_digest(data)


def test_keys_have_32_bytes():
    with pytest.raises(NgraphError, match="key"):
        _core.digest(b"", b"short")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 4095, 4096, 4097, 3 << 20])
def test_change_hashes_differ_at_every_byte(size):
    data = bytearray(painted(size))
    before = _core.change_hash(bytes(data))
    assert _core.change_hash(bytes(data)) == before
    for at in {0, 7, 8, size // 2, size - 1} & set(range(size)):
        data[at] ^= 128
        assert _core.change_hash(bytes(data)) != before
        data[at] ^= 128
