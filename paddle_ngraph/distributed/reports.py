"""What a rank tells its launcher, over a pipe: that it lives, and what it fails of.

A line of JSON each. A launcher that does not ask for it (``paddle.distributed.launch``) is told
nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.utils.fork_safe_locks import new_lock

# The number of the pipe.
VARIABLE = "PADDLE_NGRAPH_REPORTS"
# The name of this start of the job: two jobs may have been given the same port.
JOB_VARIABLE = "PADDLE_NGRAPH_JOB"
HEARTBEAT_SECONDS = 1.0
_MAX_SENTENCE_LENGTH = 500  # a line is written as a whole up to 4096 bytes

_lock = new_lock()
_senders: list[_Sender] = []


class _Sender:
    """This process's end of the pipe."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)  # a launcher that is suspended reads nothing
        os.set_inheritable(pipe, False)
        self._pipe = pipe
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            # Instead of Paddle's handler, which prints a stack: the launcher ends ranks by it.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._show = sys.excepthook
        sys.excepthook = self._fail
        # Its connections are closed on the way to the end, which may take a while.
        atexit.register(lambda: self.send(ends=time.monotonic()))
        threading.Thread(target=self._live, daemon=True).start()

    def send(self, **said: Any) -> bool:
        """Tells the launcher something. Returns whether it listens."""
        try:
            os.write(self._pipe, json.dumps(said).encode() + b"\n")
        except OSError:
            return False
        return True

    def _live(self) -> None:
        while True:
            self.send()
            time.sleep(HEARTBEAT_SECONDS)

    def _fail(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        refuses = isinstance(error, NgraphError)
        sentence = str(error) if refuses else f"{kind.__name__}: {_last_line(error)}"
        said = sentence[:_MAX_SENTENCE_LENGTH]
        is_told = self.send(failure=said, refuses=refuses, when=time.monotonic())
        if not (refuses and is_told):  # the launcher shows a sentence of ours
            self._show(kind, error, trace)


def connect(variables: MutableMapping[str, str]) -> None:
    """Begins to report, if the launcher has asked for it."""
    # Processes that this one starts have no such pipe.
    number = variables.pop(VARIABLE, "")
    with _lock:
        if number.isdecimal() and not _senders:
            _senders.append(_Sender(int(number)))


def report_meeting(number: int) -> None:
    """Says how often this rank has come to meet the others, before it waits for them."""
    for sender in _senders:
        sender.send(meetings=number)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing more"
