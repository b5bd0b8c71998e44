"""Compiled functions on disk: their files, and the conditions under which they were built.

The C++ core reads and writes the files (core/engine/disk_cache.h); this module provides the
conditions that the core cannot know.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import accelerators, processor, registry
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.installation import versions
from paddle_ngraph.ir.graph import CPU, Graph, device_of
from paddle_ngraph.utils.once import once
from paddle_ngraph.version import __version__

_PACKAGE = Path(__file__).parents[1]
# Environment variables that restrict oneDNN's kernels to some of the processor's instruction sets.
_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def build_environment(graph: str, precision: str, weight_format: str, threads: int) -> str:
    """Called by the C++ engine: the conditions of a build besides the graph string.

    Args:
        graph: The graph string.
        precision, weight_format, threads: See :class:`RunSettings`.

    Returns:
        Versions, sources, processor, device and settings. Empty if an operator of the graph has a
        converter from outside this package, whose changes would go unnoticed, or if the device is
        missing.
    """
    foreign = registry.foreign_types()
    if foreign and any(op.type in foreign for op in Graph.from_string(graph).all_ops()):
        return ""
    device = device_of(graph)
    if device == CPU:
        conditions = kernel_conditions()
    elif device in accelerators.available():
        conditions = [accelerators.available()[device].identity]
    else:
        return ""
    settings = f"{precision}, weights {weight_format}, {threads} threads"
    return "\n".join([*_fixed_environment(), settings, *conditions])


def is_stored(graph: str) -> bool:
    """Whether the disk cache has a function of this graph, built under the current conditions."""
    if not flags.get("ngraph_cache_dir"):
        return False
    try:
        settings = RunSettings.of(graph)
    except ValueError:
        # A flag has an invalid value: the run that follows reports the error.
        return False
    environment = build_environment(
        graph,
        settings.precision,
        settings.weight_format,
        settings.threads * settings.runs_at_once,
    )
    return bool(environment) and bool(_core.is_graph_stored(graph, environment))


def files() -> list[Path]:
    """The files of all functions and programs that are stored in ``FLAGS_ngraph_cache_dir``."""
    return sorted(map(Path, _core.cache_files())) if flags.get("ngraph_cache_dir") else []


def kernel_conditions() -> list[str]:
    """The environment variables by which oneDNN's kernels are restricted."""
    return [f"{name}={os.environ.get(name, '')}" for name in _VARIABLES]


def fixed_conditions() -> list[str]:
    """The conditions of results on disk that never change in a process: versions, processor."""
    return _fixed_environment()


@once
def _fixed_environment() -> list[str]:
    """The conditions of stored functions that never change in a process: versions, processor."""
    return [f"paddle-ngraph {__version__} {_sources()}", *versions(), _processor()]


def _sources() -> str:
    """Digest of the package's files, which in a source tree change without a new version.

    Modification times would not do: a model may bring a function to a machine where the package
    was installed later.
    """
    digest = hashlib.sha256()
    files = [*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.so")]
    if getattr(sys, "frozen", False):  # a frozen application has the modules in its program
        files.append(_PACKAGE / sys.executable)
    for path in sorted(files):
        contents = path.read_bytes()
        digest.update(f"{os.path.relpath(path, _PACKAGE)} {len(contents)}\n".encode())
        digest.update(contents)
    return digest.hexdigest()


def _processor() -> str:
    """Digest of the model and instruction sets of the first processor."""
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags")
    lines = [f"{name}: {processor.field(name)}" for name in wanted]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
