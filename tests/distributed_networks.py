"""Networks that several processes train, and reference results of one process alone.

No ReLUs and maxima, where a rounding may decide. Run as a script it is one rank: it trains each
network through the engine on its share of each batch. Rank 0 also trains them by Paddle on whole
batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph
from paddle_ngraph import distributed
from paddle_ngraph.transpiler import training_program

STEPS = 50
BATCH = 16

Feed = dict[str, np.ndarray]


def mlp(parts: int = 1) -> Any:
    """With decay, on random data."""
    x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
    hidden = paddle.tanh(nn.Linear(12, 32)(x))
    loss = F.mse_loss(nn.Linear(32, 1)(paddle.tanh(nn.Linear(32, 32)(hidden))), y)
    return loss, paddle.optimizer.Momentum(0.02, 0.9, weight_decay=1e-3)


def cnn(parts: int = 1) -> Any:
    """With batch normalization: separately for each slice of the batch, as ranks do it."""
    x, y = paddle.static.data("x", [-1, 1, 8, 8]), paddle.static.data("y", [-1, 1], "int64")
    norm = nn.BatchNorm2D(6)
    maps = nn.Conv2D(1, 6, 3, padding=1)(x)
    normal = [norm(part) for part in (paddle.split(maps, parts) if parts > 1 else [maps])]
    maps = F.avg_pool2d(F.gelu(paddle.concat(normal) if parts > 1 else normal[0]), 2)
    loss = F.cross_entropy(nn.Linear(96, 4)(paddle.flatten(maps, 1)), y)
    return loss, paddle.optimizer.Momentum(0.02, 0.9)


def transformer(parts: int = 1) -> Any:
    """With Adam, a schedule, and clipping that has an effect in most steps."""
    x, y = paddle.static.data("x", [-1, 6], "int64"), paddle.static.data("y", [-1, 1], "int64")
    hidden = nn.Embedding(20, 16)(x)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu")
    loss = F.cross_entropy(nn.Linear(16, 4)(paddle.mean(layer(hidden), 1)), y)
    rate = paddle.optimizer.lr.StepDecay(0.003, 20)
    clip = nn.ClipGradByGlobalNorm(0.2)
    return loss, paddle.optimizer.Adam(rate, weight_decay=1e-4, grad_clip=clip)


def recurrent(parts: int = 1) -> Any:
    """With a variable without elements, as in recurrent layers."""
    x, y = paddle.static.data("x", [-1, 6], "int64"), paddle.static.data("y", [-1, 1], "int64")
    hidden, _ = nn.LSTM(16, 12, direction="bidirect")(nn.Embedding(20, 16)(x))
    loss = F.cross_entropy(nn.Linear(24, 4)(paddle.sum(hidden, 1)), y)
    return loss, paddle.optimizer.Momentum(0.3, 0.9)


NETWORKS: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "recurrent": recurrent,
}


def batches(network: str) -> Iterator[Feed]:
    """The whole batches of a training."""
    draw = np.random.default_rng(len(network))
    for _ in range(STEPS):
        if network == "mlp":
            x = draw.normal(size=(BATCH, 12)).astype("float32")
            yield {"x": x, "y": x[:, :1] * x[:, 1:2]}
        else:
            y = draw.integers(0, 4, (BATCH, 1))
            if network == "cnn":
                x = draw.normal(size=(BATCH, 1, 8, 8)) + y[:, :, None, None]
                yield {"x": x.astype("float32"), "y": y}
            else:
                yield {"x": (draw.integers(0, 20, (BATCH, 6)) + y) % 20, "y": y}


class Training:
    """Programs of a network, in a separate scope."""

    def __init__(self, network: str, parts: int = 1, wrap: Callable[[Any], Any] = lambda o: o):
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            self.loss, self.optimizer = NETWORKS[network](parts)
            self.optimizer = wrap(self.optimizer)
            self.optimizer.minimize(self.loss)

    def start(self) -> None:
        """Initializes the variables."""
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)

    def variables(self) -> dict[str, np.ndarray]:
        """All state that outlives a run."""
        names = training_program.variables(self.main)
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in names}

    def set_variables(self, values: dict[str, np.ndarray]) -> None:
        """Sets the state that :meth:`variables` returns."""
        for name, value in values.items():
            self.scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def step(self, feed: Feed) -> float:
        """Runs one step; returns the loss."""
        with paddle.static.scope_guard(self.scope):  # a schedule knows no other
            (loss,) = self.executor.run(self.main, feed=feed, fetch_list=[self.loss])
        if (rate := getattr(self.main, "lr_scheduler", None)) is not None:
            rate.step()
        return float(loss)


def train(network: str) -> dict[str, Any]:
    """Trains a network on this rank; returns losses, final variables, and engine runs."""
    training = Training(network, wrap=distributed.distributed_optimizer)
    training.start()
    found: dict[str, Any] = {}
    if distributed.rank() == 0:
        with paddle_ngraph.use_ngraph(False):
            alone = Training(network, parts=distributed.ranks() if network == "cnn" else 1)
            alone.start()
            alone.set_variables(training.variables())
            found["alone"] = [alone.step(feed) for feed in batches(network)]
            found["variables alone"] = _lists(alone.variables())
    distributed.barrier()
    paddle_ngraph.enable()
    first = distributed.share(next(batches(network)))
    before = training.variables()
    with paddle.static.scope_guard(training.scope):
        distributed.prepare(training.executor, training.main, first, [training.loss])
    unchanged = training.variables()
    assert all(np.array_equal(before[name], unchanged[name]) for name in before)
    paddle_ngraph.reset_stats()
    found["losses"] = [training.step(distributed.share(feed)) for feed in batches(network)]
    stats = paddle_ngraph.stats()
    paddle_ngraph.disable()
    kept = {key: stats[key] for key in ("engine_runs", "functions_built", "functions_reused")}
    return {**found, **kept, "variables": _lists(training.variables())}


def _lists(variables: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in variables.items()}


def main(folder: Path, networks: list[str]) -> None:
    """One rank."""
    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    distributed.init(seed=3)
    for network in networks:
        (folder / f"{network}_{distributed.rank()}.json").write_text(json.dumps(train(network)))
    distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(NETWORKS))
