"""Measures one training step of several networks: native Paddle and the engine, side by side.

    python benchmarks/training_step.py --models mlp lenet

Both train the same network from the same weights on the same batches in one process, in turns: so
many steps natively, as many through the engine, and again, so that whatever else the machine does
strikes both. The first step of every turn is not counted. PyTorch takes part where it is installed.

Paddle runs with its own defaults, one thread among them; FLAGS_paddle_num_threads=N in the
environment gives it N. The results name the number. The weights after the warm-up are compared, so
a fast but wrong step is no result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demos import command_line, networks, running

VOCABULARY = 10000
BATCHES = 4
WARM_UP_STEPS = 3
Trainers = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A network to measure: what it is, its programs, and how to draw one batch for it."""

    description: str
    build: Callable[[], networks.Network]
    draw: Callable[[np.random.Generator], running.Batch]
    tolerance: running.Tolerance


def _network(
    layout: networks.Layout, inputs: Any, optimizer: Callable[[float], Any], rate: float
) -> Callable[[], networks.Network]:
    return lambda: networks.build_network(
        layout, networks.cross_entropy, inputs, lambda: optimizer(rate)
    )


def _digits(batch: int, *shape: int) -> Callable[[np.random.Generator], running.Batch]:
    return lambda generator: (
        generator.random((batch, *shape), dtype=np.float32),
        generator.integers(0, 10, (batch, 1)),
    )


def _texts(generator: np.random.Generator) -> running.Batch:
    words: NDArray[np.int64] = generator.integers(1, VOCABULARY, (128, 100))
    return words, generator.integers(0, 2, (128, 1))


CNN = networks.text_cnn(VOCABULARY)
CASES = {
    "mlp": Case(
        "MLP 784-1024-1024-10, batch 128, momentum",
        _network(networks.mlp, networks.digit_inputs(784), networks.momentum, 0.01),
        _digits(128, 784),
        running.STEADY,
    ),
    "cnn-adagrad": Case(
        "text CNN, 100 words, windows 3 and 4, batch 128, Adagrad",
        _network(CNN, networks.text_inputs(), networks.adagrad, 0.02),
        _texts,
        running.SWITCHING,
    ),
    "cnn-adam": Case(
        "text CNN, 100 words, windows 3 and 4, batch 128, Adam",
        _network(CNN, networks.text_inputs(), networks.adam, 1e-3),
        _texts,
        running.SWITCHING,
    ),
    "lenet": Case(
        "LeNet-5, 28 x 28, batch 64, momentum",
        _network(networks.lenet, networks.digit_inputs(1, 28, 28), networks.momentum, 0.01),
        _digits(64, 1, 28, 28),
        running.STEADY,
    ),
}


@dataclass(frozen=True)
class Result:
    """Times of one network in milliseconds; ``round_speedups`` has one native/ngraph ratio a turn.

    ``first_step_ms`` is the engine's first step, compilation included.
    """

    model: str
    description: str
    native_ms: float
    ngraph_ms: float
    torch_ms: float | None
    speedup: float
    round_speedups: list[float]
    first_step_ms: float
    engine: dict[str, Any]


def measure(name: str, rounds: int, steps: int) -> Result:
    """Measures the case ``name``: ``rounds`` turns of ``steps`` counted steps for each engine."""
    case = CASES[name]
    generator = np.random.default_rng(0)
    batches = [case.draw(generator) for _ in range(BATCHES)]
    network = case.build()
    weights = running.initial_weights(network, seed=0)
    native = running.Trainer(network, running.NATIVE, weights)
    ngraph = running.Trainer(network, running.NGRAPH, weights)
    with running.engine_must_run(running.NGRAPH):
        for trainer in (native, ngraph):
            for step in range(WARM_UP_STEPS):
                trainer.train_step(batches[step % BATCHES])
        stats = running.load_engine().stats()
    running.compare(native, ngraph, weights, case.tolerance).check()
    first_step_ms = 1e3 * ngraph.first_step_seconds[0]
    trainers: Trainers = {"native": native, "ngraph": ngraph, **_torch_trainer(name)}
    medians: dict[str, list[float]] = {engine: [] for engine in trainers}
    for _ in range(rounds):
        for engine, trainer in trainers.items():
            medians[engine].append(statistics.median(_turn(trainer, batches, steps)))
    times = {engine: 1e3 * statistics.median(seconds) for engine, seconds in medians.items()}
    return Result(
        model=name,
        description=case.description,
        native_ms=times["native"],
        ngraph_ms=times["ngraph"],
        torch_ms=times.get("torch"),
        speedup=times["native"] / times["ngraph"],
        round_speedups=[a / b for a, b in zip(medians["native"], medians["ngraph"])],
        first_step_ms=first_step_ms,
        engine=stats,
    )


