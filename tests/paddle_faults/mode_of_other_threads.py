"""``paddle.disable_static()`` in one thread switches default programs of others."""

import sys
import threading

import paddle
from paddle import nn


def fault() -> str:
    sys.setswitchinterval(1e-6)
    is_over = threading.Event()

    def start_threads() -> None:
        while not is_over.is_set():
            thread = threading.Thread(target=paddle.disable_static)
            thread.start()
            thread.join()

    starter = threading.Thread(target=start_threads)
    starter.start()
    layer = nn.Linear(4, 4)
    optimizer = paddle.optimizer.Adam(parameters=layer.parameters())
    try:
        for _ in range(30_000):
            layer(paddle.ones([2, 4])).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
    except ValueError as error:
        return str(error).splitlines()[0]
    finally:
        is_over.set()
        starter.join()
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
