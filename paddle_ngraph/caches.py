"""Sizes of the caches of the process, and their release."""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.conversion import build, denylist, dynamic_shapes
from paddle_ngraph.frontends.executor import program_key, scope_tracking
from paddle_ngraph.partitioning import background_compile, fallback


def sizes() -> dict[str, int]:
    """Returns the entries of each cache, and ``freed_bytes``; :func:`clear` releases all."""
    texts, keys = program_key.sizes()
    return {
        **_core.table_sizes(),
        "programs": texts,
        "keys": keys,
        "bindings": scope_tracking.count(),
        "shapes": dynamic_shapes.count(),
        "native_intervals": fallback.count(),
        "refusals": denylist.count(),
    }


def clear() -> None:
    """Releases all caches: compiled functions, memory for the next run, and the denylist.

    Functions that are being compiled are discarded.
    """
    background_compile.cancel()
    dynamic_shapes.forget()
    fallback.clear()
    build.forget()
    program_key.forget()
    denylist.clear()
    _core.clear_cache()
