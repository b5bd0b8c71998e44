"""paddle-ngraph: makes PaddlePaddle programs faster on the CPU, with one line of code.

::

    import paddle_ngraph

    paddle_ngraph.enable()  # every later Executor.run goes through nGraph
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
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
    num_threads,
    optimize_memory,
    pipeline,
    profile,
    reset_stats,
    save_inference_model,
    stats,
    transpile,
    use_ngraph,
    verified_runs,
    verify,
    wait_for_compiles,
    warm_up,
)
from paddle_ngraph.api import (
    warn_unavailable as _warn_unavailable,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private import absent_flags as _absent_flags
from paddle_ngraph.version import __version__
from paddle_ngraph.warning_codes import NgraphWarning

if _TYPE_CHECKING:
    from paddle_ngraph._core import NgraphEngine
    from paddle_ngraph.conversion.bridge import NgraphBridge
    from paddle_ngraph.conversion.registry import Limit, Role, converter
    from paddle_ngraph.ir.graph import Op
    from paddle_ngraph.mkl_packed import use_mkl_packed

__all__ = [
    "Limit",
    "NgraphBridge",
    "NgraphEngine",
    "NgraphError",
    "NgraphWarning",
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
    "num_threads",
    "optimize_memory",
    "pipeline",
    "profile",
    "reset_stats",
    "save_inference_model",
    "stats",
    "transpile",
    "use_mkl_packed",
    "use_ngraph",
    "verified_runs",
    "verify",
    "wait_for_compiles",
    "warm_up",
]

# Names that are imported when they are accessed -> their modules.
_DEFERRED = {
    "Limit": "conversion.registry",
    "NgraphBridge": "conversion.bridge",
    "NgraphEngine": "_core",
    "Op": "ir.graph",
    "Role": "conversion.registry",
    "converter": "conversion.registry",
    "use_mkl_packed": "mkl_packed",
}
_DEFERRED_PACKAGES = ("conversion", "distributed", "ir", "mkl_packed")


def __getattr__(name: str) -> _Any:
    """Imports what needs the converters or the compiled core when it is accessed."""
    if name in _DEFERRED_PACKAGES:
        return _import_module(f"{__name__}.{name}")
    if name not in _DEFERRED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "NgraphEngine":
        _library.load()
    return getattr(_import_module(f"{__name__}.{_DEFERRED[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_DEFERRED, *_DEFERRED_PACKAGES})


def _install_plan_strategy() -> None:
    _import_module("paddle_ngraph.plan.strategy").install()


_moved.install()

if _installation.why_unavailable() is None:
    globals()["_core"] = _import_module("paddle_ngraph._core")  # as if its file had this name
    _library.load()
    _import_module("paddle_ngraph.utils.first_use").register(_install_plan_strategy)
else:
    _absent_flags.install(_warn_unavailable)
    if _installation.is_requested_by_environment():
        _warn_unavailable()
