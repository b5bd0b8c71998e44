"""A layer of ``to_static`` has no gradients after a call of the same shape under ``no_grad``."""

import paddle
from paddle import nn


def network() -> nn.Layer:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return paddle.jit.to_static(layers, full_graph=True)


def fault() -> str:
    layer = network()
    with paddle.no_grad():
        layer(paddle.ones([2, 4]))
    layer(paddle.ones([2, 4])).sum().backward()
    absent = sum(parameter.grad is None for parameter in layer.parameters())
    return f"{absent} of 4 parameters have no gradient" if absent else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
