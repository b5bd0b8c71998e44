"""Compares the packed recurrent layers with Paddle's and PyTorch's, in one run.

    python benchmarks/mkl_packed.py --cases rnn gru --threads 1 8

The contestants alternate; each computes the same network on the same input, with one thread and
with all cores. Each provider is measured packed and unpacked, which shows the effect of packing.
Outputs are compared before times are measured.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

# A script finds modules in its own folder only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paddle

from benchmarks import report
from demos import command_line
from paddle_ngraph import _core, flags, mkl_packed

STEPS = 100
TOPIC, TITLE = "mkl_packed", "Recurrent layers with packed weights"
COMMAND = "python benchmarks/mkl_packed.py"


@dataclass(frozen=True)
class Case:
    """A network and its input."""

    title: str
    kind: str
    input: int
    hidden: int
    layers: int
    batch: int
    steps: int = STEPS


CASES = {
    "rnn": Case("RNN 2048, batch 16", "SimpleRNN", 2048, 2048, 1, 16),
    "gru": Case("GRU 512, batch 32", "GRU", 512, 512, 1, 32),
    "lstm": Case("2-layer LSTM 128 to 256, batch 32", "LSTM", 128, 256, 2, 32),
    "rnn-1": Case("RNN 2048, batch 1", "SimpleRNN", 2048, 2048, 1, 1),
    "gru-1": Case("GRU 512, batch 1", "GRU", 512, 512, 1, 1),
    "lstm-1": Case("2-layer LSTM 128 to 256, batch 1", "LSTM", 128, 256, 2, 1),
}


@dataclass(frozen=True)
class Contestant:
    """An implementation of the network: a forward pass, and a forward and backward pass."""

    name: str
    infer: Callable[[], Any]
    train: Callable[[], Any]


@dataclass(frozen=True)
class Result:
    """Milliseconds of one case by contestant, forward and in training."""

    case: str
    title: str
    threads: int
    forward: dict[str, float]
    training: dict[str, float]


def measure(name: str, threads: int, rounds: int) -> Result:
    """Measures one case; each time is the median over ``rounds`` samples."""
    case = CASES[name]
    set_threads(threads)
    contestants = compared_contestants(case)
    times: dict[str, tuple[list[float], list[float]]] = {c.name: ([], []) for c in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            for variant, run in enumerate((contestant.infer, contestant.train)):
                run()  # warm-up: threads of the previous contestant go to sleep
                start = time.perf_counter()
                run()
                times[contestant.name][variant].append(1e3 * (time.perf_counter() - start))
    forward = {name: statistics.median(t[0]) for name, t in times.items()}
    training = {name: statistics.median(t[1]) for name, t in times.items()}
    return Result(name, case.title, threads, forward, training)


def compared_contestants(case: Case) -> list[Contestant]:
    """Returns the implementations of a network; their outputs have been compared."""
    x = np.random.default_rng(0).standard_normal((case.steps, case.batch, case.input))
    x = x.astype(np.float32)
    contestants = [*_paddle(case, x), *_torch(case, x)]
    expected = contestants[0].infer().numpy()
    for contestant in contestants:
        found = contestant.infer().numpy()
        if found.shape != expected.shape or not np.isfinite(found).all():
            raise SystemExit(f"{contestant.name}: no result to measure")
        if contestant.name != "PyTorch" and np.abs(found - expected).max() > 1e-5:
            raise SystemExit(f"{contestant.name}: another result than Paddle's")
    return contestants


def set_threads(threads: int) -> None:
    """Sets the number of threads of Paddle, of the packed layers, and of PyTorch's next layers."""
    folder = Path(paddle.__file__).parent / "libs"
    ctypes.CDLL(str(folder / "libiomp5.so")).omp_set_num_threads(threads)
    paddle.set_flags({"FLAGS_ngraph_num_threads": threads})


def _paddle(case: Case, x: np.ndarray) -> list[Contestant]:
    """Returns Paddle's layer, and the packed one of each provider with equal weights."""
    paddle.seed(1)
    sizes = (case.input, case.hidden, case.layers)
    native = getattr(paddle.nn, case.kind)(*sizes, time_major=True)
    packed = getattr(mkl_packed, case.kind)(*sizes, time_major=True)
    packed.set_state_dict(native.state_dict())
    tensor = paddle.to_tensor(x)

    def contestant(name: str, net: Any, prepare: Callable[[], None]) -> Contestant:
        def infer() -> Any:
            prepare()
            net.eval()
            with paddle.no_grad():
                return net(tensor)[0]

        def train() -> None:
            prepare()
            net.train()
            net(tensor)[0].mean().backward()
            net.clear_gradients()

        return Contestant(name, infer, train)

    def by(provider: str, packs: bool) -> Callable[[], None]:
        def prepare() -> None:
            flags.set("mkl_packed_provider", provider)
            _core.mkl_packed.set_packing(packs)

        return prepare

    found = [contestant("Paddle", native, lambda: None)]
    for provider in ("onednn", "mkl"):
        if not _core.mkl_packed.why_unavailable(provider):
            found.append(contestant(f"{provider} packed", packed, by(provider, True)))
            found.append(contestant(f"{provider} unpacked", packed, by(provider, False)))
    return found


