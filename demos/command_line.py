"""Shared parts of the demos' command lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle

from demos.datasets import DatasetError
from demos.running import NATIVE, NGRAPH, DemoError, Trainer


def add_engine_option(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--engine",
        choices=(NGRAPH, NATIVE, "both"),
        default=default,
        help="what computes: ngraph, Paddle's native kernels, or both from the same weights on the "
        "same data, with the results compared (default: %(default)s)",
    )


def engines(choice: str) -> tuple[str, ...]:
    """The engines that a value of ``--engine`` stands for, in the order they train."""
    return (NATIVE, NGRAPH) if choice == "both" else (choice,)


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def exit_status(command: Callable[..., None], *arguments: Any) -> int:
    """Runs ``command``; 0, or 1 where it fails with a message for the user, which is printed."""
    paddle.enable_static()
    try:
        command(*arguments)
    except (DatasetError, DemoError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def require_matplotlib() -> None:
    """Raises DemoError where plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DemoError("--plot needs matplotlib: run `pip install matplotlib`") from error


def plot_losses(path: Path, title: str, trainers: list[Trainer]) -> None:
    """Writes the loss curves of ``trainers`` into one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for trainer, style in zip(trainers, ("-", "--")):
        axes.plot(trainer.losses, style, label=trainer.engine)
    axes.set(title=title, xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
