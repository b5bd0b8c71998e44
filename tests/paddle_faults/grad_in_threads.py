"""``paddle.grad`` in several threads ends the process."""

import threading

import paddle
from endings import ending


def differentiate() -> None:
    for _ in range(200):
        x = paddle.ones([8])
        x.stop_gradient = False
        paddle.grad((x * x).sum(), x)


def in_threads() -> None:
    threads = [threading.Thread(target=differentiate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fault() -> str:
    return next((how for _ in range(10) if (how := ending(in_threads))), "")


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
