"""The one error type of the package, and its subclass that names an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle_ngraph.ir.graph import Op


class NgraphError(RuntimeError):
    """Something paddle-ngraph cannot do, in one sentence that names the problem and the remedy."""


# Part of what is said of a run whose whole numbers the engine cannot hold, though those of others
# may fit; the core knows it too.
TOO_WIDE = "a whole number needs 64 bits in this run"


def in_short(words: str) -> str:
    """What a library says of an error: where in its sources comes first, what is wrong last."""
    return words.strip().rpartition("\n")[2].strip()


class ConversionError(NgraphError):
    """An operator could not be converted.

    Attributes:
        op: The operator.
        reason: What its converter said.
        device: What a function was built for.
    """

    def __init__(self, op: Op, reason: str, device: str = "CPU") -> None:
        super().__init__(f"{op.type} (operator {op.index}): {reason}")
        self.op = op
        self.reason = reason
        self.device = device

    def bare(self) -> ConversionError:
        """The same without a traceback, for what keeps it: frames hold the program of the user."""
        return ConversionError(self.op, self.reason, self.device)
