"""``Tensor.clear_gradient`` ignores its argument if it is given by keyword."""

import paddle


def fault() -> str:
    x = paddle.ones([2])
    x.stop_gradient = False
    x.sum().backward()
    x.clear_gradient(set_to_zero=False)
    return "" if x.grad is None else f"the gradient is {x.grad.numpy()} instead of None"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
