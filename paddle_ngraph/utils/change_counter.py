"""A counter of the changes of shared data, for results that are kept until the data changes."""

from __future__ import annotations

import itertools


class ChangeCounter:
    """Counts changes; threads may count at the same time.

    Attributes:
        value: The number of the last change: another one after each. 0 before the first.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.value = 0

    def count(self) -> None:
        """Counts a change."""
        self.value = next(self._numbers)
