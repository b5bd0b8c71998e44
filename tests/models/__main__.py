"""Runs every model through the engine and by Paddle, and writes the results as Markdown.

    python -m tests.models --only resnet18 BERT
    python -m tests.models --output docs/development/models.md

The exit status is 1 where a model is not computed like native Paddle, or not by the engine alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import paddle

from demos.ocr_demo import pipeline
from paddle_ngraph.partitioning.report import Report
from tests.models import ocr, zoo
from tests.models.checking import left_native, shortcomings
from tests.models.comparing import agreeing
from tests.models.zoo import Model

INTRODUCTION = """\
# Models

Whole models, run natively and through the engine from the same weights on the same data. Written
by `python -m tests.models --output docs/development/models.md`; `tests/models` runs smaller
versions of some of them. This takes about half an hour, and 10 GB of memory for the training step
of vgg11.

*Error*: the largest difference in a result, relative to the largest number in it; where the model
trains, also the difference in each parameter and optimizer slot, relative to the distance that
it has moved in training. *Rounding*: the same between two native runs, one of them from weights
that differ in their last bit.

*Intervals* of recurrent models: the layer between them has packed weights
(`docs/guides/mkl_packed.md`).
"""
UNDECIDED = """\
*Undecided*: tensors that differ by more than a tenth even between two native runs; both columns
leave them out. Their gradient is 0 except for rounding: biases of keys in attention, and anything
that a later normalization cancels.
"""
HEADER = ["model", "compute ops", "converted", "intervals", "left native", "error", "rounding"]
ALIGNMENT = ["---", "---:", "---:", "---:", "---", "---:", "---:"]


@dataclass(frozen=True)
class Section:
    """A table: its models, each made when its turn comes."""

    title: str
    models: Mapping[str, Callable[[], Model]]


SECTIONS = [
    Section(
        "`paddle.vision.models`, inference, one image at full size",
        {name: partial(zoo.vision, name, full_size=True) for name in zoo.CONSTRUCTORS},
    ),
    Section(
        "`paddle.vision.models`, one training step with momentum, 4 images of 64 x 64 or more",
        {f"{name}, training": partial(zoo.vision_training, name) for name in zoo.FAMILIES},
    ),
    Section(
        "Text, inference: 12 layers of width 768 (recurrent models: 1 layer), 128 words",
        {name: partial(make, zoo.BASE) for name, make in zoo.OF_WORDS.items()},
    ),
    Section(
        "Text, 20 training steps: 2 layers of width 64, 4 texts of 16 words",
        {f"{name}, training": partial(make, steps=20) for name, make in zoo.OF_WORDS.items()},
    ),
    Section(
        "Any shape: each run has another number of texts or images, of another length or size",
        {
            f"{name}, any shape": partial(make, dynamic="batch and length")
            for name, make in zoo.OF_WORDS.items()
        }
        | {
            f"{name}, any shape": partial(zoo.vision, name, dynamic=True)
            for name in ("resnet18", "mobilenet_v3_small")
        },
    ),
]


def rows(section: Section, wanted: Callable[[str], bool], wrong: list[str]) -> Iterator[list[str]]:
    """The rows of a table; adds deviations from the expected results to ``wrong``."""
    for name, make in section.models.items():
        if not wanted(name):
            continue
        model = make()
        outcome = agreeing(model, thorough=True)
        undecided = f" ({len(outcome.undecided)} undecided)" if outcome.undecided else ""
        error = f"{outcome.error:.1e}{undecided}"
        yield [name, *summary(outcome.report), error, f"{outcome.native_error:.1e}"]
        wrong += [f"{name}: {reason}" for reason in shortcomings(model, outcome)]


def ocr_rows(wanted: Callable[[str], bool], wrong: list[str]) -> Iterator[list[str]]:
    """The rows of the networks of PP-OCR on the photograph of a page, as :func:`rows`."""
    for version, form in (("v4", "ProgramDesc"), ("v5", "PIR")):
        names = {step: f"PP-OCR{version} {step}, {form}" for step in pipeline.STEPS}
        names["orientation"] = f"PP-OCRv2 orientation, ProgramDesc, of {version}'s lines"
        if not any(map(wanted, names.values())):
            continue
        reading = ocr.read(pipeline.Reader(version), "page")
        if reading.engine.text != reading.native.text:
            wrong.append(f"PP-OCR{version}: another text is read")
        wrong += [f"PP-OCR{version} {step}: {why}" for step, why in reading.wrong().items()]
        for step, name in names.items():
            report = reading.reports[step]
            wrong += [f"{name}: {reason}" for reason in left_native(report)]
            errors = [reading.error(step), reading.rounding(step)]
            yield [name, *summary(report), *(f"{error:.1e}" for error in errors)]


def summary(report: Report) -> list[str]:
    """Compute ops, share converted, intervals, and operators that fall back, with reasons."""
    reasons: dict[tuple[str, str], int] = {}
    for op in report.native:
        key = (op.type.removeprefix("pd_op."), op.reason)
        reasons[key] = reasons.get(key, 0) + 1
    left = [f"{kind} x{count}: {reason}" for (kind, reason), count in reasons.items()]
    total = report.ops_converted + report.ops_native
    return [str(total), f"{report.share:.1%}", str(len(report.intervals)), "; ".join(left)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="only models that have one of these in their name"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args(arguments)

    def wanted(name: str) -> bool:
        return not options.only or any(text in name for text in options.only)

    paddle.enable_static()
    wrong: list[str] = []
    page = [INTRODUCTION, UNDECIDED]
    tables = [(section.title, rows(section, wanted, wrong)) for section in SECTIONS]
    tables.append(("PP-OCR on the photograph of a page", ocr_rows(wanted, wrong)))
    for title, table in tables:
        lines = [f"## {title}", "", row(HEADER), row(ALIGNMENT)]
        print(lines[0], flush=True)
        for cells in table:
            lines.append(row(cells))
            print(lines[-1], flush=True)
        page.append("\n".join(lines) + "\n")
    if options.output:
        options.output.write_text("\n".join(page))
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return 1 if wrong else 0


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
