"""A layer of ``to_static`` has one backward pass, whatever ``retain_graph``."""

import paddle
from paddle import nn


def network() -> nn.Layer:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return paddle.jit.to_static(layers, full_graph=True)


def fault() -> str:
    loss = network()(paddle.ones([2, 4])).sum()
    loss.backward(retain_graph=True)
    try:
        loss.backward()
    except RuntimeError:
        return "the second pass raises"
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
