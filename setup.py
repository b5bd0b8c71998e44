"""Builds the C++ core: writes build.ninja for the installed packages, and Ninja compiles.

WITH_NGRAPH=OFF omits the core: the package can be imported, and reports that the core is missing.
WITH_MKL=ON|OFF builds or omits the provider "mkl" of the packed layers; by default it is built if
the packages mkl and mkl-include are installed.
SANITIZE=address|thread builds the core with this sanitizer of the compiler, for the tests (`make
sanitize`); the core then needs the sanitizer's library preloaded, and has absolute paths to other
libraries.
SANITIZE=coverage counts the lines that run, for gcov (`make coverage`).
PURE=ON builds the package for machines that have no core: programs run natively there.
MANYLINUX_STUBS names a folder of libraries of an older glibc to link against, SYMBOLS one for the
debug symbols of the libraries, and CORES one with cores for other releases of Paddle, which become
part of the package (tools/wheels.py sets all).
CXX, CXXFLAGS and LDFLAGS have their usual meaning.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path

from setuptools import Extension, setup
from setuptools import __version__ as setuptools_version
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


if int(setuptools_version.split(".")[0]) < 77:  # cannot read the license field of pyproject.toml
    raise SystemExit("paddle-ngraph needs setuptools 77 to build: run `pip install -U setuptools`.")


def _is_off(name: str, default: str = "ON") -> bool:
    return (os.environ.get(name) or default).upper() in ("OFF", "0", "FALSE", "NO")


def _file_of(package: str, name: str) -> Path | None:
    """Returns the first file of an installed package whose path ends with ``name``, or ``None``."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if str(file).endswith(name)]
    return found[0] if found else None


MKL_HEADER = _file_of("mkl-include", "/mkl_cblas.h")
MKL_CORE = _file_of("mkl", "/libmkl_core.so.2")
MKL_SOURCE = "paddle_ngraph/mkl_packed/mkl/mkl_layers.cc"
PURE = not _is_off("PURE", "OFF")
WITH_NGRAPH = not PURE and not _is_off("WITH_NGRAPH")
WITH_MKL = WITH_NGRAPH and not _is_off("WITH_MKL", "ON" if MKL_HEADER and MKL_CORE else "OFF")
SANITIZE = os.environ.get("SANITIZE", "")
MANYLINUX_STUBS = os.environ.get("MANYLINUX_STUBS", "")
SYMBOLS = os.environ.get("SYMBOLS", "")
CORES = os.environ.get("CORES", "")
# The release whose headers match the oneDNN 3.6 in Paddle's wheel.
ONEDNN_HEADERS = "onednn-devel==2025.0.0"


class BuildPython(build_py):
    """Writes the versions that the package is compiled against to ``_build_info.py``."""

    def run(self) -> None:
        if WITH_NGRAPH:
            _check_machine()
        super().run()
        target = ROOT if self.editable_mode else Path(self.build_lib)
        info = target / "paddle_ngraph" / "_build_info.py"
        info.parent.mkdir(parents=True, exist_ok=True)
        info.write_text(
            '"""Written by setup.py: versions that this build was compiled against."""\n\n'
            f"WITH_NGRAPH = {WITH_NGRAPH}\n"
            f"PURE = {PURE}\n"
            f"WITH_MKL = {WITH_MKL}\n"
            f'OPENVINO_VERSION = "{_version("openvino")}"\n'
            f'TARGET = "{"any" if PURE else _target()}"\n'
        )


