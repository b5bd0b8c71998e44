"""Generates a C++ project of a training program, builds it, and trains LeNet on digits in C++.

Paddle trains the same network beside it, from the same weights on the same batches, so the losses
must agree. What C++ has learned then goes back to Paddle, which tests it.

    python demos/native_demo/train.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, datasets, networks, running

Array = NDArray[Any]
SHAPE = (1, 28, 28)
TEST_SHARE = 0.2
# Where one element of a window becomes its maximum in one run only, gradients take another way:
# native runs from weights that differ by 2**-22 of their value part by a quarter of this.
TOLERANCE = running.Tolerance(loss=2e-4, parameters=None)


def split(seed: int) -> tuple[running.Batch, running.Batch]:
    """Images and labels to train on, and to test with."""
    images, labels = datasets.mnist()
    order = np.random.default_rng(seed).permutation(len(images))
    count = int(len(images) * TEST_SHARE)
    images = images.reshape(-1, *SHAPE)
    return (images[order[count:]], labels[order[count:]]), (
        images[order[:count]],
        labels[order[:count]],
    )


def generate(network: networks.Network, weights: running.Weights, batch: int, folder: Path) -> None:
    """The C++ project, which begins with these weights."""
    running.load_engine()
    from paddle_ngraph.transpiler import generate_native

    trainer = running.Trainer(network, running.NATIVE, weights)
    shapes = {network.input_name: [batch, *SHAPE], network.target_name: [batch, 1]}
    generate_native(
        network.train,
        folder,
        {"loss": network.loss},
        scope=trainer.scope,
        shapes=shapes,
        processor="native",
        force=True,
    )


def build(folder: Path) -> None:
    """Builds the project with cmake."""
    from paddle_ngraph.codegen import toolchain

    options = [f"-D{name}={path}" for name, path in toolchain.options(folder).items()]
    called([toolchain.cmake(), "-S", str(folder), "-B", str(folder / "build"), *options])
    called([toolchain.cmake(), "--build", str(folder / "build"), "-j2", "--target", "main"])


def called(command: Sequence[str]) -> None:
    """Runs a command; raises DemoError with its last words where it fails."""
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode != 0:
        words = (found.stdout + found.stderr)[-2000:]
        raise running.DemoError(f"{command[0]} failed:\n{words}")


def trained_in_cpp(
    folder: Path, data: running.Batch, options: argparse.Namespace
) -> Iterator[float]:
    """The loss of each step; ``folder/trained`` then holds the variables."""
    command = [str(folder / "build" / "main"), str(folder / "model"), "--train"]
    for name, array in zip(("image", "label"), data):
        np.save(folder / f"{name}.npy", array)
        command += ["--input", f"{name}={folder / name}.npy"]
    command += ["--batch", str(options.batch_size), "--epochs", str(options.epochs)]
    command += ["--save", str(folder / "trained")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield float(line.split()[-1])
    if process.returncode != 0:
        raise running.DemoError(f"the C++ program ended with status {process.returncode}")


def batches(data: running.Batch, size: int, epochs: int) -> Iterator[running.Batch]:
    """The batches that the C++ program reads: the rows in their order."""
    images, labels = data
    for _ in range(epochs):
        for start in range(0, len(images) - size + 1, size):
            yield images[start : start + size], labels[start : start + size]


def accuracy(trainer: running.Trainer, test: running.Batch) -> float:
    """The share of digits that a network knows."""
    return float(np.mean(trainer.predict(test[0]).argmax(axis=1) == test[1][:, 0]))


def run(options: argparse.Namespace) -> None:
    """Generates, builds, trains, and compares."""
    train, test = split(options.seed)
    network = networks.build_network(
        networks.lenet,
        networks.cross_entropy,
        networks.digit_inputs(*SHAPE),
        lambda: networks.momentum(options.lr),
    )
    weights = running.initial_weights(network, options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "mnist"
        generate(network, weights, options.batch_size, folder)
        print(f"generated {folder}; building it ...", flush=True)
        build(folder)
        trainer = running.Trainer(network, running.NATIVE, weights)
        losses = []
        for step, loss in enumerate(trained_in_cpp(folder, train, options)):
            losses.append(loss)
            if step % options.log_every == 0:
                print(f"[C++] step: {step} loss: {loss:.6f}", flush=True)
        for batch in batches(train, options.batch_size, options.epochs):
            trainer.train_step(batch)
        compare(losses, trainer)
        report(trainer, variables(folder / "trained", network), test)


def variables(folder: Path, network: networks.Network) -> running.Weights:
    """The parameters that the C++ program has trained."""
    return {name: np.load(folder / f"{name}.npy") for name in network.parameters}


def compare(losses: Sequence[float], trainer: running.Trainer) -> None:
    """Raises DemoError where the losses of C++ are not those of Paddle."""
    expected = trainer.losses
    if len(losses) != len(expected):
        raise running.DemoError(f"C++ made {len(losses)} steps, Paddle {len(expected)}")
    tolerated = TOLERANCE.of_losses(expected[0], len(expected))
    share = float(np.max(np.abs(np.subtract(losses, expected)) / tolerated))
    print(f"largest difference of a loss, as a share of what rounding explains: {share:.2g}")
    if not share <= 1:
        raise running.DemoError("the losses of C++ are not those of Paddle: please report it")


def report(trainer: running.Trainer, learned: running.Weights, test: running.Batch) -> None:
    """Prints what Paddle makes of its own parameters, and of those from C++."""
    rows = [["", "Paddle", "C++"]]
    values = [accuracy(trainer, test)]
    trainer.set_parameters(learned)
    values.append(accuracy(trainer, test))
    rows.append(["test accuracy", *(f"{value:.4f}" for value in values)])
    print(running.side_by_side(rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep the project here; one that is there is replaced (default: it is deleted)",
    )
    positive = command_line.positive
    parser.add_argument("--epochs", type=positive, default=4, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=positive, default=64, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--log-every",
        type=positive,
        default=25,
        metavar="N",
        help="print the loss of every N-th step (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    paddle.enable_static()
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
