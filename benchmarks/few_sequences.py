"""Compares recurrent layers with one to four sequences with Paddle's and PyTorch's.

    python benchmarks/few_sequences.py --threads 1

measures all cells, sizes, steps and batches, with the instructions that the processor has. These
variables withhold AVX-512 from oneDNN, which the packed layers ask, PyTorch and MKL; the gates of
the packed layers, a small part, still use it:

    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# A script finds modules in its own folder only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paddle

from benchmarks import mkl_packed, report
from demos import command_line

KINDS = {"RNN": "SimpleRNN", "GRU": "GRU", "LSTM": "LSTM"}
SIZES, STEPS, BATCHES = (128, 256, 512), (20, 100), (1, 2, 4)
PACKED, TORCH = "onednn packed", "PyTorch"
NAMES = (PACKED, "Paddle", TORCH)
TITLE = "Recurrent layers with one to four sequences"
VARIANTS = ("forward", "training")


@dataclass(frozen=True)
class Row:
    """One case: for each variant and contestant, the median milliseconds of processor time.

    Attributes:
        wall, processor: PyTorch's time divided by that of the packed layer, median over the pairs.
    """

    kind: str
    size: int
    steps: int
    batch: int
    times: dict[str, dict[str, float]]
    wall: dict[str, float]
    processor: dict[str, float]


def measure(kind: str, size: int, steps: int, batch: int, rounds: int) -> Row:
    """Measures one case: in each round the contestants run in turn, each after a warm-up."""
    case = mkl_packed.Case("", KINDS[kind], size, size, 1, batch, steps)
    contestants = {c.name: c for c in mkl_packed.compared_contestants(case) if c.name in NAMES}
    row = Row(kind, size, steps, batch, {}, {}, {})
    for variant in VARIANTS:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _, name in itertools.product(range(rounds), contestants):
            contestant = contestants[name]
            run = contestant.infer if variant == "forward" else contestant.train
            run()
            start = time.perf_counter(), time.process_time()
            run()
            times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        row.times[variant] = {
            name: 1e3 * statistics.median(processor for _, processor in found)
            for name, found in times.items()
        }
        if TORCH in times:
            pairs = list(zip(times[TORCH], times[PACKED]))
            for index, ratios in enumerate((row.wall, row.processor)):
                ratios[variant] = statistics.median(a[index] / b[index] for a, b in pairs)
    return row


def sections(rows: Sequence[Row], options: argparse.Namespace) -> list[str]:
    """Returns the results in Markdown."""
    about = (
        f"One layer of equal numbers of features and units, {options.threads} threads, float32: "
        f"milliseconds of processor time, medians over {options.rounds} rounds in which the "
        "contestants take turns; in brackets how many times as long PyTorch takes, in processor "
        "time and by the clock: medians over the rounds."
    )
    cells = [
        [
            f"{row.kind} {row.size}",
            str(row.steps),
            str(row.batch),
            *(
                text
                for variant in VARIANTS
                for text in (
                    f"{row.times[variant]['Paddle']:.3f}",
                    f"{row.times[variant].get(TORCH, 0.0):.3f}",
                    f"{row.times[variant][PACKED]:.3f} ({row.processor.get(variant, 0.0):.2f}x, "
                    f"{row.wall.get(variant, 0.0):.2f}x)",
                )
            ),
        ]
        for row in rows
    ]
    names = [f"{variant}: {name}" for variant in VARIANTS for name in ("Paddle", TORCH, "packed")]
    return [about, report.table(["layer", "steps", "batch", *names], cells)]


def run(options: argparse.Namespace) -> None:
    """Measures, prints and writes ``few_sequences.md`` and ``.json``, with the instruction set."""
    paddle.disable_static()
    mkl_packed.set_threads(options.threads)
    rows = []
    for batch, steps, kind, size in itertools.product(BATCHES, STEPS, KINDS, SIZES):
        rows.append(measure(kind, size, steps, batch, options.rounds))
        ratios = ", ".join(f"{v} {rows[-1].processor.get(v, 0.0):.2f}x" for v in VARIANTS)
        print(f"{kind} {size}, {steps} steps, batch {batch}: {ratios}", flush=True)
    topic, title = "few_sequences", TITLE
    if options.threads > 1:
        topic, title = f"{topic}_threads", f"{title}, on several threads"
    if withheld := os.environ.get("ONEDNN_MAX_CPU_ISA", ""):
        topic, title = f"{topic}_{withheld.lower()}", f"{title}, ONEDNN_MAX_CPU_ISA={withheld}"
    data = {"rows": [asdict(row) for row in rows]}
    command = f"python benchmarks/few_sequences.py --threads {options.threads}"
    report.write(options.output, topic, title, sections(rows, options), data, command=command)
    print(f"written to {options.output}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=command_line.positive, default=1)
    parser.add_argument(
        "--rounds", type=command_line.positive, default=5, help="samples (default: %(default)s)"
    )
    report.add_output(parser)
    options = parser.parse_args(arguments)
    return command_line.exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
