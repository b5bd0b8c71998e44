"""Values of which each thread has its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadLocal(threading.local, Generic[T]):
    """A value of which each thread has its own.

    Args:
        value: What it is in a thread that has not said anything else.
    """

    def __init__(self, value: T) -> None:  # which Python calls in each thread
        self.value = value

    @contextmanager
    def overridden(self, value: T) -> Iterator[None]:
        """Inside of ``with`` it is another one in this thread."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
