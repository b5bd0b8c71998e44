"""What is called differently in the releases of Paddle that the package can be compiled against."""

from __future__ import annotations

from paddle import version

_IS_3_2 = (version.major, version.minor) == ("3", "2")

TRACES = f"paddle.jit.{'pir_dy2static' if _IS_3_2 else 'dy2static'}.parameter_recorder"
"""The module with what Paddle keeps of the functions that it traces."""

_EXPORT = "(self, dl_device=..., copy=...) -> capsule"
TO_DLPACK = (
    {"_to_dlpack": "(self) -> capsule"}
    if _IS_3_2
    else {"_to_dlpack": _EXPORT, "_to_dlpack_versioned": _EXPORT}
)
"""What exports the memory of a DenseTensor to other libraries, with signatures."""
