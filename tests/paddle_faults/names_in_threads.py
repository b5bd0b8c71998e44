"""``unique_name.guard`` in several threads gives one name to several parameters."""

import sys
import threading

import paddle
from paddle import nn

repeated: list[str] = []


def build() -> None:
    for _ in range(200):
        try:
            with paddle.utils.unique_name.guard():
                layers = nn.Sequential(*[nn.Linear(2, 2) for _ in range(6)])
        except ValueError as error:
            repeated.append(str(error))
            return
        names = [parameter.name for parameter in layers.parameters()]
        repeated.extend(name for name in names if names.count(name) > 1)


def fault() -> str:
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"repeated: {repeated[0]}" if repeated else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
