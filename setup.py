"""Builds the C++ core with Paddle's cpp_extension.

WITH_NGRAPH=OFF leaves the core out: the package can be imported, and says what is missing.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
WITH_NGRAPH = os.environ.get("WITH_NGRAPH", "ON").upper() not in ("OFF", "0", "FALSE", "NO")


class BuildPython(build_py):
    """Writes down what the package was compiled against."""

    def run(self) -> None:
        super().run()
        target = ROOT if self.editable_mode else Path(self.build_lib)
        info = target / "paddle_ngraph" / "_build_info.py"
        info.write_text(
            '"""Written by setup.py: what this build was compiled against."""\n\n'
            f"WITH_NGRAPH = {WITH_NGRAPH}\n"
            f'PADDLE_VERSION = "{_version("paddlepaddle", "paddlepaddle-gpu")}"\n'
            f'OPENVINO_VERSION = "{_version("openvino")}"\n'
        )


def _version(*names: str) -> str:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "none"


def _engine() -> dict:
    """The extension and its build command, from Paddle's cpp_extension."""
    import openvino
    from paddle.utils.cpp_extension import BuildExtension, CppExtension
    from paddle.utils.cpp_extension.cpp_extension import _get_pybind11_abi_build_flags

    openvino_root = Path(openvino.__file__).parent
    library = next((openvino_root / "libs").glob("libopenvino.so.*"))

    class BuildCore(BuildExtension):
        """Paddle's build, with our own files under warnings and the headers of others without."""

        def build_extensions(self) -> None:
            for extension in self.extensions:
                flags = extension.extra_compile_args
                cxx = flags["cxx"] if isinstance(flags, dict) else flags
                while "-w" in cxx:
                    cxx.remove("-w")
                system = [f"-isystem{path}" for path in extension.include_dirs]
                extension.include_dirs = []
                cxx += [*system, "-Wall", "-Wextra", "-Werror"]
            super().build_extensions()

        def get_ext_filename(self, fullname: str) -> str:
            return os.path.join(*fullname.split(".")) + ".so"

    extension = CppExtension(
        sources=sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("paddle_ngraph/core/*.cc")),
        include_dirs=[str(openvino_root / "include")],
        extra_compile_args={
            # Paddle's own pybind11 version and ABI: both modules then share their registered types.
            "cxx": ["-std=c++17", "-O3", "-fvisibility=hidden", *_abi(_get_pybind11_abi_build_flags())]
        },
        extra_link_args=[str(library), *_rpaths(openvino_root)],
    )
    extension.name = "paddle_ngraph._core"
    return {"ext_modules": [extension], "cmdclass": {"build_py": BuildPython, "build_ext": BuildCore}}


def _abi(flags: list[str]) -> list[str]:
    return [flag.replace('\\"', '"') for flag in flags]


def _rpaths(openvino_root: Path) -> list[str]:
    """Found beside the installed package, and where they were at build time (editable installs)."""
    site = openvino_root.parent
    folders = ["openvino/libs", "paddle/base", "paddle/libs"]
    return [f"-Wl,-rpath,$ORIGIN/../{folder}" for folder in folders] + [
        f"-Wl,-rpath,{site / folder}" for folder in folders
    ]


def _requirements() -> list[str]:
    paddle = _version("paddlepaddle")
    openvino = _version("openvino")
    return [
        f"paddlepaddle=={paddle}" if WITH_NGRAPH and paddle != "none" else "paddlepaddle>=3.0",
        f"openvino=={openvino}" if WITH_NGRAPH and openvino != "none" else "openvino",
        "numpy",
    ]


setup(
    install_requires=_requirements(),
    **(_engine() if WITH_NGRAPH else {"cmdclass": {"build_py": BuildPython}}),
)
