"""A second backward pass through ``cross_entropy`` reads memory that the first pass overwrote."""

import numpy as np
import paddle
import paddle.nn.functional as F


def fault() -> str:
    x = paddle.to_tensor([[0.0, 1.0, 2.0]], stop_gradient=False)
    loss = F.cross_entropy(x, paddle.to_tensor([1]))
    gradients = []
    for _ in range(2):
        x.clear_gradient()
        loss.backward(retain_graph=True)
        gradients.append(x.grad.numpy())
    first, second = gradients
    return "" if np.allclose(first, second) else f"gradients {first[0]}, then {second[0]}"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
