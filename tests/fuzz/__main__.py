"""``python -m tests.fuzz``: random programs, lives of programs and of layers, damaged files.

``--layers`` are lives of layers of dynamic mode; damaged are graph strings and stored functions.

They are checked in shares, each with one seed. Passed shares are stored in a file (``--state``):
the next run continues where this one ended, for whatever reason, and repeats failures first. A
failure prints the seed and the smallest script that fails; the other shares continue.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer

from tqdm import tqdm

from tests.fuzz.check import Tally
from tests.fuzz.lives import shrunk
from tests.fuzz.shares import DEFAULT_FILE, ROOT, SIZES, Share, State, revision

_HUNG_SECONDS = 900  # no share takes that long
_SHRINK_SECONDS = 90
# Paddle permanently retains data of each program: interpreters, call stacks of its operators.
_MOST_MEGABYTES = 2048
_ENDED = "the process ended with"
_LINE = f"{'-' * 80}\n"  # between the event and the script


def _environment() -> dict[str, str]:
    # One core for each process, since they would compete.
    return {"GLOG_minloglevel": "3", "FLAGS_ngraph_num_threads": "1", **os.environ}


def _megabytes(process: int) -> int:
    """Returns the memory of a process in megabytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


class _Worker:
    """A process that checks shares, one after another; started again after a crash or growth."""

    def __init__(self, folder: Path) -> None:
        self._last = folder / "example.py"
        self._log = folder / "log"
        self._process: subprocess.Popen[str] | None = None

    def check(self, kind: str, seed: int, until: float) -> tuple[Share, Tally] | None:
        """Checks a share; ``None`` if time is up first."""
        process = self._process or self._start()
        assert process.stdin is not None
        self._last.unlink(missing_ok=True)
        limit = min(until - time.monotonic(), _HUNG_SECONDS)
        timer = Timer(max(limit, 0.0), process.kill)
        timer.start()
        try:
            print(kind, seed, file=process.stdin, flush=True)
            share, tally, done = self._listen(process, Share(kind, seed, 0, ""))
        except BrokenPipeError:  # it ended before its first share
            share, tally, done = Share(kind, seed, 0, ""), Tally(), False
        finally:
            timer.cancel()
        if done:
            if _megabytes(process.pid) > _MOST_MEGABYTES:
                self.stop()
            return share, tally
        self.stop()
        if share.failure:  # reported before time was up, or before a crash while shrinking
            return share, tally
        if time.monotonic() >= until:
            return None
        script = self._last.read_text() if self._last.exists() else ""
        log = self._log.read_text(errors="replace")[-1500:]
        share.failure = f"{_ENDED} {process.returncode}\n{log}\n{_LINE}{script}"
        return share, tally

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker"]
        with self._log.open("w") as stderr:
            self._process = subprocess.Popen(
                [*command, "--last", str(self._last)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env=_environment(),
            )
        return self._process

    def _listen(self, process: subprocess.Popen[str], share: Share) -> tuple[Share, Tally, bool]:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if "failure" in event:
                share.failure = f"{event['failure']}\n{_LINE}{event['script']}"
            else:
                share.passed = event["done"]
                return share, Tally.from_dict(event["tally"]), True
        return share, Tally(), False

    def stop(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process = None


class _Run:
    def __init__(
        self, state: State, shares: list[tuple[str, int]], minutes: float, save: Path | None
    ) -> None:
        self._state = state
        self._save = save
        self._revision = revision()
        self._until = time.monotonic() + 60 * minutes
        self._waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        for share in shares:
            self._waiting.put(share)
        self._lock = Lock()
        self.tally = Tally()
        self.failures = 0
        total = sum(SIZES[kind] for kind, _ in shares)
        self.bar = tqdm(total=total, unit=" examples", mininterval=1.0, smoothing=0.05)

    def go(self, jobs: int) -> None:
        """Checks the shares, ``jobs`` at a time."""
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._work, range(jobs)))
        self.bar.close()

    def _work(self, _: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            worker = _Worker(Path(folder))
            try:
                for kind, seed in self._shares():
                    found = worker.check(kind, seed, self._until)
                    if found is None:
                        return
                    self._take(*found)
            finally:
                worker.stop()

    def _shares(self) -> Iterator[tuple[str, int]]:
        while time.monotonic() < self._until:
            try:
                yield self._waiting.get_nowait()
            except queue.Empty:
                return

    def _shrink(self, share: Share) -> None:
        """Removes the steps that a life does not need to fail."""
        head, line, text = share.failure.partition(_LINE)
        until = min(self._until, time.monotonic() + _SHRINK_SECONDS)

        def fails(fewer: str) -> bool:
            left = until - time.monotonic()
            if left <= 0:
                return False
            command = [sys.executable, "-W", "ignore", "-c", fewer]
            try:
                done = subprocess.run(command, capture_output=True, cwd=ROOT, env=_environment(),
                                      timeout=left)  # fmt: skip
            except subprocess.TimeoutExpired:
                return False
            return done.returncode != 0

        share.failure = f"{head}{line}{shrunk(text, fails)}"

    def _take(self, share: Share, tally: Tally) -> None:
        share.revision = self._revision
        # Lives of layers that end no process were shrunk there.
        if share.failure and (share.kind == "lives" or _ENDED in share.failure):
            with self._lock:
                self._state.add(share)  # whatever the result of shrinking
            self._shrink(share)
        with self._lock:
            self._state.add(share)
            self.tally.add(tally)
            self.bar.update(SIZES[share.kind])
            if share.failure:
                self.failures += 1
                self._report(share)

    def _report(self, share: Share) -> None:
        again = f"python -m tests.fuzz --again '{share.key}'"
        text = f"{share.key} (again: {again})\n{share.failure}"
        self.bar.write(f"\n{'=' * 80}\n{text}", file=sys.stdout)
        if self._save is not None:
            self._save.mkdir(parents=True, exist_ok=True)
            head, _, script = text.partition(_LINE)
            head = "".join(f"# {line}\n" for line in head.splitlines())
            (self._save / f"{share.key.replace(' ', '_')}.py").write_text(head + script)


def main() -> int:
    """Checks shares that are missing in the state; 0 if none in it failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    for kind, size in SIZES.items():
        parser.add_argument(f"--{kind}", type=int, default=0, help=f"how many, {size} a share (0)")
    parser.add_argument("--seed", type=int, default=1, help="of the first share; counts up (1)")
    parser.add_argument("--again", metavar="SHARE", help="draws one share again, 'lives 17' say")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--minutes", type=float, default=float(10**6), help="then it stops")
    parser.add_argument("--state", type=Path, default=DEFAULT_FILE, help="what passed so far")
    parser.add_argument("--save", type=Path, help="folder for the scripts that fail")
    parser.add_argument("--status", action="store_true", help="says what passed so far")
    arguments = parser.parse_args()
    state = State.read(arguments.state)
    if arguments.status:
        print(state)
        return 1 if state.failed() else 0
    if arguments.again:
        kind, number = arguments.again.split()
        shares = [(kind, int(number))]
    else:
        shares = [
            share
            for kind in SIZES
            for share in state.wanted(kind, getattr(arguments, kind), arguments.seed)
        ]
    run = _Run(state, shares, arguments.minutes, arguments.save)
    run.go(min(arguments.jobs, max(1, len(shares))))
    print(run.tally)
    print(state)
    return 1 if state.failed() else 0


if __name__ == "__main__":
    raise SystemExit(main())
