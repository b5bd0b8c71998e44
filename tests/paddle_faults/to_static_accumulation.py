"""A layer of ``to_static`` loses accumulated gradients at the first call of a new shape."""

import paddle
from paddle import nn


def network() -> nn.Layer:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return paddle.jit.to_static(layers, full_graph=True)


def fault() -> str:
    layer = network()
    bias = layer.parameters()[-1]
    for size in (2, 3):
        layer(paddle.ones([size, 4])).sum().backward()
    gradient = float(bias.grad[0])
    return f"2 and 3 add up to {gradient}" if gradient != 5 else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
