"""The steps of docs/operations/debugging.md, as a reader repeats them."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

import paddle_ngraph
from paddle_ngraph.__main__ import main
from paddle_ngraph.conversion import registry
from tests.dynamic import dynamic_mode

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "debugging.md"


def test_the_planted_fault_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    (script,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
    (expected,) = re.findall("The script prints\n\n   ```\n   (.*)\n   (.*) ...\n", text)
    monkeypatch.chdir(tmp_path)
    paddle_ngraph.clear_cache()
    registry.find_converter("pd_op.gelu")  # loads all converters
    with dynamic_mode(), patch.dict(registry._converters):
        exec(script, {})
    paddle_ngraph.clear_cache()
    shown = capsys.readouterr().out
    assert all(line in shown for line in expected)
    assert "MB: the subgraph (operators, attributes, shapes), the contents of" in shown
    assert main(["replay", "wrong.npz"]) == 0
    shown = capsys.readouterr().out
    assert "\nright\n" in shown
    assert "not as recorded, bit by bit: output 1" in shown
