"""The OpenVINO core that Python uses, one per process."""

from __future__ import annotations

import openvino as ov

from paddle_ngraph import _core
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.once import once

_lock = new_lock()


def core() -> ov.Core:
    """The core, which lives as long as the process.

    The CPU plugin of a core sets an alternate signal stack for the thread that loads the plugin,
    and restores the previous one when the core is destroyed. Two cores of one thread that are not
    destroyed in reverse order leave a freed stack in place, which Python's next signal overwrites.
    """
    with _lock:
        return _only_core()


@once
def _only_core() -> ov.Core:
    """The OpenVINO core (``ov.Core``) that Python code of this process uses."""
    # First, since the plugin's oneDNN reads its settings once in a process.
    _core.start_openvino()
    return ov.Core()
