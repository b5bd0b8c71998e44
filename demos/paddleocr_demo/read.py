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
from demos.ocr_demo import reading
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
    """Converts the result of ``PaddleOCR.predict`` for one picture."""
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


def results_table(readings: Sequence[Reading]) -> str:
    """One column an engine: times, and with two engines the speed-up."""
    medians = [each.milliseconds for each in readings]
    rows = [
        ["a page (ms)", *(f"{median:.0f}" for median in medians)],
        ["the first one (ms)", *(f"{each.first:.0f}" for each in readings)],
    ]
    return reading.table(readings, rows, medians)


def check_agreement(native: Page, ngraph: Page) -> None:
    """Prints how far the scores part; raises DemoError where the readings differ."""
    reading.require_same_text(native, ngraph)
    apart = max((abs(a.score - b.score) for a, b in zip(native.lines, ngraph.lines)), default=0.0)
    print(f"same text; largest difference of a score: {apart:.1e}")
    reading.require_rounding(apart, APART, "the scores")


def run(options: argparse.Namespace) -> None:
    """Reads with the engines asked for, prints what was read and how long it took."""
    readings = reading.with_each_engine(
        options, lambda engine, picture: read(engine, picture, options)
    )
    print(results_table(readings))
    if len(readings) == 2:
        check_agreement(*(each.page for each in readings))


def main(arguments: Sequence[str] | None = None) -> int:
    options = reading.parser(__doc__, "paddleocr_demo_output.png").parse_args(arguments)
    return command_line.exit_status(run, options)


if __name__ == "__main__":
    sys.exit(main())
