"""Reports of a rank to its launcher, over a pipe: heartbeats, failures, rendezvous, end.

Each report is a line of JSON. A launcher that does not request reports, such as
``paddle.distributed.launch``, receives none.
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
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock

# Environment variable with the file descriptor of the pipe to the launcher.
VARIABLE = "PADDLE_NGRAPH_REPORTS"
# Environment variable for the id of this start of the job: two jobs may have one port.
JOB_VARIABLE = "PADDLE_NGRAPH_JOB"
HEARTBEAT_SECONDS = 1.0
# Short enough that a rank writes a report to the launcher's pipe in one piece: writes of up to 4096
# bytes to a pipe are atomic.
_MAX_SENTENCE_LENGTH = 500

_lock = new_lock()
_senders: list[_Sender] = []


class _Sender:
    """The sending end of the pipe from this rank to the launcher."""

    def __init__(self, pipe: int) -> None:
        # Writes must never block the rank, even if the launcher is suspended and reads nothing.
        os.set_blocking(pipe, False)
        os.set_inheritable(pipe, False)
        self._pipe = pipe
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            # The default action of SIGTERM replaces Paddle's handler, which would print a stack at
            # each SIGTERM of the launcher.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._show = sys.excepthook
        sys.excepthook = self._fail
        # The end is reported when the exit begins: connections are closed during the exit, which
        # may take a while.
        atexit.register(lambda: self.send(ends=time.monotonic()))
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def send(self, **report: Any) -> bool:
        """Sends a report to the launcher. Returns whether that succeeded."""
        with signals.own_errors():
            try:
                os.write(self._pipe, json.dumps(report).encode() + b"\n")
            except OSError:
                return False
        return True

    def _send_heartbeats(self) -> None:
        while True:
            self.send()
            time.sleep(HEARTBEAT_SECONDS)

    def _fail(
        self, error_type: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        refuses = isinstance(error, NgraphError)
        sentence = str(error) if refuses else f"{error_type.__name__}: {_last_line(error)}"
        message = sentence[:_MAX_SENTENCE_LENGTH]
        is_sent = self.send(failure=message, refuses=refuses, when=time.monotonic())
        # The launcher prints an NgraphError itself, so this process does not, if the report was
        # sent.
        if not (refuses and is_sent):
            self._show(error_type, error, trace)


def connect(variables: MutableMapping[str, str]) -> None:
    """Starts to send reports if the launcher has passed the descriptor of a pipe."""
    # Removed from the environment, since child processes do not inherit the pipe.
    number = variables.pop(VARIABLE, "")
    with _lock:
        if number.isdecimal() and not _senders:
            _senders.append(_Sender(int(number)))


def report_meeting(number: int) -> None:
    """Reports the number of rendezvous of this rank, before it waits for the others."""
    for sender in _senders:
        sender.send(meetings=number)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "it sends no further report"