def _torch(case: Case, x: np.ndarray) -> list[Contestant]:
    try:
        import torch
    except ImportError:
        return []
    torch.set_num_threads(flags.get("ngraph_num_threads"))
    kind = {"SimpleRNN": torch.nn.RNN}.get(case.kind) or getattr(torch.nn, case.kind)
    net = kind(case.input, case.hidden, case.layers)
    tensor = torch.from_numpy(x)

    def infer() -> Any:
        with torch.no_grad():
            return net(tensor)[0]

    def train() -> None:
        net(tensor)[0].mean().backward()
        net.zero_grad()

    return [Contestant("PyTorch", infer, train)]


def sections(results: list[Result], rounds: int) -> list[str]:
    """Returns the results in Markdown."""
    pages = [
        f"Milliseconds for {STEPS} steps in float32, median over {rounds} turns, all contestants "
        "in one process; in brackets how much faster than Paddle with as many threads. Paddle's "
        "default is one thread."
    ]
    for variant in ("forward", "training"):
        names = list(results[0].forward)
        rows = []
        for result in results:
            times = getattr(result, variant)
            cells = [f"{times[n]:.1f} ({times['Paddle'] / times[n]:.1f}x)" for n in names]
            rows.append([result.title, str(result.threads), f"{times['Paddle']:.1f}", *cells[1:]])
        header = ["network", "threads", *names]
        pages += [f"## {variant.capitalize()}", report.table(header, rows)]
    return pages


def plot(results: Sequence[Result], path: Path) -> None:
    """Writes a bar chart of the speedups over Paddle, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(11, 6), layout="constrained")
    most = max(result.threads for result in results)
    shown = [result for result in results if result.threads == most]
    for axes, variant in zip(figure.subplots(2, 1, sharex=True), ("forward", "training")):
        names = [name for name in shown[0].forward if name != "Paddle"]
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            ratios = [getattr(r, variant)["Paddle"] / getattr(r, variant)[name] for r in shown]
            bars = axes.bar(np.arange(len(shown)) + index * width, ratios, width, label=name)
            axes.bar_label(bars, [f"{ratio:.1f}" for ratio in ratios], fontsize=7)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(np.arange(len(shown)) + 0.4 - width / 2, [r.case for r in shown])
        axes.set(title=f"{variant.capitalize()}, {most} threads", ylabel="times as fast as Paddle")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=110)


def run(options: argparse.Namespace) -> None:
    """Measures, prints and writes ``mkl_packed.md``, ``.json`` and ``.png``."""
    paddle.disable_static()
    results = []
    for threads in options.threads or sorted({1, int(report.environment()["cores"])}):
        for name in options.cases:
            result = measure(name, threads, options.rounds)
            print(f"{name}, {threads} threads: {_line(result)}", flush=True)
            results.append(result)
    folder: Path = options.output
    results = _with_earlier(results, folder)
    data = {"results": [asdict(result) for result in results]}
    plot(results, report.picture(folder, TOPIC))
    report.write(folder, TOPIC, TITLE, sections(results, options.rounds), data, command=COMMAND)
    print(f"written to {folder}")


def _with_earlier(results: list[Result], folder: Path) -> list[Result]:
    """Returns the results, and those of other cases from an earlier run on this machine."""
    measured = {(result.case, result.threads) for result in results}
    found = [Result(**values) for values in report.earlier(folder, TOPIC).get("results", [])]
    results = results + [r for r in found if (r.case, r.threads) not in measured]
    order = list(CASES)
    return sorted(results, key=lambda result: (order.index(result.case), result.threads))


def _line(result: Result) -> str:
    return ", ".join(
        f"{name} {time:.1f} / {result.training[name]:.1f} ms"
        for name, time in result.forward.items()
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=tuple(CASES),
        default=tuple(CASES),
        metavar="CASE",
        help=f"which of {', '.join(CASES)} (default: all)",
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=command_line.positive,
        metavar="COUNT",
        help="numbers of threads (default: 1, and as many as there are cores)",
    )
    parser.add_argument(
        "--rounds", type=command_line.positive, default=5, help="samples (default: %(default)s)"
    )
    report.add_output(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return command_line.exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
