"""Runs a function in a forked process, for faults of Paddle that end a process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

import paddle

SECONDS = 120  # after which a process is treated as hung
_M_PERTURB = -6  # the parameter of `mallopt` by which freed memory is filled with a byte


def ending(function: Callable[[], object], filled_with: int = 0) -> str:
    """Returns how a forked process fails that runs the function; "" if it ends normally.

    Args:
        function: Its output is discarded. Paddle may have run nothing before: a forked process
            has none of its threads.
        filled_with: A byte that fills freed memory, so that its readers find no earlier contents.
    """
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run(function, filled_with, writer)
    os.close(writer)
    with os.fdopen(reader) as report:
        message = report.read()
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        return message
    number = os.WTERMSIG(status)
    hangs = number == signal.SIGALRM
    return (
        f"it does not end in {SECONDS} s" if hangs else f"it ends by {signal.Signals(number).name}"
    )


def _run(function: Callable[[], object], filled_with: int, report: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    paddle.disable_signal_handler()  # its report of a crash may hang where memory is damaged
    signal.alarm(SECONDS)
    ctypes.CDLL(None).mallopt(_M_PERTURB, filled_with)
    try:
        function()
    except Exception as error:
        os.write(report, f"{type(error).__name__}: {str(error)[:500]}".encode())
    finally:
        os._exit(0)
