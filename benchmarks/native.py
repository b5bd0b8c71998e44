"""Generated C++ projects against the engine in Python and against Paddle Inference."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import predictor_process as in_python
from benchmarks import report, works
from benchmarks.options import Progress, chosen
from benchmarks.worker import PeerError

MODELS = ("rec", "mobilenet_v2", "resnet50", "bert")
CPP, ENGINE, INFERENCE = "C++", in_python.ENGINE, in_python.INFERENCE
WAYS = (CPP, ENGINE, INFERENCE)
ABOUT = """\
Batch 1, all cores. Start-up: from the start of a process to its end, with one answer in between;
the engine in Python finds its functions on disk, as it does from the second process on. A run:
median of {runs} in a process. Memory: the most that this process had. Median of {rounds} processes.
On disk: the program and the libraries that it opens, without the model; for Python the packages
paddle, openvino and numpy, without the interpreter."""
# Libraries of the openvino wheel.
_LIBRARIES = (
    "libopenvino.so.*",
    "libopenvino_intel_cpu_plugin.so",
    "libopenvino_ir_frontend.so.*",
    "libtbb.so.*",
)
_TOLERANCE = 1e-4  # of the largest element of a result


def measure(options: Namespace) -> None:
    """Measures the projects; writes ``native.md`` and ``native.json``."""
    runs, rounds = (5, 1) if options.quick else (100, options.rounds)
    names = chosen(options, MODELS)
    found: dict[str, dict[str, Any]] = {}
    with Progress("native", len(names)) as progress, tempfile.TemporaryDirectory() as folder:
        prebuilt: Path | None = None
        for name in names:
            progress.say(name)
            case = _Case(name, Path(folder), runs)
            prebuilt = case.build(prebuilt)
            found[name] = case.measured(rounds)
            progress.done(f"{name}: {found[name]}")
    sections = [ABOUT.format(runs=runs, rounds=rounds), _table(found)]
    report.write(options.output, "native", "C++ projects", sections, {"native": found})


def _table(found: dict[str, dict[str, Any]]) -> str:
    header = ["", *(f"{what}: {way}" for what in ("start-up s", "run ms", "MB") for way in WAYS)]
    rows = []
    for name, ways in found.items():
        row = [works.inference(name, 1).description]
        for key, digits in (("start", 2), ("run", 2), ("memory", 0)):
            row += [f"{ways[way][key]:.{digits}f}" for way in WAYS]
        rows.append(row)
    sizes = next(iter(found.values()))
    row = ["MB on disk", *[""] * 6, *(f"{sizes[way]['disk']:.0f}" for way in WAYS)]
    return report.table(header, [*rows, row])


class _Case:
    """One model: its project, and its feeds in files."""

    def __init__(self, name: str, folder: Path, runs: int) -> None:
        import paddle

        from benchmarks import paddle_models

        paddle.enable_static()
        self._runs = runs
        self._folder = folder / name
        self._folder.mkdir()
        self._model = paddle_models.saved(name, folder)
        self._feed = works.inference(name, 1).feeds()[0]
        feeds: dict[str, Any] = dict(self._feed)
        np.savez(self._folder / "feeds.npz", **feeds)
        for key, array in self._feed.items():
            np.save(self._folder / f"{key}.npy", array)

    @property
    def _project(self) -> Path:
        return self._folder / "project"

    def build(self, prebuilt: Path | None) -> Path:
        """Builds the C++ program. Returns the folder of libraries, which other cases share."""
        from paddle_ngraph.codegen import toolchain
        from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
        from paddle_ngraph.transpiler import generate_native

        program, scope = SavedModel.at(self._model).load()
        shapes = {name: array.shape for name, array in self._feed.items()}
        generate_native(program, self._project, scope=scope, shapes=shapes, processor="native")
        options = [f"-D{name}={path}" for name, path in toolchain.options(self._project).items()]
        if prebuilt is not None:
            options.append(f"-DNGRAPH_PREBUILT={prebuilt}")
        folder = self._project / "build"
        _output([toolchain.cmake(), "-S", self._project, "-B", folder, *options])
        _output([toolchain.cmake(), "--build", folder, "-j2", "--target", "main"])
        return prebuilt or folder

    def measured(self, rounds: int) -> dict[str, Any]:
        """Returns, per variant: seconds to start, ms of a run, MB of memory and on disk."""
        expected = self._run(INFERENCE, 0)["values"]
        self._run(ENGINE, 0)  # stores its functions on disk
        times: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                times[way].append(self._ask(way))
        for way in WAYS:
            _compare(way, times[way][0]["values"], expected)
        keys = ("start", "run", "memory")
        sizes = self._sizes()
        return {
            way: {
                **{key: round(statistics.median(t[key] for t in times[way]), 3) for key in keys},
                "disk": round(sizes[way], 1),
            }
            for way in WAYS
        }

    def _ask(self, way: str) -> dict[str, Any]:
        """Runs a variant twice: for the time to start, and for the other results."""
        start = time.perf_counter()
        self._run(way, 0)
        seconds = time.perf_counter() - start
        return {"start": seconds, **self._run(way, self._runs)}

    def _run(self, way: str, runs: int) -> dict[str, Any]:
        if way == CPP:
            return self._run_cpp(runs)
        feeds = self._folder / "feeds.npz"
        command = [sys.executable, "-W", "ignore", in_python.__file__]
        text = _output([*command, way, self._model, feeds, runs])
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def _run_cpp(self, runs: int) -> dict[str, Any]:
        results = self._folder / "results"
        results.mkdir(exist_ok=True)
        command: list[Any] = [self._project / "build" / "main", self._project / "model"]
        for name in self._feed:
            command += ["--input", f"{name}={self._folder / name}.npy"]
        command += ["--output", results, "--repeat", runs]
        words = dict(line.split(": ") for line in _output(command).splitlines())
        values = [
            np.load(path).ravel()[: in_python.SHOWN].tolist()
            for path in sorted(results.glob("*.npy"))
        ]
        if not runs:
            return {"values": values}
        run, memory = (float(words[key].split()[0]) for key in ("run", "memory"))
        return {"run": run, "memory": memory, "values": values}

    def _sizes(self) -> dict[str, float]:
        """Returns MB on disk of each variant."""
        import openvino
        import paddle

        wheel, paddles = Path(openvino.__file__).parent, Path(paddle.__file__).parent
        opened = [path for name in _LIBRARIES for path in wheel.glob(f"libs/{name}")]
        build = self._project / "build"
        linked = [build / "main", *build.rglob("libngraph_ops.so"), paddles / "libs/libdnnl.so.3"]
        packages = [wheel, paddles, Path(np.__file__).parent]
        engine = [*packages, Path(__file__).parents[1] / "paddle_ngraph"]
        return {
            CPP: _megabytes([*opened, *linked]),
            ENGINE: _megabytes(file for folder in engine for file in folder.rglob("*")),
            INFERENCE: _megabytes(file for folder in packages[1:] for file in folder.rglob("*")),
        }


def _megabytes(files: Iterable[Path]) -> float:
    return sum(file.stat().st_size for file in files if file.is_file()) / 2**20


def _output(command: Sequence[Any]) -> str:
    found = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if found.returncode != 0:
        raise PeerError(f"{command[0]} failed: {(found.stdout + found.stderr)[-2000:]}")
    return found.stdout


def _compare(way: str, values: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raises PeerError if a result is wrong. C++ results are ordered by name."""
    for ours, theirs in zip(sorted(values), sorted(expected)):
        apart = np.abs(np.subtract(ours, theirs)).max()
        if not apart <= _TOLERANCE * np.abs(theirs).max():
            raise PeerError(f"{way}: a result differs by {apart:.2g} from Paddle's")
