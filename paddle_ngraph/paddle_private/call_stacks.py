"""The call stacks that Paddle asks Python for, one for each operator of a program."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from traceback import StackSummary
from types import FrameType

from paddle_ngraph.utils.thread_local import ThreadLocal


def intercepting_extract_stack(
    answer: Callable[[FrameType], StackSummary],
) -> Callable[..., StackSummary]:
    """``traceback.extract_stack``, but what Paddle asks for, without arguments, is ``answer``'s.

    Python code that calls it by its name is not Paddle: a handler of signals, say, or ``__del__``.

    Args:
        answer: Takes the frame that asks.
    """
    original = traceback.extract_stack

    @wraps(original)
    def extract_stack(f: FrameType | None = None, limit: int | None = None) -> StackSummary:
        asking = sys._getframe(1)
        is_paddle = "extract_stack" not in asking.f_code.co_names
        if f is None and limit is None and is_paddle:
            return answer(asking)
        return original(asking if f is None else f, limit)

    return extract_stack


_skips_call_stacks: ThreadLocal[bool] = ThreadLocal(False)


@contextmanager
def without_call_stacks() -> Iterator[None]:
    """Inside of ``with``, operators do not know where this thread makes them.

    Paddle never frees what it gets: kilobytes for each operator, or tens of them where calls are
    deep. One thread at a time may be in here, so that what is replaced is put back; unless somebody
    else has replaced it meanwhile. What stands in for it, and is then left, or in a process that
    another thread has forked, hands on what it is asked.
    """
    original = traceback.extract_stack
    nothing = StackSummary()  # one for all, which Paddle does not free either

    def answer(frame: FrameType) -> StackSummary:
        return nothing if _skips_call_stacks.value else original(frame)

    stand_in = intercepting_extract_stack(answer)
    traceback.extract_stack = stand_in
    try:
        with _skips_call_stacks.overridden(True):
            yield
    finally:
        if traceback.extract_stack is stand_in:
            traceback.extract_stack = original
