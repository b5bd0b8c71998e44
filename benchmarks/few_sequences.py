"""Compares recurrent layers with one to four sequences with Paddle's and PyTorch's.

    python benchmarks/few_sequences.py --threads 1

measures all cells, sizes, steps and batches: on one thread in processor time, on several by the
clock and in processor time. The instructions are those that the processor has; these variables
withhold AVX-512 from oneDNN, which the packed layers ask, PyTorch and MKL. The gates of the packed
layers, a small part, still use it:

    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# A script finds modules in its own folder only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.recurrent import VARIANTS, Alternation, Case, medians, milliseconds
from demos import command_line

KINDS = {"RNN": "SimpleRNN", "GRU": "GRU", "LSTM": "LSTM"}
SIZES, STEPS, BATCHES = (128, 256, 512), (20, 100), (1, 2, 4)
PACKED, TORCH = "onednn packed", "PyTorch"
RUNS = 5  # in a round
NAMES = (PACKED, "Paddle", TORCH)
TITLE = "Recurrent layers with one to four sequences"


@dataclass(frozen=True)
class Row:
    """One case: for each variant and contestant, the median of its milliseconds.

    Attributes:
        ratios: PyTorch's time divided by that of the packed layer, median over the rounds.
        processor_ratios: The same of processor time, on several threads.
    """

    kind: str
    size: int
    steps: int
    batch: int
    times: dict[str, dict[str, float]]
    ratios: dict[str, float]
    processor_ratios: dict[str, float]


def measure(alternation: Alternation, threads: int, case: Case, kind: str) -> Row:
    """Measures one case."""
    row = Row(kind, case.hidden, case.steps, case.batch, {}, {}, {})
    for variant, times in alternation.of(case).items():
        rounds = milliseconds(times, threads)
        row.times[variant] = medians(rounds)
        if TORCH in rounds[0]:
            row.ratios[variant] = _ratio(rounds)
            if threads > 1:
                row.processor_ratios[variant] = _ratio(milliseconds(times, 1))
    return row


def _ratio(rounds: Sequence[dict[str, float]]) -> float:
    return statistics.median(each[TORCH] / each[PACKED] for each in rounds)


def _packed(row: Row, variant: str) -> str:
    ratios = [row.ratios.get(variant, 0.0)]
    if variant in row.processor_ratios:
        ratios.append(row.processor_ratios[variant])
    return f"{row.times[variant][PACKED]:.3f} ({', '.join(f'{ratio:.2f}x' for ratio in ratios)})"


def sections(rows: Sequence[Row], options: argparse.Namespace) -> list[str]:
    """Returns the results in Markdown."""
    one = options.threads == 1
    about = (
        f"One layer of equal numbers of features and units, "
        f"{options.threads} thread{'' if one else 's'}, float32: "
        f"milliseconds of {'processor time' if one else 'the clock'}, medians over "
        f"{options.rounds} rounds in which PyTorch and Paddle, with the packed layers, take turns "
        "in a process each; in brackets how many times as long PyTorch takes"
        f"{'' if one else ', by the clock and in processor time'}: the median over the rounds."
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
                    _packed(row, variant),
                )
            ),
        ]
        for row in rows
    ]
    names = [f"{variant}: {name}" for variant in VARIANTS for name in ("Paddle", TORCH, "packed")]
    return [about, report.table(["layer", "steps", "batch", *names], cells)]


def run(options: argparse.Namespace) -> None:
    """Measures, prints and writes ``few_sequences.md`` and ``.json``, with the instruction set."""
    rows = []
    with Alternation(options.threads, options.rounds, RUNS, NAMES) as alternation:
        for batch, steps, kind, size in itertools.product(BATCHES, STEPS, KINDS, options.sizes):
            case = Case("", KINDS[kind], size, size, 1, batch, steps)
            rows.append(measure(alternation, options.threads, case, kind))
            ratios = ", ".join(f"{v} {rows[-1].ratios.get(v, 0.0):.2f}x" for v in VARIANTS)
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
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=SIZES)
    parser.add_argument(
        "--rounds", type=command_line.positive, default=5, help="samples (default: %(default)s)"
    )
    report.add_output(parser)
    options = parser.parse_args(arguments)
    return command_line.exit_status(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
