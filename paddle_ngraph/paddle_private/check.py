"""Whether the installed Paddle has everything that the package reads, replaces and uses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from paddle_ngraph.paddle_private import names, protocols, replaced
from paddle_ngraph.paddle_private.place import Place


@cache
def why_unfit() -> str | None:
    """The first thing in Paddle that is not as expected, or ``None``.

    To be called before anything is replaced; the answer is cached.
    """
    return next(reasons(), None)


def reasons() -> Iterator[str]:
    """Everything that is not as expected."""
    return (reason for place in places() if (reason := place.why_unfit()) is not None)


def places() -> Iterator[Place]:
    """Everything that is checked."""
    yield from replaced.places()
    yield from names.PLACES
    for protocol in protocols.CLASSES:
        yield from protocols.members(protocol)
