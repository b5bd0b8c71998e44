"""Checks that the installed Paddle has all names that the package reads, patches and uses."""

from __future__ import annotations

from collections.abc import Iterator

from paddle_ngraph.paddle_private import names, protocols, replaced
from paddle_ngraph.paddle_private.place import PatchTarget
from paddle_ngraph.utils.once import once


@once
def why_unfit() -> str | None:
    """The first mismatch between Paddle and the expected names, or ``None``.

    To be called before any patch is applied; the result is cached.
    """
    return next(mismatches(), None)


def mismatches() -> Iterator[str]:
    """Descriptions of all mismatches."""
    return (reason for target in patch_targets() if (reason := target.why_unfit()) is not None)


def patch_targets() -> Iterator[PatchTarget]:
    """All names of Paddle that are checked: those that the package reads, patches or uses."""
    yield from replaced.patch_targets()
    yield from names.READ_TARGETS
    for protocol in protocols.CLASSES:
        yield from protocols.members(protocol)
