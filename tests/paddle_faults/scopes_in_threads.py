"""Executors on a scope and on its kid, in two threads, mix up their feeds."""

import sys
import threading

import numpy as np
import paddle


def fault() -> str:
    sys.setswitchinterval(1e-5)
    paddle.enable_static()
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        y = paddle.static.data("x", [64]) * 2.0
    scope = paddle.static.global_scope()
    wrong: list[str] = []

    def run(scope: paddle.static.Scope, number: float, rounds: int) -> None:
        executor, x = paddle.static.Executor(), np.full([64], number, "float32")
        for _ in range(rounds):
            try:
                (found,) = executor.run(main, feed={"x": x}, fetch_list=[y], scope=scope)
            except Exception as error:
                wrong.append(str(error).strip().splitlines()[-1])
                return
            if (found != 2 * number).any():
                wrong.append("a result is of the feed of the other thread")
            if wrong:
                return

    run(scope, 1.0, 1)  # creates variables that the kid finds
    scopes = (scope, 1.0, 10_000), (scope.new_scope(), 2.0, 10_000)
    threads = [threading.Thread(target=run, args=each) for each in scopes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong[0] if wrong else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
