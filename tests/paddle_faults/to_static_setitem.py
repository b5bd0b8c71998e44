"""The gradient of ``y[:, 0] = c`` in ``to_static`` includes the overwritten elements."""

import paddle


def overwrite(x: paddle.Tensor) -> paddle.Tensor:
    y = x * 2
    y[:, 0] = 0.5
    return y.sum()


def fault() -> str:
    x = paddle.ones([2, 3])
    x.stop_gradient = False
    paddle.jit.to_static(overwrite, full_graph=True)(x).backward()
    gradient = x.grad[0].numpy()
    return f"the gradient is {gradient}, not [0. 2. 2.]" if gradient[0] else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
