"""``conv2d`` accepts a filter that is larger than its image: the result has negative sizes."""

import paddle
import paddle.nn.functional as F


def fault() -> str:
    try:
        out = F.conv2d(paddle.rand([1, 1, 2, 2]), paddle.rand([1, 1, 5, 5]))
    except ValueError:
        return ""
    return f"the shape is {out.shape}" if min(out.shape) < 0 else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
