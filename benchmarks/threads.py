"""Speedup of a workload on increasing numbers of threads."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import report, scaling, splits, works
from benchmarks.comparison import Pace, Row, compare
from benchmarks.options import Progress, chosen
from benchmarks.peers import CORES, ENGINE, Results
from benchmarks.worker import Worker
from benchmarks.works import Work

NAMES = ("engine", "torch", "torch-last")
PYTORCH = NAMES[1:]
# More threads than cores, which must not be slower.
BEYOND = 8
PRODUCT = 2048
EXPLANATION = """\
Milliseconds of one run or training step with as many threads as stand in front, measured in turns
as in the other tables. The last line has eight times as many threads as there are cores."""
EFFICIENCY = f"""\
The time of one thread over that of several and their number: 100 % where twice as many threads
take half as long. In brackets that of PyTorch, by the faster of its two ways. The *product* is one
of {PRODUCT} x {PRODUCT} x {PRODUCT} in float32 by the plugin alone (GFLOP/s in brackets): what the
cores give when so many are busy."""
WORKS = [
    works.inference("mobilenet_v2", 1),
    works.inference("resnet50", 8),
    works.inference("bert", 8),
    *(works.TRAINING[name] for name in ("mlp", "resnet18", "transformer", "bert-tuning", "lstm")),
]


def measure(options: Namespace) -> None:
    """Measures the workloads; writes ``threads.md``, ``.json`` and ``.png``."""
    pace = Pace(1, 0.1) if options.quick else Pace(options.rounds, 0.25)
    names = [name for name in NAMES if name in options.peers]
    counts = options.threads or [*scaling.powers(1, CORES), BEYOND * CORES]
    models = chosen(options, [work.model for work in WORKS])
    wanted = [work for work in WORKS if work.model in models]
    found, division = _earlier(options), splits.sections()
    with Progress("threads", len(wanted) * len(counts)) as progress:
        for count in {1, *counts}:
            if count <= CORES and count not in found.gflops:
                found.gflops[count] = _product_on(count)
        for work in wanted:
            known: dict[Work, Results] = {}
            rows = found.rows.setdefault(_title(work), {})
            for count in sorted(counts, reverse=True):  # plain Paddle runs once, on all threads
                settings = _settings(count)
                (rows[count],) = compare([work], names, pace, progress.say, settings, known)
                times = ", ".join(f"{n} {rows[count].milliseconds(n)}" for n in names)
                progress.done(f"{_title(work)}, {count} threads: {times}")
                _write(found, division, options)


@dataclass(frozen=True)
class Found:
    """Results so far.

    Attributes:
        gflops: GFLOP/s of the matmul, by the number of threads.
        rows: Rows by the title of a workload and the number of threads.
    """

    gflops: dict[int, float]
    rows: dict[str, dict[int, Row]]


def _earlier(options: Namespace) -> Found:
    data = report.earlier(options.output, "threads")
    gflops = {int(count): value for count, value in data.get("product_gflops", {}).items()}
    rows = {
        title: {int(count): Row.from_json(row) for count, row in rows.items()}
        for title, rows in data.get("works", {}).items()
    }
    return Found(gflops, rows)


def _title(work: Work) -> str:
    how = "training step" if work.trains else f"inference, batch {work.batch}"
    return f"{work.description}, {how}"


def _settings(count: int) -> dict[str, str]:
    return {
        "FLAGS_ngraph_num_threads": str(count),
        "FLAGS_paddle_num_threads": str(min(count, CORES)),
        "OMP_NUM_THREADS": str(count),
    }


def _product_on(count: int) -> float:
    with Worker({}) as worker:
        found: float = worker.call(product, count)
    return found


def product(threads: int) -> float:
    """Returns GFLOP/s of a matmul by the plugin on this number of threads."""
    import openvino as ov
    from openvino import opset15

    shape = [PRODUCT, PRODUCT]
    a, b = opset15.parameter(shape), opset15.parameter(shape)
    model = ov.Model([opset15.result(opset15.matmul(a, b, False, False))], [a, b], "product")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    for number in range(2):
        data = np.random.default_rng(number).standard_normal(shape, dtype=np.float32)
        request.set_input_tensor(number, ov.Tensor(data))
    seconds = []
    for _ in range(12):
        begin = time.perf_counter()
        request.infer()
        seconds.append(time.perf_counter() - begin)
    return 2e-9 * PRODUCT**3 / statistics.median(seconds[2:])


def _write(found: Found, division: tuple[list[str], Any], options: Namespace) -> None:
    gflops = {count: found.gflops[count] for count in sorted(found.gflops)}
    measured = {
        title: {count: rows[count] for count in sorted(rows)}
        for title in map(_title, WORKS)
        if (rows := found.rows.get(title))
    }
    sections = [EXPLANATION, "## Parallel efficiency", EFFICIENCY, _efficiencies(measured, gflops)]
    for title, rows in measured.items():
        sections += [f"## {title}", scaling.table("threads", rows, NAMES)]
    tables, divisions = division
    data: dict[str, Any] = {
        "product_gflops": gflops,
        "works": {t: {n: r.to_json() for n, r in rows.items()} for t, rows in measured.items()},
        "divisions": divisions,
    }
    sections += ["## How work is divided among threads", *tables]
    panels = {title: scaling.points(rows, NAMES) for title, rows in measured.items()}
    report.lines(report.picture(options.output, "threads"), panels, "threads (time in ms)")
    report.write(options.output, "threads", "Cost with more threads", sections, data)


def _efficiencies(measured: Mapping[str, Mapping[int, Row]], gflops: Mapping[int, float]) -> str:
    shares = {count: value / gflops[1] / count for count, value in gflops.items()}
    body = [["product", *(_cell(shares[count], f"{gflops[count]:.0f}") for count in gflops)]]
    for title, rows in measured.items():
        cells = []
        for count in gflops:
            ours, theirs = (_efficiency(rows, peers, count) for peers in ((ENGINE,), PYTORCH))
            cells.append(_cell(ours, "-" if theirs is None else f"{theirs:.0%}"))
        body.append([title, *cells])
    return report.table(["", *(f"{count} threads" for count in gflops)], body)


def _cell(share: float | None, beside: str) -> str:
    return "-" if share is None else f"{share:.0%} ({beside})"


def _efficiency(rows: Mapping[int, Row], peers: Sequence[str], count: int) -> float | None:
    one, many = (_fastest(rows.get(number), peers) for number in (1, count))
    return None if one is None or many is None else one / many / count


def _fastest(row: Row | None, peers: Sequence[str]) -> float | None:
    columns = [row.columns[name] for name in peers if name in row.columns] if row else []
    return min((c.median_ms for c in columns if c.median_ms is not None), default=None)
