"""Time as the workload grows: batch size, sequence length."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks import report, works
from benchmarks.comparison import Pace, Row, compare
from benchmarks.options import Progress
from benchmarks.peers import PEERS
from benchmarks.works import Work

NAMES = ("engine", "paddle", "paddle-threads", "predictor-onednn", "torch", "torch-last")
EXPLANATION = """\
Milliseconds of one run or training step, measured in turns as in the other tables; the number in
front says how much work it is."""


@dataclass(frozen=True)
class Curve:
    """A workload in several sizes.

    Attributes:
        title: Title of the curve.
        axis: Label of the growing size.
        works: Workloads by size.
    """

    title: str
    axis: str
    works: dict[int, Work]


def curves(quick: bool, full: bool) -> list[Curve]:
    """Returns the curves to measure, with sizes up to those of the options."""
    batch, length = (256, 2048) if full else (2, 32) if quick else (16, 512)
    picture, text = works.inference("mobilenet_v2", 1), works.TRAINING["transformer"]
    mlp, resnet = works.TRAINING["mlp"], works.TRAINING["resnet18"]
    return [
        Curve(
            "MobileNetV2, inference",
            "batch",
            {size: replace(picture, batch=size) for size in powers(1, batch)},
        ),
        Curve(
            "MLP 784-1024-1024-10, training step",
            "batch",
            {size: replace(mlp, batch=size) for size in powers(1, 4 * batch if full else 256)},
        ),
        Curve(
            "Transformer encoder, training step, batch 4",
            "length",
            {size: works.texts(replace(text, batch=4), size) for size in powers(16, length)},
        ),
        Curve(
            "ResNet-18, training step",
            "batch",
            {size: replace(resnet, batch=size) for size in powers(1, 2 if quick else 4)},
        ),
    ]


def powers(low: int, high: int) -> list[int]:
    """Returns ``low``, its doubles up to ``high``, and ``high``."""
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
            found = compare(list(curve.works.values()), names, pace, progress.say)
            for size, row in zip(curve.works, found):
                rows[size] = row
                times = ", ".join(f"{n} {row.milliseconds(n)}" for n in names)
                progress.done(f"{curve.title}, {curve.axis} {size}: {times}")
            measured.append((curve, rows))
    _write(measured, names, options)


def _write(
    measured: Sequence[tuple[Curve, dict[int, Row]]], names: Sequence[str], options: Namespace
) -> None:
    sections, panels = [EXPLANATION], {}
    data = []
    for curve, rows in measured:
        title = f"{curve.title}: {curve.axis}"
        sections += [f"## {title}", table(curve.axis, rows, names)]
        panels[title] = points(rows, names)
        data.append(
            {
                "title": curve.title,
                "axis": curve.axis,
                "sizes": {size: row.to_json() for size, row in rows.items()},
            }
        )
    report.lines(report.picture(options.output, "scaling"), panels, "size (time in ms)")
    report.write(options.output, "scaling", "Cost as work grows", sections, {"curves": data})


def table(axis: str, rows: Mapping[int, Row], names: Sequence[str]) -> str:
    """Returns a table of milliseconds by size, of the peers with results."""
    used = _used(rows, names)
    body = [[str(size), *(row.milliseconds(n) for n in used)] for size, row in rows.items()]
    return report.table([axis, *(PEERS[name].title for name in used)], body)


def points(
    rows: Mapping[int, Row], names: Sequence[str]
) -> dict[str, tuple[list[float], list[float]]]:
    """Returns the curves of the peers: sizes and milliseconds by title."""
    curves = {}
    for name in _used(rows, names):
        found = [(n, row.columns[name].median_ms) for n, row in rows.items() if name in row.columns]
        measured = [(float(size), value) for size, value in found if value is not None]
        curves[PEERS[name].title] = [x for x, _ in measured], [y for _, y in measured]
    return curves


def _used(rows: Mapping[int, Row], names: Sequence[str]) -> list[str]:
    return [name for name in names if any(row.milliseconds(name) != "-" for row in rows.values())]
