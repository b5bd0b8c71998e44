"""Reads the text in a picture with PaddleOCR, natively and through the engine.

PaddleOCR and PaddleX run as they are: the engine is switched on beside them.

    python demos/paddleocr_demo/read.py --image page
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, running
from demos.ocr_demo import drawing, files
from demos.ocr_demo.pipeline import Line, Page
from demos.paddleocr_demo import models
from demos.running import DemoError

APART = 1e-3
"""How far scores may part by rounding."""


@dataclass(frozen=True)
class Reading:
    """One engine's page, and the milliseconds of its first reading and of one of the others."""

    engine: str
    page: Page
    first: float
    milliseconds: float


def reader(version: str, **settings: Any) -> Any:
    """A ``PaddleOCR`` over the networks of ``version``; ``settings``: more arguments of it.

    Raises:
        DemoError: PaddleOCR is not installed.
    """
    # All models are local: nobody needs to be asked for them.
    os.environ.setdefault("PADDLE_PDX_DISABLE_MODEL_SOURCE_CHECK", "True")
    try:
        from paddleocr import PaddleOCR
    except ImportError as error:
        raise DemoError("PaddleOCR is not installed: run `make paddleocr`") from error
    return PaddleOCR(**models.arguments(version), **settings)


def page_of(result: Any) -> Page:
    """What ``PaddleOCR.predict`` found in one picture."""
    found = zip(result["rec_texts"], result["rec_scores"], result["rec_polys"])
    return Page([Line(text, float(score), np.asarray(box, float)) for text, score, box in found])


def read(engine: str, picture: Image.Image, options: argparse.Namespace) -> Reading:
    """Reads the picture once and then, with the functions compiled, ``--repeat`` times."""
    pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
    # By default PaddleOCR takes Paddle's oneDNN, which Paddle 3.3 cannot run PP-OCRv5 on.
    settings = {"enable_mkldnn": False} if engine == running.NATIVE else {}
    milliseconds = []
    with running.switched_to(engine):
        ocr = reader(options.version, **settings)
        for _ in range(1 + options.repeat):
            start = time.perf_counter()
            (result,) = ocr.predict(pixels)
            milliseconds.append(1e3 * (time.perf_counter() - start))
    first, *others = milliseconds
    return Reading(engine, page_of(result), first, statistics.median(others))


def check_agreement(native: Page, ngraph: Page) -> None:
    """Raises DemoError where the readings differ."""
    if native.text != ngraph.text:
        raise DemoError(
            f"natively the picture reads {native.text}, through the engine {ngraph.text}: the "
            "engine computes these networks wrongly, please report it"
        )
    apart = max((abs(a.score - b.score) for a, b in zip(native.lines, ngraph.lines)), default=0.0)
    print(f"same text; largest difference of a score: {apart:.1e}")
    if not apart <= APART:
        raise DemoError("the scores differ by more than float32 rounding explains")


def run(options: argparse.Namespace) -> None:
    """Reads with the engines asked for, prints what was read and how long it took."""
    engines = command_line.engines(options.engine)
    if running.NGRAPH in engines:
        running.load_engine()
    picture = files.open_picture(options.image)
    readings = []
    for engine in engines:
        with running.engine_must_run(engine):
            readings.append(read(engine, picture, options))
        for line in readings[-1].page.lines:
            print(f"[{engine}] {line.score:.3f} {line.text}")
    rows = [
        ["", *(reading.engine for reading in readings)],
        ["a page (ms)", *(f"{reading.milliseconds:.0f}" for reading in readings)],
        ["the first one (ms)", *(f"{reading.first:.0f}" for reading in readings)],
    ]
    if len(readings) == 2:
        native, ngraph = (reading.milliseconds for reading in readings)
        rows.append(["speed-up", "", f"{native / ngraph:.1f}x"])
    print(running.side_by_side(rows))
    drawing.draw(picture, readings[-1].page, options.output)
    print(f"drawn into {options.output}")
    if len(readings) == 2:
        check_agreement(*(reading.page for reading in readings))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", choices=files.VERSIONS, default="v5", help="of PP-OCR (default: %(default)s)"
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
        default=Path("paddleocr_demo_output.png"),
        metavar="FILE",
        help="where the picture with boxes and text goes (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
