"""The one error type of the package."""

from __future__ import annotations


class NgraphError(RuntimeError):
    """An error of paddle-ngraph, whose message is one sentence with the problem and the remedy."""


# Part of the error message of a run with integers that overflow int32, although those of other runs
# may not. The core checks for this text, too.
INT32_OVERFLOW = "a whole number needs 64 bits in this run"


def summarized(message: str) -> str:
    """Returns the last line of an error message of a library: locations precede the message."""
    return message.strip().rpartition("\n")[2].strip()
