"""Overhead of the engine: an engine operator, small programs, memory."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks import peers, report, small_programs, works
from benchmarks.ocr_widths import memory_mb
from benchmarks.options import Progress
from benchmarks.peers import PEERS, Assets
from benchmarks.worker import Worker

ABOUT = "What an engine operator costs, what small programs do, and how much memory training takes."
OPERATOR = """\
## One engine operator

One program holds a single engine operator, another one {count} in a chain, each on {elements}
numbers: the difference of their times, for one operator, is what Paddle and the engine need to run
one. The same function called directly, with its memory in place, is OpenVINO's part of it."""
SMALL = """\
## Small programs

`Executor.run`, microseconds, native and through the engine in one process, in turns."""
MEMORY = """\
## Peak memory of training ResNet-18

The most that a fresh process held (224 x 224, batch 8, five steps), all of Python and Paddle
included."""
STEPS = 5


def measure(options: Namespace) -> None:
    """Measures the overheads; writes ``overhead.md``, ``.json`` and ``.png``."""
    sections = [ABOUT]
    data: dict[str, Any] = {}
    with Progress("overhead", 3) as progress:
        for name, part in (
            ("operator", _operator),
            ("small programs", _small_programs),
            ("memory", _memory),
        ):
            progress.say(name)
            page, data[name.replace(" ", "_")] = part(options)
            sections += page
            progress.done(f"{name}: {data[name.replace(' ', '_')]}")
    programs = data["small_programs"]
    report.bars(
        report.picture(options.output, "overhead"),
        "Small programs",
        "time native, measured by the engine's",
        [program["name"] for program in programs],
        {"native Paddle": [program["ratio"] for program in programs]},
    )
    beside = {"small programs, ratio": {each["name"]: f"{each['ratio']:.2f}" for each in programs}}
    report.write(options.output, "overhead", "Overhead", sections, data, beside)


def _operator(options: Namespace) -> tuple[list[str], dict[str, float]]:
    with Worker({}) as worker:
        found = worker.call(small_programs.engine_operator, 200 if options.quick else 1000)
    rows = [
        ["one engine operator", f"{found['operator_us']:.1f}"],
        ["the function alone", f"{found['function_us']:.1f}"],
        ["overhead", f"{found['operator_us'] - found['function_us']:.1f}"],
        ["the event of a run, part of it", f"{found['event_us']:.3f}"],
        ["one native operator of the same", f"{found['native_us']:.1f}"],
    ]
    page = OPERATOR.format(count=small_programs.CHAIN, elements=small_programs.ELEMENTS)
    return [page, report.table(["", "microseconds"], rows)], found


def _small_programs(options: Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    seconds = 0.02 if options.quick else 0.1
    with Worker({}) as worker:
        found = worker.call(small_programs.measure, options.rounds, seconds)
    rows = [
        [
            item["name"],
            *(f"{item[key]:.0f}" for key in ("native_us", "engine_us")),
            f"{item['ratio']:.2f}",
            _since(item),
        ]
        for item in found
    ]
    header = ["program", "native", "engine", "ratio", "the engine ran"]
    return [SMALL, report.table(header, rows)], found


def _since(item: dict[str, Any]) -> str:
    if item["engine_in_first_run"]:
        return "from the first run on"
    return "once it ran often" if item["engine_runs"] else "never"


def _memory(options: Namespace) -> tuple[list[str], dict[str, float]]:
    work = works.TRAINING["resnet18"]
    found = {}
    with tempfile.TemporaryDirectory() as models:
        for peer in (peers.REFERENCE, peers.ENGINE):
            with Worker(PEERS[peer].settings) as worker:
                worker.hold(peers.start, work, Assets(Path(models)), peer)
                for _ in range(2 if options.quick else STEPS):
                    worker.ask("measure", 0.0)
                found[peer] = worker.call(memory_mb, "VmHWM")
    ratio = found[peers.ENGINE] / found[peers.REFERENCE]
    rows = [[PEERS[peer].title, f"{megabytes:.0f}"] for peer, megabytes in found.items()]
    found["ratio"] = ratio
    return [MEMORY, report.table(["", "MB"], [*rows, ["ratio", f"{ratio:.2f}"]])], found
