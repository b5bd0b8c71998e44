"""The call stacks that Paddle asks Python for, one for each operator of a program."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def no_call_stacks() -> Iterator[None]:
    """Inside of ``with``, operators do not know where this thread makes them.

    Paddle never frees what it gets: kilobytes for each operator, or tens of them where calls are
    deep. One thread at a time may be in here, so that what is replaced is put back.
    """
    here, original = threading.get_ident(), traceback.extract_stack
    nothing = traceback.StackSummary()  # one for all, which Paddle does not free either

    @wraps(original)
    def extract_stack(f: Any = None, limit: int | None = None) -> traceback.StackSummary:
        if f is None and limit is None and threading.get_ident() == here:  # so Paddle asks
            return nothing
        return original(sys._getframe(1) if f is None else f, limit)

    traceback.extract_stack = extract_stack
    try:
        yield
    finally:
        traceback.extract_stack = original
