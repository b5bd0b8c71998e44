"""``fleet.distributed_optimizer`` of a static program fails on CPUs."""

import paddle
from paddle.distributed import fleet


def fault() -> str:
    paddle.enable_static()
    fleet.init(is_collective=True)
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        loss = paddle.static.nn.fc(paddle.static.data("x", [4, 3]), 2).mean()
        try:
            fleet.distributed_optimizer(paddle.optimizer.SGD(0.1)).minimize(loss)
        except TypeError as error:
            return str(error).split(".")[0]
    return ""


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
