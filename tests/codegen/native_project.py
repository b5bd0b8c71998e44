"""Generates projects, builds them and runs them; one build of the libraries serves all tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_ngraph.codegen import project, toolchain
from paddle_ngraph.transpiler import generate_native
from tests.programs import Program, chain

SECONDS = 600


def in_two_intervals():
    """Nothing converts ``erfinv``: a kernel of Paddle computes it."""
    return paddle.erfinv(paddle.clip(chain(), -0.7, 0.8)) + 1.0


def called(*command: Any, status: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Runs a command, which has to end with this status."""
    words = [str(word) for word in command]
    found = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, cwd=cwd)
    assert found.returncode == status, found.stdout[-3000:] + found.stderr[-3000:]
    return found


def build(folder: Path, *options: str, targets: tuple[str, ...] = ("main",)) -> None:
    named = [f"-D{name}={value}" for name, value in toolchain.options(folder).items()]
    cmake = toolchain.cmake()
    called(cmake, "-S", folder, "-B", folder / "build", *named, *options)
    called(cmake, "--build", folder / "build", "-j2", "--target", *targets)


def libraries(cache: pytest.Cache) -> Path:
    """The build folder of a project whose libraries others use; a later session builds on it."""
    kept = cache.mkdir("native_project")
    paddle.enable_static()
    program = Program(in_two_intervals)
    generate_native(program.main, kept / "new", program.fetches, force=True)
    for path in (kept / "new").rglob("*.*"):
        there = kept / "project" / path.relative_to(kept / "new")
        if path.is_file() and (not there.is_file() or there.read_bytes() != path.read_bytes()):
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there)
    build(kept / "project", targets=("ngraph_ops", "ngraph_runtime", "ngraph_phi"))
    return kept / "project" / "build"


class Project:
    """A generated project.

    Args:
        program: The program.
        folder: Where it goes.
        libraries: The build folder of another one, for its libraries.
        options: As in ``generate_native``.
    """

    def __init__(self, program: Program, folder: Path, libraries: Path, **options: Any) -> None:
        self.folder = folder
        self.program = program
        names = {f"result_{i}": value for i, value in enumerate(program.fetches)}
        generate_native(program.main, folder, names, scope=program.scope, **options)
        self._libraries = libraries

    def build(self, *targets: str) -> Project:
        build(self.folder, f"-DNGRAPH_PREBUILT={self._libraries}", targets=targets or ("main",))
        return self

    def manifest(self) -> str:
        """The text of its manifest."""
        return (self.folder / project.MANIFEST).read_text()

    def main(
        self, *arguments: Any, status: int = 0, under: Sequence[str] = ()
    ) -> subprocess.CompletedProcess:
        """Runs the program on its model, by another command if one is given."""
        command = [*under, self.folder / "build" / "main", self.folder / "model", *arguments]
        return called(*command, status=status, cwd=self.folder)

    def inputs(self, **feed: np.ndarray) -> list[str]:
        """Arguments that name files with these arrays."""
        words = []
        for name, array in feed.items():
            np.save(self.folder / f"{name}.npy", array)
            words += ["--input", f"{name}={self.folder / name}.npy"]
        return words

    def run(self, *arguments: Any, **feed: np.ndarray) -> list[np.ndarray]:
        """One run: the results."""
        output = self.folder / "results"
        output.mkdir(exist_ok=True)
        self.main(*self.inputs(**feed), "--output", output, *arguments)
        count = len(self.program.fetches)
        return [np.load(output / f"result_{number}.npy") for number in range(count)]

    def train(self, *arguments: Any, **data: np.ndarray) -> list[float]:
        """Trains on these arrays: the loss of each step."""
        text = self.main("--train", *self.inputs(**data), *arguments).stdout
        lines = [line.split() for line in text.splitlines()]
        assert [line[:3:2] for line in lines] == [["step:", "loss:"]] * len(lines)
        assert [int(line[1]) for line in lines] == list(range(len(lines)))
        return [float(line[3]) for line in lines]


class _Array(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.c_size_t * 9),
        ("data", ctypes.c_void_p),
    )


class _Declared(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.c_int64 * 9),
    )


class Library:
    """``libngraph_model.so`` of a project, by its C functions."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.ngraph_model_open.restype = ctypes.c_void_p
        self._c.ngraph_model_error.restype = ctypes.c_char_p
        for side in ("input", "result"):
            getattr(self._c, f"ngraph_model_{side}").restype = _Declared

    def open(self, folder: Path) -> Any:
        """Raises ValueError with the library's reason."""
        model = self._c.ngraph_model_open(str(folder).encode(), None)
        self._require(model)
        return ctypes.c_void_p(model)

    def inputs(self, model: Any) -> list[tuple[str, str, list[int]]]:
        return self._declared(model, "input")

    def results(self, model: Any) -> list[tuple[str, str, list[int]]]:
        return self._declared(model, "result")

    def run(self, model: Any, *arrays: np.ndarray) -> list[np.ndarray]:
        """Raises ValueError with the library's reason."""
        given = (_Array * len(arrays))()
        for each, array in zip(given, arrays):
            each.dtype, each.rank = str(array.dtype).encode(), array.ndim
            each.shape[: array.ndim] = array.shape
            each.data = array.ctypes.data
        made = (_Array * len(self.results(model)))()
        self._require(self._c.ngraph_model_run(model, given, made) == 0)
        results = [_copied(each) for each in made]
        for each in made:
            self._c.ngraph_array_release(ctypes.byref(each))
        return results

    def close(self, model: Any) -> None:
        self._c.ngraph_model_close(model)

    def _declared(self, model: Any, side: str) -> list[tuple[str, str, list[int]]]:
        count = getattr(self._c, f"ngraph_model_num_{side}s")(model)
        function = getattr(self._c, f"ngraph_model_{side}")
        found = [function(model, ctypes.c_size_t(number)) for number in range(count)]
        return [(f.name.decode(), f.dtype.decode(), list(f.shape[: f.rank])) for f in found]

    def _require(self, worked: Any) -> None:
        if not worked:
            raise ValueError(self._c.ngraph_model_error().decode())


def _copied(array: _Array) -> np.ndarray:
    dtype, shape = np.dtype(array.dtype.decode()), list(array.shape[: array.rank])
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(array.data, size), dtype).reshape(shape)
