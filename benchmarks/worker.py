"""Processes of their own, with settings of their own, in which functions are called.

Threads, oneDNN and PyTorch are settled when a process starts: each peer of a benchmark has one. The
processes wait while they are not asked, so that peers can be measured in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What a peer's settings decide; the environment of the benchmark has no say in it.
_DECIDED = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "FLAGS_paddle_num_threads",
    "FLAGS_use_onednn",
    "FLAGS_use_mkldnn",
    "FLAGS_use_ngraph",
    "FLAGS_ngraph_cache_dir",
)
# What is measured is compiled anew, unless the disk is what is measured.
_DEFAULTS = {
    "GLOG_minloglevel": "2",
    "FLAGS_ngraph_cache_dir": "",
    "FLAGS_ngraph_background_compile": "0",  # what is measured is the engine
}
_LAST_LINES = 3


class PeerError(RuntimeError):
    """A peer cannot do what it was asked; the message is one sentence for the table."""


class Worker:
    """A process. It can hold one object between calls.

    Args:
        settings: Environment variables that it starts with, added to those of this process.
        timeout: Seconds after which a call is given up and the process ended.
        checkout: Whose benchmarks and package the process imports.
    """

    def __init__(
        self, settings: Mapping[str, str], timeout: float = 600.0, checkout: Path = ROOT
    ) -> None:
        environment = {name: text for name, text in os.environ.items() if name not in _DECIDED}
        self._timeout = timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", str(theirs.fileno())],
            env={**_DEFAULTS, **environment, **settings},
            cwd=checkout,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)`` in the process; the function stands in a module.

        Raises:
            PeerError: It raised, the process died, or the time is up.
        """
        return self._request(function, arguments)

    def hold(self, make: Callable[..., Any], *arguments: Any) -> None:
        """Keeps ``make(*arguments)`` in the process, instead of what it held before."""
        self._request("hold", (make, *arguments))

    def ask(self, method: str, *arguments: Any) -> Any:
        """A method of the object that the process holds."""
        return self._request(method, arguments)

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, target: Callable[..., Any] | str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._connection.send((target, arguments))
            if not self._connection.poll(self._timeout):
                self._process.kill()
                raise PeerError(f"no answer within {self._timeout:.0f} s")
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise PeerError(f"its process ended: {self._last_words()}") from error
        if not succeeded:
            raise PeerError(answer)
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return " ".join(lines[-_LAST_LINES:]) or f"exit status {self._process.wait()}"


def serve(connection: Connection) -> None:
    """Answers what a :class:`Worker` asks until it closes."""
    held: Any = None
    while True:
        try:
            target, arguments = connection.recv()
        except EOFError:
            return
        try:
            if target == "hold":
                held = None  # the memory of the old one first
                make, *rest = arguments
                held, answer = make(*rest), None
            else:
                function = getattr(held, target) if isinstance(target, str) else target
                answer = function(*arguments)
        except Exception as error:  # whatever a framework raises is the answer
            connection.send((False, _one_line(error)))
        else:
            connection.send((True, answer))


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    # Paddle puts its error type and sentence after the call stack.
    summary = next((line for line in lines if "Error:" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {summary}"[:200]


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
