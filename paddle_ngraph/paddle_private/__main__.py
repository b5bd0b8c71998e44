"""``python -m paddle_ngraph.paddle_private``: expected names of Paddle that are missing."""

from __future__ import annotations

from paddle_ngraph.paddle_private import check


def main() -> int:
    """Prints a line for each mismatch. Returns the exit status."""
    reasons = list(check.mismatches())
    print(*reasons or ["Paddle has all expected names."], sep="\n")
    return 1 if reasons else 0


if __name__ == "__main__":
    raise SystemExit(main())
