"""The OpenVINO core that Python uses, one per process."""

from __future__ import annotations

import openvino as ov

from paddle_ngraph.utils.once import once


@once
def core() -> ov.Core:
    """The core, which lives as long as the process.

    The CPU plugin of a core sets an alternate signal stack for the thread that loads the plugin,
    and restores the previous one when the core is destroyed. Two cores of one thread that are not
    destroyed in reverse order leave a freed stack in place, which Python's next signal overwrites.
    """
    return ov.Core()
