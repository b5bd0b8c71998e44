"""What a generated project is built with, as far as it is installed here."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import sysconfig
from pathlib import Path

from paddle_ngraph.errors import NgraphError

# The release of oneDNN's headers that fits the library in Paddle's wheel.
HEADERS = "onednn-devel==2025.0.0"


def options() -> dict[str, Path]:
    """Options of cmake that name OpenVINO and oneDNN of this environment.

    Raises:
        NgraphError: oneDNN's headers are not installed.
    """
    headers = Path(sysconfig.get_path("data")) / "include"
    if not (headers / "oneapi" / "dnnl" / "dnnl.hpp").is_file():
        raise NgraphError(f"oneDNN's headers are missing: pip install --no-deps {HEADERS}")
    return {
        "OpenVINO_DIR": _folder("openvino") / "cmake",
        "DNNL_LIBRARY": _folder("paddle") / "libs" / "libdnnl.so.3",
        "DNNL_INCLUDE_DIR": headers,
    }


def commands(project: Path) -> list[str]:
    """The commands that build a project here, for a shell."""
    try:
        named = [f"-D{name}={path}" for name, path in options().items()]
    except NgraphError as error:
        return [f"  # {error}"]
    build = project / "build"
    configure = ["cmake", "-S", str(project), "-B", str(build), *named]
    return [f"  {shlex.join(configure)}", f"  cmake --build {shlex.quote(str(build))} -j"]


def cmake() -> str:
    """The command cmake: that of this environment, or of the system."""
    own = Path(sys.executable).parent / "cmake"
    return str(own) if own.is_file() else "cmake"


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent
