"""One OpenVINO core per process, since cores replace the signal stack of their thread."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Functions that create a core each.
CREATES_CORE = re.compile(r"\b(ov|openvino)\.(compile_model|Core)\(")


@pytest.mark.pure
def test_no_other_core_is_created():
    found = {
        str(path.relative_to(ROOT))
        for folder in ("paddle_ngraph", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if CREATES_CORE.search(path.read_text())
    }
    assert found == {"paddle_ngraph/conversion/openvino_core.py"}
