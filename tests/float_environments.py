"""Floating-point environments of a thread: deviations from IEEE 754's default."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Bits of the control register of SSE (MXCSR; Intel's manual, volume 1, 10.2.3).
FLUSHED = 0x8040  # denormal results and denormal operands are zero
UPWARD = 0x4000  # round towards infinity
ENVIRONMENTS = {"denormals are zero": FLUSHED, "rounding upward": UPWARD}

# The smallest normal float32 is 1.2e-38.
DENORMAL = 1e-40

_libm = ctypes.CDLL("libm.so.6")
_MXCSR = 28  # offset of the register in glibc's fenv_t


def _register() -> tuple[ctypes.Array[ctypes.c_char], int]:
    environment = ctypes.create_string_buffer(32)
    assert _libm.fegetenv(environment) == 0
    return environment, int.from_bytes(environment.raw[_MXCSR : _MXCSR + 4], "little")


def control_bits() -> int:
    """The bits of this thread's register that change results."""
    return _register()[1] & (FLUSHED | UPWARD)


@contextmanager
def float_environment(bits: int) -> Iterator[None]:
    """Runs the block with these bits set, as Paddle's predictors do with ``FLUSHED``."""
    if platform.machine() != "x86_64":
        pytest.skip("the register is that of x86-64")
    before, register = _register()
    changed = ctypes.create_string_buffer(before.raw, 32)
    changed[_MXCSR : _MXCSR + 4] = (register | bits).to_bytes(4, "little")
    assert _libm.fesetenv(changed) == 0
    try:
        yield
    finally:
        assert _libm.fesetenv(before) == 0
