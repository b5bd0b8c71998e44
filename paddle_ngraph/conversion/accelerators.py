"""Devices other than the CPU: GPUs and NPUs that OpenVINO finds, and their precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import is_accelerator
from paddle_ngraph.utils.once import once

# Properties of an OpenVINO device that identify it and its driver, for the keys of the disk cache.
# A plugin may lack some.
_IDENTITY = ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "GPU_DRIVER_VERSION", "NPU_DRIVER_VERSION")


@dataclass(frozen=True)
class Accelerator:
    """A device that functions can be compiled for, other than the CPU.

    Attributes:
        device: OpenVINO's name for it.
        identity: The full name and the driver of the device.
        has_float32: Whether the device computes in float32.
    """

    device: str
    identity: str
    has_float32: bool = True


@once
def available() -> Mapping[str, Accelerator]:
    """The accelerators of this machine, by their names in execution plans.

    OpenVINO searches for them once per process, at the first call: that loads the plugins.
    """
    names = [name for name in core().available_devices if is_accelerator(name)]
    return {name: _described(name) for name in names}


def _described(name: str) -> Accelerator:
    identity = " ".join([name, *(str(_property(name, key)) for key in _IDENTITY)])
    capabilities = _property(name, "OPTIMIZATION_CAPABILITIES") or ()
    return Accelerator(name, identity, "FP32" in capabilities)


def _property(name: str, key: str) -> Any:
    try:
        return core().get_property(name, key)
    except RuntimeError:  # the device's plugin lacks the property: no value
        return None


def device_for(name: str, precision: str) -> str:
    """OpenVINO's name for a device that is to compute in ``"f32"`` or ``"f16"``.

    Raises:
        NgraphError: The device is missing, or does not support that precision.
    """
    accelerator = available().get(name)
    if accelerator is None:
        raise NgraphError(
            f"there is no device {name} here: {', '.join(available()) or 'only the CPU'}"
        )
    if precision == "f32" and not accelerator.has_float32:
        raise NgraphError(
            f"{name} computes in float16 alone, whose results are not those of native Paddle: set "
            "FLAGS_ngraph_precision=f16 to allow that, for intervals that keep weights"
        )
    return accelerator.device
