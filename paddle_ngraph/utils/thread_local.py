"""A variable with one value per thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadLocal(threading.local, Generic[T]):
    """A variable with one value per thread.

    Args:
        value: The initial value in each thread.
    """

    # Python runs this once per thread, at the thread's first access.
    def __init__(self, value: T) -> None:
        self.value = value

    @contextmanager
    def overridden(self, value: T) -> Iterator[None]:
        """Sets the value of this thread inside ``with``."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
