"""Inference and training steps: the engine alternating with every other peer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks import peers, report, works
from benchmarks.comparison import Pace, Row, compare
from benchmarks.options import Progress, chosen
from benchmarks.works import Work

BATCHES = (1, 8)
# Peers of a group differ in settings only: the fastest one is compared.
GROUPS = {
    "Paddle, defaults": ("paddle",),
    "Paddle, best": ("paddle", "paddle-threads", "paddle-onednn"),
    "predictor, best": ("predictor", "predictor-onednn"),
    "raw OpenVINO": ("function",),
    "PyTorch, best": ("torch", "torch-last", "torch-compile"),
}
BESIDE = ("Paddle, defaults (ratio)", "Paddle, best (ratio)", "predictor, best (ratio)")
EXPLANATION = """\
Times are medians over the turns of the median step of a turn: all peers of a work take turns within
one run, each in a process of its own. A ratio says how many times as long as the engine's a peer's
step takes (above 1: the engine is faster): the median of the ratios of the turns. Feeding and
fetching count, and what is computed is compared with native Paddle's results. *Raw OpenVINO* is the
function that the engine makes of the whole program, called alone, with static shapes: in inference
with the weights as constants, and a batch at once. Raw OpenVINO and PyTorch are not asked to hand
over what they are given: their inputs lie where they need them."""
SETTINGS = """\
*Paddle*: `Executor.run` with the defaults, one thread. *Paddle, all cores*:
`FLAGS_paddle_num_threads`. *Paddle, oneDNN*: `FLAGS_use_onednn=1` too. *predictor*: Paddle
Inference on all cores; *predictor, engine*: with the engine switched on. PyTorch is measured
eagerly, with channels last where there are pictures, and compiled; its optimizers are fused."""


def inference(options: Namespace) -> None:
    """Measures inference; writes ``inference.md``, ``.json`` and ``.png``."""
    models = chosen(options, works.INFERENCE_MODELS)
    batches = BATCHES[:1] if options.quick else BATCHES
    wanted = [works.inference(model, batch) for model in models for batch in batches]
    _measure("inference", "Inference", wanted, options)


def training(options: Namespace) -> None:
    """Measures training steps; writes ``training.md``, ``.json`` and ``.png``."""
    wanted = [works.TRAINING[model] for model in chosen(options, works.TRAINING)]
    _measure("training", "One training step", wanted, options)


def _measure(topic: str, title: str, wanted: Sequence[Work], options: Namespace) -> None:
    pace = Pace(1, 0.2) if options.quick else Pace(options.rounds)
    names = [name for name in peers.PEERS if name in options.peers]
    found = [Row.from_json(row) for row in report.earlier(options.output, topic).get("rows", [])]
    rows = {row.name: row for row in found}
    with Progress(topic, len(wanted)) as progress:
        for row in compare(wanted, names, pace, progress.say):
            progress.done(summary(row))
            rows[row.name] = row
            _write(topic, title, list(rows.values()), options.output)


def summary(row: Row) -> str:
    """Returns a line for the progress output."""
    cells = [f"{name} {_number(row.best_ratio(group))}x" for name, group in GROUPS.items()]
    return f"{row.name}: engine {row.milliseconds(peers.ENGINE)} ms; {', '.join(cells)}"


def _write(topic: str, title: str, rows: Sequence[Row], folder: Path) -> None:
    header, body = _ratios(rows)
    sections = [EXPLANATION, report.table(header, body), "## Milliseconds", SETTINGS, _times(rows)]
    failures = _failures(rows)
    if failures:
        sections += ["## Not measured", failures]
    data: dict[str, Any] = {"rows": [row.to_json() for row in rows]}
    series = {
        name: [row.best_ratio(group) for row in rows]
        for name, group in GROUPS.items()
        if any(row.best_ratio(group) for row in rows)
    }
    label = "time of the peer, measured by the engine's"
    if series:
        path = report.picture(folder, topic)
        report.bars(path, title, label, [row.name for row in rows], series)
    report.write(folder, topic, title, sections, data, report.column(header, body, *BESIDE))


def _ratios(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    body = []
    for row in rows:
        ours = row.columns.get(peers.ENGINE)
        body.append(
            [
                _title(row),
                row.milliseconds(peers.ENGINE),
                *(_number(row.best_ratio(group)) for group in GROUPS.values()),
                "-" if ours is None or ours.first_s is None else f"{ours.first_s:.2f}",
            ]
        )
    means = []
    for group in GROUPS.values():
        ratios = [ratio for row in rows if (ratio := row.best_ratio(group)) is not None]
        means.append(_number(geometric_mean(ratios) if ratios else None))
    body.append(["geometric mean", "", *means, ""])
    header = ["", "engine (ms)", *(f"{name} (ratio)" for name in GROUPS), "first run (s)"]
    return header, body


def _times(rows: Sequence[Row]) -> str:
    names = [name for name in peers.PEERS if any(name in row.columns for row in rows)]
    body = []
    for row in rows:
        body.append([_title(row), *map(row.milliseconds, names)])
    return report.table(["", *(peers.PEERS[name].title for name in names)], body)


def _failures(rows: Sequence[Row]) -> str:
    found = [
        f"- {row.name}, {peers.PEERS[name].title}: {column.failed}"
        for row in rows
        for name, column in row.columns.items()
        if column.failed
    ]
    return "\n".join(found)


def _title(row: Row) -> str:
    described = row.description
    return described if "batch" in described else f"{described}, batch {row.batch}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
