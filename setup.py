"""Builds the C++ core with Paddle's cpp_extension.

WITH_NGRAPH=OFF leaves the core out: the package can be imported, and says what is missing.
WITH_MKL=ON|OFF builds the provider "mkl" of the packed layers or leaves it out; where nothing is
said, it is built if the packages mkl and mkl-include are installed.
SANITIZE=address|thread builds the core with this sanitizer of the compiler, for the tests (`make
sanitize`); it then needs the sanitizer's library preloaded, and finds others where they are now.
SANITIZE=coverage counts the lines that run, for gcov (`make coverage`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools import __version__ as setuptools_version
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def _is_off(name: str, default: str = "ON") -> bool:
    return (os.environ.get(name) or default).upper() in ("OFF", "0", "FALSE", "NO")


def _file_of(package: str, name: str) -> Path | None:
    """A file that an installed package brings; the last part of its path, or more, says which."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if str(file).endswith(name)]
    return found[0] if found else None


MKL_HEADER = _file_of("mkl-include", "/mkl_cblas.h")
MKL_CORE = _file_of("mkl", "/libmkl_core.so.2")
WITH_NGRAPH = not _is_off("WITH_NGRAPH")
WITH_MKL = WITH_NGRAPH and not _is_off("WITH_MKL", "ON" if MKL_HEADER and MKL_CORE else "OFF")
SANITIZE = os.environ.get("SANITIZE", "")
# The release whose headers fit the oneDNN 3.6 that Paddle brings.
ONEDNN_HEADERS = "onednn-devel==2025.0.0"

if int(setuptools_version.split(".")[0]) < 77:  # it would not read pyproject.toml
    raise SystemExit("paddle-ngraph needs setuptools 77 to build: run `pip install -U setuptools`.")


class BuildPython(build_py):
    """Writes down what the package was compiled against."""

    def run(self) -> None:
        super().run()
        target = ROOT if self.editable_mode else Path(self.build_lib)
        info = target / "paddle_ngraph" / "_build_info.py"
        info.parent.mkdir(parents=True, exist_ok=True)
        info.write_text(
            '"""Written by setup.py: what this build was compiled against."""\n\n'
            f"WITH_NGRAPH = {WITH_NGRAPH}\n"
            f"WITH_MKL = {WITH_MKL}\n"
            f'PADDLE_VERSION = "{_version("paddlepaddle", "paddlepaddle-gpu")}"\n'
            f'OPENVINO_VERSION = "{_version("openvino")}"\n'
        )


class BuildCore(build_ext):
    """Compiles the sources side by side, and names the library without a Python version.

    Paddle loads the library by its file name, Python by its module name.
    """

    def build_extensions(self) -> None:
        self.force = True  # what an earlier build left may be compiled against other releases
        onednn = _onednn_headers(Path(self.build_temp))
        compile_all = self.compiler.compile
        commands: list[dict[str, Any]] = []

        def compile_one(source: str, options: dict[str, Any]) -> list[str]:
            flags = [*options.pop("extra_postargs"), *_flags_of(Path(source), onednn)]
            command = [*self.compiler.compiler_so, *flags, "-c", source]
            commands.append({"directory": str(ROOT), "file": source, "arguments": command})
            return compile_all([source], extra_postargs=flags, **options)

        def compile_side_by_side(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = pool.map(lambda source: compile_one(source, dict(options)), sources)
                return [obj for part in parts for obj in part]

        self.compiler.compile = compile_side_by_side
        super().build_extensions()
        # For clang-tidy and editors.
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / "compile_commands.json").write_text(json.dumps(commands, indent=0))

    def build_extension(self, ext: Extension) -> None:
        if self.inplace or self.editable_mode or SANITIZE:
            ext.extra_link_args += _absolute_rpaths()
        super().build_extension(ext)

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"


