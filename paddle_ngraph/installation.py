"""Installed packages, and whether they match those that the core was compiled against."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from importlib import metadata
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private import releases
from paddle_ngraph.utils.once import once
from paddle_ngraph.warning_codes import WarningCode, warn

try:
    from paddle_ngraph import _build_info
except ImportError:  # a source tree that was never built has no build information
    _build_info = None  # type: ignore[assignment]

_UNCHECKED = "PADDLE_NGRAPH_UNCHECKED"
_REINSTALL = "pip install --force-reinstall"
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
    if not Path(__file__).parent.is_dir():
        return (
            f"paddle-ngraph is inside the archive {_archive()}, from which its compiled core "
            "cannot be loaded: install the package beside the application, or unpack the archive."
        )
    if getattr(sys, "frozen", False) and not _cores():
        return (
            "paddle-ngraph is in a frozen application without its compiled core: add "
            "paddle_ngraph/_core.*.so, as `--add-binary` of PyInstaller does."
        )
    if _build_info is None or (_build_info.WITH_NGRAPH and not _cores()):
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
    release = releases.installed()
    built = _built_release(release)
    if built is None:
        return _why_no_core_fits(release)
    openvino = _openvino_version()
    if openvino != _build_info.OPENVINO_VERSION:
        needed = f"openvino=={_build_info.OPENVINO_VERSION}"
        return (
            f"paddle-ngraph was compiled against openvino {_build_info.OPENVINO_VERSION}, but "
            f"{openvino or 'none'} is installed: `pip install {needed}`, or {_REBUILD}."
        )
    from paddle_ngraph.paddle_private import check  # imported late, since it needs Paddle

    unfit = check.why_unfit()
    if unfit is not None and not is_unchecked():
        return (
            f"paddle-ngraph does not support Paddle {release}: {unfit}; "
            f"`{_REINSTALL} paddlepaddle=={built}`, which it was compiled against."
        )
    failure = _why_not_loadable(built)
    if failure is None and unfit is not None:
        warn(WarningCode.UNCHECKED, f"{_UNCHECKED}: {unfit}; results may be wrong")
    elif failure is None and release != built:
        text = f"paddle-ngraph was compiled against Paddle {built}, and not tested with {release}"
        warn(WarningCode.UNTESTED_PADDLE, text)
    return failure


_CORE_FILE = re.compile(r"_core\.(\d+(?:\.\w*\d\w*)*)\.so")


def _cores() -> dict[str, Path]:
    """Returns the compiled cores, by the release of Paddle that each was compiled against."""
    files = sorted(Path(__file__).parent.glob("_core.*.so"))
    found = ((_CORE_FILE.fullmatch(file.name), file) for file in files)
    return {match[1]: file for match, file in found if match}


def _built_release(release: str | None) -> str | None:
    """Returns the release that the core for ``release`` was compiled against: one of its line."""
    line = None if release is None else releases.number_of(release)
    built = [each for each in _cores() if releases.number_of(each) == line]
    return release if release in built else max(built, default=None, key=_order)


def _order(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)]


def _why_no_core_fits(release: str | None) -> str:
    built = sorted(_cores(), key=_order)
    remedy = f"`pip install paddlepaddle=={built[-1]}`"
    if release is None:
        return f"paddle-ngraph needs PaddlePaddle, and none is installed: {remedy}."
    if releases.number_of(release) in [line.number for line in releases.LINES]:
        remedy += f", or {_REBUILD}"
    lines = " and ".join(dict.fromkeys(f"{releases.number_of(each)}.x" for each in built))
    return (
        f"paddle-ngraph has a compiled core for PaddlePaddle {lines}, not for {release}, which is "
        f"installed: {remedy}."
    )


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


def _why_not_loadable(paddle: str) -> str | None:
    """Loads the core for a release of Paddle, and returns the reason if that fails.

    libpaddle.so exports symbols of the older OpenVINO that it was built with. If libopenvino.so is
    loaded alone, before the core, which links both, it binds only to its own symbols.
    """
    openvino = f"openvino=={_build_info.OPENVINO_VERSION}"
    spec = find_spec("openvino")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    for pattern in _openvino_files():
        if folder is None or not (pattern == "__init__.py" or any(folder.glob(pattern))):
            remedy = f"`{_REINSTALL} {openvino}`"
            return f"openvino is installed in part, without openvino/{pattern}: {remedy}."
    assert folder is not None
    found = [each for pattern in _openvino_files()[1:] for each in folder.glob(pattern)]
    try:
        for library in [*found, _cores()[paddle]]:
            if library.is_file() and not _is_whole(library):
                raise OSError(f"since {library.name} lacks its end")
        for pattern in _openvino_files():
            if "libopenvino.so" in pattern:
                ctypes.CDLL(str(folder / pattern))
        _load(_cores()[paddle])
    except (ImportError, OSError) as error:
        remedy = f"`{_REINSTALL} paddlepaddle=={paddle} {openvino}`"
        return f"the compiled core cannot be loaded, {error}: {remedy}, or {_REBUILD}."
    return None


def _is_whole(library: Path) -> bool:
    """Returns whether a file has all bytes that the loader maps: reading others is a SIGBUS."""
    length = library.stat().st_size
    with library.open("rb") as file:
        header = file.read(64)
        if len(header) < 64:
            return False
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(min(offset, length))
        table = file.read(size * count)
    try:  # of each segment its offset in the file, and its length there
        segments = [struct.unpack_from("<Q16xQ", table, 8 + size * i) for i in range(count)]
    except struct.error:
        return False
    return all(sum(segment) <= length for segment in segments)


_CORE = "paddle_ngraph._core"


def _load(file: Path) -> None:
    """Imports a core under the name that all modules import, whatever its release of Paddle."""
    if _CORE in sys.modules:
        return
    loader = ExtensionFileLoader(_CORE, str(file))
    spec = spec_from_file_location(_CORE, file, loader=loader)
    assert spec is not None
    sys.modules[_CORE] = core = module_from_spec(spec)
    try:
        loader.exec_module(core)
    except BaseException:
        del sys.modules[_CORE]
        raise


def is_pure() -> bool:
    """Returns whether the package was built for machines without a core: programs run natively."""
    return bool(getattr(_build_info, "PURE", False))


def _openvino_version() -> str | None:
    try:
        return metadata.version("openvino")
    except metadata.PackageNotFoundError:
        return releases.version_in("openvino", "__version__")


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
    release = releases.installed()
    built = _built_release(release) or max(_cores(), default=None, key=_order)
    openvino = getattr(_build_info, "OPENVINO_VERSION", None)
    return [("paddlepaddle", release, built), ("openvino", _openvino_version(), openvino)]
