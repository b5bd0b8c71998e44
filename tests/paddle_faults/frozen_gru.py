"""A GRU of which one parameter is frozen has no gradient."""

import paddle
from paddle import nn


def fault() -> str:
    gru = nn.GRU(8, 8)
    gru.parameters()[1].stop_gradient = True
    try:
        gru(paddle.rand([2, 4, 8]))[0].sum().backward()
    except ValueError as error:
        return f"ValueError: {error}".splitlines()[0]
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
