"""The error of an operator that cannot be converted."""

from __future__ import annotations

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op


class ConversionError(NgraphError):
    """An operator could not be converted.

    Attributes:
        op: The operator.
        reason: The error of its converter.
        device: The device that the function was built for.
    """

    def __init__(self, op: Op, reason: str, device: str = "CPU") -> None:
        super().__init__(f"{op.type} (operator {op.index}): {reason}")
        self.op = op
        self.reason = reason
        self.device = device

    def without_traceback(self) -> ConversionError:
        """A copy without a traceback, to be cached: frames retain the program of the user."""
        return ConversionError(self.op, self.reason, self.device)
