"""One layer of ``to_static``, or of ``jit.load``, in several threads raises or is wrong."""

import threading

import numpy as np
import paddle
from endings import ending
from paddle import nn


def network() -> nn.Layer:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return paddle.jit.to_static(layers, full_graph=True)


def call_in_threads() -> None:
    layer = network()
    layer.eval()
    numbers = range(8)
    expected = {n: layer(paddle.full([64, 4], float(n))).numpy() for n in numbers}
    failures: list[str] = []

    def call(number: int) -> None:
        try:
            for _ in range(300):
                if failures:
                    return
                found = layer(paddle.full([64, 4], float(number))).numpy()
                assert np.allclose(found, expected[number], atol=1e-4), "a result is wrong"
        except Exception as error:
            failures.append(str(error).strip().splitlines()[-1])

    threads = [threading.Thread(target=call, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def fault() -> str:
    return next((how for _ in range(10) if (how := ending(call_in_threads))), "")


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
