"""A quick key for Executor's cache of programs.

At each run Paddle looks its executor up by a hash of the text of the whole program. To print one
takes milliseconds for a network of a few hundred operators, longer than to run many. Here a program
is printed once and then known by its fingerprint (core/program_fingerprint.h), as long as nobody
changes it. The hash stays Paddle's: with the engine on, an Executor knows what it ran without.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Generic, TypeVar

from paddle.base import executor as paddle_executor
from paddle.pir import Program

from paddle_ngraph import _core, flags

T = TypeVar("T")


class _Latest(Generic[T]):
    """What was made last, by key; beyond ``size`` the least recently used one is forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make()
        with self._lock:
            self._found[key] = made
            while len(self._found) > self._size:
                self._found.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        with self._lock:
            self._found.clear()


# Digests of texts by fingerprint; hashes of Paddle's keys by the short ones that stand for them.
_digests: _Latest[str] = _Latest(256)
_hashes: _Latest[int] = _Latest(1024)


class _Key(str):
    """Hashes like the long text that it stands for."""

    hash_of_text: int

    def __hash__(self) -> int:
        return self.hash_of_text


def install() -> None:
    """Makes Paddle's Executor use it while the engine is on."""
    original = paddle_executor._get_strong_program_cache_key_for_new_exe

    @wraps(original)
    def key(program: Any, scope: Any, feed: Any, fetch_list: Any) -> str:
        if not isinstance(program, Program) or not flags.get("use_ngraph"):
            return str(original(program, scope, feed, fetch_list))
        names = paddle_executor._get_program_cache_key(feed, fetch_list)
        short = f"{digest(program)} {scope.raw_address()} {names}"
        found = _Key(short)
        found.hash_of_text = _hashes.get(
            short, lambda: hash(original(program, scope, feed, fetch_list))
        )
        return found

    paddle_executor._get_strong_program_cache_key_for_new_exe = key


def forget() -> None:
    """Forgets every program."""
    _digests.clear()
    _hashes.clear()


def sizes() -> tuple[int, int]:
    """How many texts and keys are known."""
    return len(_digests), len(_hashes)


def digest(program: Program) -> str:
    """A digest of the text of a PIR program, equal for programs that print alike."""
    return _digests.get(
        _core.program_fingerprint(program),
        lambda: hashlib.blake2b(str(program).encode(), digest_size=16).hexdigest(),
    )
