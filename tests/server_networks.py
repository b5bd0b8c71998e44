"""One process of a job with a parameter server: rank 0 serves, the others train.

The networks are trained synchronously and asynchronously; rank 0 then trains them by Paddle, alone,
on whole batches.
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

STEPS = 40
BATCH = 12
ROWS = 40

Feed = dict[str, np.ndarray]


def dense() -> Any:
    x, y = paddle.static.data("x", [-1, 5]), paddle.static.data("y", [-1, 1])
    loss = F.mse_loss(nn.Linear(8, 1)(paddle.tanh(nn.Linear(5, 8)(x))), y)
    clip = nn.ClipGradByGlobalNorm(0.5)
    paddle.optimizer.Adam(0.02, grad_clip=clip, weight_decay=1e-3).minimize(loss)
    return loss


def sparse() -> Any:
    """Two lookups in one table, whose rows 0 are padding, and clipping over all gradients."""
    x, y = paddle.static.data("x", [-1, 4], "int64"), paddle.static.data("y", [-1, 1])
    words = paddle.static.data("words", [-1, 3], "int64")
    table = nn.Embedding(ROWS, 6, sparse=True, padding_idx=0)
    mask = paddle.cast(x != 0, "float32")
    hidden = paddle.sum(table(x), 1) + paddle.mean(table(words), 1)
    hidden = paddle.concat([hidden, paddle.sum(mask, 1, keepdim=True)], 1)
    loss = F.mse_loss(nn.Linear(7, 1)(paddle.tanh(hidden)), y)
    paddle.optimizer.Adagrad(0.1, grad_clip=nn.ClipGradByGlobalNorm(0.5)).minimize(loss)
    return loss


NETWORKS: dict[str, Callable[[], Any]] = {"dense": dense, "sparse": sparse}


def batches(network: str) -> Iterator[Feed]:
    draw = np.random.default_rng(5)
    for _ in range(STEPS):
        if network == "dense":
            x = draw.normal(size=(BATCH, 5)).astype("float32")
            yield {"x": x, "y": x[:, :1] - 0.5 * x[:, 1:2]}
        else:
            x, words = draw.integers(0, ROWS, (BATCH, 4)), draw.integers(0, ROWS, (BATCH, 3))
            y = np.sum(x % 2, 1, keepdims=True) - np.mean(words % 3, 1, keepdims=True)
            yield {"x": x, "words": words, "y": y.astype("float32")}


class Network:
    """The program of a network, in a separate scope, with the same parameters in every process."""

    def __init__(self, name: str) -> None:
        self.main, startup = paddle.static.Program(), paddle.static.Program()
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.program_guard(self.main, startup), paddle.utils.unique_name.guard():
            self.loss = NETWORKS[name]()
        paddle.seed(4)
        self.executor.run(startup, scope=self.scope)
        self.form = paddle_ngraph.distribute_to_server(self.main, [self.loss])

    def parameters(self) -> dict[str, Any]:
        names = [each.name for each in self.main.global_block().all_parameters()]
        return {name: np.array(self.scope.find_var(name).get_tensor()).tolist() for name in names}


def alone(name: str) -> dict[str, Any]:
    """Returns the results of one process by Paddle, on whole batches."""
    network, losses = Network(name), []
    for feed in batches(name):
        (loss,) = network.executor.run(
            network.main, feed=feed, fetch_list=[network.loss], scope=network.scope
        )
        losses.append(float(loss))
    return {"losses": losses, "parameters": network.parameters()}


def work(name: str, synchronous: bool) -> dict[str, Any]:
    """Serves or trains, through the engine."""
    network, losses, updates = Network(name), [], []
    paddle_ngraph.reset_stats()
    with paddle_ngraph.use_ngraph():
        if distributed.rank() == 0:
            distributed.serve(
                network.executor,
                network.form,
                network.scope,
                synchronous=synchronous,
                after_update=updates.append,
            )
        else:
            with distributed.trainer(network.executor, network.form, network.scope) as trainer:
                for feed in batches(name):
                    (loss,) = trainer.run(trainer.share(feed))
                    losses.append(float(loss))
    stats = paddle_ngraph.stats()
    return {
        "losses": losses,
        "updates": updates,
        "parameters": network.parameters(),
        "engine_runs": stats["engine_runs"],
        "functions_built": stats["functions_built"],
    }


def main(folder: Path) -> None:
    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    distributed.init()
    found = {
        f"{name} {kind}": work(name, kind == "synchronous")
        for name in NETWORKS
        for kind in ("synchronous", "asynchronous")
    }
    if distributed.rank() == 0:
        found.update({f"{name} alone": alone(name) for name in NETWORKS})
    (folder / f"{distributed.rank()}.json").write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
