"""A quick key for Executor's cache of programs.

At each run Paddle looks its executor up by the text of the whole program. To print one takes
milliseconds for a network of a few hundred operators, longer than to run many. Here a program is
printed once and then known by its fingerprint (core/program_fingerprint.h), for as long as nobody
changes it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from functools import wraps
from typing import Any

from paddle.base import executor as paddle_executor
from paddle.pir import Program

from paddle_ngraph import _core, flags

# Programs whose texts are known; beyond that the least recently used one is forgotten.
_MOST_PROGRAMS = 256

_lock = threading.Lock()
_digests: OrderedDict[int, str] = OrderedDict()


def install() -> None:
    """Makes Paddle's Executor use it while the engine is on."""
    original = paddle_executor._get_strong_program_cache_key_for_new_exe

    @wraps(original)
    def key(program: Any, scope: Any, feed: Any, fetch_list: Any) -> str:
        if not isinstance(program, Program) or not flags.get("use_ngraph"):
            return str(original(program, scope, feed, fetch_list))
        names = paddle_executor._get_program_cache_key(feed, fetch_list)
        return f"{digest(program)} {scope.raw_address()} {names}"

    paddle_executor._get_strong_program_cache_key_for_new_exe = key


def digest(program: Program) -> str:
    """A digest of the text of a PIR program, equal for programs that print alike."""
    fingerprint = _core.program_fingerprint(program)
    with _lock:
        found = _digests.get(fingerprint)
        if found is not None:
            _digests.move_to_end(fingerprint)
            return found
    text = hashlib.blake2b(str(program).encode(), digest_size=16).hexdigest()
    with _lock:
        _digests[fingerprint] = text
        while len(_digests) > _MOST_PROGRAMS:
            _digests.popitem(last=False)
    return text
