"""Locates the tools and libraries with which a generated project is built."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import sysconfig
from pathlib import Path

from paddle_ngraph.errors import NgraphError

# The pip package with the headers of oneDNN, in the release of the library in Paddle's wheel.
HEADERS = "onednn-devel==2025.0.0"
# A file that is in a project only if the project calls kernels of Paddle.
KERNELS = "kernels.cc"


def options(project: Path) -> dict[str, Path]:
    """Options of cmake for a project: the paths of OpenVINO, oneDNN and, if required, Paddle.

    Raises:
        NgraphError: oneDNN's headers are not installed.
    """
    headers = Path(sysconfig.get_path("data")) / "include"
    if not (headers / "oneapi" / "dnnl" / "dnnl.hpp").is_file():
        raise NgraphError(f"oneDNN's headers are missing: pip install --no-deps {HEADERS}")
    found = {
        "OpenVINO_DIR": folder_of("openvino") / "cmake",
        "DNNL_LIBRARY": folder_of("paddle") / "libs" / "libdnnl.so.3",
        "DNNL_INCLUDE_DIR": headers,
    }
    if (project / KERNELS).is_file():
        found["PADDLE_DIR"] = folder_of("paddle")
    return found


def commands(project: Path) -> list[str]:
    """The shell commands that build a project."""
    try:
        named = [f"-D{name}={path}" for name, path in options(project).items()]
    except NgraphError as error:
        return [f"  # {error}"]
    build = project / "build"
    configure = ["cmake", "-S", str(project), "-B", str(build), *named]
    return [f"  {shlex.join(configure)}", f"  cmake --build {shlex.quote(str(build))} -j"]


def cmake() -> str:
    """The path of cmake: of this Python environment, or else of the system."""
    own = Path(sys.executable).parent / "cmake"
    return str(own) if own.is_file() else "cmake"


def folder_of(package: str) -> Path:
    """The folder in which a Python package is installed."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent
