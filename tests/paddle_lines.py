"""Tests that a release of Paddle cannot pass, for reasons of its own: they are skipped there."""

from __future__ import annotations

from collections.abc import Mapping

from paddle_ngraph.paddle_private import releases

_ALIASES = "partitioning/analysis/test_aliases.py"
_PICKLE = "tensors cannot be pickled"
# Pages that list what Paddle has, and are those of the newest release.
_PAGES = (
    "conversion/test_operator_table.py::test_the_page",
    "tools/test_patches.py::test_the_page_is_up_to_date",
)
# By the number of the line: begin of a test's id below tests/ -> reason.
SKIPPED: Mapping[str, Mapping[str, str]] = {
    "3.2": {
        "conversion/test_operator_table.py::test_operators_without_converter_are_on_the_page": (
            "rms_norm is another operator there, which has a converter"
        ),
        "frontends/dynamic/lazy/test_capture.py::test_readers_see_computed_values[copy": _PICKLE,
        "frontends/dynamic/lazy/test_capture.py::test_readers_see_computed_values[pickle": _PICKLE,
        "frontends/dynamic/test_compiled_layer.py::test_it_is_pickled_as_far": _PICKLE,
        "frontends/dynamic/test_hook.py::test_copies_and_pickles_begin_anew": _PICKLE,
        "ops/test_dropout.py::test_in_place": "dropout has no argument inplace",
        "ops/test_indexing.py::test_take_along_axis[False": "Paddle takes other elements: native",
        f"{_ALIASES}::test_a_view[view_shape": "it takes no values",
        f"{_ALIASES}::test_the_memory_of_a_view_is_not_reused[view_shape": "it takes no values",
    },
}


def reason_against(test: str) -> str | None:
    """Returns the reason why a test is skipped with the installed Paddle, or ``None``."""
    name, newest = test.removeprefix("tests/"), releases.LINES[0].tested
    if name.startswith(_PAGES) and releases.installed() != newest:
        return f"the page is that of Paddle {newest}"
    skipped = SKIPPED.get(releases.CURRENT.number, {})
    return next((reason for begin, reason in skipped.items() if name.startswith(begin)), None)
