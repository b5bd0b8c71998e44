"""Executes a command that is killed when its parent process ends.

Run as a script, without the package: ``python -I -S bound_to_launcher.py PARENT COMMAND ...``. The
kernel kills the process when its parent has ended for any reason; this setting persists over
``exec``. The setting is made here rather than between fork and exec, where little is allowed in a
process of several threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound(command: Sequence[str]) -> list[str]:
    """The command line that executes ``command``, to be started by this process.

    The command is killed when the thread that has started it ends.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Executes ``command`` in this process, which is killed when ``parent`` ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) has failed")
    # A parent that ended before the call of prctl() sends no signal: the command is not executed.
    if os.getppid() == parent:
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
