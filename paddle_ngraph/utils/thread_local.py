"""Thread-local values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadLocal(threading.local, Generic[T]):
    """A thread-local value.

    Args:
        value: The initial value in each thread.
    """

    def __init__(self, value: T) -> None:  # Python calls this in each thread
        self.value = value

    @contextmanager
    def overridden(self, value: T) -> Iterator[None]:
        """Sets another value in this thread inside ``with``."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
