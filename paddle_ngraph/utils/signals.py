"""Sections of Python that handlers of signals do not come into.

Handlers run wherever the main thread runs Python. Paddle's interpreters, which run no Python of
their own, never meet one; here they call the engine, and that calls Python when it builds a
function. So handlers wait until the run is over, as they do natively. Ctrl-C need not wait: it
raises ``KeyboardInterrupt``, which ends the run (``core/paddle/interruption.h``).

Only what Python calls is exchanged. What the system does when a signal comes stays as it is: others
may have changed that (``faulthandler``, ``signal.siginterrupt``), and a byte for
``signal.set_wakeup_fd`` (``asyncio``) is written once.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading

# Those of the module signal make enumerations of all they return: 20 times as slow.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType
from typing import Any

from paddle_ngraph import _core

_SIGNALS = [int(number) for number in signal.valid_signals()]


class _DeferringHandler:
    """What is called instead of a handler: it notes that the signal came.

    Once, however often it does: so does Python, while it runs nothing of its own.

    Args:
        handler: The handler.
        pending: Where it notes it.
        is_late: Whether the handler waits. If not, it does so only in this module, which has to
            put back what it has exchanged.
    """

    def __init__(self, handler: Callable[..., Any], pending: list[int], is_late: bool) -> None:
        self.handler, self.is_late, self.is_over = handler, is_late, False
        self._pending = pending

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_here = frame is not None and frame.f_code.co_filename == __file__
        # It is over, and called, if somebody has kept it as the handler to be set again.
        if self.is_over or not (self.is_late or is_here):
            self.handler(number, frame)
        elif number not in self._pending:
            self._pending.append(number)


class deferred_signals(contextlib.ContextDecorator):
    """Signals that come inside of the ``with`` block are handled at its end.

    So are those that come inside of one that is inside of it.

    Args:
        except_ctrl_c: ``KeyboardInterrupt`` is raised at once, unless the user has another handler.
    """

    def __init__(self, except_ctrl_c: bool = False) -> None:
        self._except_ctrl_c = except_ctrl_c
        self._pending: list[int] = []
        self._deferring_handlers: dict[int, _DeferringHandler] = {}

    def begin(self) -> deferred_signals:
        """From here on they are put off."""
        if threading.get_ident() != threading.main_thread().ident:
            return self  # handlers run in the main thread
        try:
            self._exchange()
        except BaseException as error:  # raised by a handler
            self.end()
            if not _is_from_other_interpreter(error):
                raise
        return self

    def _exchange(self) -> None:
        handlers = {
            number: handler
            for number, handler in zip(_SIGNALS, map(getsignal, _SIGNALS))
            if callable(handler)
            and not (isinstance(handler, _DeferringHandler) and handler.is_late)
        }
        at_once = handlers.get(signal.SIGINT)
        if isinstance(at_once, _DeferringHandler):
            at_once = at_once.handler
        is_at_once = self._except_ctrl_c and at_once is signal.default_int_handler
        if is_at_once and len(handlers) == 1:
            return
        # Ctrl-C first, and put back last: it has to leave the others as they were.
        for number in sorted(handlers, key=lambda number: number != signal.SIGINT):
            is_late = not (is_at_once and number == signal.SIGINT)
            self._deferring_handlers[number] = _DeferringHandler(
                handlers[number], self._pending, is_late
            )
            _core.set_signal_handler(number, self._deferring_handlers[number])

    def end(self) -> bool:
        """From here on their handlers are called again. Returns whether any came."""
        try:
            for number, substitute in reversed(list(self._deferring_handlers.items())):
                if getsignal(number) is substitute:  # else what ran meanwhile has set another
                    _core.set_signal_handler(number, substitute.handler)
                substitute.is_over = True
                del self._deferring_handlers[number]
        except BaseException:  # raised by a handler that is back
            self.end()
            raise
        return bool(self._pending)

    def handle(self) -> None:
        """Calls the handlers of those that came: all of them, whatever one raises."""
        with contextlib.ExitStack() as handled:
            for number in reversed(self._pending):
                handled.callback(_handle, number)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        try:
            self.end()
        finally:
            if self._pending:
                self.handle()

    def _recreate_cm(self) -> deferred_signals:  # for each call of what it decorates
        return deferred_signals(self._except_ctrl_c)


def _handle(number: int) -> None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    handler = getsignal(number)
    if callable(handler):  # as Python does, which ignores those that it finds without
        handler(number, frame)


def _is_from_other_interpreter(error: BaseException) -> bool:
    """Where Python is embedded, its main thread need not be the one that may set handlers."""
    return isinstance(error, ValueError) and "signal only works in main thread" in str(error)


def hold(except_ctrl_c: bool) -> deferred_signals:
    """Called by the C++ core, which calls :meth:`deferred_signals.end` after its own calls."""
    return deferred_signals(except_ctrl_c).begin()
