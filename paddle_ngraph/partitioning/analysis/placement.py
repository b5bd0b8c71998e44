"""Device placement of operators, as an attribute that survives clones and saved files."""

from __future__ import annotations

import re

from paddle_ngraph.paddle_private.protocols import Operation

# Name of the device of operators that Paddle's own kernels compute.
NATIVE = "native"
# Device name of the link to other processes: a collective placed there delays only the readers of
# its results.
LINK_DEVICE = "link"

# The attribute that contains the device: Paddle's attribute for the layer of an operator, which is
# stored in files and has no effect on the computation.
PLACE_ATTRIBUTE = "struct_name"
# Prefix of the attribute for a chosen device, and for a copy to a device.
_MARK = re.compile(r"^/(device|copy_to)=([\w:,.-]+)")
_CORE_GROUP = re.compile(r"^CPU:(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)$")
# Name of a device that is one of N equal groups of cores: any of them that is idle.
_CORE_SHARE = re.compile(r"^CPU:one-of-(\d{1,4})$")
# Maximum number of CPUs that Linux supports, to validate core numbers.
_MAX_CORES = 8192


def device_of(op: Operation) -> str:
    """The name of the device chosen for an operator; empty if no device was chosen."""
    found = _MARK.match(_place(op))
    return found[2] if found else ""


def is_copy(op: Operation) -> bool:
    """Whether an operator copies its input to the device that it is placed on."""
    found = _MARK.match(_place(op))
    return found is not None and found[1] == "copy_to"


def place_on(op: Operation, device: str) -> None:
    """Chooses a device for an operator; replaces an earlier choice."""
    mark = "copy_to" if is_copy(op) else "device"
    op.set_str_attr(PLACE_ATTRIBUTE, f"/{mark}={device}{_MARK.sub('', _place(op))}")


def clear_device(op: Operation) -> None:
    """Removes the choice of a device from an operator."""
    op.set_str_attr(PLACE_ATTRIBUTE, _MARK.sub("", _place(op)))


def place_copy(op: Operation, device: str) -> None:
    """Marks ``op``, an operator that returns its input, as a copy of the input to ``device``."""
    op.set_str_attr(PLACE_ATTRIBUTE, f"/copy_to={device}{_MARK.sub('', _place(op))}")


def _place(op: Operation) -> str:
    return op.str_attr(PLACE_ATTRIBUTE) if op.has_attr(PLACE_ATTRIBUTE) else ""


def cores_of(device: str) -> tuple[int, ...]:
    """The sorted cores in the name of a core group, such as ``CPU:0-3``.

    Returns:
        An empty tuple if the name is not that of a core group.
    """
    found = _CORE_GROUP.match(device)
    if found is None:
        return ()
    cores: set[int] = set()
    for core_range in found[1].split(","):
        first, _, last = core_range.partition("-")
        begin, end = int(first), int(last or first)
        if not begin <= end < _MAX_CORES:
            return ()
        cores.update(range(begin, end + 1))
    return tuple(sorted(cores))


def core_share(count: int) -> str:
    """The name of a device that is any idle one of ``count`` equal groups of cores."""
    return f"CPU:one-of-{count}"


def share_count(device: str) -> int:
    """The number of equal core groups of a :func:`core_share` device; 0 for other devices."""
    found = _CORE_SHARE.match(device)
    return int(found[1]) if found else 0


def threads_of(device: str, cores: int) -> int:
    """The number of threads of a device on ``cores`` cores; 0 if the device sets no limit."""
    count = share_count(device)
    return max(1, cores // count) if count else len(cores_of(device))


def core_group(cores: tuple[int, ...]) -> str:
    """The name of a core group: ``CPU:0-3`` for the cores 0, 1, 2 and 3."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return "CPU:" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
