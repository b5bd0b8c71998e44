"""An ``Executor`` keeps addresses of variables that were erased from its scope."""

from typing import Any

import numpy as np
import paddle
from endings import ending


def build() -> tuple[Any, Any, Any]:
    """A program of one layer, its parameters, and its result."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        y = paddle.static.nn.fc(paddle.static.data("x", [2, 3]), 4)
    return main, startup, y


def run_after_erasure() -> None:
    main, startup, y = build()
    executor = paddle.static.Executor()

    def run() -> None:
        executor.run(startup)
        executor.run(main, feed={"x": np.ones([2, 3], "float32")}, fetch_list=[y])

    run()
    names = [parameter.name for parameter in main.global_block().all_parameters()]
    paddle.static.global_scope().erase(names)
    run()


def fault() -> str:
    return ending(run_after_erasure, filled_with=165)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