def _engine() -> Extension:
    """The core, linked as Paddle's cpp_extension does it.

    Two libraries meet in it, each with an ABI of its own: ``core/ov`` is compiled for the openvino
    wheel, the rest for Paddle's.
    """
    from paddle.utils.cpp_extension import CppExtension

    libraries = _openvino() / "libs"
    patterns = ("paddle_ngraph/core/**/*.cc", "paddle_ngraph/mkl_packed/*.cc")
    sources = [path for pattern in patterns for path in ROOT.glob(pattern)]
    extension = CppExtension(
        sources=sorted(str(path.relative_to(ROOT)) for path in sources),
        extra_link_args=[
            *(_sanitizer() or ["-s"]),
            # Before libpaddle.so, which exports symbols of the older OpenVINO it was built with.
            str(next(libraries.glob("libopenvino.so.*"))),
            str(next(libraries.glob("libtbb.so.*"))),
            # Paddle's own: one oneDNN and one OpenMP in the process.
            str(_paddle_library("libdnnl.so.3")),
            str(_paddle_library("libiomp5.so")),
            *(f"-Wl,-rpath,$ORIGIN/../{folder}" for folder in _LIBRARY_FOLDERS),
        ],
    )
    extension.name = "paddle_ngraph._core"
    extension.runtime_library_dirs = []
    # -O3: the loops of the core's own operators are vectorized, those with a choice or a root in
    # them too, as nothing here looks at floating-point exceptions or errno. Products and sums are
    # rounded one by one.
    extension.extra_compile_args = [
        *("-std=c++17", "-O3", "-fno-trapping-math", "-fno-math-errno", "-ffp-contract=off"),
        *("-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
        # Messages name headers by their path; an isolated build has them in a temporary folder.
        f"-fmacro-prefix-map={_openvino().parent}/=",
        *_sanitizer(),
    ]
    extension.include_dirs = []
    return extension


def _sanitizer() -> list[str]:
    """Flags of compiler and linker."""
    if not SANITIZE:
        return []
    if SANITIZE == "coverage":
        counts = ("--coverage", "-fprofile-update=atomic", "-O1", "-Wno-error")
        return [*counts, "-Wl,-u,__gcov_dump,-u,__gcov_reset"]  # called between test files
    # GCC warns of what a sanitizer inserts.
    return [f"-fsanitize={SANITIZE}", "-O1", "-g1", "-fno-omit-frame-pointer", "-Wno-error"]


def _mkl() -> Extension:
    """MKL by its explicit layers, in a library that the core opens when it needs it.

    Its threads are those of the OpenMP runtime that Paddle brings.
    """
    if not MKL_HEADER or not MKL_CORE:
        raise SystemExit("WITH_MKL=ON needs the packages mkl==2023.2.0 and mkl-include==2023.2.0")
    layers = ("libmkl_intel_lp64.so.2", "libmkl_intel_thread.so.2", "libmkl_core.so.2")
    return Extension(
        "paddle_ngraph.mkl_packed._mkl",
        sources=["paddle_ngraph/mkl_packed/mkl/mkl_layers.cc"],
        include_dirs=[str(MKL_HEADER.parent)],
        extra_compile_args=["-std=c++17", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
        extra_link_args=[
            "-s",
            "-Wl,--no-as-needed",
            str(_paddle_library("libiomp5.so")),
            *(str(MKL_CORE.parent / layer) for layer in layers),
            "-Wl,-rpath,$ORIGIN/../../paddle/libs",
            "-Wl,-rpath,$ORIGIN/../../../..",  # <environment>/lib, where the wheel puts it
            f"-Wl,-rpath,{MKL_CORE.parent}",
        ],
    )


def _onednn_headers(folder: Path) -> Path:
    """The folder of oneDNN's headers, in an installed package or fetched into ``folder``.

    Paddle's wheel has the library, but not its headers. The package that has them asks for half a
    gigabyte of other packages, so that it is taken alone.
    """
    package = ONEDNN_HEADERS.split("==")[0]
    installed = _file_of(package, "/oneapi/dnnl/dnnl.hpp")
    if installed:
        return installed.parents[2]
    target = folder / package
    if not target.is_dir():
        target.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", str(target), ONEDNN_HEADERS], check=True)
        for wheel in target.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(target)
    return next(target.glob("*.data/data/include"))


def _flags_of(source: Path, onednn: Path) -> list[str]:
    """Compiler flags of a source, by the folder that it is in."""
    folders = source.relative_to("paddle_ngraph").parts[:-1]
    root = "-Ipaddle_ngraph"
    if folders == ("mkl_packed", "mkl"):
        return [root]
    if folders[:2] == ("core", "ov"):
        return [root, *_openvino_flags(), f"-isystem{onednn}"]
    if folders == ("mkl_packed",):
        return [root, *_paddle_flags(), "-fopenmp", f"-isystem{onednn}"]
    return [root, *_paddle_flags()]


def _paddle_library(name: str) -> Path:
    import paddle

    return Path(paddle.__file__).parent / "libs" / name


def _paddle_flags() -> list[str]:
    import paddle
    from paddle.utils.cpp_extension import CppExtension

    # The headers of others are not held to our warnings.
    headers = [f"-isystem{path}" for path in CppExtension(sources=["none.cc"]).include_dirs]
    # Paddle's own pybind11 ABI: both modules then share their registered types.
    platform = _platform_of(Path(paddle.__file__).parent / "base" / "libpaddle.so")
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
        # Releases before 2026 deprecate ov::Tensor::data() const for its return type of then.
        "-Wno-error=deprecated-declarations",
    ]


def _openvino_platform() -> str:
    return _platform_of(next(_openvino().glob("_pyopenvino*.so")))


@cache
def _platform_of(bindings: Path) -> str:
    """The platform that bindings were built for, as pybind11 writes it into them."""
    with bindings.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as code:
        found = re.search(rb"__pybind11_internals_v\d+(_\w+?)__\0", code)
        if found is None:
            raise SystemExit(f"{bindings.name} does not say which platform it was built for")
        return found[1].decode()


_LIBRARY_FOLDERS = ("openvino/libs", "paddle/base", "paddle/libs")


def _openvino() -> Path:
    import openvino

    return Path(openvino.__file__).parent


def _absolute_rpaths() -> list[str]:
    """For a library that stays in the source tree."""
    return [f"-Wl,-rpath,{_openvino().parent / folder}" for folder in _LIBRARY_FOLDERS]


def _version(*names: str) -> str:
    for name in names if WITH_NGRAPH else ():
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "nothing"


def _requirements() -> list[str]:
    """Exactly what the core was compiled against; without a core, any release will do."""
    if not WITH_NGRAPH:
        return ["paddlepaddle>=3.0", "openvino", "numpy"]
    return [
        f"paddlepaddle=={_version('paddlepaddle')}",
        f"openvino=={_version('openvino')}",
        "numpy",
    ]


setup(
    install_requires=_requirements(),
    ext_modules=([_engine()] if WITH_NGRAPH else []) + ([_mkl()] if WITH_MKL else []),
    cmdclass={"build_py": BuildPython, "build_ext": BuildCore},
)