class BuildCore(build_ext):
    """Names the libraries without a Python version, and compiles them with Ninja.

    The name of the core has Paddle's release: paddle_ngraph/installation.py chooses by it.
    """

    def run(self) -> None:
        if self.extensions:
            _check_machine()
        self.stays_in_tree = bool(self.inplace or self.editable_mode)
        super().run()

    def build_extensions(self) -> None:
        # setuptools uses a new temporary folder for each editable installation.
        folder = Path("build", "core") if self.stays_in_tree else Path(self.build_temp)
        with _exclusively(folder):
            self._build_in(folder)

    def _build_in(self, folder: Path) -> None:
        ninja = NinjaFile(folder)
        core, *mkl = (str(folder / self.get_ext_filename(ext.name)) for ext in self.extensions)
        ninja.link(core, _core_sources(), _core_libraries(self.stays_in_tree or bool(SANITIZE)))
        for library in mkl:
            ninja.link(library, [MKL_SOURCE], _mkl_libraries())
        ninja.run()
        if self.stays_in_tree:  # for clang-tidy and editors
            Path("build", "compile_commands.json").write_text(json.dumps(ninja.commands, indent=0))
        self._add_other_cores()
        for ext in self.extensions:
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            built = folder / self.get_ext_filename(ext.name)
            if SYMBOLS:
                _split_symbols(built, Path(SYMBOLS))
            _replace(built, target)

    def _add_other_cores(self) -> None:
        """Makes the cores in ``CORES`` part of a wheel, and removes those of earlier builds."""
        if self.stays_in_tree:
            return
        package = Path(self.build_lib, "paddle_ngraph")
        for core in package.glob("_core*.so"):
            core.unlink()
        package.mkdir(parents=True, exist_ok=True)
        for core in _other_cores():
            _replace(core, package / core.name)

    def get_ext_filename(self, fullname: str) -> str:
        release = f".{_paddle_release()}" if fullname.split(".")[-1] == "_core" else ""
        return os.path.join(*fullname.split(".")) + f"{release}.so"


@contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """Has a second build in the folder, such as that of another `make`, wait for the first."""
    import fcntl  # which Windows lacks; there is no core to build there

    _make(folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise SystemExit(f"A file is in the way of the folder {folder}: remove it.") from error


def _check_machine() -> None:
    machine = (sys.platform, platform.machine(), platform.libc_ver()[0])
    if machine != ("linux", "x86_64", "glibc"):
        raise SystemExit(
            "The core of paddle-ngraph is for Linux with glibc on x86-64: build the package "
            "without it, `PURE=ON pip install .`; programs then run natively."
        )


def _split_symbols(library: Path, folder: Path) -> None:
    """Moves the debug symbols of a library to a file of their own, where debuggers find them."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = folder / f"{library.stem}.debug"
    for command in (
        ["--only-keep-debug", str(library), str(symbols)],
        ["--strip-all", f"--add-gnu-debuglink={symbols}", str(library)],
    ):
        subprocess.run(["objcopy", *command], check=True)


def _replace(source: Path, target: Path) -> None:
    """Copies a library: an interruption leaves the old one, and no newer file is kept."""
    unfinished = target.with_name(f"{target.stem}.part.so")
    shutil.copy2(source, unfinished)
    unfinished.replace(target)


class NinjaFile:
    """A build.ninja file for libraries in a folder.

    Ninja runs the commands whose text, source, header in this tree, or installed version of a
    library has changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = [
            f"builddir = {_escaped(str(folder))}",
            "rule compile\n command = $command\n deps = gcc\n depfile = $out.d",
            " description = $in",
            "rule link\n command = $command\n description = $out",
        ]
        self.precompiled: set[str] = set()
        self.commands: list[dict[str, object]] = []  # without precompiled headers
        _make(folder)
        # A dependency in place of the headers of libraries, which Ninja does not track.
        self.versions = folder / "versions"
        versions = _versions()
        if not self.versions.is_file() or self.versions.read_text() != versions:
            self.versions.write_text(versions)
        self.onednn = _onednn_headers(folder)

    def link(self, library: str, sources: Sequence[str], libraries: Sequence[str]) -> None:
        groups = [[source] for source in sources if os.path.getsize(source) >= _SMALL_BYTES]
        groups += _unity_groups([s for s in sources if os.path.getsize(s) < _SMALL_BYTES])
        # The largest sources first, since they take longest.
        groups.sort(key=lambda group: sum(map(os.path.getsize, group)), reverse=True)
        objects = [self._compile(group) for group in groups]
        flags = [*_words_of("LDFLAGS"), *(_sanitizer() or ([] if SYMBOLS else ["-s"]))]
        if MANYLINUX_STUBS:
            flags.append(f"-L{MANYLINUX_STUBS}")
            libraries = [*libraries, "-Wl,--as-needed", "-lpthread", "-ldl"]
        if SANITIZE == "coverage":  # the recorder of tests calls these functions
            flags += ["-Wl,-u,__gcov_dump,-u,__gcov_reset"]
        command = [*_compiler(), "-shared", *flags, "-o", library]
        self._build("link", library, objects, [*command, *objects, *libraries])

    def _compile(self, sources: Sequence[str]) -> str:
        """Adds the object of one source, or of several that are compiled as one."""
        source = sources[0]
        group = _group_of(source)
        command = [*_compiler(), *_flags_of(group, self.onednn, _optimization_of(source))]
        for each in sources:
            arguments = [*command, "-c", each]
            self.commands.append({"directory": str(ROOT), "file": each, "arguments": arguments})
        after = list(sources[1:])
        if group in _PRECOMPILED:
            header = str(self.folder / _PRECOMPILED[group])
            common = [*_compiler(), *_flags_of(group, self.onednn, _OPTIMIZATION)]
            after.append(self._precompile(_PRECOMPILED[group], f"{header}.gch", common))
            command += ["-include", header]
        if len(sources) > 1:
            source = self._unity(sources)
            command.append("-I.")
            if _is_gcc():  # Each source is an included file; GCC warns of internal linkage there.
                command.append("-Wno-subobject-linkage")
        target = f"{self.folder / sources[0]}.o"
        output = ["-MMD", "-MF", f"{target}.d", "-o", target]
        self._build("compile", target, [source], [*command, *output, "-c", source], after)
        return target

    def _unity(self, sources: Sequence[str]) -> str:
        file = (self.folder / "unity" / sources[0]).with_suffix(".cc")
        text = "".join(f'#include "{source}"\n' for source in sources)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text() != text:
            file.write_text(text)
        return str(file)

    def _precompile(self, header: str, target: str, command: Sequence[str]) -> str:
        if target not in self.precompiled:
            self.precompiled.add(target)
            output = ["-MMD", "-MF", f"{target}.d", "-o", target, "-x", "c++-header", header]
            self._build("compile", target, [header], [*command, *output])
        return target

    def _build(
        self,
        rule: str,
        target: str,
        sources: Sequence[str],
        command: Sequence[str],
        after: Sequence[str] = (),
    ) -> None:
        inputs = " ".join(map(_escaped, sources))
        others = " ".join(map(_escaped, (str(self.versions), *after)))
        self.lines.append(f"build {_escaped(target)}: {rule} {inputs} | {others}")
        self.lines.append(f" command = {shlex.join(command).replace('$', '$$')}")

    def run(self) -> None:
        file = self.folder / "build.ninja"
        file.write_text("\n".join(self.lines) + "\n")
        if subprocess.run([_ninja(), "-f", str(file)]).returncode:
            raise SystemExit(_why_failed(self.folder))


def _escaped(path: str) -> str:
    return re.sub(r"([$ :])", r"$\1", path)


def _words_of(variable: str) -> list[str]:
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise SystemExit(f"{variable} cannot be split into words: {error}.") from error


@cache
def _compiler() -> list[str]:
    command = _words_of("CXX") or ["g++"]
    if not shutil.which(command[0]):
        raise SystemExit(
            f"There is no C++ compiler {command[0]}: install one (`apt install g++` on Debian and "
            "Ubuntu), or name yours in CXX, and build again."
        )
    return command


@cache
def _compiler_version() -> str:
    """Returns the output of ``--version``, in English, so that another LANG compiles nothing."""
    command = [*_compiler(), "--version"]
    # GCC translates the text by LANGUAGE, unless the locale is C.
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, env=environment).stdout


def _is_gcc() -> bool:
    return "Free Software Foundation" in _compiler_version()


def _ninja() -> str:
    found = _file_of("ninja", "/bin/ninja") or shutil.which("ninja")
    if not found:
        raise SystemExit("There is no Ninja, which builds the core: `pip install ninja`.")
    return str(found)


def _why_failed(folder: Path) -> str:
    if shutil.disk_usage(folder).free < 32 << 20:
        return "The disk is full: make room, and build again; what is compiled is kept."
    return "The core was not built, see above; a next build goes on from here."


def _versions() -> str:
    """Returns versions of packages and compiler: inputs of the build that Ninja does not track."""
    names = ("paddlepaddle", "paddlepaddle-gpu", "openvino", "onednn-devel", "mkl", "mkl-include")
    return "".join([f"{name} {_version(name)}\n" for name in names] + [_compiler_version()])


