"""paddle-ngraph: makes PaddlePaddle programs faster on the CPU, with one line of code.

::

    import paddle_ngraph

    paddle_ngraph.enable()  # every later Executor.run goes through nGraph
"""

from __future__ import annotations

import warnings as _warnings
from importlib import import_module as _import_module
from typing import Any as _Any

from paddle_ngraph import installation as _installation
from paddle_ngraph import library as _library
from paddle_ngraph import moved as _moved
from paddle_ngraph.api import (
    automatic_plan,
    cache_info,
    clear_cache,
    compile,
    copy,
    data_parallel,
    device,
    devices,
    disable,
    distribute,
    distribute_to_server,
    enable,
    events,
    execution_plan,
    explain,
    explain_memory,
    is_enabled,
    optimize_memory,
    pipeline,
    reset_stats,
    save_inference_model,
    stats,
    transpile,
    use_ngraph,
    wait_for_compiles,
)
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.version import __version__

__all__ = [
    "Limit",
    "NgraphBridge",
    "NgraphEngine",
    "NgraphError",
    "Op",
    "Role",
    "__version__",
    "automatic_plan",
    "cache_info",
    "clear_cache",
    "compile",
    "converter",
    "copy",
    "data_parallel",
    "device",
    "devices",
    "disable",
    "distribute",
    "distribute_to_server",
    "enable",
    "events",
    "execution_plan",
    "explain",
    "explain_memory",
    "is_enabled",
    "optimize_memory",
    "pipeline",
    "reset_stats",
    "save_inference_model",
    "stats",
    "transpile",
    "use_mkl_packed",
    "use_ngraph",
    "wait_for_compiles",
]

_moved.install()

if (_reason := _installation.why_unavailable()) is None:
    _library.load()
    _import_module("paddle_ngraph.plan.strategy").install()
elif _installation.is_requested_by_environment():
    _warnings.warn(f"FLAGS_use_ngraph has no effect: {_reason}", stacklevel=2)


def __getattr__(name: str) -> _Any:
    """Imports the classes that need the compiled core only when they are accessed."""
    if name == "NgraphEngine":
        _library.load()
        from paddle_ngraph._core import NgraphEngine

        return NgraphEngine
    if name == "NgraphBridge":
        from paddle_ngraph.conversion.bridge import NgraphBridge

        return NgraphBridge
    if name == "distributed":
        return _import_module("paddle_ngraph.distributed")
    if name in ("mkl_packed", "use_mkl_packed"):
        mkl_packed = _import_module("paddle_ngraph.mkl_packed")
        return mkl_packed if name == "mkl_packed" else mkl_packed.use_mkl_packed
    raise AttributeError(f"module 'paddle_ngraph' has no attribute {name!r}")
