"""What the processor is and can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def field(name: str) -> str:
    """What the system reports for the first core, e.g. its ``"model name"``; empty if nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == name), "")


@cache
def has_avx512() -> bool:
    """Whether it has vector registers of 16 floats."""
    return "avx512f" in field("flags").split()


@cache
def has_bfloat16() -> bool:
    """Whether the engine can compute in bfloat16 on it."""
    import openvino as ov  # not there without the engine, and this module is

    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
