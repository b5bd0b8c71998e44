"""``transpose`` by an order of the first axes alone works in dynamic mode, and not in programs."""

import numpy as np
import paddle

X = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
ORDER = [1, 0]


def fault() -> str:
    expected = paddle.to_tensor(X).transpose(ORDER).numpy()
    paddle.enable_static()
    try:
        x = paddle.static.data("x", X.shape, "float32")
        out = paddle.transpose(x, ORDER)
        (found,) = paddle.static.Executor().run(feed={"x": X}, fetch_list=[out])
    except ValueError as error:
        line = next(line for line in str(error).splitlines() if "Error" in line)
        return f"of shape {list(expected.shape)} in dynamic mode; a program raises {line.strip()}"
    finally:
        paddle.disable_static()
    return "" if np.array_equal(found, expected) else "programs compute another tensor"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
