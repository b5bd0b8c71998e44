"""Calls of Paddle that were running when weight_writes.py was installed.

A patch sees only calls that begin after it. Another thread may be in a run that began before, and
write weights after a function has read them as constants. So weights are treated as being written
until every such call has returned. Calls are recognized by the Python stacks of their threads: a
call lasts at least as long as a frame stays at one instruction, and its code refers to the core by
name. A method that runs programs may also be called through a reference, such as a bound method in
a pool of threads. Then its function has more references than its class alone, until the call
returns: meanwhile, every frame that may be in a call of the core counts.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.place import PatchTarget, resolve

_PYTHON = os.path.dirname(os.__file__) + os.sep
_PADDLE = os.path.dirname(paddle.__file__) + os.sep
# Threads that load data are in Paddle's code at all times, and write no weights.
_LOADERS = tuple(_PADDLE + folder + os.sep for folder in ("io", "reader"))
# Names of the functions of Paddle's core that may write weights, or of their modules: a frame whose
# code has none of these names is not in a call of one.
_CORE_NAMES = frozenset(
    {"_C_ops", "_legacy_C_ops", *replaced.RUNNING_BACKWARD}
    | {target.name for target in (*replaced.RUN_PROGRAMS, *replaced.START_TRAINER)}
    | {name for name, _ in replaced.writing_methods()}
)
_RUNNING_METHODS = tuple(
    target
    for target in (*replaced.RUN_PROGRAMS, *replaced.START_TRAINER)
    if isinstance(resolve(target.owner), type)
)
# Functions of ``threading``, ``concurrent.futures``, ``selectors`` and ``socket``.
_WAITING_FUNCTIONS = frozenset({"wait", "_worker", "select", "accept", "readinto"})
_MAX_PAUSE_SECONDS = 1.0


class _Call(NamedTuple):
    """A call that a frame has made and that has not returned.

    Attributes:
        thread: The identifier of the thread.
        frame: The frame, retained so that no other frame has its identity.
        instruction: The index of the instruction that makes the call.
        is_by_name: Whether the code of the frame refers to the core by name.
    """

    thread: int
    frame: FrameType
    instruction: int
    is_by_name: bool

    def is_running(self) -> bool:
        return any(
            frame is self.frame and frame.f_lasti == self.instruction
            for frame in _frames(sys._current_frames().get(self.thread))
        )


def treat_as_writers() -> None:
    """Treats weights as being written until the present calls of Paddle have returned."""
    referenced = _referenced(_RUNNING_METHODS)
    calls = [call for call in _present_calls() if call.is_by_name or referenced]
    if calls:
        run = _core.ProgramRun(True, is_of_thread=False)
        run.__enter__()
        threading.Thread(
            target=_end_after,
            args=(run, calls, referenced),
            name="paddle_ngraph calls in flight",
            daemon=True,
        ).start()


def _referenced(methods: Iterable[PatchTarget]) -> list[PatchTarget]:
    """The methods that code may be calling, or has a reference to."""
    return [m for m in methods if _core.is_method_referenced(resolve(m.owner), m.name)]


def _present_calls() -> Iterator[_Call]:
    own = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        for is_by_name, find in ((True, _calling_frame), (False, _frame_by_reference)):
            found = find(innermost, thread == own)
            if found is not None:
                yield _Call(thread, found, found.f_lasti, is_by_name)


def _calling_frame(innermost: FrameType, is_own_thread: bool) -> FrameType | None:
    """The outermost frame that may be in a call of Paddle's core that writes weights.

    That is a frame of Paddle's code, from which the core may have called Python again, or the
    innermost frame of another thread.
    """
    found = None
    for frame in _frames(innermost):
        is_other = frame is innermost and not is_own_thread and not _is_of_python(frame)
        may_call = _is_of_paddle(frame) or is_other
        if may_call and not _CORE_NAMES.isdisjoint(frame.f_code.co_names):
            found = frame
    return found


def _frame_by_reference(innermost: FrameType, is_own_thread: bool) -> FrameType | None:
    """The outermost frame that may be in a call of the core through a reference.

    In another thread, that is the outermost frame of the user's code, since the core may have
    called Python again; a thread without such a frame is in Python's library, which may call the
    core. In this thread, it is a frame that called Paddle's code, which the core may have called.
    """
    if not is_own_thread:
        users = [f for f in _frames(innermost) if not (_is_of_python(f) or _is_of_paddle(f))]
        if users:
            return users[-1]
        return None if _is_waiting(innermost) else innermost
    called, found = innermost, None
    for frame in _frames(innermost.f_back):
        if _is_of_paddle(called) and not _is_of_paddle(frame):
            found = frame
        called = frame
    return found


def _is_of_paddle(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return path.startswith(_PADDLE) and not path.startswith(_LOADERS)


def _is_of_python(frame: FrameType) -> bool:
    """Whether the code of a frame is in Python's standard library.

    That code does not refer to Paddle's core by name, but may call the core through a reference.
    """
    path = frame.f_code.co_filename
    return path.startswith(_PYTHON) and "site-packages" not in path


def _is_waiting(frame: FrameType) -> bool:
    """Whether a thread waits for work, in a function of Python that calls no other function."""
    return _is_of_python(frame) and frame.f_code.co_name in _WAITING_FUNCTIONS


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    frame = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


def _end_after(run: _core.ProgramRun, calls: list[_Call], referenced: list[PatchTarget]) -> None:
    pause = 0.001
    while calls := [c for c in calls if (c.is_by_name or referenced) and c.is_running()]:
        referenced = _referenced(referenced)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
    run.__exit__(None, None, None)
