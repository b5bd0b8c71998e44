"""Names of devices, and the context in which new operators are placed on a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paddle

from paddle_ngraph import flags
from paddle_ngraph.conversion import accelerators
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import CPU, is_accelerator
from paddle_ngraph.paddle_private.names import in_pir_mode, producer_of
from paddle_ngraph.partitioning.analysis.block_view import can_be_placed
from paddle_ngraph.partitioning.analysis.placement import (
    NATIVE,
    core_group,
    cores_of,
    place_copy,
    place_on,
)


def devices() -> list[str]:
    """The names of all devices; see :func:`paddle_ngraph.devices`."""
    return [CPU, *map(core_group, zip(usable_cores())), *accelerators.available(), NATIVE]


def usable_cores() -> tuple[int, ...]:
    """The indices of the cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def known_device(name: Any) -> str:
    """The canonical name of a device: ``CPU:0-1`` for ``CPU:0,1``.

    Raises:
        NgraphError: There is no such device, or it lacks float32 and float16 is not allowed.
    """
    if name in (CPU, NATIVE):
        return str(name)
    if isinstance(name, str) and is_accelerator(name) and name in accelerators.available():
        accelerators.device_for(name, "f16" if flags.get("ngraph_precision") == "f16" else "f32")
        return name
    cores = cores_of(name) if isinstance(name, str) else ()
    if cores and set(cores) <= set(usable_cores()):
        return core_group(cores)
    usable = core_group(usable_cores())
    others = "".join(f"{device}, " for device in accelerators.available())
    raise NgraphError(
        f"there is no device {name!r}: take {CPU}, a group of its cores ({usable} or some of "
        f"these), {others}or {NATIVE}; paddle_ngraph.automatic_plan() measures which plan is "
        "fastest"
    )


@contextmanager
def device(name: str) -> Iterator[None]:
    """Places operators built inside ``with`` on a device; see :func:`paddle_ngraph.device`."""
    chosen = known_device(name)
    if not in_pir_mode():
        raise NgraphError(
            "device() places operators while a static PIR program is built: call "
            "paddle.enable_static() first, or use place() of an execution plan"
        )
    block = paddle.static.default_main_program().global_block()
    before = {op.id() for op in block.ops}
    placed_inside.append(set())
    try:
        yield
    finally:
        inner = placed_inside.pop()
        created = [op for op in block.ops if op.id() not in before and can_be_placed(op)]
        for op in created:
            if op.id() not in inner:
                place_on(op, chosen)
        for outer in placed_inside[-1:]:
            outer.update(op.id() for op in created)


# A stack of the operators that inner ``device`` contexts have placed. No lock: only one thread
# builds programs at a time.
placed_inside: list[set[int]] = []


def copy(x: Any, name: str) -> Any:
    """Adds a copy to a device; see :func:`paddle_ngraph.copy`."""
    chosen = known_device(name)
    if not in_pir_mode() or not isinstance(x, paddle.pir.Value):
        raise NgraphError(
            f"copy() takes a variable of a static PIR program, not {type(x).__name__}: outside of "
            "one, paddle.assign copies"
        )
    copied = paddle.assign(x)
    op = producer_of(copied)
    place_copy(op, chosen)
    for placed in placed_inside:
        placed.add(op.id())
    return copied
