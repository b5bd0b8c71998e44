"""Deferred signals: sections of code in which no Python code from outside runs in this thread.

Handlers run wherever the main thread runs Python. In plain Paddle none runs during a run, since
Paddle's interpreters run no Python; with the engine they do, since the engine calls Python to build
a function. So handlers are deferred until the end of the run, as in plain Paddle. Ctrl-C is not
deferred then: it raises ``KeyboardInterrupt``, which ends the run (``core/paddle/interruption.h``).
It is deferred where programs are created and rewritten: that is short, and a state that Paddle
leaves half-changed may crash later.

An exception that another thread raises in this one (``PyThreadState_SetAsyncExc``) is deferred,
too. So an exception that is raised in a section is an error of the package, of Paddle or of
OpenVINO, and may be treated as a failed build, whatever its type (core/common/deferred_signals.h).
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from paddle_ngraph import _core
from paddle_ngraph.utils.thread_local import ThreadLocal

# A context manager. Argument ``except_ctrl_c``: Ctrl-C raises ``KeyboardInterrupt`` at once, unless
# the user has another handler. In nested sections, all is deferred to the end of the outermost one.
deferred_signals = _core.DeferredSignals


def own_errors() -> _core.DeferredSignals:
    """Returns a section in which only Ctrl-C is raised from outside, if around it.

    ``except Exception`` belongs inside: there it catches errors of the package, Paddle and OpenVINO
    alone. ``tests/utils/test_exception_handlers.py`` checks it.
    """
    return _core.DeferredSignals.inherited()


def recognized_signals() -> _core.DeferredSignals:
    """Returns a section for work that takes long: handlers run in it, as outside of sections.

    ``except Exception`` inside begins with :func:`raise_if_from_outside`.
    """
    return _core.DeferredSignals.recognizing()


def raise_if_from_outside(error: BaseException) -> None:
    """Raises an exception again that a handler has raised in :func:`recognized_signals`."""
    if _core.DeferredSignals.is_from_outside(error):
        raise error


class Abandoned(BaseException):
    """Ends work inside :func:`abandonable`. No ``except Exception`` catches it."""


_is_abandonable = ThreadLocal(False)


@contextmanager
def abandonable(is_on: bool = True) -> Iterator[None]:
    """Inside ``with``, which is inside a section, :func:`safe_point` may raise :class:`Abandoned`.

    The caller catches it, and runs natively this time: so a signal waits no longer than natively.
    """
    with _is_abandonable.overridden(is_on):
        yield


# Whether a signal or an exception of another thread waits for the end of the section. Signals do
# not count if the last call of their handler raised nothing: a timer would let no work end.
is_pending = _core.DeferredSignals.is_pending


def safe_point() -> None:
    """Marks a point at which work may be abandoned, since everything unfinished is dropped then.

    Raises:
        Abandoned: :func:`is_pending`.
    """
    if _is_abandonable.value and is_pending():
        raise Abandoned


# The readable end of a pipe with a byte for each signal, while the main thread is in
# :func:`seen_by_other_threads`.
_arrivals: list[int] = []


@contextmanager
def seen_by_other_threads() -> Iterator[None]:
    """Lets :func:`is_seen` return in other threads whether a signal has arrived.

    For a run in which Paddle has operators run in other threads, while the main thread waits for
    them in Paddle. Without effect in other threads, and if Python sends a byte for each signal
    elsewhere (``asyncio``).
    """
    ends: list[int] = []
    try:
        with deferred_signals():
            ends += _begin_watching()
        yield
    finally:
        with deferred_signals():
            _end_watching(ends)


def _begin_watching() -> list[int]:
    """Has Python write a byte for each signal to a pipe; returns its ends, or nothing."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    try:
        before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        if before == -1:
            _arrivals.append(readable)
            return [readable, writable]
        signal.set_wakeup_fd(before)
    except ValueError:  # not in the main thread
        pass
    os.close(readable)
    os.close(writable)
    return []


def _end_watching(ends: list[int]) -> None:
    if not ends:
        return
    _arrivals.remove(ends[0])
    after = signal.set_wakeup_fd(-1)
    if after != ends[1]:  # set by other code meanwhile
        signal.set_wakeup_fd(after)
    for end in ends:
        os.close(end)


def may_be_seen() -> bool:
    """Whether :func:`is_seen` notices signals."""
    return bool(_arrivals)


def is_seen() -> bool:
    """Whether a signal has arrived in :func:`seen_by_other_threads`."""
    watched = _arrivals[-1:]
    return bool(watched and select.select(watched, (), (), 0)[0])
