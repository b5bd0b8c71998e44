"""Compares the packed recurrent layers with Paddle's and PyTorch's, in one run.

    python benchmarks/mkl_packed.py --cases rnn gru --threads 1 8

The contestants alternate; each computes the same network on the same input, with one thread (in
processor time) and with all cores. Each provider is measured packed and unpacked, which shows the
effect of packing. Outputs are compared before times are measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

# A script finds modules in its own folder only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.recurrent import VARIANTS, Alternation, Case, medians, milliseconds
from demos import command_line

STEPS = 100
TOPIC, TITLE = "mkl_packed", "Recurrent layers with packed weights"
COMMAND = "python benchmarks/mkl_packed.py"
RUNS = 1  # in a round

CASES = {
    "rnn": Case("RNN 2048, batch 16", "SimpleRNN", 2048, 2048, 1, 16, STEPS),
    "gru": Case("GRU 512, batch 32", "GRU", 512, 512, 1, 32, STEPS),
    "lstm": Case("2-layer LSTM 128 to 256, batch 32", "LSTM", 128, 256, 2, 32, STEPS),
    "rnn-1": Case("RNN 2048, batch 1", "SimpleRNN", 2048, 2048, 1, 1, STEPS),
    "gru-1": Case("GRU 512, batch 1", "GRU", 512, 512, 1, 1, STEPS),
    "lstm-1": Case("2-layer LSTM 128 to 256, batch 1", "LSTM", 128, 256, 2, 1, STEPS),
}


@dataclass(frozen=True)
class Result:
    """Milliseconds of one case by contestant, forward and in training."""

    case: str
    title: str
    threads: int
    forward: dict[str, float]
    training: dict[str, float]


def measure(alternation: Alternation, name: str, threads: int) -> Result:
    """Measures one case; each time is the median over the rounds."""
    case = CASES[name]
    times = alternation.of(case)
    rounds = (milliseconds(times[variant], threads) for variant in VARIANTS)
    forward, training = map(medians, rounds)
    return Result(name, case.title, threads, forward, training)


def sections(results: list[Result], rounds: int) -> list[str]:
    """Returns the results in Markdown."""
    pages = [
        f"Milliseconds for {STEPS} steps in float32, median over {rounds} rounds, PyTorch in "
        "a process of its own, one thread in processor time; in brackets how much faster than "
        "Paddle with as many threads. Paddle's default is one thread."
    ]
    for variant in VARIANTS:
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
    for axes, variant in zip(figure.subplots(2, 1, sharex=True), VARIANTS):
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
    results = []
    for threads in options.threads or sorted({1, int(report.environment()["cores"])}):
        with Alternation(threads, options.rounds, RUNS) as alternation:
            for name in options.cases:
                result = measure(alternation, name, threads)
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
