"""``python -m tests.fuzz --programs 10000 --seed 1``: random programs, engine against native.

Programs are checked in shares, each in a process of its own with a seed of its own. A failure ends
its share: the seed and the smallest program that fails are printed, and the other shares go on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from tqdm import tqdm

from tests.fuzz.check import Tally

_SHARE = 250


@dataclass(frozen=True)
class _Failure:
    seed: int
    programs: int
    message: str
    program: str

    def __str__(self) -> str:
        return (
            f"\n{'=' * 80}\nseed {self.seed} "
            f"(again: python -m tests.fuzz --programs {self.programs} --seed {self.seed})\n"
            f"{self.message}\n{'-' * 80}\n{self.program}"
        )


class _Run:
    def __init__(self, total: int, seed: int, save: Path | None) -> None:
        sizes = [_SHARE] * (total // _SHARE) + ([total % _SHARE] if total % _SHARE else [])
        self._shares = [(seed + number, size) for number, size in enumerate(sizes)]
        self._save = save
        self._lock = Lock()
        self.tally = Tally()
        self.failures: list[_Failure] = []
        self.bar = tqdm(total=total, unit=" programs", mininterval=1.0, smoothing=0.05)

    def go(self, jobs: int) -> None:
        """Runs every share, ``jobs`` at a time."""
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda share: self._share(*share), self._shares))
        self.bar.close()

    def _share(self, seed: int, size: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            last = Path(folder) / "program.py"
            log = Path(folder) / "log"
            command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker"]
            command += ["--programs", str(size), "--seed", str(seed), "--last", str(last)]
            environment = {**os.environ, "GLOG_minloglevel": "3"}
            with (
                log.open("w") as stderr,
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
                ) as process,
            ):
                seen, done = self._listen(process, seed, size)
            if not done:
                message = f"the process ended with {process.returncode}\n{log.read_text()[-1500:]}"
                self._fail(_Failure(seed, size, message, last.read_text() if last.exists() else ""))
            with self._lock:
                self.bar.update(size - seen)

    def _listen(self, process: subprocess.Popen[str], seed: int, size: int) -> tuple[int, bool]:
        seen, done = 0, False
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if "programs" in event:
                seen += event["programs"]
                with self._lock:
                    self.bar.update(event["programs"])
            elif "failure" in event:
                self._fail(_Failure(seed, size, event["failure"], event["program"]))
            elif "tally" in event:
                done = True
                values = event["tally"]
                with self._lock:
                    self.tally.add(Tally(**{**values, "native": Counter(values["native"])}))
        return seen, done

    def _fail(self, failure: _Failure) -> None:
        with self._lock:
            self.failures.append(failure)
            self.bar.write(str(failure), file=sys.stdout)
            if self._save is not None:
                self._save.mkdir(parents=True, exist_ok=True)
                text = f"# {failure.message}\n".replace("\n", "\n# ")[:-2] + failure.program
                (self._save / f"seed_{failure.seed}.py").write_text(text)


def main() -> int:
    """Checks many random programs; 0 when every one agrees."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=10000, help="how many (10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first share; counts up (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--save", type=Path, help="folder for the programs that fail")
    arguments = parser.parse_args()
    run = _Run(arguments.programs, arguments.seed, arguments.save)
    run.go(arguments.jobs)
    print(run.tally)
    print(f"{run.tally.programs} passed, {len(run.failures)} failed")
    return 1 if run.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
