"""Locks that a forked process finds free.

A fork copies a lock as it is, but of the threads only the one that forks. What another thread held
would stay locked in the child for good. So every lock of the package is made here, and made anew in
a child unless the thread that forked holds it. What such a lock guards is whole even then: a table
that misses what the other thread was about to write.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def new_lock() -> Any:
    """A lock for ``with``, which its owner may take again."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in _locks:
        if lock.acquire(blocking=False):  # free, or this thread's own
            lock.release()
        else:
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
