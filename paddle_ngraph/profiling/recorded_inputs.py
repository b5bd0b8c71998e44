"""The inputs of one run of each subgraph, which the core hands to the profile that is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.utils.fork_safe_locks import new_lock

_lock = new_lock()
_last_number = 0
_active: dict[str, list[Any]] | None = None


def take(text: str, given: list[Any]) -> None:
    """Called by the C++ engine: copies of the inputs and states before a run of a graph string."""
    with _lock:
        if _active is not None:
            _active.setdefault(text, given)


@contextmanager
def recording() -> Iterator[Mapping[str, list[Any]]]:
    """Collects the inputs of the first run of each graph string inside ``with``, in all threads.

    Raises:
        NgraphError: Another profile is being measured.
    """
    global _active, _last_number
    found: dict[str, list[Any]] = {}
    with _lock:
        if _active is not None:
            raise NgraphError("another profile is being measured: profile one block at a time")
        _active = found
        _last_number += 1
        _core.set_profile(_last_number)
    try:
        yield found
    finally:
        with _lock:
            _core.set_profile(0)
            _active = None
