"""A training that is interrupted, as ``python -m paddle_ngraph launch`` starts it.

Each rank trains through the engine, with dropout, Adam, a schedule of the learning rate, gradients
that accumulate, and batches that NumPy samples. It writes the losses of each step to a file; a step
that is repeated after a restart writes them again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph
from paddle_ngraph import distributed

BATCH = 8


class Network:
    """A network with an update in every second run."""

    def __init__(self) -> None:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
            hidden = nn.BatchNorm1D(32)(paddle.tanh(nn.Linear(12, 32)(x)))
            hidden = F.dropout(hidden, 0.2)
            loss = F.mse_loss(nn.Linear(32, 1)(paddle.tanh(nn.Linear(32, 32)(hidden))), y)
            self.rate = paddle.optimizer.lr.StepDecay(0.01, 3, 0.8)
            paddle.optimizer.Adam(self.rate).minimize(loss)
        ranks = distributed.ranks()
        self.form = paddle_ngraph.distribute(main, ranks, [loss], accumulate=2)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.executor.run(startup)
        self.executor.run(self.form.startup)

    def step(self, number: int, feed: dict[str, np.ndarray]) -> float:
        program, fetches = self.form.accumulating if number % 2 == 0 else self.form[:3:2]
        (loss,) = self.executor.run(program, feed=feed, fetch_list=fetches)
        if number % 2 == 1:
            self.rate.step()
        return float(loss)


def batch() -> dict[str, np.ndarray]:
    """The next batch: NumPy's stream is part of a checkpoint."""
    x = np.random.normal(size=(BATCH, 12)).astype("float32")
    return {"x": x, "y": x[:, :1] * x[:, 1:2]}


def train(folder: Path, steps: int, every: int) -> None:
    distributed.init(seed=7)
    np.random.seed(3)
    network = Network()
    feed = distributed.share(
        {"x": np.zeros((BATCH, 12), "float32"), "y": np.zeros((BATCH, 1), "float32")}
    )
    for program, fetches in (network.form.accumulating, network.form[:3:2]):
        distributed.prepare(network.executor, program, feed, fetches)
    paddle_ngraph.reset_stats()
    program = network.form.program
    first = distributed.resume(program)
    with open(folder / f"losses_{distributed.rank()}.txt", "a", buffering=1) as file:
        file.write(f"start {first}\n")
        for step in range(first, steps):
            loss = network.step(step, distributed.share(batch()))
            file.write(f"{step} {loss.hex()} {os.getpid()}\n")
            if (step + 1) % every == 0:
                distributed.checkpoint(program, step + 1)
        assert paddle_ngraph.stats()["engine_runs"] >= steps - first
        file.write("end\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    with paddle_ngraph.use_ngraph():
        train(options.folder, options.steps, options.every)


if __name__ == "__main__":
    main()
