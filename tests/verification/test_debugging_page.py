"""The steps of docs/operations/debugging.md, as a reader repeats them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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
    (script,) = re.findall("```python\n(.*?)```", text, re.DOTALL)  # those below have file names
    (expected,) = re.findall("The script prints\n\n   ```text\n   (.*)\n   (.*) ...\n", text)
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


def script_of_the_page(name: str) -> str:
    (script,) = re.findall(f"```python {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return script


def test_the_slow_step_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    source = script_of_the_page("slow_step.py")
    names: dict[str, object] = {}
    try:
        exec(compile(source, "slow_step.py", "exec"), names)
    finally:
        paddle_ngraph.disable()
    shown = capsys.readouterr().out
    fault = source.splitlines().index(next(x for x in source.splitlines() if "fault" in x)) + 1
    (row,) = re.findall(r".* ms  unique x1 .*", shown)
    assert row.endswith(f"slow_step.py:{fault}")
    assert "native unique x1" in shown and "no converter" in shown
    profiled = names["p"]
    assert profiled.totals["compute"] > 0 and profiled.totals["compile"] == 0
    assert [call.type for call in profiled.calls].count("unique") == 1


def test_the_growing_memory_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with dynamic_mode():
        exec(compile(script_of_the_page("memory_grows.py"), "memory_grows.py", "exec"), {})
    growth, falls = capsys.readouterr().out.splitlines()
    assert growth.startswith("262144 bytes in a step") and falls == "True"
    assert "(here 262,144)" in PAGE.read_text()


@pytest.mark.slow("starts three processes")
def test_the_crash_of_the_page(tmp_path: Path) -> None:
    file = tmp_path / "crash.py"
    file.write_text(script_of_the_page("crash.py"))
    root = str(Path(paddle_ngraph.__file__).parents[1])
    environment = {"PYTHONPATH": root, "FLAGS_ngraph_background_compile": "0"}
    environment["PATH"] = os.environ["PATH"]
    environment["FLAGS_ngraph_cache_dir"] = ""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(file), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert run().stdout == "finished\n"
    crashed = run("engine")
    assert crashed.returncode == -signal.SIGSEGV and "in crashing_converter" in crashed.stderr
    assert run("engine", "hidden").stdout == "finished\n"
