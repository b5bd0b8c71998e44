"""What is kept from run to run: how much there is, and how to release it."""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.conversion import build, denylist, dynamic_shapes
from paddle_ngraph.frontends.executor import program_key, scope_tracking
from paddle_ngraph.partitioning import background_compile, fallback


def sizes() -> dict[str, int]:
    """How much is kept from run to run, by kind; :func:`clear` releases it."""
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
    """Releases all of it: compiled functions, memory for the next run, and refusals.

    Nothing becomes of functions that are being compiled.
    """
    background_compile.cancel()
    dynamic_shapes.forget()
    fallback.clear()
    build.forget()
    program_key.forget()
    denylist.clear()
    _core.clear_cache()
