"""docs/reference/operators.md agrees with the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddle_ngraph.conversion import operator_table, registry

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "operators.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == operator_table.markdown(), (
        "docs/reference/operators.md is out of date: run `make docs`"
    )


def test_every_operator_and_every_limit_is_on_the_page():
    page = operator_table.markdown()
    for entry in registry.all_converters().values():
        assert f"`{entry.type.removeprefix('pd_op.')}`" in page
        assert all(limit.text.replace("|", "\\|") in page for limit in entry.limits)


def test_operators_without_converter_are_on_the_page():
    page, known = operator_table.markdown(), registry.all_converters()
    for type, why in registry.ABSENT.items():
        assert type not in known
        assert f"| `{type.removeprefix('pd_op.')}` | {why} |" in page
