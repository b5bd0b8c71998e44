"""Vendor and instruction sets of the processor, by which builds choose kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from paddle_ngraph.utils.cpu_info import cpu_fields
from paddle_ngraph.utils.once import once

# Processors that a build can target: functions then run elsewhere. Without a target (``None``),
# functions are for the processor of this machine.
TARGETS = ("any", "avx2", "avx512")
_target: ContextVar[str | None] = ContextVar("processor", default=None)


@contextmanager
def target(name: str) -> Iterator[None]:
    """Targets a processor of ``TARGETS`` in builds of this thread inside the ``with`` block."""
    token = _target.set(name)
    try:
        yield
    finally:
        _target.reset(token)


def is_known() -> bool:
    """Whether builds target a known processor: this one, or one with certain instruction sets."""
    return _target.get() != "any"


def field(name: str) -> str:
    """A field of the system's report on the first core, e.g. ``"model name"``; empty if absent."""
    return cpu_fields().get(name, "")


# The levels of ONEDNN_MAX_CPU_ISA, by which the user withholds instructions from oneDNN, also from
# the plugin's copy of it: other choices by processor have to agree. Each level has the units that
# it adds to the levels before it.
_LEVELS = (
    ("AVX2", ""),
    ("AVX2_VNNI", "avx_vnni"),
    ("AVX2_VNNI_2", ""),
    ("AVX512_CORE", "avx512f"),
    ("AVX512_CORE_VNNI", "avx512_vnni"),
    ("AVX512_CORE_BF16", "avx512_bf16"),
    ("AVX512_CORE_FP16", "avx512_fp16"),
    ("AVX512_CORE_AMX", "amx_tile amx_bf16 amx_int8"),
)


@once
def withheld() -> frozenset[str]:
    """The instruction sets that ONEDNN_MAX_CPU_ISA forbids, by their names in ``/proc/cpuinfo``."""
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    names = [name for name, _ in _LEVELS]
    # If the variable has an unknown value, oneDNN uses all instruction sets.
    if most not in (*names, "SSE41", "AVX"):
        return frozenset()
    above = _LEVELS[names.index(most) + 1 if most in names else 0 :]
    return frozenset(unit for _, units in above for unit in units.split())


@once
def _units() -> frozenset[str]:
    """The instruction sets of the processor that oneDNN may use."""
    return frozenset(field("flags").split()) - withheld()


def has_avx512() -> bool:
    """Whether the target processor certainly has AVX-512: vector registers of 16 floats."""
    name = _target.get()
    return "avx512f" in _units() if name is None else name == "avx512"


def is_of_intel() -> bool:
    """Whether the target processor certainly is one of Intel's."""
    return _target.get() is None and field("vendor_id") == "GenuineIntel"


def has_int8() -> bool:
    """Whether the processor certainly sums 8-bit products in 32 bits, without saturation.

    Before VNNI and AMX two products are summed in 16 bits, which is not enough for both.
    """
    # With AVX-512, the VNNI units of 256 bits do not count: oneDNN then has no kernels for them.
    units = {"avx512_vnni", "amx_int8"} if "avx512f" in _units() else {"avx_vnni"}
    return _target.get() is None and not units.isdisjoint(_units())


def has_amx() -> bool:
    """Whether the target processor certainly multiplies tiles of bfloat16 (AMX)."""
    return _target.get() is None and "amx_bf16" in _units()


@once
def has_bfloat16() -> bool:
    """Whether the engine can compute in bfloat16 on this processor."""
    # Imported late, because this module must also work in a package without OpenVINO.
    from paddle_ngraph.conversion.openvino_core import core

    if "avx512_bf16" in withheld():
        return False
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
