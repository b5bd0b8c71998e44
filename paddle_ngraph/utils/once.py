"""Values that are computed once per process."""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, cache
from typing import TypeVar

T = TypeVar("T")

_functions: list[Callable[[], object]] = []


def once(function: Callable[[], T]) -> _lru_cache_wrapper[T]:
    """Caches the result of a function without arguments as long as the process lives.

    Threads that make the first calls concurrently each run the function. Docs/caches.md lists the
    functions.
    """
    found = cache(function)
    _functions.append(found)
    return found


def functions() -> list[Callable[[], object]]:
    """The functions with decorator :func:`once` in the modules imported so far."""
    return list(_functions)
