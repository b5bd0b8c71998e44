"""What the processor is and can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

# For which processor functions are built that will run elsewhere; ``None``: for this one.
TARGETS = ("any", "avx2", "avx512")
_target: ContextVar[str | None] = ContextVar("processor", default=None)


@contextmanager
def target(name: str) -> Iterator[None]:
    """What is built inside the ``with`` block in this thread is for a processor of ``TARGETS``."""
    token = _target.set(name)
    try:
        yield
    finally:
        _target.reset(token)


def is_known() -> bool:
    """Whether it is known what processor functions are built for."""
    return _target.get() != "any"


@cache
def field(name: str) -> str:
    """What the system reports for the first core, e.g. its ``"model name"``; empty if nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == name), "")


def has_avx512() -> bool:
    """Whether it certainly has vector registers of 16 floats."""
    name = _target.get()
    return "avx512f" in field("flags").split() if name is None else name == "avx512"


def is_of_intel() -> bool:
    """Whether it is certainly one of Intel's."""
    return _target.get() is None and field("vendor_id") == "GenuineIntel"


def has_int8() -> bool:
    """Whether it certainly sums products of eight bits in 32 bits, without saturation.

    Before VNNI and AMX two products are summed in 16 bits, which is not enough for both.
    """
    units = {"avx512_vnni", "avx_vnni", "amx_int8"}
    return _target.get() is None and not units.isdisjoint(field("flags").split())


def has_amx() -> bool:
    """Whether it certainly multiplies tiles of bfloat16."""
    return _target.get() is None and "amx_bf16" in field("flags").split()


@cache
def has_bfloat16() -> bool:
    """Whether the engine can compute in bfloat16 on it."""
    import openvino as ov  # not there without the engine, and this module is

    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
