"""One of two ranks: dynamic mode, by Paddle's own means, and then a ProgramDesc program.

Each network is also trained alone, on whole batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed import fleet

import paddle_ngraph
from paddle_ngraph import distributed
from tests.distributed_networks import batches

STEPS = 8


def layer() -> Any:
    paddle.seed(5)
    layers = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
    return paddle.jit.to_static(layers, full_graph=True)


def train(
    wrap_layer: Callable[[Any], Any], wrap_optimizer: Callable[[Any], Any], shares: bool
) -> list[float]:
    model, losses = wrap_layer(layer()), []
    optimizer = wrap_optimizer(paddle.optimizer.Adam(0.01, parameters=model.parameters()))
    for _, feed in zip(range(STEPS), batches("mlp")):
        given = distributed.share(feed) if shares else feed
        loss = F.mse_loss(model(paddle.to_tensor(given["x"])), paddle.to_tensor(given["y"]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def same(thing: Any) -> Any:
    return thing


def program_desc(shares: bool) -> list[float]:
    """A ProgramDesc program; of a rank if it ``shares``."""
    scope, executor = paddle.static.Scope(), paddle.static.Executor(paddle.CPUPlace())
    with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(scope):
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
            fetches = [F.mse_loss(nn.Linear(12, 1)(F.relu(nn.Linear(12, 12)(x))), y)]
            clip = nn.ClipGradByNorm(0.1)
            paddle.optimizer.Momentum(0.1, grad_clip=clip).minimize(fetches[0])
        paddle.seed(9 + (distributed.rank() if shares else 0))
        executor.run(startup)
        if not shares:
            feeds = [feed for _, feed in zip(range(STEPS), batches("mlp"))]
            return [float(executor.run(main, feed=f, fetch_list=fetches)[0]) for f in feeds]
    made = paddle_ngraph.distribute(main, distributed.ranks(), fetches)
    with paddle.static.scope_guard(scope):
        executor.run(made.startup)
        feeds = [distributed.share(feed) for _, feed in zip(range(STEPS), batches("mlp"))]
        distributed.prepare(executor, made.program, feeds[0], made.fetches)
        found = [executor.run(made.program, feed=f, fetch_list=made.fetches) for f in feeds]
    return [float(loss) for (loss,) in found]


def counted(work: Callable[[], list[float]]) -> dict[str, Any]:
    """Returns losses, and the number of engine runs."""
    paddle_ngraph.reset_stats()
    losses = work()
    return {"losses": losses, "engine_runs": paddle_ngraph.stats()["engine_runs"]}


def main(folder: Path) -> None:
    paddle.set_device("cpu")
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    distributed.init(dynamic=True)
    found = {"alone": train(same, same, shares=False)}
    with paddle_ngraph.use_ngraph():
        found["DataParallel"] = counted(lambda: train(paddle.DataParallel, same, shares=True))
        fleet.init(is_collective=True)
        wraps = fleet.distributed_model, fleet.distributed_optimizer
        found["fleet"] = counted(lambda: train(*wraps, shares=True))
    paddle.enable_static()
    found["old-style alone"] = program_desc(shares=False)
    with paddle_ngraph.use_ngraph():
        found["old-style"] = counted(lambda: program_desc(shares=True))
    (folder / f"{distributed.rank()}.json").write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
