"""Compiled functions on disk: where they are, and under what conditions they were built.

The C++ core reads and writes the files (core/engine/disk_cache.h); this module has what the core
cannot know.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import accelerators, processor, registry
from paddle_ngraph.conversion.settings import Settings
from paddle_ngraph.installation import versions
from paddle_ngraph.ir.graph import CPU, Graph, device_of
from paddle_ngraph.version import __version__

_PACKAGE = Path(__file__).parents[1]
# What tells OpenVINO's kernels to use less than the processor has.
_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def build_environment(graph: str, precision: str, threads: int) -> str:
    """Called by the C++ engine: what a build depends on besides the graph string itself.

    Args:
        graph: The graph string.
        precision, threads: See :class:`Settings`.

    Returns:
        Versions, sources, processor, device and settings. Empty if the graph holds an operator
        whose converter is not one of ours: nothing shows when that changes; or if its device is not
        there.
    """
    foreign = registry.foreign_types()
    if foreign and any(op.type in foreign for op in Graph.from_string(graph).all_ops()):
        return ""
    device = device_of(graph)
    if device == CPU:
        conditions = [f"{name}={os.environ.get(name, '')}" for name in _VARIABLES]
    elif device in accelerators.available():
        conditions = [accelerators.available()[device].identity]
    else:
        return ""
    return "\n".join([*_fixed_environment(), f"{precision}, {threads} threads", *conditions])


def is_stored(graph: str) -> bool:
    """Whether a function of this graph was built before, under the same conditions."""
    if not flags.get("ngraph_cache_dir"):
        return False
    try:
        settings = Settings.of(graph)
    except ValueError:  # a flag that the run will tell of
        return False
    environment = build_environment(
        graph, settings.precision, settings.threads * settings.runs_at_once
    )
    return bool(environment) and bool(_core.is_graph_stored(graph, environment))


def files() -> list[Path]:
    """The stored functions."""
    folder = flags.get("ngraph_cache_dir")
    return sorted(Path(folder).glob("*.ngraph")) if folder else []


@cache
def _fixed_environment() -> list[str]:
    """What stays the same in a process."""
    return [f"paddle-ngraph {__version__} {_sources()}", *versions(), _processor()]


def _sources() -> str:
    """The contents of the package's files: in a source tree they change without a new version.

    Not their modification times: a model may bring a function to a machine where the package was
    installed later.
    """
    digest = hashlib.sha256()
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.so")]):
        contents = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(contents)}\n".encode())
        digest.update(contents)
    return digest.hexdigest()


def _processor() -> str:
    """Name and instruction sets of the first processor."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags")
    lines = [f"{name}: {processor.field(name)}" for name in wanted]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