def _core_sources() -> list[str]:
    patterns = ("paddle_ngraph/core/**/*.cc", "paddle_ngraph/mkl_packed/*.cc")
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    names = sorted(str(path.relative_to(ROOT)) for path in found)
    return [name for name in names if MANYLINUX_STUBS or "/manylinux/" not in name]


def _core_libraries(stays_here: bool) -> list[str]:
    """Returns the link flags of the core.

    The core combines two C++ ABIs: ``core/ov`` is compiled for the openvino wheel, the rest for
    Paddle's.
    """
    libraries = _openvino() / "libs"
    return [
        # Before libpaddle.so, which exports symbols of the older OpenVINO it was built with.
        str(next(libraries.glob("libopenvino.so.*"))),
        str(next(libraries.glob("libtbb.so.*"))),
        # From Paddle's wheel, so that the process has one oneDNN and one OpenMP runtime.
        str(_paddle_library("libdnnl.so.3")),
        str(_paddle_library("libiomp5.so")),
        *(f"-L{_paddle() / 'base'}", "-Wl,--no-as-needed", "-l:libpaddle.so"),
        *(f"-Wl,-rpath,$ORIGIN/../{folder}" for folder in _LIBRARY_FOLDERS),
        *(_absolute_rpaths() if stays_here else []),
    ]


def _sanitizer() -> list[str]:
    """Returns the flags of ``SANITIZE`` for compiler and linker."""
    if not SANITIZE:
        return []
    if SANITIZE == "coverage":
        return ["--coverage", "-fprofile-update=atomic", "-O1", "-Wno-error"]
    # GCC warns of code that a sanitizer inserts.
    return [f"-fsanitize={SANITIZE}", "-O1", "-g1", "-fno-omit-frame-pointer", "-Wno-error"]


def _mkl_libraries() -> list[str]:
    """Returns the link flags of MKL's explicit layers, for a library that the core loads lazily.

    MKL uses the OpenMP runtime of Paddle's wheel.
    """
    folder = _mkl_folder(MKL_CORE)
    layers = ("libmkl_intel_lp64.so.2", "libmkl_intel_thread.so.2", "libmkl_core.so.2")
    return [
        "-Wl,--no-as-needed",
        str(_paddle_library("libiomp5.so")),
        *(str(folder / layer) for layer in layers),
        "-Wl,-rpath,$ORIGIN/../../paddle/libs",
        "-Wl,-rpath,$ORIGIN/../../../..",  # <environment>/lib, the folder of the mkl wheel
        *([] if MANYLINUX_STUBS else [f"-Wl,-rpath,{folder}"]),
    ]


def _mkl_folder(file: Path | None) -> Path:
    if not file:
        raise SystemExit("WITH_MKL=ON needs the packages mkl==2023.2.0 and mkl-include==2023.2.0")
    return file.parent


def _onednn_headers(folder: Path) -> Path:
    """Returns the folder of oneDNN's headers, in an installed package or downloaded to ``folder``.

    Paddle's wheel has the library, but not its headers. The package with the headers requires half
    a gigabyte of other packages, so it is downloaded without dependencies.
    """
    package = ONEDNN_HEADERS.split("==")[0]
    installed = _file_of(package, "/oneapi/dnnl/dnnl.hpp")
    if installed:
        return installed.parents[2]
    target = folder / package
    if not target.is_dir():
        unfinished = folder / f"{package}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        if subprocess.run([*pip, "--dest", str(unfinished), ONEDNN_HEADERS]).returncode:
            raise SystemExit(
                "The headers of oneDNN could not be downloaded, see above: check the network, or "
                f"run `pip install --no-deps {ONEDNN_HEADERS}`, and build again."
            )
        for wheel in unfinished.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(unfinished)
        unfinished.rename(target)
    return next(target.glob("*.data/data/include"))


