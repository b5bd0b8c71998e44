"""Inference in bfloat16 against float32: speedup and error."""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import peers, report, works
from benchmarks.comparison import Pace
from benchmarks.options import Progress, chosen
from benchmarks.peers import Assets
from benchmarks.worker import Worker
from benchmarks.works import Array, Work

PRECISIONS = ("f32", "bf16")
BATCH = 8
ABOUT = """\
The engine with `FLAGS_ngraph_precision=bf16` beside its default, batch {batch}, two processes that
take turns: medians over {rounds} turns. *Off by*: the mean and the largest difference of a result,
as a share of its largest value; pictures are noise, and weights are random but for PP-OCR's. Where
the processor has no units for bfloat16 (AVX512_BF16, AMX; the list below would name them), float32
is used in both."""


@dataclass(frozen=True)
class Found:
    """One model in both precisions: median milliseconds, and the error of bfloat16."""

    name: str
    description: str
    f32_ms: float
    bf16_ms: float
    mean_off: float
    most_off: float

    @property
    def ratio(self) -> float:
        """The speedup of bfloat16 over float32."""
        return self.f32_ms / self.bf16_ms


def measure(options: Namespace) -> None:
    """Measures the models; writes ``precision.md``, ``.json`` and ``.png``."""
    pace = Pace(1, 0.1) if options.quick else Pace(options.rounds)
    batch = 1 if options.quick else BATCH
    wanted = [works.inference(name, batch) for name in chosen(options, works.INFERENCE_MODELS)]
    earlier = report.earlier(options.output, "precision")
    kept = earlier["precision"] if earlier.get("batch") == batch else []
    found = {item["name"]: Found(**item) for item in kept}
    with Progress("precision", len(wanted)) as progress:
        for work in wanted:
            progress.say(work.name)
            item = _compare(work, pace)
            progress.done(f"{work.name}: {item.ratio:.2f}x, off by {item.mean_off:.1e}")
            found[item.name] = item
    rows = [
        [
            item.description,
            *(f"{value:.2f}" for value in (item.f32_ms, item.bf16_ms, item.ratio)),
            f"{item.mean_off:.1e}, {item.most_off:.1e}",
        ]
        for item in found.values()
    ]
    header = ["", "float32 (ms)", "bfloat16 (ms)", "times as fast", "off by"]
    sections = [ABOUT.format(batch=batch, rounds=pace.rounds), report.table(header, rows)]
    data = {"batch": batch, "precision": [asdict(item) for item in found.values()]}
    report.bars(
        report.picture(options.output, "precision"),
        f"Inference in bfloat16, batch {batch}",
        "times as fast as in float32",
        [item.name for item in found.values()],
        {"bfloat16": [item.ratio for item in found.values()]},
    )
    beside = report.column(header, rows, "times as fast")
    report.write(options.output, "precision", "bfloat16 beside float32", sections, data, beside)


def _compare(work: Work, pace: Pace) -> Found:
    with ExitStack() as stack:
        assets = Assets(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        workers = {
            precision: stack.enter_context(Worker({"FLAGS_ngraph_precision": precision}))
            for precision in PRECISIONS
        }
        values: dict[str, list[Array]] = {}
        for precision, worker in workers.items():
            worker.hold(peers.start, work, assets, peers.ENGINE)
            values[precision] = worker.ask("results").values
        samples: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        for _ in range(pace.rounds):
            for precision, worker in workers.items():
                samples[precision].append(
                    1e3 * statistics.median(worker.ask("measure", pace.seconds))
                )
    times = (statistics.median(samples[precision]) for precision in PRECISIONS)
    differences = [_differences(*results) for results in zip(values["bf16"], values["f32"])]
    return Found(work.name, work.description, *times, *map(max, zip(*differences)))


def _differences(found: Array, expected: Array) -> tuple[float, float]:
    shares = np.abs(found - expected) / np.abs(expected).max()
    return float(shares.mean()), float(shares.max())
