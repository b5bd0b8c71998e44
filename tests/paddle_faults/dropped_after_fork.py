"""Dropping an executor that has run crashes a process that was forked since."""

import gc

import numpy as np
import paddle
from endings import ending


def run_one() -> paddle.static.Executor:
    paddle.enable_static()
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        y = paddle.tanh(paddle.static.data("x", [4, 4], "float32")) * 2
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(main, feed={"x": np.ones((4, 4), "float32")}, fetch_list=[y])
    return executor


def fault() -> str:
    executors = [run_one()]

    def drop() -> None:
        executors.clear()
        gc.collect()

    return ending(drop)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
