"""Names of classes: each says which of several similar things it is, in all of the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]


def test_no_two_classes_share_a_name() -> None:
    """Classes of Python modules; a leading underscore makes no other name of it."""
    found = defaultdict(list)
    for path in sorted((ROOT / "paddle_ngraph").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name.strip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert not shared, "give each a name that says which it is"
