"""A parameter server and a trainer, started by ``paddle-ngraph launch`` (tests/stranger.py)."""

from __future__ import annotations

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph import distributed

STEPS = 5


def main() -> None:
    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    distributed.init()
    x = paddle.static.data("x", [4, 3])
    loss = paddle.mean(paddle.static.nn.fc(x, 2) ** 2)
    paddle.optimizer.SGD(0.1).minimize(loss)
    executor = paddle.static.Executor()
    executor.run(paddle.static.default_startup_program())
    form = paddle_ngraph.distribute_to_server(paddle.static.default_main_program(), [loss])
    with paddle_ngraph.use_ngraph():
        if distributed.rank() == 0:
            assert distributed.serve(executor, form) == STEPS
        else:
            feed = {"x": np.ones((4, 3), "float32")}
            with distributed.trainer(executor, form) as trainer:
                losses = [float(trainer.run(feed)[0]) for _ in range(STEPS)]
            assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    assert paddle_ngraph.stats()["engine_runs"] >= STEPS
    distributed.barrier()
    if distributed.rank() == 0:
        print("ok parameter server", flush=True)


if __name__ == "__main__":
    main()
