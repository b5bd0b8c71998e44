"""The one error type of the package, and the codes by which runs continue after errors."""

from __future__ import annotations

import re
from enum import IntEnum


class ErrorCode(IntEnum):
    """An outcome that decides how the engine continues; no decision reads messages.

    ``core/common/error.h`` defines the same codes.

    Attributes:
        INT32_OVERFLOW: Integers overflow int32 in this run; those of other runs may not.
        OUT_OF_BOUNDS: An index with which Paddle's own kernel would access memory out of bounds.
        KERNEL_FAILED: A kernel of Paddle has failed in a function; in Paddle's executor it may not.
    """

    GENERAL = 0
    INT32_OVERFLOW = 1
    OUT_OF_BOUNDS = 2
    KERNEL_FAILED = 3


NO_OPERATOR = -1

# Messages of the errors with an error code: for people only, since no code compares messages.
SENTENCES = {
    "int32_overflow": "a whole number needs 64 bits in this run",
    "frequent_int32_overflow": "its whole numbers need 64 bits",
    "out_of_range": "input '{name}' is out of range.",
    "out_of_bounds": "input '{name}' is out of range, and Paddle would not notice.",
    "unknown_fetch": "fetch_list[{index}] ({shown}) is no variable of the program",
    "unknown_cut": "cuts: variable {index} ({shown}) is no variable of the program",
}


# Control characters but tab and newline, marks that reorder text, and halves of characters.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Returns text that a terminal shows and does not obey: names in it may come from a model."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class NgraphError(RuntimeError):
    """An error of paddle-ngraph, whose message is one sentence with the problem and the remedy.

    Control characters in the message are escaped.

    Attributes:
        code: The outcome.
        op_id: :attr:`Op.id` of the operator that caused the error, or ``NO_OPERATOR``.
    """

    def __init__(
        self, *args: object, code: ErrorCode = ErrorCode.GENERAL, op_id: int = NO_OPERATOR
    ) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))
        self.code = code
        self.op_id = op_id


def outcome(error: BaseException) -> tuple[ErrorCode, int]:
    """Returns error code and operator id of any exception; the C++ core calls this function, too.

    The attribute ``code`` is used only if it is an :class:`ErrorCode`, as in the core's
    ``ValueError``; other libraries may use the name for something else.
    """
    code = getattr(error, "code", None)
    if not isinstance(code, ErrorCode):
        return ErrorCode.GENERAL, NO_OPERATOR
    return code, getattr(error, "op_id", NO_OPERATOR)


_MAX_LINE = 400


def first_line(error: BaseException) -> str:
    """Returns the first line of the message of an error; its type if there is no message.

    A line of more than 400 characters is cut: messages about damaged files quote their bytes.
    """
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]} ..."


def summarized(message: str) -> str:
    """Returns the last line of an error message of a library: locations precede the message."""
    return message.strip().rpartition("\n")[2].strip()
