"""The first use of the engine in a process, before which most patches are installed.

``import paddle_ngraph`` patches only names that detect the first use, or record facts that cannot
be found later. All else is registered here, and installed before the flag is on and before a
program has engine operators: no weight is a constant of a function by then.
"""

from __future__ import annotations

from collections.abc import Callable

from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock

_installers: list[Callable[[], None]] = []
_lock = new_lock()
_has_begun = False


def register(*installers: Callable[[], None]) -> None:
    """Registers functions that :func:`begin` calls in this order; each may run repeatedly."""
    _installers.extend(each for each in installers if each not in _installers)


def begin() -> None:
    """Installs everything that is registered, once; other threads wait until that is done."""
    global _has_begun
    if _has_begun:
        return
    # An exception of a signal handler would leave some functions of Paddle without their patches.
    with signals.deferred_signals(), _lock:
        if not _has_begun:
            for install in _installers:
                install()
            _has_begun = True
