"""The one error type of the package."""

from __future__ import annotations


class NgraphError(RuntimeError):
    """Something paddle-ngraph cannot do, in one sentence that names the problem and the remedy."""


# Part of what is said of a run whose whole numbers the engine cannot hold, though those of others
# may fit; the core knows it too.
INT32_OVERFLOW = "a whole number needs 64 bits in this run"


def summarized(words: str) -> str:
    """What a library says of an error: where in its sources comes first, what is wrong last."""
    return words.strip().rpartition("\n")[2].strip()
