"""Runs Paddle's layers of real networks by Paddle and with the engine: ``--cases DIR``.

They are those of PaddlePaddle's repository PaddleTest, ``framework/e2e/PaddleLT_new``: files that
define ``LayerCase`` and ``create_numpy_inputs()``, cut out of detectors, classifiers and text
recognizers, or for one function each. Results, gradients of inputs and parameters, and statistics
are compared. Where they differ, Paddle runs again, with errors of a few ulps on the inputs: the
engine may be further off than that by ``FACTOR``. Crashes and files that take too long cost one
case.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.worker import PeerError, Worker
from tests.layer_cases import DIFFERENT, SKIPPED, WAYS, Case, Play

_SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "GLOG_minloglevel": "3",
    "FLAGS_ngraph_min_interval_us": "0",
    # Paddle's random operators race for the stream otherwise.
    "FLAGS_new_executor_sequential_run": "1",
}


class Player:
    """Runs cases in a process, which is replaced after a crash.

    Args:
        play: The settings.
        timeout: Seconds for a case.
    """

    def __init__(self, play: Play, timeout: float) -> None:
        self._play = play
        self._timeout = timeout
        self._worker: Worker | None = None

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def play(self, path: Path) -> Case:
        """Runs a file."""
        if self._worker is None:
            self._worker = Worker(_SETTINGS, self._timeout)
        try:
            case: Case = self._worker.call(self._play.case, path)
        except PeerError as error:
            self.__exit__()
            is_late = str(error).startswith("no answer")
            return Case(path.name, SKIPPED if is_late else DIFFERENT, str(error))
        return case


def run_all(files: Sequence[Path], play: Play, jobs: int, timeout: float) -> list[Case]:
    """Runs files, several concurrently."""
    from tqdm import tqdm

    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for path in files:
        waiting.put(path)
    cases: list[Case] = []
    with ThreadPoolExecutor(jobs) as pool, tqdm(total=len(files), unit=" cases") as bar:

        def work() -> None:
            with Player(play, timeout) as player:
                while True:
                    try:
                        path = waiting.get_nowait()
                    except queue.Empty:
                        return
                    case = player.play(path)
                    case.name = str(path)
                    cases.append(case)
                    if case.outcome == DIFFERENT:
                        bar.write(f"DIFFERENT {path}: {case.message}")
                    bar.update()

        for each in [pool.submit(work) for _ in range(jobs)]:
            each.result()
    return sorted(cases, key=lambda case: case.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases; 0 when none differs."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n\n")[0])
    parser.add_argument("--cases", type=Path, metavar="DIR", help="a folder of cases, all below it")
    parser.add_argument("--way", choices=WAYS, default="to_static", help="what runs them")
    parser.add_argument("--evaluate", action="store_true", help="without gradients")
    parser.add_argument("--only", default="*.py", metavar="PATTERN", help="pattern of file names")
    parser.add_argument(
        "--most", type=int, default=600_000, metavar="NUMBERS", help="skip larger inputs (600000)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a case (120)")
    parser.add_argument("--report", type=Path, help="write every case to this JSON file")
    arguments = parser.parse_args(argv)
    if arguments.cases is None or not arguments.cases.is_dir():
        parser.error("--cases DIR: a folder of layer cases is missing")
    files = [path for path in arguments.cases.rglob(arguments.only) if path.name != "__init__.py"]
    if not files:
        parser.error(f"no file below {arguments.cases} is called like {arguments.only}")
    play = Play(arguments.way, not arguments.evaluate, arguments.most)
    paths = [path.resolve() for path in sorted(files)]
    cases = run_all(paths, play, arguments.jobs, arguments.timeout)
    if arguments.report is not None:
        arguments.report.write_text(json.dumps([asdict(case) for case in cases], indent=1))
    counts = Counter(case.outcome for case in cases)
    ran = sum(case.engine_runs > 0 for case in cases)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    print(f"the engine ran in {ran} of {len(cases)}")
    return 1 if counts[DIFFERENT] else 0


if __name__ == "__main__":
    raise SystemExit(main())
