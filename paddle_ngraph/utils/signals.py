"""Deferred signals: sections of Python code during which no signal handler runs.

Handlers run wherever the main thread runs Python. In plain Paddle none runs during a run, since
Paddle's interpreters run no Python; with the engine they do, since the engine calls Python to build
a function. So handlers are deferred until the end of the run, as in plain Paddle. Ctrl-C is not
deferred: it raises ``KeyboardInterrupt``, which ends the run (``core/paddle/interruption.h``).

Only Python's handlers are replaced. The reaction of the system to a signal is unchanged: other code
may have configured it (``faulthandler``, ``signal.siginterrupt``), and a byte for
``signal.set_wakeup_fd`` (``asyncio``) is written once.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading

# The functions of module signal convert results to enumerations, which is 20 times as slow.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType
from typing import Any

from paddle_ngraph import _core

_SIGNALS = [int(number) for number in signal.valid_signals()]


class _DeferringHandler:
    """A substitute for a handler, which records that its signal arrived.

    A signal that arrives repeatedly is recorded once, as Python does while it runs no Python code.

    Args:
        handler: The handler.
        pending: The list of recorded signals.
        is_deferred: Whether the handler is deferred. If not, it is deferred in this module only, so
            that handlers are always restored.
    """

    def __init__(self, handler: Callable[..., Any], pending: list[int], is_deferred: bool) -> None:
        self.handler, self.is_deferred, self.has_ended = handler, is_deferred, False
        self._pending = pending

    def __call__(self, number: int, frame: FrameType | None) -> None:
        is_in_module = frame is not None and frame.f_code.co_filename == __file__
        # A substitute may be called after its end, if other code saved it and set it again.
        if self.has_ended or not (self.is_deferred or is_in_module):
            self.handler(number, frame)
        elif number not in self._pending:
            self._pending.append(number)


class deferred_signals(contextlib.ContextDecorator):
    """Defers the handlers of signals that arrive inside the ``with`` block to its end.

    In nested blocks, handlers are deferred to the end of the outermost one.

    Args:
        except_ctrl_c: ``KeyboardInterrupt`` is raised at once, unless the user has another handler.
    """

    def __init__(self, except_ctrl_c: bool = False) -> None:
        self._except_ctrl_c = except_ctrl_c
        self._pending: list[int] = []
        self._deferring_handlers: dict[int, _DeferringHandler] = {}

    def begin(self) -> deferred_signals:
        """Begins the section, in which Python signal handlers are deferred until :meth:`end`."""
        if threading.get_ident() != threading.main_thread().ident:
            return self  # in other threads no handler runs, so nothing is deferred
        try:
            self._replace_handlers()
        except BaseException as error:
            # An exception of a handler that ran before it could be replaced.
            self.end()
            if not _is_from_other_interpreter(error):
                raise
        return self

    def _replace_handlers(self) -> None:
        handlers = {
            number: handler
            for number, handler in zip(_SIGNALS, map(getsignal, _SIGNALS))
            if callable(handler)
            and not (isinstance(handler, _DeferringHandler) and handler.is_deferred)
        }
        sigint_handler = handlers.get(signal.SIGINT)
        if isinstance(sigint_handler, _DeferringHandler):
            sigint_handler = sigint_handler.handler
        is_ctrl_c_excepted = self._except_ctrl_c and sigint_handler is signal.default_int_handler
        if is_ctrl_c_excepted and len(handlers) == 1:
            return
        # Ctrl-C is replaced first and restored last: a Ctrl-C must leave the other handlers
        # unchanged.
        for number in sorted(handlers, key=lambda number: number != signal.SIGINT):
            is_deferred = not (is_ctrl_c_excepted and number == signal.SIGINT)
            self._deferring_handlers[number] = _DeferringHandler(
                handlers[number], self._pending, is_deferred
            )
            _core.set_signal_handler(number, self._deferring_handlers[number])

    def end(self) -> bool:
        """Ends the section: restores the handlers. Returns whether a signal arrived during it."""
        try:
            for number, substitute in reversed(list(self._deferring_handlers.items())):
                # A handler that the code of the section has set itself stays.
                if getsignal(number) is substitute:
                    _core.set_signal_handler(number, substitute.handler)
                substitute.has_ended = True
                del self._deferring_handlers[number]
        except BaseException:  # an exception of a handler that has just been restored
            self.end()
            raise
        return bool(self._pending)

    def handle(self) -> None:
        """Calls the handlers of all signals that arrived, even if one of them raises."""
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

    # contextlib calls this for each call of a function that an instance decorates.
    def _recreate_cm(self) -> deferred_signals:
        return deferred_signals(self._except_ctrl_c)


def _handle(number: int) -> None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    handler = getsignal(number)
    # Otherwise the handler was removed after the signal arrived: Python ignores such signals, too.
    if callable(handler):
        handler(number, frame)


def _is_from_other_interpreter(error: BaseException) -> bool:
    """Whether ``error`` shows that this thread is not the main thread of its interpreter."""
    # The text decides, since Python raises ValueError for invalid arguments, too.
    return isinstance(error, ValueError) and "signal only works in main thread" in str(error)


def hold(except_ctrl_c: bool) -> deferred_signals:
    """Begins a section for the C++ core, which calls :meth:`deferred_signals.end` at its end."""
    return deferred_signals(except_ctrl_c).begin()
