"""Arguments that the oldest supported Python does not know, and the substitute of the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.zips import zip_equal

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("paddle_ngraph", "tests", "tools", "benchmarks", "demos")


def is_strict_zip(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):  # scripts that tests run
        return bool(re.search(r"\bzip\(.*\bstrict=", str(node.value)))
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "zip"
        and any(keyword.arg == "strict" for keyword in node.keywords)
    )


def strict_zips(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [f"{path}:{getattr(node, 'lineno', 0)}" for node in nodes if is_strict_zip(node)]


def test_no_zip_has_an_argument_that_python_39_rejects():
    settings = (ROOT / "pyproject.toml").read_text()
    lowest = re.findall(r'requires-python = ">=3\.(\d+)', settings)
    # Ruff then rejects newer syntax; no rule of ruff knows the arguments of functions.
    assert lowest == re.findall(r'target-version = "py3(\d+)"', settings) == ["9"]
    files = [ROOT / "setup.py"]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*.py")
    found = [
        place for path in files if "strict=" in path.read_text() for place in strict_zips(path)
    ]
    assert found == []


def test_iterables_of_several_lengths_are_an_error():
    assert list(zip_equal("ab", iter([1, 2]))) == [("a", 1), ("b", 2)]
    for unequal in (([1], []), ([], iter([1])), ([1, 2], [1], [1, 2])):
        with pytest.raises(AssertionError, match="the lengths differ"):
            zip_equal(*unequal)
