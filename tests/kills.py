"""Kills and stops ranks of a training at random, and compares with an undisturbed one.

python -m tests.kills --kills 20 --seed 1

Half of the kills come while a checkpoint is being written; half are SIGKILL, half SIGSTOP.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests import jobs

RANKS = 2
# Seconds: a training that takes longer hangs, on the slowest machine.
LIMIT = 7200.0
SCRIPT = jobs.ROOT / "tests" / "restarted_training.py"


class Job:
    """A training in a folder, started by the launcher."""

    def __init__(self, folder: Path, steps: int, restarts: int = 0, timeout: float = 6) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self._output = folder / "output.txt"
        options = ["--nproc", RANKS, "--max-restarts", restarts, "--timeout", timeout]
        options += ["--checkpoint", self.checkpoints, "--log-dir", folder / "log"]
        command = ["-m", "paddle_ngraph", "launch", *options, SCRIPT, folder, "--steps", steps]
        path = os.pathsep.join(filter(None, [str(jobs.ROOT), os.getenv("PYTHONPATH")]))
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", *map(str, command)],
                env={**os.environ, "PYTHONPATH": path, "GLOG_minloglevel": "2"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def lines(self, rank: int) -> list[list[str]]:
        """Returns the lines that a rank has written: starts, and the loss of each step."""
        path = self.folder / f"losses_{rank}.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def losses(self, rank: int) -> dict[int, set[str]]:
        """All losses of each step: several, if it was repeated with another result."""
        found: dict[int, set[str]] = {}
        for line in self.lines(rank):
            if line[0].isdecimal():
                found.setdefault(int(line[0]), set()).add(line[1])
        return found

    def starts(self, rank: int) -> list[tuple[int, int]]:
        """For each start its first step, and the number of steps done and written before."""
        done, found = 0, []
        for line in self.lines(rank):
            if line[0] == "start":
                found.append((int(line[1]), done))
            elif line[0].isdecimal():
                done = int(line[0]) + 1
        return found

    def output(self) -> str:
        """Returns the output of the launcher and rank 0."""
        return self._output.read_text()

    def wait(self, limit: float) -> int:
        """Waits; returns the exit status."""
        try:
            return self.process.wait(limit)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the job with its ranks."""
        self.process.kill()
        self.process.wait()


def _wait_for(job: Job, condition: object, limit: float = jobs.LIMIT) -> bool:
    end = time.monotonic() + limit
    while job.process.poll() is None and time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.001)
    return False


def disturb(job: Job, kills: int, seed: int) -> list[str]:
    """Kills and stops ranks, each after some steps since the last start; returns a list of them."""
    draw, done = random.Random(seed), []
    plan = [("SIGKILL", False), ("SIGSTOP", True), ("SIGKILL", True), ("SIGSTOP", False)]
    for kill in range(kills):
        number, writing = plan[kill % len(plan)]
        rank, steps = draw.randrange(RANKS), draw.randrange(1, 5)

        def is_under_way(starts: int = kill + 1, rank: int = rank, steps: int = steps) -> bool:
            lines = job.lines(rank)
            begun = [place for place, line in enumerate(lines) if line[0] == "start"]
            return len(begun) == starts and len(lines) > begun[-1] + steps

        if not _wait_for(job, is_under_way):
            break
        pid = int(job.lines(rank)[-1][2])
        time.sleep(draw.uniform(0, 0.05))
        if writing:
            _wait_for(job, lambda: list(job.checkpoints.glob(".unfinished-*")), 20)
            time.sleep(draw.uniform(0, 0.005))
        try:
            os.kill(pid, signal.Signals[number])
        except ProcessLookupError:  # it was too fast
            break
        done.append(f"rank {rank} {number}{' while writing' if writing else ''}")
    return done


def check(folder: Path, kills: int, seed: int, steps: int) -> list[str]:
    """Raises AssertionError if kills make a difference; returns a summary."""
    calm = Job(folder / "calm", steps)
    try:
        assert calm.wait(LIMIT) == 0, calm.output()
        job = Job(folder / "disturbed", steps, restarts=kills)
        done = disturb(job, kills, seed)
        assert job.wait(LIMIT) == 0, job.output()
    finally:
        calm.kill()
    assert len(done) == kills, f"{done}: the training was over before; take more steps"
    for rank in range(RANKS):
        expected = calm.losses(rank)
        assert sorted(expected) == list(range(steps))
        assert job.losses(rank) == expected, f"rank {rank}"
        for begun, before in job.starts(rank):
            assert before - 1 <= begun <= before + 1, "more than the last step was lost"
        assert job.lines(rank)[-1] == ["end"]
    said = job.output()
    for number, each in enumerate(done, 1):
        what = "was killed by SIGKILL" if "KILL" in each else "is stuck: it has had no heartbeat"
        assert f"paddle_ngraph: {' '.join(each.split()[:2])} {what}" in said, said
        assert f"(restart {number} of {kills})" in said
    return done


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="default: 30 for each kill")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        steps = options.steps or 30 * (options.kills + 1)
        for each in check(Path(folder), options.kills, options.seed, steps):
            print(each)
    print("every loss is that of the undisturbed training")


if __name__ == "__main__":
    main()
