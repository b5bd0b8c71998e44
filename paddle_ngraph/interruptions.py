"""Sections of Python that handlers of signals do not come into.

Handlers run wherever the main thread runs Python. Paddle's interpreters, which run no Python of
their own, never meet one; here they call the engine, and that calls Python when it builds a
function. So handlers wait until the run is over, as they do natively. Ctrl-C need not wait: it
raises ``KeyboardInterrupt``, which ends the run (``core/paddle/interruption.h``).
"""

from __future__ import annotations

import signal
import threading
from contextlib import ContextDecorator, ExitStack
from types import FrameType
from typing import Any

# What somebody sends to a process, or a timer does: to ask for all 64 takes as long as a small run.
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class _Notes(list):  # type: ignore[type-arg]  # of numbers
    """A handler of signals that notes which have come."""

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.append(number)


class put_off(ContextDecorator):
    """Signals that come inside of the ``with`` block are handled at its end.

    So are those that come inside of one that is inside of it.

    Args:
        but_ctrl_c: ``KeyboardInterrupt`` is raised at once, unless the user has another handler.

    Attributes:
        came: The numbers of those that have come.
    """

    def __init__(self, but_ctrl_c: bool = False) -> None:
        self._but_ctrl_c = but_ctrl_c
        self.came = _Notes()
        self._handlers: dict[int, Any] = {}

    def begin(self) -> put_off:
        """From here on they are put off."""
        if threading.get_ident() != threading.main_thread().ident:
            return self  # handlers run in the main thread
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if not callable(handler) or isinstance(handler, _Notes):
                continue
            if not (self._but_ctrl_c and handler is signal.default_int_handler):
                self._handlers[number] = handler
                signal.signal(number, self.came)
        return self

    def end(self) -> None:
        """From here on their handlers are called again."""
        try:
            for number, handler in list(self._handlers.items()):
                signal.signal(number, handler)
                del self._handlers[number]
        except BaseException:  # Ctrl-C
            self.end()
            raise

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()
        if self.came:
            with ExitStack() as handled:  # all of them, whatever one raises
                for number in reversed(self.came):
                    handled.callback(signal.raise_signal, number)

    def _recreate_cm(self) -> put_off:  # for each call of what it decorates
        return put_off(self._but_ctrl_c)


def hold(but_ctrl_c: bool) -> put_off:
    """Called by the C++ core, which calls :meth:`put_off.end` when it has called what it wants."""
    return put_off(but_ctrl_c).begin()
