"""The interpreters of a layer of ``to_static`` stay in memory when the layer is dropped."""

import ctypes
import gc
import traceback
from collections.abc import Callable
from typing import Any

import paddle

LAYERS = 10


class Blocks(ctypes.Structure):
    """The sizes of blocks, from the C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated() -> int:
    """Bytes in use."""
    gc.collect()
    blocks: Callable[[], Any] = ctypes.CDLL("libc.so.6").mallinfo2
    blocks.restype = Blocks  # type: ignore[attr-defined]
    sizes = blocks()
    return int(sizes.uordblks + sizes.hblkhd)


def train() -> None:
    inner = paddle.nn.Linear(8, 8)
    layer = paddle.jit.to_static(inner, full_graph=True)
    layer(paddle.ones([3, 8])).mean().backward()


def fault() -> str:
    # Without the call stacks of operators, which stay, too.
    traceback.extract_stack = lambda *_, **__: traceback.StackSummary()
    train()
    before = allocated()
    for _ in range(LAYERS):
        train()
    left = allocated() - before
    paddle.base.core.clear_executor_cache()
    freed = left - (allocated() - before)
    each = f"{left // LAYERS // 1024} KB of a dropped layer are left"
    return each if left > LAYERS << 17 and freed > left // 2 else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