def _turn(trainer: Any, batches: list[running.Batch], steps: int) -> list[float]:
    """Seconds of ``steps`` steps. One uncounted step first lets the other's threads go to sleep."""
    trainer.train_step(batches[-1])
    trainer.step_seconds.clear()
    for step in range(steps):
        trainer.train_step(batches[step % BATCHES])
    return list(trainer.step_seconds)


def _torch_trainer(name: str) -> Trainers:
    try:
        from benchmarks.torch_models import TorchTrainer
    except ImportError:
        return {}
    return {"torch": TorchTrainer(name, VOCABULARY)}


def environment() -> dict[str, str]:
    """What the numbers depend on: machine, threads, versions."""
    import paddle

    flags = paddle.get_flags(["FLAGS_paddle_num_threads", "FLAGS_ngraph_num_threads"])
    engine_threads = flags["FLAGS_ngraph_num_threads"] or "all cores"
    versions = {}
    for package in ("paddlepaddle", "openvino", "paddle-ngraph", "torch", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = getattr(
                sys.modules.get(package.replace("-", "_")), "__version__", "not installed"
            )
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads of Paddle": str(flags["FLAGS_paddle_num_threads"]),
        "threads of the engine": str(engine_threads),
        "system": platform.platform(),
        "Python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def markdown(results: Sequence[Result], machine: dict[str, str], rounds: int, steps: int) -> str:
    """The results as a page of Markdown."""
    has_torch = any(result.torch_ms for result in results)
    header = ["network", "native Paddle (ms)", "engine (ms)", "speed-up", "first step (s)"]
    rows = [header + (["PyTorch (ms)"] if has_torch else [])]
    for result in results:
        low, high = min(result.round_speedups), max(result.round_speedups)
        row = [
            result.description,
            f"{result.native_ms:.2f}",
            f"{result.ngraph_ms:.2f}",
            f"{result.speedup:.2f}x ({low:.2f} to {high:.2f})",
            f"{result.first_step_ms / 1e3:.2f}",
        ]
        rows.append(row + ([f"{result.torch_ms:.2f}"] if result.torch_ms else []))
    rows.insert(1, ["---"] + ["---:"] * (len(rows[0]) - 1))
    lines = [
        "# One training step",
        "",
        f"Median over {rounds} turns of the median of {steps} steps; beside the speed-up, the "
        "lowest and the highest of a single turn. The engine's first step, compilation included, "
        "is not counted. Made by `python benchmarks/training_step.py`.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
    ]
    return "\n".join(lines) + "\n"


def plot(results: Sequence[Result], path: Path) -> None:
    """Writes the results as a bar chart, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    series = {"native Paddle": [r.native_ms for r in results]}
    series["engine"] = [r.ngraph_ms for r in results]
    if all(r.torch_ms for r in results):
        series["PyTorch"] = [r.torch_ms or 0.0 for r in results]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(series)
    for index, (label, milliseconds) in enumerate(series.items()):
        shares = np.divide(milliseconds, series["native Paddle"])
        bars = axes.bar(np.arange(len(results)) + index * width, shares, width, label=label)
        axes.bar_label(bars, [f"{value:.1f} ms" for value in milliseconds], fontsize=8)
    axes.set_xticks(np.arange(len(results)) + 0.4 - width / 2, [r.model for r in results])
    axes.set(title="Time of one training step", ylabel="relative to native Paddle")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def run(options: argparse.Namespace) -> None:
    """Measures, prints and writes ``training_step.md``, ``.json`` and ``.png``."""
    results = []
    for name in options.models:
        result = measure(name, options.rounds, options.steps)
        torch_part = f", PyTorch {result.torch_ms:.2f} ms" if result.torch_ms else ""
        print(
            f"{name}: native {result.native_ms:.2f} ms, engine {result.ngraph_ms:.2f} ms, "
            f"{result.speedup:.2f}x{torch_part}",
            flush=True,
        )
        results.append(result)
    machine = environment()
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    page = markdown(results, machine, options.rounds, options.steps)
    (folder / "training_step.md").write_text(page)
    data = {
        "environment": machine,
        "rounds": options.rounds,
        "steps": options.steps,
        "results": [asdict(result) for result in results],
    }
    (folder / "training_step.json").write_text(json.dumps(data, indent=2) + "\n")
    plot(results, folder / "training_step.png")
    print(f"written to {folder}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=tuple(CASES),
        default=tuple(CASES),
        metavar="MODEL",
        help=f"which of {', '.join(CASES)} (default: all)",
    )
    whole = command_line.positive
    parser.add_argument(
        "--rounds", type=whole, default=5, help="turns of each engine (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=whole, default=10, help="counted steps a turn (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).resolve().parent / "results",
        metavar="DIR",
        help="where the results go (default: benchmarks/results)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return command_line.exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
