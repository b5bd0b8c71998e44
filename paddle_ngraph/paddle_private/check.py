"""Whether the installed Paddle has everything that the package reads, replaces and uses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from paddle_ngraph.paddle_private import names, protocols, replaced
from paddle_ngraph.paddle_private.place import PatchTarget


@cache
def why_unfit() -> str | None:
    """The first thing in Paddle that is not as expected, or ``None``.

    To be called before anything is replaced; the answer is cached.
    """
    return next(mismatches(), None)


def mismatches() -> Iterator[str]:
    """Everything that is not as expected."""
    return (reason for place in patch_targets() if (reason := place.why_unfit()) is not None)


def patch_targets() -> Iterator[PatchTarget]:
    """Everything that is checked."""
    yield from replaced.patch_targets()
    yield from names.READ_TARGETS
    for protocol in protocols.CLASSES:
        yield from protocols.members(protocol)
