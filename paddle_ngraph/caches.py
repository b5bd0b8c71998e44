"""Sizes of the caches of the process, and their release; docs/reference/caches.md lists all."""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist
from paddle_ngraph.frontends.executor import scope_tracking
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils import lru_cache


def sizes() -> dict[str, int]:
    """Returns the number of entries of each cache, of ``bindings``, and ``freed_bytes``."""
    return {**_core.table_sizes(), **lru_cache.sizes(), "bindings": scope_tracking.count()}


def clear() -> None:
    """Releases all caches: compiled functions, memory for the next run, and the denylist.

    Functions that are being compiled are discarded.
    """
    background_compile.cancel()
    lru_cache.clear_process_caches()
    denylist.clear()  # lets the engines try subgraphs again that were denied
    _core.clear_cache()
