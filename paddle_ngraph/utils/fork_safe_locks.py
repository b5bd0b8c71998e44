"""Fork-safe locks: unlocked in a forked process.

A fork copies a lock in its current state, but only the thread that forks. A lock held by another
thread would stay locked in the child forever. So every lock of the package is created here, and is
recreated in a child unless the forking thread holds it. The data that such a lock guards is
consistent even then: a table may only lack the entry that the other thread was about to write.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def new_lock() -> Any:
    """Creates a reentrant lock that a forked process finds unlocked."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def condition_of(lock: Any) -> threading.Condition:
    """A condition with a lock of :func:`new_lock`; a fork copies no threads that wait for it."""
    return threading.Condition(lock)


def _reset_after_fork() -> None:
    for lock in _locks:
        # Acquired without waiting: the lock is free, or the forking thread has it.
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
