"""Worker processes with separate settings, in which functions are called.

Settings of threads, oneDNN and PyTorch are fixed when a process starts, so each peer of a benchmark
has one. A process is idle between calls, so that measurements of peers can alternate.
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
# Variables that only a peer's settings set: those of the benchmark's environment are removed.
_DECIDED = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "FLAGS_paddle_num_threads",
    "FLAGS_use_onednn",
    "FLAGS_use_mkldnn",
    "FLAGS_use_ngraph",
    "FLAGS_ngraph_cache_dir",
)
# Functions are compiled, not loaded from disk, unless the disk cache is measured.
_DEFAULTS = {
    "GLOG_minloglevel": "2",
    "FLAGS_ngraph_cache_dir": "",
    "FLAGS_ngraph_background_compile": "0",  # no fallback runs in the measurement
}
_LAST_LINES = 3


class PeerError(RuntimeError):
    """A peer cannot run a call; the message is one sentence for the table."""


class Worker:
    """A worker process, which can hold one object between calls.

    Args:
        settings: Environment variables of the process, added to those of this process.
        timeout: Seconds after which a call is aborted, and the process ended.
        checkout: The checkout whose benchmarks and package the process imports.
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
        """Returns ``function(*arguments)``, called in the process; the function is in a module.

        Raises:
            PeerError: The function raised, the process died, or the call timed out.
        """
        return self._request(function, arguments)

    def hold(self, make: Callable[..., Any], *arguments: Any) -> None:
        """Creates the object ``make(*arguments)`` in the process, in place of an earlier one."""
        self._request("hold", (make, *arguments))

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object in the process, and returns its result."""
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
    """Serves the calls of a :class:`Worker` until it closes the connection."""
    held: Any = None
    while True:
        try:
            target, arguments = connection.recv()
        except EOFError:
            return
        try:
            if target == "hold":
                held = None  # releases the old object before the new one is created
                make, *rest = arguments
                held, answer = make(*rest), None
            else:
                function = getattr(held, target) if isinstance(target, str) else target
                answer = function(*arguments)
        except Exception as error:  # any error of a framework is the result
            connection.send((False, _one_line(error)))
        else:
            connection.send((True, answer))


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    # Paddle prints error type and message after the call stack.
    summary = next((line for line in lines if "Error:" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {summary}"[:200]


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
