"""``zip`` for iterables of equal length, on each supported Python: ``strict`` is new in 3.10."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def zip_equal(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """``zip``, but asserts that the iterables have as many elements as each other."""
    columns = [list(iterable) for iterable in iterables]
    lengths = [len(column) for column in columns]
    assert len(set(lengths)) <= 1, f"the lengths differ: {lengths}"
    return zip(*columns)
