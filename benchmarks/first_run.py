"""The first run of a model: with program pass, conversion and compilation, or from the disk."""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from pathlib import Path

from benchmarks import peers, report, works
from benchmarks.options import Progress, chosen
from benchmarks.peers import PEERS, Assets
from benchmarks.worker import Worker

MODELS = ("resnet50", "mobilenet_v2", "bert", *works.CHAINS)
ABOUT = """\
A fresh process each, batch 1: from the call of `Executor.run` to its result, once. Median of
{rounds}. Cold: `FLAGS_ngraph_cache_dir` is an empty folder; warm: another process has run the same
before. What was stored of a cold run counts as its time, too. Background: as cold, with
`FLAGS_ngraph_background_compile=1`, so that Paddle computes the first result."""


def measure(options: Namespace) -> None:
    """Measures first runs; writes ``first_run.md``, ``.json`` and ``.png``."""
    rounds = 1 if options.quick else options.rounds
    names = chosen(options, MODELS)
    found: dict[str, dict[str, list[float]]] = {}
    with Progress("first run", len(names)) as progress, tempfile.TemporaryDirectory() as models:
        for name in names:
            progress.say(name)
            found[name] = _measured(works.inference(name, 1), Assets(Path(models)), rounds)
            progress.done(f"{name}: {_medians(found[name])}")
    rows = [
        [
            works.inference(name, 1).description,
            *(f"{value:.2f}" for value in _medians(times).values()),
        ]
        for name, times in found.items()
    ]
    header = ["seconds", "native Paddle", *_VARIANTS[1:]]
    sections = [ABOUT.format(rounds=rounds), report.table(header, rows)]
    beside = report.column(header, rows, *header[1:])
    report.bars(
        report.picture(options.output, "first_run"),
        "The first run, batch 1",
        "seconds",
        list(found),
        {variant: [_medians(times)[variant] for times in found.values()] for variant in _VARIANTS},
    )
    data = {"first_run": found}
    report.write(options.output, "first_run", "The first run", sections, data, beside)


_VARIANTS = ("native", "cold", "warm", "background")
# Modules are compiled to bytecode, as those of an installed package are.
_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}


def _measured(work: works.Work, assets: Assets, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {variant: [] for variant in _VARIANTS}
    for peer in (peers.REFERENCE, peers.ENGINE):  # creates the model, compiles the modules
        _seconds(work, assets, peer, {"FLAGS_ngraph_cache_dir": ""})
    for _ in range(rounds):
        times["native"].append(_seconds(work, assets, peers.REFERENCE, {}))
        with tempfile.TemporaryDirectory() as cache:
            settings = {"FLAGS_ngraph_cache_dir": cache}
            times["cold"].append(_seconds(work, assets, peers.ENGINE, settings))
            times["warm"].append(_seconds(work, assets, peers.ENGINE, settings))
        settings = {"FLAGS_ngraph_cache_dir": "", "FLAGS_ngraph_background_compile": "1"}
        times["background"].append(_seconds(work, assets, peers.ENGINE, settings))
    return times


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {variant: round(statistics.median(seconds), 3) for variant, seconds in times.items()}


def _seconds(work: works.Work, assets: Assets, peer: str, settings: dict[str, str]) -> float:
    with Worker({**PEERS[peer].settings, **_BYTECODE, **settings}) as worker:
        worker.hold(peers.start, work, assets, peer)
        seconds: float = worker.ask("results").first_seconds
        return seconds
