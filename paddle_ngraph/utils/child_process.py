"""Trials in a child process, of code that a damaged file may crash."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from contextlib import suppress

# A trial that has not ended by then never will: it waits for a lock of a thread, which the child
# lacks, or a damaged file has it loop.
_SECONDS = 300


def signal_of_trial(trial: Callable[[], object]) -> str | None:
    """Runs ``trial`` in a forked child process, without its output.

    Returns:
        The name of the signal that has ended the child; ``None`` if ``trial`` returned or raised.
    """
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            faulthandler.disable()  # it would write to another descriptor
            for output in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            trial()
        finally:
            os._exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:  # a handler of the program has waited for the child
        return None
    except BaseException:  # an interrupt: the child would go on alone
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise
    return name_of(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None


def name_of(number: int) -> str:
    """The name of a signal, e.g. ``"SIGSEGV"``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name: its number instead
        return f"signal {number}"
