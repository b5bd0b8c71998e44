"""docs/reference/operators.md agrees with the registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.converters import PAYS
from paddle_ngraph.conversion import operator_table, registry

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "operators.md"
MEASURED = ROOT / "benchmarks" / "results" / "converters_zen_4.json"


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


def test_converters_that_are_not_faster_than_kernels_have_a_reason():
    """Another one is deleted, and functions call the kernel."""
    ratios = json.loads(MEASURED.read_text())["ratios"]
    known = registry.all_converters()
    assert len(ratios) > 200
    slow = {name for name, each in ratios.items() if max(each) < PAYS} & {
        type.removeprefix("pd_op.") for type in known
    }
    kept = {type.removeprefix("pd_op.") for type, entry in known.items() if entry.kept_for}
    assert slow - kept == set() and (kept & ratios.keys()) - slow == set()
    assert all(name in operator_table.markdown() for name in kept)