# Sources below this size are compiled as one, up to this many at once: their headers take longer to
# compile than their code.
_SMALL_BYTES = 5000
_UNITY_SOURCES = 5
# The loops of the core's own operators are vectorized.
_OPTIMIZATION = "-O3"
# Code that runs once per graph or process, not per run: -O1 compiles a quarter faster.
_RUNS_ONCE = (
    "core/python_module.cc",
    "core/engine/disk_cache.cc",
    "core/engine/model_builder.cc",
    "core/engine/stored_function.cc",
    "core/ov/extension_ops.cc",
    "core/paddle/kernel_call.cc",
    "core/paddle/native_operator.cc",
    "core/paddle/ngraph_pass.cc",
    "core/paddle/program_editor.cc",
)


def _optimization_of(source: str) -> str:
    return "-O1" if source.endswith(_RUNS_ONCE) else _OPTIMIZATION


def _unity_groups(sources: Sequence[str]) -> list[list[str]]:
    """Groups sources to compile as one: with equal flags, in the order of their names."""
    by_flags: dict[tuple[str, str], list[str]] = {}
    for source in sorted(sources):
        by_flags.setdefault((_group_of(source), _optimization_of(source)), []).append(source)
    return [
        together[first : first + _UNITY_SOURCES]
        for together in by_flags.values()
        for first in range(0, len(together), _UNITY_SOURCES)
    ]


# Precompiled headers of libraries, by group of sources.
_PRECOMPILED = {
    "paddle": "paddle_ngraph/core/precompiled/paddle.h",
    "openvino": "paddle_ngraph/core/precompiled/openvino.h",
}


def _group_of(source: str) -> str:
    """Returns the group of a source, which determines headers and ABI, by its folder."""
    folders = Path(source).relative_to("paddle_ngraph").parts[:-1]
    if folders[:1] == ("mkl_packed",):
        return folders[-1]
    if folders[:2] == ("core", "ov"):
        return "kernels" if folders[-1] == "kernels" else "openvino"
    return folders[-1] if folders[-1] in ("common", "manylinux") else "paddle"


def _flags_of(group: str, onednn: Path, optimization: str) -> list[str]:
    """Returns the compiler flags of a group of sources.

    Loops with a select or a square root are vectorized, too, since the core does not read
    floating-point exceptions or errno. No fused multiply-add: products and sums round separately.
    """
    if group == "mkl":
        headers = [f"-isystem{_mkl_folder(MKL_HEADER)}"]
    elif group in ("openvino", "kernels"):
        headers = [*_openvino_flags(), f"-isystem{onednn}"]
    elif group == "mkl_packed":
        headers = [*_paddle_flags(), "-fopenmp", f"-isystem{onednn}"]
    else:
        headers = _paddle_flags()
    return [
        *("-std=c++17", optimization, "-fno-trapping-math", "-fno-math-errno", "-ffp-contract=off"),
        *("-fwrapv", "-DNDEBUG", "-fPIC", "-pipe", "-fvisibility=hidden"),
        # Fewer garbage collections of the compiler.
        *(("--param", "ggc-min-heapsize=1048576") if _is_gcc() else ()),
        *("-Wall", "-Wextra", "-Werror"),
        # Messages name headers by their path; an isolated build has them in a temporary folder.
        f"-fmacro-prefix-map={_openvino().parent}/=",
        *(_symbol_flags() if SYMBOLS else []),
        *_sanitizer(),
        "-Ipaddle_ngraph",
        *headers,
        *_words_of("CXXFLAGS"),
    ]


def _symbol_flags() -> list[str]:
    """Returns the flags for debug symbols, which name no folder of this machine."""
    # oneDNN's headers are outside of site-packages.
    folders = {ROOT: ".", Path(sys.prefix): "environment", Path(sys.base_prefix): "python"}
    return ["-g1", *(f"-fdebug-prefix-map={folder}={name}" for folder, name in folders.items())]


def _paddle_library(name: str) -> Path:
    return _paddle() / "libs" / name


def _paddle_flags() -> list[str]:
    # The flags of Paddle's cpp_extension. -isystem: no warnings for headers of libraries.
    include = _paddle() / "include"
    compat = include / "paddle" / "phi" / "api" / "include" / "compat"
    torch = compat / "torch" / "csrc" / "api" / "include"
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise SystemExit(
            f"There are no headers of Python in {python}: install them (`apt install python3-dev` "
            "on Debian and Ubuntu), and build again."
        )
    folders = (include, include / "third_party", compat, torch, python)
    headers = [f"-isystem{path}" for path in folders]
    # Paddle's own pybind11 ABI: both modules then share their registered types.
    platform = _platform_of(_paddle() / "base" / "libpaddle.so")
    names = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
    parts = zip(names, re.findall("_[a-z0-9]+", platform))
    abi = [f'-DPYBIND11_{name}="{part}"' for name, part in parts]
    openvino = f'-DNGRAPH_OPENVINO_PLATFORM="{_openvino_platform()}"'
    return ["-D_GLIBCXX_USE_CXX11_ABI=1", openvino, *abi, *headers]


