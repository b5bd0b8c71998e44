"""Weights with the same ``content_hash`` (core/common/content_hash.h) as given ones.

That hash once named the weights of a function, so that a model could put its own weights under the
key of another.
"""

from __future__ import annotations

import struct

import numpy as np

_MASK = (1 << 64) - 1
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F)
_INVERSES = tuple(pow(prime, -1, 1 << 64) for prime in _PRIMES)
_LANES = 4


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _mixed(lane: int, word: int) -> int:
    return _rotated((lane + word * _PRIMES[1]) & _MASK, 31) * _PRIMES[0] & _MASK


def _word_between(lane: int, mixed: int) -> int:
    """The word that mixes ``lane`` to ``mixed``."""
    return (_rotated(mixed * _INVERSES[0] & _MASK, 33) - lane) * _INVERSES[1] & _MASK


def content_hash(data: bytes, seed: int) -> int:
    lanes = [seed + sum(_PRIMES), seed + _PRIMES[1], seed, seed - _PRIMES[0]]
    padded = data.ljust(-(-len(data) // 32) * 32, b"\0") if len(data) % 32 else data + bytes(32)
    hashed = _mixed(len(data), seed)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    for i, word in enumerate(words):
        lanes[i % _LANES] = _mixed(lanes[i % _LANES] & _MASK, word)
    for lane in lanes:
        hashed = _mixed(hashed, lane)
    hashed = (hashed ^ hashed >> 33) * _PRIMES[1] & _MASK
    return hashed ^ hashed >> 29


def forged(weights: np.ndarray, seed: int) -> np.ndarray:
    """Other float32 weights with the same content_hash: two words of a lane differ."""
    generator = np.random.default_rng([seed, 20261129])
    words = [int(word) for word in weights.astype("<f4").reshape(-1).view("<u8")]
    before = (seed + sum(_PRIMES)) & _MASK
    target = _mixed(_mixed(before, words[0]), words[_LANES])
    while True:
        words[0] = int(generator.standard_normal(2).astype("<f4").view("<u8")[0])
        words[_LANES] = _word_between(_mixed(before, words[0]), target)
        found = np.array(words, "<u8").view("<f4").reshape(weights.shape)
        if np.isfinite(found).all() and 1e-3 < abs(found).max() < 4:
            break
    assert not np.array_equal(found, weights)
    assert content_hash(found.tobytes(), seed) == content_hash(weights.tobytes(), seed)
    return found
