"""Cost as the work grows: samples at once, the length of a text, threads."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks import report, splits, works
from benchmarks.comparison import Pace, Row, compare
from benchmarks.options import Progress
from benchmarks.peers import CORES, PEERS
from benchmarks.works import Work

NAMES = ("engine", "paddle", "paddle-threads", "predictor-onednn", "torch", "torch-last")
EXPLANATION = """\
Milliseconds of one run or training step, measured in turns as in the other tables; the number in
front says how much work it is."""


@dataclass(frozen=True)
class Curve:
    """A work in several sizes.

    Attributes:
        title: What is done.
        axis: What grows.
        works: By how much of it.
        threads: Whether that is the number of threads.
    """

    title: str
    axis: str
    works: dict[int, Work]
    threads: bool = False


def curves(quick: bool, full: bool) -> list[Curve]:
    """What is measured, up to the sizes wanted."""
    batch, length = (256, 2048) if full else (2, 32) if quick else (16, 512)
    picture, text = works.inference("mobilenet_v2", 1), works.TRAINING["transformer"]
    mlp, resnet = works.TRAINING["mlp"], works.TRAINING["resnet18"]
    # More threads than there are cores must not cost anything.
    threads = [*_powers(1, CORES), 8 * CORES]
    return [
        Curve(
            "MobileNetV2, inference",
            "batch",
            {size: replace(picture, batch=size) for size in _powers(1, batch)},
        ),
        Curve(
            "MLP 784-1024-1024-10, training step",
            "batch",
            {size: replace(mlp, batch=size) for size in _powers(1, 4 * batch if full else 256)},
        ),
        Curve(
            "Transformer encoder, training step, batch 4",
            "length",
            {size: works.texts(replace(text, batch=4), size) for size in _powers(16, length)},
        ),
        Curve(
            "ResNet-18, training step",
            "batch",
            {size: replace(resnet, batch=size) for size in _powers(1, 2 if quick else 4)},
        ),
        *(
            Curve(title, "threads", dict.fromkeys(threads, work), threads=True)
            for title, work in {
                "MobileNetV2, inference": picture,
                "MLP 784-1024-1024-10, training step": mlp,
                "ResNet-18, training step": resnet,
                "Transformer encoder, training step": text,
                "LSTM, training step": works.TRAINING["lstm"],
            }.items()
        ),
    ]


def _powers(low: int, high: int) -> list[int]:
    """Doubled from ``low`` on, and ``high``."""
    sizes = [low]
    while 2 * sizes[-1] < high:
        sizes.append(2 * sizes[-1])
    return [*sizes, high] if high > sizes[-1] else sizes


def measure(options: Namespace) -> None:
    """Measures the curves; writes ``scaling.md``, ``.json`` and ``.png``."""
    pace = Pace(1, 0.1) if options.quick else Pace(2, 0.25)
    names = [name for name in NAMES if name in options.peers]
    wanted = curves(options.quick, options.full)
    measured: list[tuple[Curve, dict[int, Row]]] = []
    with Progress("scaling", sum(len(curve.works) for curve in wanted)) as progress:
        for curve in wanted:
            rows = {}
            for size, row in zip(curve.works, _rows(curve, names, pace, progress)):
                rows[size] = row
                times = ", ".join(f"{n} {row.milliseconds(n)}" for n in names)
                progress.done(f"{curve.title}, {curve.axis} {size}: {times}")
            measured.append((curve, rows))
    _write(measured, names, options)


def _rows(curve: Curve, names: Sequence[str], pace: Pace, progress: Progress):  # type: ignore[no-untyped-def]
    if not curve.threads:
        yield from compare(list(curve.works.values()), names, pace, progress.say)
        return
    for count, work in curve.works.items():
        settings = {
            "FLAGS_ngraph_num_threads": str(count),
            "FLAGS_paddle_num_threads": str(count),
            "OMP_NUM_THREADS": str(count),
        }
        yield from compare([work], names, pace, progress.say, settings)


def _write(
    measured: Sequence[tuple[Curve, dict[int, Row]]], names: Sequence[str], options: Namespace
) -> None:
    sections, panels = [EXPLANATION], {}
    data = []
    for curve, rows in measured:
        used = [n for n in names if any(row.columns[n].turns_ms for row in rows.values())]
        body = [[str(size), *(row.milliseconds(n) for n in used)] for size, row in rows.items()]
        header = [curve.axis, *(PEERS[name].title for name in used)]
        sections += [f"## {curve.title}: {curve.axis}", report.table(header, body)]
        panels[f"{curve.title}: {curve.axis}"] = {
            PEERS[name].title: _points(rows, name) for name in used
        }
        data.append(
            {
                "title": curve.title,
                "axis": curve.axis,
                "sizes": {size: row.to_json() for size, row in rows.items()},
            }
        )
    tables, divisions = splits.sections()
    sections += ["## How work is divided among threads", *tables]
    contents = {"curves": data, "divisions": divisions}
    report.lines(report.picture(options.output, "scaling"), panels, "size (time in ms)")
    report.write(options.output, "scaling", "Cost as work grows", sections, contents)


def _points(rows: dict[int, Row], name: str) -> tuple[list[float], list[float]]:
    found = [(size, row.columns[name].median_ms) for size, row in rows.items()]
    points = [(float(size), value) for size, value in found if value is not None]
    return [x for x, _ in points], [y for _, y in points]