def _openvino_flags() -> list[str]:
    old_abi = _openvino_platform().endswith("cxx11_abi_0")
    return [
        f"-D_GLIBCXX_USE_CXX11_ABI={int(not old_abi)}",
        f"-isystem{_openvino() / 'include'}",
        # Releases before 2026 deprecate ov::Tensor::data() const, because of its old return type.
        "-Wno-error=deprecated-declarations",
    ]


def _openvino_platform() -> str:
    return _platform_of(next(_openvino().glob("_pyopenvino*.so")))


@cache
def _platform_of(bindings: Path) -> str:
    """Returns the platform that bindings were built for, which pybind11 stores in the binary."""
    with bindings.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as code:
        found = re.search(rb"__pybind11_internals_v\d+(_\w+?)__\0", code)
        if found is None:
            raise SystemExit(f"{bindings.name} does not say which platform it was built for")
        return found[1].decode()


_LIBRARY_FOLDERS = ("openvino/libs", "paddle/base", "paddle/libs")


@cache
def _folder_of(package: str) -> Path:
    """Returns the folder of a package without importing it, which would take seconds."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The core is compiled against {package}, which is not installed.")
    return Path(spec.origin).parent


def _openvino() -> Path:
    return _folder_of("openvino")


def _paddle() -> Path:
    return _folder_of("paddle")


def _absolute_rpaths() -> list[str]:
    """Returns the link flags of a library that stays in the source tree."""
    return [f"-Wl,-rpath,{_openvino().parent / folder}" for folder in _LIBRARY_FOLDERS]


def _version(*names: str) -> str:
    for name in names if WITH_NGRAPH else ():
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "nothing"


def _target() -> str:
    """Returns the interpreter and the machine, as ``paddle_ngraph.installation`` describes them."""
    python = ".".join(map(str, sys.version_info[:2]))
    implementation = platform.python_implementation()
    return f"{implementation} {python} on {platform.system()} {platform.machine()}"


def _requirements() -> list[str]:
    """Returns the lines of Paddle, and exactly the OpenVINO, that the cores were compiled against.

    Without a core: any.
    """
    if PURE:
        return ["paddlepaddle>=3.0", "numpy"]
    if not WITH_NGRAPH:
        return ["paddlepaddle>=3.0", "openvino", "numpy"]
    openvino = _version("openvino")
    return [
        _range_of([_paddle_release(), *map(_release_of, _other_cores())]),
        "openvino" if openvino == "nothing" else f"openvino=={openvino}",
        "numpy",
    ]


def _range_of(releases: Sequence[str]) -> str:
    """Returns the requirement of Paddle for cores that were compiled against these releases."""
    if "nothing" in releases:
        return "paddlepaddle"
    ordered = sorted(releases, key=lambda release: [int(n) for n in re.findall(r"\d+", release)])
    major, minor = ordered[-1].split(".")[:2]
    return f"paddlepaddle>={ordered[0]},<{major}.{int(minor) + 1}"


def _paddle_release() -> str:
    return _version("paddlepaddle", "paddlepaddle-gpu")


def _other_cores() -> list[Path]:
    return sorted(Path(CORES).glob("_core.*.so")) if CORES else []


def _release_of(core: Path) -> str:
    return core.stem[len("_core.") :]


def _extensions() -> list[Extension]:
    core = Extension("paddle_ngraph._core", sources=_core_sources())
    mkl = Extension("paddle_ngraph.mkl_packed._mkl", sources=[MKL_SOURCE])
    return [core] * WITH_NGRAPH + [mkl] * WITH_MKL


setup(
    install_requires=_requirements(),
    ext_modules=_extensions(),
    cmdclass={"build_py": BuildPython, "build_ext": BuildCore},
)
