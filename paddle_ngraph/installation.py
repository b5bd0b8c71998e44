"""Installed packages, and whether they match those that the core was compiled against."""

from __future__ import annotations

import os
from importlib import metadata
from importlib.util import find_spec

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
    core = "paddle_ngraph._core"
    if _build_info is None or (_build_info.WITH_NGRAPH and find_spec(core) is None):
        return "paddle-ngraph was not built: run `pip install .` in its source tree."
    if not _build_info.WITH_NGRAPH:
        return (
            "paddle-ngraph was built with WITH_NGRAPH=OFF, without the engine operator: "
            "build it again with `WITH_NGRAPH=ON pip install .`."
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
    return None


def _installed_version(package: str) -> str | None:
    names = (package, "paddlepaddle-gpu") if package == "paddlepaddle" else (package,)
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
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
    lines = []
    for package, name in (("paddlepaddle", "PADDLE_VERSION"), ("openvino", "OPENVINO_VERSION")):
        built = getattr(_build_info, name, "nothing")
        found = _installed_version(package) or "not installed"
        lines.append(f"{package} {found} (compiled against {built})")
    return lines
