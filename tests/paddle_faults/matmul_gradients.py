"""Gradients of ``matmul`` raise for operands that its forward pass accepts."""

import paddle

CASES = {
    "a vector that is transposed": ([5], [5, 6], True),
    "a batch of fewer axes": ([2, 3, 4, 5], [3, 5, 6], False),
}


def fault() -> str:
    failed = []
    for name, (x_shape, y_shape, transpose_x) in CASES.items():
        x, y = paddle.rand(x_shape), paddle.rand(y_shape)
        x.stop_gradient = y.stop_gradient = False
        out = paddle.matmul(x, y, transpose_x)
        try:
            out.sum().backward()
        except (RuntimeError, ValueError):
            failed.append(name)
    return f"raises for {', and '.join(failed)}" if failed else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
