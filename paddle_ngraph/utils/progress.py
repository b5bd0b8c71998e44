"""Progress bars on terminals, where the package ``tqdm`` is installed; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def shown(items: Sequence[T], description: str) -> Iterator[T]:
    """Yields the items; a bar on the standard error shows how many have been dealt with."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from items
    else:
        yield from tqdm(items, desc=description, disable=None)  # None: except on terminals
