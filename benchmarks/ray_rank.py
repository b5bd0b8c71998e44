"""One rank of the two jobs that ``benchmarks.ray_steps`` compares.

Run as a script by ``python -m paddle_ngraph launch`` it is a rank, or with ``driver`` the driver of
a training on a cluster of Ray, which runs on this machine as long as the driver.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # A script finds modules in its own folder, where some have the names of packages.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import paddle

import paddle_ngraph
from benchmarks import rank
from paddle_ngraph import distributed

RANKS = 2
_WARM_UP = 3
_POLL_SECONDS = 0.002


def written(path: Path, content: Any) -> None:
    """Writes a file that others see complete or not at all."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(content))
    os.replace(unfinished, path)


def awaited(path: Path) -> Any:
    """The content of a file, as soon as there is one."""
    while not path.exists():
        time.sleep(_POLL_SECONDS)
    return json.loads(path.read_text())


def loop(config: dict[str, Any]) -> None:
    """A rank that has joined its job: takes its samples until it is told to end.

    The file ``sample_N`` has the network of a sample and the number of its steps; rank 0 answers by
    ``times_N`` with milliseconds. A sample of 0 steps is the last.

    Args:
        config: ``folder`` of the files, and ``models``, names in ``works.TRAINING``.
    """
    folder = Path(config["folder"])
    paddle.enable_static()
    runs = {name: rank.Steps(name).runs()["step"] for name in config["models"]}
    for run in runs.values():
        for _ in range(_WARM_UP):
            run()
    before = paddle_ngraph.stats()["engine_runs"]
    for number in count():
        if distributed.rank() == 0 and number == 0:
            written(folder / "ready", os.getpid())
        name, steps = awaited(folder / f"sample_{number}")
        if steps == 0:
            break
        distributed.barrier()
        runs[name]()
        ms = []
        for _ in range(steps):
            start = time.perf_counter()
            runs[name]()
            ms.append((time.perf_counter() - start) * 1e3)
        if distributed.rank() == 0:
            written(folder / f"times_{number}", ms)
    assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"


def drive(config: dict[str, Any]) -> None:
    """Runs the ranks as workers of Ray Train on this machine."""
    import ray
    from ray import train

    import paddle_ngraph.ray
    from benchmarks import ray_rank

    ray.init("local", num_cpus=RANKS, include_dashboard=False, _node_ip_address="127.0.0.1")
    paddle_ngraph.ray.PaddleTrainer(
        ray_rank.loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=RANKS),
        run_config=train.RunConfig(storage_path=config["folder"]),
        seed=0,
    ).fit()


if __name__ == "__main__":
    found = {"folder": sys.argv[2], "models": sys.argv[3].split(",")}
    if sys.argv[1] == "driver":
        drive(found)
    else:
        distributed.init(seed=0)
        loop(found)
