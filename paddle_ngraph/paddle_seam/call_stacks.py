"""The call stacks that Paddle asks Python for, one for each operator of a program."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from traceback import StackSummary
from types import FrameType


def answering(answer: Callable[[FrameType], StackSummary]) -> Callable[..., StackSummary]:
    """``traceback.extract_stack``, but what Paddle asks for, without arguments, is ``answer``'s.

    Args:
        answer: Takes the frame that asks.
    """
    original = traceback.extract_stack

    @wraps(original)
    def extract_stack(f: FrameType | None = None, limit: int | None = None) -> StackSummary:
        if f is None and limit is None:
            return answer(sys._getframe(1))
        return original(sys._getframe(1) if f is None else f, limit)

    return extract_stack


@contextmanager
def no_call_stacks() -> Iterator[None]:
    """Inside of ``with``, operators do not know where this thread makes them.

    Paddle never frees what it gets: kilobytes for each operator, or tens of them where calls are
    deep. One thread at a time may be in here, so that what is replaced is put back.
    """
    here, original = threading.get_ident(), traceback.extract_stack
    nothing = StackSummary()  # one for all, which Paddle does not free either

    def answer(frame: FrameType) -> StackSummary:
        return nothing if threading.get_ident() == here else original(frame)

    traceback.extract_stack = answering(answer)
    try:
        yield
    finally:
        traceback.extract_stack = original
