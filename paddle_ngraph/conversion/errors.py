"""The error of an operator that cannot be converted."""

from __future__ import annotations

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op


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

    def without_traceback(self) -> ConversionError:
        """The same without a traceback, for what keeps it: frames hold the program of the user."""
        return ConversionError(self.op, self.reason, self.device)
