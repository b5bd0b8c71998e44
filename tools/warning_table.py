"""``python -m tools.warning_table``: writes docs/reference/warnings.md, a table of all warnings."""

from __future__ import annotations

from paddle_ngraph.warning_codes import WarningCode

_INTRODUCTION = """# Warnings

Written by `make docs` from `paddle_ngraph/warning_codes.py`; a test fails when this page is out of
date. Each message ends with its code in brackets, such as `[NG201]`. A warning is a
`paddle_ngraph.NgraphWarning`, a `UserWarning` unless the table says otherwise, so
`warnings.filterwarnings("ignore", category=paddle_ngraph.NgraphWarning)` hides them, and
`"error"` in its place makes them exceptions. The logger `paddle_ngraph` of `logging` receives them,
too: add a handler to it. It passes nothing to the root logger, whose handler, which Paddle adds,
would print each warning a second time. The package prints nothing to the standard output, except
for the commands of `python -m paddle_ngraph`.

| code | meaning | remedy |
| --- | --- | --- |
"""


def markdown() -> str:
    """The page."""
    rows = sorted(f"| {each.code} | {each.meaning} | {each.remedy} |\n" for each in WarningCode)
    return _INTRODUCTION + "".join(rows)


if __name__ == "__main__":
    print(markdown(), end="")
