"""docs/reference/caches.md: it is current, and every cache is declared."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from paddle_ngraph import _core
from paddle_ngraph.utils import lru_cache
from tools import caches

pytestmark = pytest.mark.pure

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "caches.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == caches.markdown(), f"{PAGE} is out of date: run `make docs`"


def test_every_python_cache_is_declared() -> None:
    """One class of caches, whose objects are declared; functools caches only in ``once``."""
    for path in caches.PACKAGE.rglob("*.py"):
        if path.parent.name == "utils" and path.name in ("lru_cache.py", "once.py"):
            continue
        tree = ast.parse(path.read_text())
        called = [
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        bases = [
            ast.unparse(b) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for b in c.bases
        ]
        owned = called.count("LRUCache") + sum(base.startswith("LRUCache") for base in bases)
        assert owned == called.count("cache_of_each"), f"{path}: an undeclared cache"
        imported = {
            each.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "functools"
            for each in node.names
        }
        assert imported.isdisjoint({"cache", "lru_cache"}), path
        methods = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert methods.isdisjoint({"popitem", "move_to_end"}), f"{path}: evicts without LRUCache"


def test_a_name_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="two caches are called"):
        lru_cache.process_cache(
            __name__, "denied_operators", "other values", key="another", bound=1
        )


def test_cpp_declarations_are_complete_and_in_their_files() -> None:
    rows = _core.caches()
    names = [name for name, *_ in rows]
    assert len(set(names)) == len(names)
    for name, *rest, _reason, file in rows:
        assert all(rest), name
        assert f'"{name}"' in (caches.PACKAGE.parent / file).read_text()
    assert {"functions", "engines", "freed_bytes"} <= set(_core.table_sizes()) <= set(names)


def test_every_cpp_cache_is_declared() -> None:
    """Two classes of caches; each object of them is named once, in the module that declares it."""
    found: Counter[str] = Counter()
    for path in [*caches.PACKAGE.rglob("*.h"), *caches.PACKAGE.rglob("*.cc")]:
        if path.name != "lru_cache.h":
            module = path.relative_to(caches.PACKAGE.parent).with_suffix("")
            found[str(module)] += len(re.findall(r"\bLru(?:Map|Cache)<", path.read_text()))
    declared = Counter(
        str(Path(file).with_suffix("")) for *_, reason, file in _core.caches() if not reason
    )
    assert declared == +found
