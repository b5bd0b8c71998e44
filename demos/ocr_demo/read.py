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

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, running
from demos.ocr_demo import drawing, files, pipeline
from demos.running import DemoError

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


def read(reader: pipeline.Reader, engine: str, options: argparse.Namespace) -> Reading:
    """Reads the picture once and then, with the functions compiled, ``--repeat`` times."""
    picture = files.open_picture(options.image)
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
    rows = [["", *(reading.engine for reading in readings)]]
    rows.append(["lines of text", *(str(len(reading.page.lines)) for reading in readings)])
    totals = [sum(reading.milliseconds.values()) for reading in readings]
    for step in pipeline.STEPS:
        rows.append([f"{step} (ms)", *(f"{r.milliseconds[step]:.1f}" for r in readings)])
    rows.append(["all networks (ms)", *(f"{total:.1f}" for total in totals)])
    rows.append(["first reading (s)", *(f"{reading.first_seconds:.2f}" for reading in readings)])
    if len(readings) == 2:
        rows.append(["speed-up", "", f"{totals[0] / totals[1]:.2f}x"])
    return running.side_by_side(rows)


def check_agreement(native: pipeline.Page, ngraph: pipeline.Page) -> None:
    """Prints how far the networks' outputs part; raises DemoError where the readings differ."""
    if native.text != ngraph.text:
        pairs = zip([*native.text, "nothing"], [*ngraph.text, "nothing"])
        one, other = next((a, b) for a, b in pairs if a != b)
        raise DemoError(
            f"natively the picture reads {one!r} where the engine reads {other!r}: the engine "
            "computes these networks wrongly, please report it"
        )
    apart = {step: largest_difference(native, ngraph, step) for step in pipeline.STEPS}
    parts = ", ".join(f"{step} {difference:.1e}" for step, difference in apart.items())
    print(f"same text; largest difference of a probability: {parts}")
    if not max(apart.values()) <= APART:
        raise DemoError(
            "the outputs of the networks differ by more than float32 rounding explains: the engine "
            "computes them wrongly, please report it"
        )


def largest_difference(native: pipeline.Page, ngraph: pipeline.Page, step: str) -> float:
    """Between what the two engines made of one step; NaN where there was nothing to compute."""
    pairs = zip(native.outputs[step], ngraph.outputs[step])
    return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)


def run(options: argparse.Namespace) -> None:
    """Reads with the engines asked for, prints what was read and how long it took."""
    engines = command_line.engines(options.engine)
    if running.NGRAPH in engines:
        running.load_engine()
    reader = pipeline.Reader(options.version)
    readings = []
    for engine in engines:
        with running.engine_must_run(engine):
            readings.append(read(reader, engine, options))
        for line in readings[-1].page.lines:
            print(f"[{engine}] {line.score:.3f} {line.text}")
    print(results_table(readings))
    drawing.draw(files.open_picture(options.image), readings[-1].page, options.output)
    print(f"drawn into {options.output}")
    if len(readings) == 2:
        check_agreement(*(reading.page for reading in readings))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        choices=files.VERSIONS,
        default="v5",
        help="of PP-OCR: v5, saved in the form of PIR, or v4, saved as ProgramDesc "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--image",
        default="page",
        metavar="NAME|FILE",
        help=f"a picture file, or one of the photographs {' and '.join(files.PHOTOGRAPHS)} "
        "(default: %(default)s)",
    )
    command_line.add_engine_option(parser, default="both")
    parser.add_argument(
        "--repeat",
        type=command_line.positive,
        default=5,
        help="readings whose median time is printed, after a first one (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("ocr_demo_output.png"),
        metavar="FILE",
        help="where the picture with boxes and text goes (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
