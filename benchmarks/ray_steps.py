"""Training steps of two workers of Ray beside those of two ranks of ``launch``, in turns.

Both jobs are alive at once. While one takes a sample, all processes of the other are stopped, those
of the cluster of Ray, too: what a cluster does in the background counts for Ray only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import ranks, ray_rank, report
from benchmarks.options import Progress
from benchmarks.revisions import Comparison
from benchmarks.worker import ROOT, PeerError

PROCESS_PAIRS = 3
SAMPLES = 8  # of each job, for each network and pair of processes
SECONDS = 0.7  # of a sample
BAR = 1.02
_START_SECONDS = 300.0
_SETTLING_SECONDS = 0.3  # for what a process does that was stopped before
ABOUT = """\
Milliseconds of a training step of two ranks on one machine: workers of
`paddle_ngraph.ray.PaddleTrainer` beside ranks of `python -m paddle_ngraph launch`. Both take turns;
the ratio is that of two consecutive samples, in the median (above 1: Ray is slower); *95 %* is the
confidence interval of this median. Each pair of processes has several samples."""


def measure(options: Namespace) -> None:
    """Measures the steps; writes ``ray_steps.md`` and ``.json``."""
    if importlib.util.find_spec("ray") is None:
        raise PeerError("Ray is not installed: pip install 'paddle-ngraph[ray]'")
    models = [name for name in ranks.MODELS if not options.models or name in options.models]
    pairs, samples = (1, 2) if options.quick else (PROCESS_PAIRS, SAMPLES)
    found = {name: Comparison(name, [], []) for name in models}
    with Progress("ray_steps", pairs) as progress:
        for number in range(pairs):
            progress.say("starting")
            _add_pair(found, samples)
            texts = (f"{name} {each.ratio:.3f}" for name, each in found.items())
            progress.done(f"pair {number + 1}: {', '.join(texts)}")
    header = ["network", "Ray ms", "launch ms", "ratio", "95 %"]
    table = report.table(header, [each.cells() for each in found.values()])
    content = {"steps": [each.to_json() for each in found.values()]}
    report.write(options.output, "ray_steps", "Steps under Ray", [ABOUT, table], content)
    for name, each in found.items():
        if each.ratio > BAR:
            print(f"{name}: a step under Ray takes {each.ratio:.3f} of one under launch")


def _add_pair(found: dict[str, Comparison], samples: int) -> None:
    """Adds the median steps of the samples of a pair of jobs."""
    with ExitStack() as stack:
        launch, under_ray = (
            stack.enter_context(_started(kind, list(found))) for kind in ("launch", "driver")
        )
        for name, each in found.items():
            for sample in range(samples):
                order = (launch, under_ray) if sample % 2 == 0 else (under_ray, launch)
                ms = {job: job.sample(name) for job in order}
                each.here.append(ms[under_ray])
                each.before.append(ms[launch])


class _SteppingJob:
    """A job that is stopped between its samples.

    Args:
        process: The launcher, or the driver of Ray.
        folder: The files of :func:`benchmarks.ray_rank.loop`.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._samples = 0
        self._steps: dict[str, int] = {}

    def wait_until_ready(self) -> None:
        """Waits for the first step, and then stops the job."""
        self._awaited("ready")
        self._signal(signal.SIGSTOP)

    def sample(self, name: str) -> float:
        """The median milliseconds of a step in a sample."""
        self._signal(signal.SIGCONT)
        time.sleep(_SETTLING_SECONDS)
        if name not in self._steps:
            (first,) = self._taken(name, 1)
            self._steps[name] = max(5, round(SECONDS * 1e3 / first))
        ms = sorted(self._taken(name, self._steps[name]))
        self._signal(signal.SIGSTOP)
        return ms[len(ms) // 2]

    def end(self) -> None:
        """Ends the job; all its processes, if it does not end by itself."""
        self._signal(signal.SIGCONT)
        ray_rank.written(self._folder / f"sample_{self._samples}", ["", 0])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _taken(self, name: str, steps: int) -> list[float]:
        ray_rank.written(self._folder / f"sample_{self._samples}", [name, steps])
        ms: list[float] = self._awaited(f"times_{self._samples}")
        self._samples += 1
        return ms

    def _awaited(self, name: str) -> Any:
        end = time.monotonic() + _START_SECONDS
        while not (self._folder / name).exists():
            if self._process.poll() is not None or time.monotonic() > end:
                output = (self._folder / "output.txt").read_text(errors="replace")
                raise PeerError(f"a job has ended: {output.strip().splitlines()[-1:]}")
            time.sleep(0.002)
        return ray_rank.awaited(self._folder / name)

    def _signal(self, number: int) -> None:
        for pid in (*_descendants(self._process.pid), self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The children of a process, with theirs."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = (each / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(each.name))
    found, pending = [], [pid]
    while pending:
        more = children.get(pending.pop(), [])
        found += more
        pending += more
    return found


@contextmanager
def _started(kind: str, models: Sequence[str]) -> Iterator[_SteppingJob]:
    with tempfile.TemporaryDirectory() as folder:
        script = ROOT / "benchmarks" / "ray_rank.py"
        arguments = [script, kind, folder, ",".join(models)]
        launch = ["-m", "paddle_ngraph", "launch", "--nproc", ray_rank.RANKS, "--log-dir", folder]
        command = [*launch, *arguments] if kind == "launch" else arguments
        path = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))
        with open(Path(folder) / "output.txt", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", *map(str, command)],
                env={**os.environ, "PYTHONPATH": path, "GLOG_minloglevel": "2",
                     "FLAGS_ngraph_cache_dir": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        job = _SteppingJob(process, Path(folder))
        try:
            job.wait_until_ready()
            yield job
        finally:
            job.end()
