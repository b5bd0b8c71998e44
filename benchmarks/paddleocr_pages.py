"""Unchanged PaddleOCR: milliseconds of a page through the engine, and in Paddle's own modes."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.comparison import Column, Row
from benchmarks.options import Progress
from benchmarks.peers import CORES, ENGINE
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array
from demos.ocr_demo import files

# Number of copies of the photographed page below each other, and their scale.
SIZES = {"small": (1, 1.0), "large": (1, 2.0), "long": (3, 1.0)}
TOLERANCE = 1e-3  # of a score, which is a probability
REFERENCE = "plain"
BESIDE = ("plain by the engine", "best native by the engine")
NOT_INSTALLED = "PaddleOCR is not installed: `make paddleocr` makes an environment that has it"
EXPLANATION = """\
One page with `PaddleOCR.predict` (mobile networks; detection, orientation and recognition of
lines), from the picture in memory to text, boxes and scores. Each mode has a process of its own;
they take turns, so that whatever else the machine does strikes all. A turn is two pages, of which
the second counts: the first finds its memory cold, after the turns of the others. Times are medians
over the turns, and so are ratios: how many times as long as through the engine a page takes. Each
mode has to read the text that the plain one reads, with scores that differ by less than 0.001."""
SETTINGS = f"""\
*Engine*: `PaddleOCR(...)` with its defaults, after `paddle_ngraph.enable()`. The others are native:
*plain*, `enable_mkldnn=False`; *1 thread* and *{CORES} threads*, that with `cpu_threads`, of which
there are 10 by default; *not optimized*, plain with `Config.switch_ir_optim(False)`; *oneDNN*, the
default mode; and *oneDNN, old IR*, that with `enable_new_ir` off."""


def _unchanged() -> None:
    """Leaves Paddle as it is."""


def _with_engine() -> None:
    import paddle_ngraph

    paddle_ngraph.enable()


def _without_optimization() -> None:
    """Turns the optimization off in every configuration, since PaddleX has no setting for it."""
    import paddle.inference

    create = paddle.inference.create_predictor

    def create_predictor(config: Any) -> Any:
        config.switch_ir_optim(False)
        return create(config)

    setattr(paddle.inference, "create_predictor", create_predictor)  # noqa: B010


@dataclass(frozen=True)
class Mode:
    """A mode of PaddleOCR.

    Attributes:
        title: Title in the tables.
        settings: Arguments of ``PaddleOCR``.
        prepare: Function to call first.
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[], None] = _unchanged


_PLAIN = {"enable_mkldnn": False}
_OLD_IR = {"engine_config": {"paddle_static": {"run_mode": "mkldnn", "enable_new_ir": False}}}
MODES = {
    ENGINE: Mode("engine", prepare=_with_engine),
    REFERENCE: Mode("plain", _PLAIN),
    "one-thread": Mode("1 thread", {**_PLAIN, "cpu_threads": 1}),
    "threads": Mode(f"{CORES} threads", {**_PLAIN, "cpu_threads": CORES}),
    "not-optimized": Mode("not optimized", _PLAIN, _without_optimization),
    "onednn": Mode("oneDNN"),
    "onednn-old-ir": Mode("oneDNN, old IR", _OLD_IR),
}


def picture(size: str) -> Array:
    """Returns a page in PaddleOCR's layout: height, width, blue-green-red."""
    copies, scale = SIZES[size]
    page = files.open_picture("page")
    page = page.resize((round(page.width * scale), round(page.height * scale)))
    return np.ascontiguousarray(np.concatenate([np.asarray(page)[:, :, ::-1]] * copies))


class Reader:
    """Reads pages in a separate process."""

    def __init__(self, version: str, mode: str) -> None:
        from demos.paddleocr_demo import read

        MODES[mode].prepare()
        self._is_engine = mode == ENGINE
        self._reader = read.reader(version, **MODES[mode].settings)

    def read(self, size: str) -> tuple[float, list[tuple[str, float]]]:
        """Returns milliseconds of a page, and its lines with their scores."""
        pixels = picture(size)
        start = time.perf_counter()
        (result,) = self._reader.predict(pixels)
        milliseconds = 1e3 * (time.perf_counter() - start)
        self._require_engine()
        return milliseconds, list(zip(result["rec_texts"], map(float, result["rec_scores"])))

    def _require_engine(self) -> None:
        import sys

        engine = sys.modules.get("paddle_ngraph")
        if self._is_engine and (engine is None or engine.stats()["engine_runs"] == 0):
            raise PeerError("the engine did not run")


def is_installed() -> bool:
    """Returns whether PaddleOCR is installed."""
    return find_spec("paddleocr") is not None


