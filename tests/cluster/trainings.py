"""Trainings for a cluster, which also run under ``python -m paddle_ngraph launch``.

Each rank appends the loss of each step to a file; a step that is repeated appends another line.
Run as a script it is a driver of Ray, or with ``--launched`` a rank of the launcher.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph
import paddle_ngraph.ray
from paddle_ngraph import NgraphError, distributed

BATCH = 8
# What a driver prints before the sentence of an error.
REFUSED = "refused: "
Feed = dict[str, np.ndarray]
# Runs a step, and returns the loss.
Step = Callable[[Feed], float]


def zeros() -> Feed:
    """A batch, of which only dtypes and shapes matter."""
    return {"x": np.zeros((BATCH, 12), "float32"), "y": np.zeros((BATCH, 1), "float32")}


def static_network(dropout: float) -> tuple[Any, Step]:
    """A static program with Adam, a schedule and dropout; returns its state, and its step."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x, y = paddle.static.data("x", [-1, 12]), paddle.static.data("y", [-1, 1])
        hidden = F.dropout(paddle.tanh(nn.Linear(12, 32)(x)), dropout)
        loss = F.mse_loss(nn.Linear(32, 1)(hidden), y)
        rate = paddle.optimizer.lr.StepDecay(0.01, 3, 0.8)
        distributed.distributed_optimizer(paddle.optimizer.Adam(rate)).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    distributed.prepare(executor, main, distributed.share(zeros()), [loss])

    def step(feed: Feed) -> float:
        (value,) = executor.run(main, feed=feed, fetch_list=[loss])
        rate.step()
        return float(value)

    return main, step


def dynamic_networks(dropout: float) -> tuple[Any, Step]:
    """Layers of ``to_static``, ``paddle_ngraph.compile`` and neither, which train together."""
    paddle.set_device("cpu")
    layers = [
        nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 1))
        for width in (16, 12, 8)
    ]
    rate = paddle.optimizer.lr.StepDecay(0.01, 3, 0.8)
    optimizers = [
        paddle.optimizer.Adam(rate, parameters=layers[0].parameters()),
        paddle.optimizer.AdamW(rate, parameters=layers[1].parameters()),
        paddle.optimizer.Momentum(0.02, parameters=layers[2].parameters()),
    ]
    converted = paddle.jit.to_static(layers[0], full_graph=True)
    models = [
        paddle.DataParallel(each)
        for each in (converted, paddle_ngraph.compile(layers[1]), layers[2])
    ]

    def passes(feed: Feed) -> float:
        x, y = paddle.to_tensor(feed["x"]), paddle.to_tensor(feed["y"])
        total = 0.0
        for model in models:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            total += float(loss)
        return total

    def step(feed: Feed) -> float:
        loss = passes(feed)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.clear_grad()
        rate.step()
        return loss

    names = ["converted", "compiled", "plain", "adam", "adamw", "momentum"]
    state = dict(zip(names, [*layers, *optimizers]))
    distributed.prepare_layers(state, lambda: passes(distributed.share(zeros())))
    return state, step


NETWORKS = {"static": static_network, "dynamic": dynamic_networks}


@contextmanager
def under_engine() -> Iterator[None]:
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    paddle_ngraph.enable("training")
    paddle_ngraph.reset_stats()
    yield
    assert paddle_ngraph.stats()["engine_runs"] > 0


def hold(folder: Path, step: int) -> None:
    """Waits for :func:`release`: what a test does at this step then happens at this step."""
    while not (folder / f"go_{step}").exists():
        time.sleep(0.05)


def release(folder: Path, step: int) -> None:
    """Has ranks that are held after a step go on, and those that come to it later."""
    (folder / f"go_{step}").touch()


def train(config: dict[str, Any], first_step: Callable[[Any], int], report: Callable) -> None:
    """The training of one rank, which has joined its job."""
    np.random.seed(3)
    with under_engine():
        rate = config["dropout"] + config["difference"] * distributed.rank()
        state, step = NETWORKS[config["network"]](rate)
        first = first_step(state)
        path = Path(config["folder"]) / f"losses_{distributed.rank()}.txt"
        with open(path, "a", buffering=1) as file:
            file.write(f"start {first} {distributed.ranks()} {os.getpid()}\n")
            for number in range(first, config["steps"]):
                x = np.random.normal(size=(BATCH, 12)).astype("float32")
                loss = step(distributed.share({"x": x, "y": x[:, :1] * x[:, 1:2]}))
                file.write(f"{number} {loss.hex()} {os.getpid()}\n")
                report(state, number + 1, loss)
                if number in config["held"]:
                    hold(Path(config["folder"]), number)
            file.write("end\n")


def loop(config: dict[str, Any]) -> None:
    """The training loop of a worker of Ray."""
    from ray import train as ray_train

    def report(state: Any, step: int, loss: float) -> None:
        with paddle_ngraph.ray.checkpoint(state, step) as checkpoint:
            ray_train.report({"loss": loss, "step": step}, checkpoint=checkpoint)

    train(config, paddle_ngraph.ray.resume, report)


def drive(config: dict[str, Any], workers: Any, storage: str, failures: int, s3: str) -> None:
    """The driver of a training on the cluster of the environment.

    Args:
        config: See :func:`train`.
        workers: Their number, or a range.
        storage: The path of the storage.
        failures: How often the training may fail; negative: without end.
        s3: The URL of the server of the storage; empty: ``storage`` is a folder.
    """
    import ray
    from ray import train as ray_train

    from tests.cluster import trainings

    ray.init()
    trainer = paddle_ngraph.ray.PaddleTrainer(
        trainings.loop,
        train_loop_config=config,
        scaling_config=ray_train.ScalingConfig(
            num_workers=workers,
            placement_strategy="SPREAD",
            elastic_resize_monitor_interval_s=5,
        ),
        run_config=ray_train.RunConfig(
            storage_path=storage,
            name="run",
            storage_filesystem=object_storage(s3) if s3 else None,
            failure_config=ray_train.FailureConfig(
                max_failures=failures, controller_failure_limit=failures
            ),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
        ),
        seed=7,
    )
    try:
        trainer.fit()
    except NgraphError as error:
        print(f"{REFUSED}{error}", flush=True)


def object_storage(url: str) -> Any:
    """The file system of a server of S3."""
    from pyarrow import fs

    return fs.S3FileSystem(
        access_key="key",
        secret_key="secret",
        endpoint_override=url,
        region="us-east-1",
        allow_bucket_creation=True,
        # One request for each small file: pyarrow does not understand moto's answer to several.
        allow_delayed_open=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--network", default="static")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--difference", type=float, default=0, help="of dropout between ranks")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--held", type=int, nargs="*", default=[], help="steps, see hold()")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--storage")
    parser.add_argument("--s3", default="")
    parser.add_argument("--failures", type=int, default=8)
    parser.add_argument("--launched", action="store_true")
    parser.add_argument("--saved", action="store_true", help="in the folder of the launcher")
    options = parser.parse_args()
    config = {
        k: getattr(options, k)
        for k in ("folder", "network", "dropout", "steps", "difference", "held")
    }
    if options.launched:
        distributed.init(seed=7, dynamic=True)
        if options.saved:
            train(
                config,
                distributed.resume,
                lambda state, step, _: distributed.checkpoint(state, step),
            )
        else:
            train(config, lambda state: 0, lambda *ignored: None)
    else:
        workers = options.workers[0] if len(options.workers) == 1 else tuple(options.workers)
        storage = options.storage or f"{options.folder}/storage"
        drive(config, workers, storage, options.failures, options.s3)


if __name__ == "__main__":
    main()
