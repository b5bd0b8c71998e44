"""Installed packages, and whether they match those that the core was compiled against."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.utils.once import once
from paddle_ngraph.warning_codes import WarningCode, warn

try:
    from paddle_ngraph import _build_info
except ImportError:  # a source tree that was never built has no build information
    _build_info = None  # type: ignore[assignment]

_UNCHECKED = "PADDLE_NGRAPH_UNCHECKED"
_REBUILD = "run `pip install --no-build-isolation --force-reinstall --no-deps .` in its source tree"


@once
def why_unavailable() -> str | None:
    """Returns the reason why the engine cannot be used, with the remedy; ``None`` if it can."""
    if is_pure():
        return (
            "paddle-ngraph has a core for Linux with glibc 2.28 on x86-64 and CPython 3.9 to 3.13, "
            f"not for this machine: {platform.system()} on {platform.machine()}, "
            f"{platform.python_implementation()} {platform.python_version()}."
        )
    core = "paddle_ngraph._core"
    if not Path(__file__).parent.is_dir():  # frozen applications have a folder with the core
        return (
            f"paddle-ngraph is inside the archive {_archive()}, from which its compiled core "
            "cannot be loaded: install the package beside the application, or unpack the archive."
        )
    if _build_info is None or (_build_info.WITH_NGRAPH and find_spec(core) is None):
        return "paddle-ngraph was not built: run `pip install .` in its source tree."
    if not _build_info.WITH_NGRAPH:
        return (
            "paddle-ngraph was built with WITH_NGRAPH=OFF, without the engine operator: "
            "build it again with `WITH_NGRAPH=ON pip install .`."
        )
    target = getattr(_build_info, "TARGET", _target())
    if target != _target():
        return (
            f"paddle-ngraph was compiled for {target}, but this is {_target()}: install its wheel "
            "for this one, `pip install --force-reinstall --no-deps paddle-ngraph`."
        )
    for package, built in (
        ("paddlepaddle", _build_info.PADDLE_VERSION),
        ("openvino", _build_info.OPENVINO_VERSION),
    ):
        found = _installed_version(package)
        if found != built:
            return (
                f"paddle-ngraph was compiled against {package} {built}, but "
                f"{'none' if found is None else found} is installed: "
                f"`pip install {package}=={built}`, or {_REBUILD}."
            )
    from paddle_ngraph.paddle_private import check  # imported late, since it needs Paddle

    reason = check.why_unfit()
    if reason is not None and is_unchecked():
        warn(WarningCode.UNCHECKED, f"{_UNCHECKED}: {reason}; results may be wrong")
        return None
    if reason is not None:
        paddle = f"paddlepaddle=={_build_info.PADDLE_VERSION}"
        return (
            f"paddle-ngraph does not support this Paddle: {reason}; "
            f"`pip install --force-reinstall {paddle}`, which it was compiled against."
        )
    return _why_not_loadable()


def _target() -> str:
    """Returns the interpreter and the machine; setup.py stores those that the core is for."""
    python = ".".join(map(str, sys.version_info[:2]))
    implementation = platform.python_implementation()
    return f"{implementation} {python} on {platform.system()} {platform.machine()}"


def _archive() -> Path:
    """Returns the archive that holds this file, which has no folder in the file system."""
    return next(folder for folder in Path(__file__).parents if folder.exists())


def _openvino_files() -> tuple[str, ...]:
    """Returns files of OpenVINO that the first use needs, which would fail in the middle."""
    year, *others = re.findall(r"\d+", _build_info.OPENVINO_VERSION)[:3]
    return (
        "__init__.py",
        "_pyopenvino*",
        f"libs/libopenvino.so.{year[-2:]}{''.join(others)}",  # not that of another release
        "libs/libopenvino_intel_cpu_plugin.so",
        "libs/libtbb.so.*",
    )


def _why_not_loadable() -> str | None:
    """Loads the compiled core, and returns the reason if that fails.

    libpaddle.so exports symbols of the older OpenVINO that it was built with. If libopenvino.so is
    loaded alone, before the core, which links both, it binds only to its own symbols.
    """
    remedy = f"`pip install --force-reinstall openvino=={_build_info.OPENVINO_VERSION}`"
    spec = find_spec("openvino")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    for pattern in _openvino_files():
        if folder is None or not (pattern == "__init__.py" or any(folder.glob(pattern))):
            return f"openvino is installed in part, without openvino/{pattern}: {remedy}."
    assert folder is not None
    try:
        for pattern in _openvino_files():
            if "libopenvino.so" in pattern:
                ctypes.CDLL(str(folder / pattern))
        import_module("paddle_ngraph._core")
    except (ImportError, OSError) as error:
        return f"the compiled core cannot be loaded, {error}: {remedy}, or {_REBUILD}."
    return None


def is_pure() -> bool:
    """Returns whether the package was built for machines without a core: programs run natively."""
    return bool(getattr(_build_info, "PURE", False))


def _installed_version(package: str) -> str | None:
    names = (package, "paddlepaddle-gpu") if package == "paddlepaddle" else (package,)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return _version_in(package)


# Modules that name the version of a package, and its name there.
_VERSIONS = {
    "paddlepaddle": ("paddle.version", "full_version"),
    "openvino": ("openvino", "__version__"),
}


def _version_in(package: str) -> str | None:
    """Returns the version that a package names itself: frozen applications have no metadata."""
    module, name = _VERSIONS[package]
    try:
        return str(getattr(import_module(module), name)).partition("-")[0]
    except (ImportError, OSError, AttributeError):
        return None


def require() -> None:
    """Raises NgraphError with the reason if :func:`why_unavailable` returns one."""
    reason = why_unavailable()
    if reason is not None:
        raise NgraphError(reason)


def is_unchecked() -> bool:
    """Returns whether the core is loaded into a Paddle that lacks private names, for porting.

    Results may be wrong then: some of these names serve to detect writes to weights.
    """
    return os.environ.get(_UNCHECKED) == "1"


def is_requested_by_environment() -> bool:
    """Returns whether the environment variable ``FLAGS_use_ngraph`` switches the engine on."""
    value = os.environ.get("FLAGS_use_ngraph", "")  # noqa: SIM112 - Paddle's own spelling
    return value.strip().lower() in ("1", "true", "yes", "on")


def versions() -> list[str]:
    """Returns a line per package that has to match: the versions installed and compiled against."""
    return [
        f"{package} {installed or 'not installed'} (compiled against {built or 'nothing'})"
        for package, installed, built in packages()
    ]


def packages() -> list[tuple[str, str | None, str | None]]:
    """Returns the packages that have to match: name, version installed, and compiled against."""
    names = (("paddlepaddle", "PADDLE_VERSION"), ("openvino", "OPENVINO_VERSION"))
    return [
        (package, _installed_version(package), getattr(_build_info, name, None))
        for package, name in names
    ]
