"""``python -m tools.caches``: writes docs/reference/caches.md, the table of all caches.

Python declares a cache where it creates it (paddle_ngraph/utils/lru_cache.py), C++ beside its
implementation (core/common/caches.h).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.utils import lru_cache, once

PACKAGE = Path(paddle_ngraph.__file__).parent
# Modules that are programs, or that need a package that may be absent.
_NOT_IMPORTED = re.compile(r"\.(__main__|_core|_mkl)$")

_INTRODUCTION = """# Caches

Written by `make docs` from the declarations in the code; a test fails when this page is out of
date. `paddle_ngraph.clear_cache()` uses the same declarations: it empties every Python cache of the
process, and each C++ cache that says so. Every Python cache is an `LRUCache`
(`paddle_ngraph/utils/lru_cache.py`), every C++ cache an `LruCache` or `LruMap`
(`core/common/lru_cache.h`): beyond its bound, the least recently used entry is evicted. A *graph
header* is the first line of a graph string, which contains a digest of the rest. State that is
attached to one object, and registries of living objects, are not listed.
"""

_ONCE = """Functions without arguments whose result is constant in a process: installed packages,
the processor, Paddle's tables of kernels, and installations. Each has one entry, which lives as
long as the process."""


_NOT_LRU = """These retain memory or files between runs, too, but are not LRU caches."""


def markdown() -> str:
    """The page."""
    for module in walk_packages([str(PACKAGE)], "paddle_ngraph."):
        if not _NOT_IMPORTED.search(module.name):
            import_module(module.name)
    declared = sorted(lru_cache.declarations(), key=lambda cache: cache.name)
    head = ("name", "values", "key", "most entries", "declared in")
    process = [
        (f"`{c.name}`", c.values, c.key, f"{c.bound:,}", f"`{c.module}`")
        for c in declared
        if c.owner is None
    ]
    owned = [
        (f"`{c.name}`", c.values, c.key, f"{c.bound:,}", f"each {c.owner}", f"`{c.module}`")
        for c in declared
        if c.owner is not None
    ]
    cpp_head = ("name", "values", "key", "bound", "cleared by")
    sections = [
        _INTRODUCTION,
        "## Python: caches of the process\n\nCleared by `clear_cache()`.\n",
        _table(head, process),
        "## Python: caches of an object\n\nDropped with the object.\n",
        _table((*head[:-1], "owner", head[-1]), owned),
        "## Python: values computed once\n",
        f"{_ONCE}\n",
        _table(("function", "value"), sorted(map(_once_row, once.functions()))),
        "## C++: caches\n",
        _table((*cpp_head, "declared in"), _cpp_rows(are_lru=True)),
        "## C++: other bounded memory\n",
        f"{_NOT_LRU}\n",
        _table((*cpp_head, "why it is not an LRU cache", "declared in"), _cpp_rows(are_lru=False)),
    ]
    return "\n".join(sections)


def _once_row(function: object) -> tuple[str, str]:
    summary = (function.__doc__ or "").partition("\n")[0]
    return f"`{function.__module__}.{getattr(function, '__name__', '')}`", summary


def _cpp_rows(*, are_lru: bool) -> list[tuple[str, ...]]:
    return sorted(
        (f"`{name}`", *rest, *([] if are_lru else [reason]), f"`{_location(file)}`")
        for name, *rest, reason, file in _core.caches()
        if are_lru == (reason == "")
    )


def _location(file: str) -> str:
    return str(Path(file).relative_to(PACKAGE.name))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


if __name__ == "__main__":
    print(markdown(), end="")
