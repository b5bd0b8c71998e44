"""Fits a line to house prices and trains a network on digits, natively and through the engine.

Both engines start from the same weights and see the same batches, so the losses must agree; the
demo fails where they do not, or where the engine did not run.

    python demos/train_demo/train.py --task mnist
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, datasets, networks, running

Array = NDArray[Any]


@dataclass(frozen=True)
class Task:
    """A data set with the network that learns it."""

    name: str
    train: running.Batch
    test: running.Batch
    metric_name: str
    metric: Callable[[Array, Array], float]
    layout: networks.Layout
    loss: networks.Loss
    inputs: Any
    optimizer: Callable[[float], Any]
    batch_size: int
    epochs: int
    learning_rate: float


def fit_a_line(seed: int) -> Task:
    """The price of a house as a linear function of 13 features of its district."""
    train, test = _split(*datasets.boston_housing(), test_share=0.2, seed=seed)
    mean, deviation = train[0].mean(axis=0), train[0].std(axis=0)
    return Task(
        name="fit_a_line",
        train=((train[0] - mean) / deviation, train[1]),
        test=((test[0] - mean) / deviation, test[1]),
        metric_name="test MSE",
        metric=lambda output, target: float(np.mean((output - target) ** 2)),
        layout=networks.linear_regression,
        loss=networks.mean_squared_error,
        inputs=networks.regression_inputs(13),
        optimizer=networks.sgd,
        batch_size=20,
        epochs=30,
        learning_rate=0.01,
    )


def mnist(seed: int) -> Task:
    """Which digit a picture of 28 x 28 pixels shows."""
    train, test = _split(*datasets.mnist(), test_share=0.2, seed=seed)
    return Task(
        name="mnist",
        train=train,
        test=test,
        metric_name="test accuracy",
        metric=lambda output, label: float(np.mean(output.argmax(axis=1) == label[:, 0])),
        layout=networks.mlp,
        loss=networks.cross_entropy,
        inputs=networks.digit_inputs(784),
        optimizer=networks.momentum,
        batch_size=128,
        epochs=10,
        learning_rate=0.03,
    )


TASKS = {"mnist": mnist, "fit_a_line": fit_a_line}


def _split(
    inputs: Array, target: Array, test_share: float, seed: int
) -> tuple[running.Batch, running.Batch]:
    order = np.random.default_rng(seed).permutation(len(inputs))
    count = int(len(inputs) * test_share)
    test, train = order[:count], order[count:]
    return (inputs[train], target[train]), (inputs[test], target[test])


def batches(data: running.Batch, size: int, seed: int) -> Iterator[running.Batch]:
    """Endless batches of ``size`` rows, every epoch shuffled anew; short rests are left out."""
    inputs, target = data
    if size > len(inputs):
        raise running.DemoError(
            f"--batch-size {size} is more than the {len(inputs)} training rows: choose fewer"
        )
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(inputs))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield inputs[rows], target[rows]


def train(trainer: running.Trainer, source: Iterator[running.Batch], steps: int, log: int) -> None:
    """Trains for ``steps`` steps and prints the loss of every ``log``-th and of the last."""
    for step, batch in zip(range(steps), source):
        loss = trainer.train_step(batch)
        if step % log == 0 or step == steps - 1:
            print(f"[{trainer.engine}] step: {step} loss: {loss:.6f}", flush=True)


def run_task(task: Task, options: argparse.Namespace) -> None:
    """Trains ``task`` with the engines asked for, prints the results and checks them."""
    size = options.batch_size or task.batch_size
    epochs = options.epochs or task.epochs
    steps = options.steps or epochs * max(1, len(task.train[0]) // size)
    rate = options.lr or task.learning_rate
    network = networks.build_network(
        task.layout, task.loss, task.inputs, lambda: task.optimizer(rate)
    )
    weights = running.initial_weights(network, options.seed)
    print(f"== {task.name}: {steps} steps, batch {size}, learning rate {rate} ==")
    trainers = []
    for engine in command_line.engines(options.engine):
        trainer = running.Trainer(network, engine, weights)
        with running.engine_must_run(engine):
            train(trainer, batches(task.train, size, options.seed), steps, options.log_every)
        trainers.append(trainer)
    values = [task.metric(trainer.predict(task.test[0]), task.test[1]) for trainer in trainers]
    print(running.results_table(trainers, task.metric_name, values))
    if options.plot:
        path = options.plot.with_stem(f"{options.plot.stem}_{task.name}")
        command_line.plot_losses(path, task.name, trainers)
    if len(trainers) == 2:
        native, ngraph = trainers
        running.report_agreement(native, ngraph, weights, running.STEADY)


def run(options: argparse.Namespace) -> None:
    """Trains the tasks asked for."""
    if options.plot:
        command_line.require_matplotlib()
    for name in TASKS if options.task == "all" else (options.task,):
        run_task(TASKS[name](options.seed), options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--task",
        choices=(*TASKS, "all"),
        default="all",
        help="mnist: digits, 784-1024-1024-10, momentum; fit_a_line: Boston house prices, linear "
        "regression, SGD (default: all)",
    )
    command_line.add_engine_option(parser, default="both")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=command_line.positive, help="batches to train on")
    length.add_argument(
        "--epochs",
        type=command_line.positive,
        help="passes over the training data (default: 10 for mnist, 30 for fit_a_line)",
    )
    parser.add_argument(
        "--batch-size",
        type=command_line.positive,
        help="rows a batch (default: 128 for mnist, 20 for fit_a_line)",
    )
    parser.add_argument(
        "--lr", type=float, help="learning rate (default: 0.03 for mnist, 0.01 for fit_a_line)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="for weights, split and order of batches (default: %(default)s)",
    )
    parser.add_argument(
        "--log-every",
        type=command_line.positive,
        default=10,
        metavar="N",
        help="print the loss of every N-th step (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="write the loss curves to FILE with the task's name added (needs matplotlib)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
