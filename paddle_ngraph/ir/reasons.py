"""Reasons for fallbacks that say what would convert the operator."""

from __future__ import annotations


class FallbackReason(str):
    """A reason, with the change that would convert the operator.

    Attributes:
        remedy: The change.
    """

    remedy: str

    def __new__(cls, text: str, remedy: str) -> FallbackReason:
        reason = super().__new__(cls, text)
        reason.remedy = remedy
        return reason

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.remedy  # for copies: fields of reports are copied into JSON


NO_CONVERTER = FallbackReason(
    "no converter", "a converter (docs/development/adding_an_operator.md)"
)


def remedy_of(reason: str) -> str:
    """The change that would convert an operator that falls back for a reason."""
    if isinstance(reason, FallbackReason):
        return reason.remedy
    return "a program in which this does not hold, or a converter without this limit"
