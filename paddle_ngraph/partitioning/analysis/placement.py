"""On which device an operator is placed: a mark that it carries through clones and files."""

from __future__ import annotations

import re

from paddle_ngraph.paddle_private.protocols import Operation

# Paddle's own kernels.
NATIVE = "native"
# What connects this process with others: a collective that runs there delays nothing that does not
# read what it brings.
LINK_DEVICE = "link"

# Paddle keeps it, also in files, and computes nothing with it: where in the user's code an operator
# comes from.
PLACE_ATTRIBUTE = "struct_name"
# What that begins with if a device was chosen, and for what copies to a device.
_MARK = re.compile(r"^/(device|copy_to)=([\w:,.-]+)")
_CORE_GROUP = re.compile(r"^CPU:(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)$")
# One of several equal parts of the cores, whichever has nothing to do.
_CORE_SHARE = re.compile(r"^CPU:one-of-(\d{1,4})$")
# Linux has no more.
_MAX_CORES = 8192


def device_of(op: Operation) -> str:
    """The device that was chosen for an operator; empty if none was."""
    found = _MARK.match(_place(op))
    return found[2] if found else ""


def is_copy(op: Operation) -> bool:
    """Whether an operator copies its input to the device that it is placed on."""
    found = _MARK.match(_place(op))
    return found is not None and found[1] == "copy_to"


def place_on(op: Operation, device: str) -> None:
    """Chooses a device for an operator, instead of the one that was chosen before."""
    kind = "copy_to" if is_copy(op) else "device"
    op.set_str_attr(PLACE_ATTRIBUTE, f"/{kind}={device}{_MARK.sub('', _place(op))}")


def clear_device(op: Operation) -> None:
    """Takes back what was chosen for an operator."""
    op.set_str_attr(PLACE_ATTRIBUTE, _MARK.sub("", _place(op)))


def place_copy(op: Operation, device: str) -> None:
    """Makes an operator that returns its input a copy to a device."""
    op.set_str_attr(PLACE_ATTRIBUTE, f"/copy_to={device}{_MARK.sub('', _place(op))}")


def _place(op: Operation) -> str:
    return op.str_attr(PLACE_ATTRIBUTE) if op.has_attr(PLACE_ATTRIBUTE) else ""


def cores_of(device: str) -> tuple[int, ...]:
    """The cores in the name of a core group, such as ``CPU:0-3``, in order.

    Returns:
        Nothing, if the name is not that of a core group.
    """
    found = _CORE_GROUP.match(device)
    if found is None:
        return ()
    cores: set[int] = set()
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not begin <= end < _MAX_CORES:
            return ()
        cores.update(range(begin, end + 1))
    return tuple(sorted(cores))


def core_share(parts: int) -> str:
    """The device that is one of so many equal parts of the cores, whichever is free."""
    return f"CPU:one-of-{parts}"


def share_count(device: str) -> int:
    """Of how many parts a device is one; 0: it is none of that kind."""
    found = _CORE_SHARE.match(device)
    return int(found[1]) if found else 0


def threads_of(device: str, cores: int) -> int:
    """How many threads a device has, if there are so many cores; 0: as many as there are."""
    parts = share_count(device)
    return max(1, cores // parts) if parts else len(cores_of(device))


def core_group(cores: tuple[int, ...]) -> str:
    """The name of a core group: ``CPU:0-3`` for the cores 0, 1, 2 and 3."""
    parts: list[list[int]] = []
    for core in sorted(set(cores)):
        if parts and core == parts[-1][1] + 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return "CPU:" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
