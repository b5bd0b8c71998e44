"""The package uses nothing that the oldest supported CPython lacks."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools import wheels

pytestmark = pytest.mark.pure

PACKAGE = Path(__file__).resolve().parents[1] / "paddle_ngraph"
LACKING = """
import importlib, json, sys
for module, name in json.load(sys.stdin):
    try:
        found = importlib.import_module(module)
    except ImportError:
        print(module)
        continue
    if name is not None and not hasattr(found, name):
        try:
            importlib.import_module(f"{module}.{name}")
        except ImportError:
            print(module, name)
"""


@cache
def trees() -> dict[str, ast.Module]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in files}


def standard_names(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yields the modules of the standard library that a file uses, and their names in it."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                modules[each.asname or each.name.split(".")[0]] = each.name
                yield each.name, None
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for each in node.names:
                yield str(node.module), each.name
                modules[each.asname or each.name] = f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module in sys.modules and module in sys.stdlib_module_names:
                yield module, node.attr


def test_the_oldest_python_has_all_names_of_the_standard_library():
    oldest = wheels.find_interpreter(wheels.PYTHONS[0])
    if oldest is None:
        pytest.skip(f"there is no CPython {wheels.PYTHONS[0]}")
    if not hasattr(sys, "stdlib_module_names"):
        pytest.skip("this is the oldest CPython: the other tests show it")
    used = {
        (module, name)
        for tree in trees().values()
        for module, name in standard_names(tree)
        if module.partition(".")[0] in sys.stdlib_module_names
    }
    done = subprocess.run(
        [oldest, "-c", LACKING],
        input=json.dumps(sorted(used, key=str)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""


def test_no_union_of_types_is_evaluated():
    found = [
        f"{file}:{node.lineno}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        and isinstance(node.args[1], ast.BinOp)
    ]
    assert not found, "CPython 3.9 has no operator | for types: use a tuple"
