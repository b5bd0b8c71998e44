"""Errors of operators: ConversionError in a build, RunError in a run."""

from __future__ import annotations

from typing import NamedTuple

from paddle_ngraph.errors import NO_OPERATOR, SENTENCES, ErrorCode, NgraphError
from paddle_ngraph.ir.graph import Op


class ConversionError(NgraphError):
    """An operator could not be converted.

    Attributes:
        op: The operator.
        reason: The error of its converter.
        device: The device that the function was built for.
    """

    def __init__(
        self, op: Op, reason: str, device: str = "CPU", code: ErrorCode = ErrorCode.GENERAL
    ) -> None:
        super().__init__(f"{op.type} (operator {op.index}): {reason}", code=code, op_id=op.id)
        self.op = op
        self.reason = reason
        self.device = device

    def without_traceback(self) -> ConversionError:
        """A copy without a traceback, to be cached: frames retain the program of the user."""
        return ConversionError(self.op, self.reason, self.device, self.code)


class RunError(NamedTuple):
    """The error of a run that a check in its function rejects.

    Attributes:
        message: The message.
        code: The outcome.
        op_id: :attr:`Op.id` of the operator that caused the error, or ``NO_OPERATOR``.
    """

    message: str
    code: ErrorCode = ErrorCode.GENERAL
    op_id: int = NO_OPERATOR

    @classmethod
    def of(cls, op: Op, reason: str, code: ErrorCode = ErrorCode.GENERAL) -> RunError:
        """The error that a run raises for ``op``; the message begins with its type and index."""
        return cls(f"{op.type} (operator {op.index}): {reason}", code, op.id)

    def attributes(self) -> dict[str, str | int]:
        """This error as attributes of a node that checks in runs (``ErrorAttributes`` in C++)."""
        return {"message": self.message, "code": int(self.code), "op_id": self.op_id}


def overflow_error(op: Op) -> RunError:
    """The error to be raised by runs in which a result of ``op`` overflows int32."""
    return RunError.of(op, f"{SENTENCES['int32_overflow']}.", ErrorCode.INT32_OVERFLOW)
