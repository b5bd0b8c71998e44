"""The documented way to add an operator of one's own works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow("runs a demo")
def test_a_custom_operator_runs_in_the_engine(tmp_path):
    command = [sys.executable, "demos/custom_op_demo/run.py", "--build-dir", str(tmp_path)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "native custom_op.cubed_relu x1 (at 13): no converter" in found.stdout
    assert "21 of 21 compute ops (100.0%) run through nGraph, in 1 interval." in found.stdout


def test_the_page_shows_the_converter_of_the_demo():
    page = (ROOT / "docs" / "development" / "adding_an_operator.md").read_text()
    code = (ROOT / "demos" / "custom_op_demo" / "converters.py").read_text()
    shown = page.partition("```python\n")[2].partition("```")[0]
    function = shown[shown.index("@converter") :].strip()
    assert function in code