def measure(options: Namespace) -> None:
    """Measures pages; writes ``paddleocr.md``, ``.json`` and ``.png``."""
    if not is_installed():
        raise PeerError(NOT_INSTALLED)
    sizes = list(SIZES)[:1] if options.quick else list(SIZES)
    rounds = 1 if options.quick else options.rounds
    found = report.earlier(options.output, "paddleocr").get("rows", [])
    rows = {row.description: row for row in map(Row.from_json, found)}
    with Progress("paddleocr", len(files.VERSIONS) * len(sizes)) as progress:
        for version in files.VERSIONS:
            for row in _rows(version, sizes, rounds, progress):
                rows[row.description] = row
                progress.done(_summary(row))
            _write(list(rows.values()), options)


def _rows(version: str, sizes: Sequence[str], rounds: int, progress: Progress) -> list[Row]:
    rows = [_row(version, size) for size in sizes]
    with ExitStack() as stack:
        workers = {}
        for name in MODES:
            progress.say(f"{version}: {MODES[name].title}")
            workers[name] = stack.enter_context(Worker({}))
            try:
                workers[name].hold(Reader, version, name)
            except PeerError as error:
                _give_up(rows, name, error)
        for row, size in zip(rows, sizes):
            _first_pages(row, size, workers)
        for _ in range(rounds):
            for row, size in zip(rows, sizes):
                for name, column in row.columns.items():
                    if column.failed is None:
                        workers[name].ask("read", size)
                        column.turns_ms.append(workers[name].ask("read", size)[0])
    return rows


def _row(version: str, size: str) -> Row:
    height, width, _ = picture(size).shape
    title = f"PP-OCR{version}, {width} x {height}"
    return Row(version, size, title, 1, {name: Column() for name in MODES})


def _first_pages(row: Row, size: str, workers: Mapping[str, Worker]) -> None:
    """Runs the first page of each mode, whose text is compared, and a second one as warm-up."""
    expected: list[tuple[str, float]] | None = None
    for name in (REFERENCE, *(other for other in row.columns if other != REFERENCE)):
        column = row.columns[name]
        if column.failed is not None:
            continue
        try:
            milliseconds, lines = workers[name].ask("read", size)
            workers[name].ask("read", size)
        except PeerError as error:
            _give_up([row], name, error)
            continue
        expected = expected or lines
        column.first_s = milliseconds / 1e3
        column.notes = {"lines": len(lines)}
        column.error = _difference(expected, lines) / TOLERANCE
        if not column.error <= 1:
            column.failed = "wrong: it reads another text, or with other scores"


def _give_up(rows: Sequence[Row], name: str, error: PeerError) -> None:
    for row in rows:
        row.columns[name].failed = f"crashes: {error}"


def _difference(expected: Sequence[tuple[str, float]], found: Sequence[tuple[str, float]]) -> float:
    if [text for text, _ in expected] != [text for text, _ in found]:
        return float("inf")
    return max((abs(a - b) for (_, a), (_, b) in zip(expected, found)), default=0.0)


def _cell(row: Row, name: str) -> str:
    column = row.columns[name]
    if column.failed is not None:
        return column.failed.partition(":")[0]
    return row.milliseconds(name)


def _summary(row: Row) -> str:
    return f"{row.description}: " + ", ".join(f"{n} {_cell(row, n)}" for n in row.columns)


def _best(row: Row) -> float | None:
    return row.best_ratio([name for name in row.columns if name != ENGINE])


def _write(rows: Sequence[Row], options: Namespace) -> None:
    header = ["a page (ms)", *(mode.title for mode in MODES.values()), *BESIDE]
    ratios = [(row.ratio(REFERENCE), _best(row)) for row in rows]
    body = [
        [row.description, *(_cell(row, name) for name in MODES), *map(_times, found)]
        for row, found in zip(rows, ratios)
    ]
    firsts = [[row.description, *(_first(row.columns[name]) for name in MODES)] for row in rows]
    failed = {
        f"- {row.description}, {MODES[name].title}: {column.failed}"
        for row in rows
        for name, column in row.columns.items()
        if column.failed
    }
    sections = [EXPLANATION, report.table(header, body), SETTINGS, "## The first page (s)"]
    sections.append(report.table(["", *(mode.title for mode in MODES.values())], firsts))
    if failed:
        sections += ["## Not measured", "\n".join(sorted(failed))]
    data = {"rows": [row.to_json() for row in rows]}
    series = {
        mode.title: [row.ratio(name) for row in rows]
        for name, mode in MODES.items()
        if any(row.ratio(name) for row in rows)
    }
    if series:
        label = "time of the mode, measured by the engine's"
        names = [row.description for row in rows]
        path = report.picture(options.output, "paddleocr")
        report.bars(path, "PaddleOCR, a page", label, names, series)
    beside = report.column(header, body, *BESIDE)
    report.write(options.output, "paddleocr", "PaddleOCR, a page", sections, data, beside)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}x"


def _first(column: Column) -> str:
    return "-" if column.first_s is None else f"{column.first_s:.2f}"
