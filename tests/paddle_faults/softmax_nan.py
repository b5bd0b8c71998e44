"""``softmax`` over a long row loses a NaN."""

import numpy as np
import paddle
import paddle.nn.functional as F


def fault() -> str:
    lost = []
    for position in range(37):
        row = np.zeros([1, 37], "float32")
        row[0, position] = np.nan
        if not np.isnan(F.softmax(paddle.to_tensor(row)).numpy()).all():
            lost.append(position)
    return f"lost at {len(lost)} of 37 positions" if lost else ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
