"""The Python call stack that is recorded with each operator of a program is never freed."""

import gc
import traceback

import paddle


def stacks() -> int:
    gc.collect()
    return sum(isinstance(each, traceback.StackSummary) for each in gc.get_objects())


def build() -> None:
    with paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [2])
        for _ in range(100):
            x = x * 1.0


def fault() -> str:
    paddle.enable_static()
    before = stacks()
    build()
    left = stacks() - before
    return f"{left} call stacks are left of a program of 101 operators" if left > 1 else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
