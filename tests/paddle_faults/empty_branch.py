"""``cond`` does not return an empty tensor, but the result of the run before."""

import numpy as np
import paddle


def fault() -> str:
    paddle.enable_static()
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        flag = paddle.static.data("flag", [1], "bool")
        empty = lambda: paddle.zeros([2, 0])  # noqa: E731
        result = paddle.static.nn.cond(flag, empty, lambda: paddle.ones([2, 3]))
    executor = paddle.static.Executor(paddle.CPUPlace())
    found = [
        executor.run(main, feed={"flag": np.array([value])}, fetch_list=[result])[0].shape
        for value in (False, True)
    ]
    return "" if found[1] == (2, 0) else f"the shape is {found[1]}, not (2, 0)"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
