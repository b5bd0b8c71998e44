"""Cached keys for Executor's cache of programs.

At each run Paddle looks its executor up by a hash of the text of the whole program. Printing a
network of a few hundred operators takes milliseconds, longer than many networks take to run. Here a
program is printed once and then recognized by its fingerprint (core/paddle/program_fingerprint.h),
as long as it is not modified. The hash is Paddle's own: with the engine on, an Executor finds the
executors that it created with the engine off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from functools import wraps
from typing import Any

from paddle.pir import Program

from paddle_ngraph import _core, flags
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import cache_key_of_names
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.partitioning.analysis.block_view import has_engines
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

_key_of_paddle = replaced.KEY_OF_CALL.current

_digests: LRUCache[Hashable, str] = process_cache(
    __name__,
    "program_digests",
    "digests of the texts of programs",
    key="program fingerprint",
    bound=256,
)
_hashes: LRUCache[str, int] = process_cache(
    __name__,
    "call_hashes",
    "hashes of Paddle's keys of Executor calls",
    key="program digest, address of the scope, names of feeds and fetches",
    bound=1024,
)
_is_pass_output: LRUCache[Hashable, bool] = process_cache(
    __name__,
    "engine_programs",
    "whether a program contains engine operators",
    key="program fingerprint",
    bound=256,
)


class _Key(str):
    """A short string used as a key in place of a long text, with the hash of the text."""

    hash_of_text: int

    def __hash__(self) -> int:
        return self.hash_of_text


def install() -> None:
    """Patches Executor's cache key, for runs with the engine on and programs with its operators."""
    replaced.KEY_OF_CALL.replace(lambda _: key_of_call)


@wraps(_key_of_paddle)
def key_of_call(program: Any, scope: Scope, feed: Any, fetch_list: Any) -> str:
    """Patch of Paddle's cache key: the key by which ``Executor`` looks up a call's executor."""
    is_on = bool(flags.get("use_ngraph"))
    if not isinstance(program, Program) or not is_ours(program, is_on):
        return str(_key_of_paddle(program, scope, feed, fetch_list))
    short = f"{digest(program)} {scope.raw_address()} {cache_key_of_names(feed, fetch_list)}"
    found = _Key(short)
    found.hash_of_text = _hashes.get_or_create(
        short, lambda: hash(_key_of_paddle(program, scope, feed, fetch_list))
    )
    return found


def is_ours(program: Any, is_on: bool) -> bool:
    """Whether the engine may run the program: the flag is on, or it has engine operators."""
    if is_on:
        return True
    if not isinstance(program, Program):
        return False
    return _is_pass_output.get_or_create(
        _core.program_fingerprint(program), lambda: has_engines(program)
    )


def digest(program: Program) -> str:
    """A digest of the text of a PIR program; programs with equal texts have equal digests."""
    return _digests.get_or_create(
        _core.program_fingerprint(program),
        lambda: hashlib.blake2b(str(program).encode(), digest_size=16).hexdigest(),
    )
