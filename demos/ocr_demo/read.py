"""Reads the text in a photograph with PP-OCR, natively and through the engine.

Both engines run the same three networks on the same picture, so they must read the same; the demo
fails where they do not, or where the engine did not run.

    python demos/ocr_demo/read.py --version v5
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, running
from demos.ocr_demo import pipeline, reading

APART = 1e-3
"""How far the outputs of the networks, probabilities all of them, may part by rounding. They do by
2e-4 on the photographs; the convolutions sum in another order, and hundreds of layers follow."""


@dataclass(frozen=True)
class Reading:
    """One engine's page, the time of its first reading, and the median times of the others."""

    engine: str
    page: pipeline.Page
    first_seconds: float
    milliseconds: dict[str, float]


def read(
    reader: pipeline.Reader, engine: str, picture: Image.Image, options: argparse.Namespace
) -> Reading:
    """Reads the picture once and then, with the functions compiled, ``--repeat`` times."""
    with running.switched_to(engine):
        start = time.perf_counter()
        page = reader.read(picture)
        first_seconds = time.perf_counter() - start
        seconds = [reader.read(picture).seconds for _ in range(options.repeat)]
    medians = {
        step: 1e3 * float(np.median([run[step] for run in seconds])) for step in pipeline.STEPS
    }
    return Reading(engine, page, first_seconds, medians)


def results_table(readings: Sequence[Reading]) -> str:
    """One column an engine: lines, times, and with two engines the speed-up."""
    rows = [["lines of text", *(str(len(each.page.lines)) for each in readings)]]
    totals = [sum(each.milliseconds.values()) for each in readings]
    for step in pipeline.STEPS:
        rows.append([f"{step} (ms)", *(f"{each.milliseconds[step]:.1f}" for each in readings)])
    rows.append(["all networks (ms)", *(f"{total:.1f}" for total in totals)])
    rows.append(["first reading (s)", *(f"{each.first_seconds:.2f}" for each in readings)])
    return reading.table(readings, rows, totals)


def check_agreement(native: pipeline.Page, ngraph: pipeline.Page) -> None:
    """Prints how far the networks' outputs part; raises DemoError where the readings differ."""
    reading.require_same_text(native, ngraph)
    apart = {step: largest_difference(native, ngraph, step) for step in pipeline.STEPS}
    parts = ", ".join(f"{step} {difference:.1e}" for step, difference in apart.items())
    print(f"same text; largest difference of a probability: {parts}")
    reading.require_rounding(max(apart.values()), APART, "the outputs of the networks")


def largest_difference(native: pipeline.Page, ngraph: pipeline.Page, step: str) -> float:
    """Between what the two engines made of one step; NaN where there was nothing to compute."""
    pairs = zip(native.outputs[step], ngraph.outputs[step])
    return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)


def run(options: argparse.Namespace) -> None:
    """Reads with the engines asked for, prints what was read and how long it took."""
    reader = pipeline.Reader(options.version)
    readings = reading.with_each_engine(
        options, lambda engine, picture: read(reader, engine, picture, options)
    )
    print(results_table(readings))
    if len(readings) == 2:
        check_agreement(*(each.page for each in readings))


def main(arguments: Sequence[str] | None = None) -> int:
    options = reading.parser(__doc__, "ocr_demo_output.png").parse_args(arguments)
    return command_line.exit_status(run, options)


if __name__ == "__main__":
    sys.exit(main())
