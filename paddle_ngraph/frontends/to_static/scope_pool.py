"""Scopes of the programs of dynamic mode, each acquired for one run at a time."""

from __future__ import annotations

from collections.abc import Callable

from paddle_ngraph.paddle_private.names import set_reusable
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.utils.fork_safe_locks import new_lock

_lock = new_lock()


def claim(find: Callable[[], Scope]) -> Scope:
    """Acquires a scope that no other run uses.

    Paddle marks a scope as in use only at the end of its run, so that two threads could get one
    scope.
    """
    with _lock:
        scope = find()
        set_reusable(scope, False)
    return scope
