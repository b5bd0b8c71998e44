"""The system's report on the processor. Needs no core: the doctor reads it without one."""

from __future__ import annotations

import os
from pathlib import Path

from paddle_ngraph.utils.once import once

_FILE = Path("/proc/cpuinfo")


@once
def cpu_fields() -> dict[str, str]:
    """Returns the fields of the first core in ``/proc/cpuinfo``, by name; none on other systems."""
    if not os.access(_FILE, os.R_OK):
        return {}
    first, _, _ = _FILE.read_text().partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def lacks_avx2() -> bool:
    """Whether the processor is known to have no AVX2: most kernels of the engine are slow then."""
    units = cpu_fields().get("flags", "").split()
    return bool(units) and "avx2" not in units
