"""``paddle.grad`` of another tensor takes the saved forward state of a ``to_static`` layer."""

import paddle
from paddle import nn


def network() -> nn.Layer:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return paddle.jit.to_static(layers, full_graph=True)


def fault() -> str:
    other = paddle.ones([2])
    other.stop_gradient = False
    loss, square = network()(paddle.ones([2, 4])).sum(), other.square().sum()
    paddle.grad([loss + square], [other], retain_graph=True)
    try:
        loss.backward()
    except RuntimeError:
        return "the layer's own backward pass raises"
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
