"""One of two ranks that differ: in partition, then in the operators they run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import paddle
import paddle.nn.functional as F

import paddle_ngraph
from paddle_ngraph import distributed, flags
from paddle_ngraph.conversion import registry
from paddle_ngraph.distributed import first_run
from paddle_ngraph.distributed.agreement import RejectedJobError
from tests.distributed_networks import Training, batches

# Operator types that fall back on each rank.
NATIVE = (["pd_op.tanh", "pd_op.tanh_grad", "pd_op.momentum_"], ["pd_op.add", "pd_op.split"])
STEPS = 5


def small_buckets(optimizer: Any) -> Any:
    return distributed.distributed_optimizer(optimizer, bucket_mb=300 / 2**20)


def prepare_warnings(training: Training, rows: int) -> str:
    """The warnings of ``prepare``."""
    feed = {name: value[:rows] for name, value in next(batches("mlp")).items()}
    try:
        with paddle.static.scope_guard(training.scope):
            distributed.prepare(training.executor, training.main, feed, [training.loss])
    except paddle_ngraph.NgraphError as error:
        return str(error)
    return "nothing"


def resume_warnings(state: Any, folder: Path) -> str:
    """The warnings of ``resume`` without a checkpoint."""
    try:
        return f"step {distributed.resume(state, str(folder))}"
    except RejectedJobError as error:
        return str(error)


def dynamic_state(width: int) -> dict[str, Any]:
    paddle.disable_static()
    model = paddle.nn.Linear(2, width)
    paddle.enable_static()
    return {"model": model}


def dropped() -> list[float]:
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        found = F.dropout(paddle.ones([64]), 0.5)
    return paddle.static.Executor().run(main, fetch_list=[found])[0].tolist()


def main(folder: Path) -> None:
    paddle.enable_static()
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    distributed.init(seed=3)
    rank = distributed.rank()
    found: dict[str, Any] = {
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": flags.get("ngraph_num_threads"),
        "dropped": dropped(),
    }
    training = Training("mlp", wrap=small_buckets)
    training.start()
    other = Training("cnn", wrap=small_buckets)
    other.start()
    found["told"] = [
        prepare_warnings(other if rank else training, 8),
        prepare_warnings(training, 4 if rank else 8),
    ]
    states = [(other if rank else training).main, dynamic_state(2 + rank), dynamic_state(2)]
    found["resumed"] = [resume_warnings(state, folder / "none") for state in states]
    if rank:
        first_run.__version__ = "0.0.old"
    found["told"].append(prepare_warnings(training, 8))
    if rank == 0:
        alone = Training("mlp")
        alone.start()
        alone.set_variables(training.variables())
        found["alone"] = [alone.step(feed) for _, feed in zip(range(STEPS), batches("mlp"))]
    distributed.barrier()
    with registry.without(NATIVE[rank]), paddle_ngraph.use_ngraph():
        found["partition"] = str(paddle_ngraph.explain(training.main))
        shares = (distributed.share(feed) for _, feed in zip(range(STEPS), batches("mlp")))
        found["losses"] = [training.step(feed) for feed in shares]
    found["engine_runs"] = paddle_ngraph.stats()["engine_runs"]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
