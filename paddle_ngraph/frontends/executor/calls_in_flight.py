"""Calls of Paddle that were running when weight_writes.py was installed.

A patch sees only calls that begin after it. Another thread may be in a run that began before, and
write weights after a function has read them as constants. So weights are treated as being written
until every such call has returned. Calls are recognized by the Python stacks of their threads: a
call lasts at least as long as a frame stays at one instruction.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_private import replaced

_PYTHON = os.path.dirname(os.__file__) + os.sep
_PADDLE = os.path.dirname(paddle.__file__) + os.sep
# Threads that load data are in Paddle's code at all times, and write no weights.
_LOADERS = tuple(_PADDLE + folder + os.sep for folder in ("io", "reader"))
# Names of the functions of Paddle's core that may write weights, or of their modules: a frame whose
# code has none of these names is not in a call of one.
_CORE_NAMES = frozenset(
    {"_C_ops", "_legacy_C_ops", *replaced.RUNNING_BACKWARD}
    | {target.name for target in (*replaced.RUN_PROGRAMS, *replaced.START_TRAINER)}
)
_MAX_PAUSE_SECONDS = 1.0


class _Call(NamedTuple):
    """A call that a frame has made and that has not returned.

    Attributes:
        thread: The identifier of the thread.
        frame: The frame, retained so that no other frame has its identity.
        instruction: The index of the instruction that makes the call.
    """

    thread: int
    frame: FrameType
    instruction: int

    def is_running(self) -> bool:
        return any(
            frame is self.frame and frame.f_lasti == self.instruction
            for frame in _frames(sys._current_frames().get(self.thread))
        )


def treat_as_writers() -> None:
    """Treats weights as being written until the calls of Paddle in progress now have returned.

    The patches have not seen these calls, which any thread may have made.
    """
    calls = list(_present_calls())
    if calls:
        run = _core.ProgramRun(True)
        run.__enter__()
        threading.Thread(
            target=_end_after, args=(run, calls), name="paddle_ngraph calls in flight", daemon=True
        ).start()


def _present_calls() -> Iterator[_Call]:
    own = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        found = _calling_frame(innermost, thread == own)
        if found is not None:
            yield _Call(thread, found, found.f_lasti)


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


def _is_of_paddle(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return path.startswith(_PADDLE) and not path.startswith(_LOADERS)


def _is_of_python(frame: FrameType) -> bool:
    """Whether the code of a frame is in Python's standard library.

    A thread there, such as an idle worker, is in no call of Paddle's core.
    """
    path = frame.f_code.co_filename
    return path.startswith(_PYTHON) and "site-packages" not in path


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    frame = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


def _end_after(run: _core.ProgramRun, calls: list[_Call]) -> None:
    pause = 0.001
    while calls := [call for call in calls if call.is_running()]:
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
    run.__exit__(None, None, None)
