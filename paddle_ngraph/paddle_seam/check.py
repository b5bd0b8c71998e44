"""Whether the installed Paddle has all that the package reads, replaces and uses of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from paddle_ngraph.paddle_seam import names, protocols, replaced
from paddle_ngraph.paddle_seam.place import Place


@cache
def why_unfit() -> str | None:
    """The first thing of Paddle's that is not as expected; ``None``: nothing.

    Asked for before anything is replaced; the answer stays.
    """
    return next(reasons(), None)


def reasons() -> Iterator[str]:
    """All that is not as expected."""
    return (reason for place in places() if (reason := place.why_unfit()) is not None)


def places() -> Iterator[Place]:
    """All that is checked."""
    yield from replaced.places()
    yield from names.PLACES
    for protocol in protocols.CLASSES:
        yield from protocols.members(protocol)
