"""One model under load: clones of a predictor in threads, and processes, with mixed shapes."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paddle_models, report
from benchmarks.ocr_widths import memory_mb
from benchmarks.options import Progress
from benchmarks.peers import CORES
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array

MODEL, TITLE = "mobilenet_v2", "MobileNetV2, 224 x 224"
BATCHES = (1, 2, 4)
CLONES, PROCESSES = 8, 4
TOLERANCE = 1e-3
# Modes: whether they use oneDNN, and the threads of each predictor.
ENGINE = {"engine": (True, 1), "engine, all": (True, CORES)}
MODES = {
    **ENGINE,
    "plain": (False, 1),
    "oneDNN": (True, 1),
    "oneDNN, all": (True, CORES),
}
EXPLANATION = f"""\
{TITLE}, requests of {BATCHES[0]} to {BATCHES[-1]} pictures, through Paddle Inference: one
predictor cloned for {CLONES} threads, and {PROCESSES} processes with one each, every predictor
with one thread or with all. Requests in a second, medians of turns; the ratio is the throughput
of the engine's faster mode by that of the fastest native one, turn by turn. Every answer is
compared with native Paddle's. Memory is what one process holds."""


@dataclass
class Load:
    """Results of one mode: requests per second of each sample, and megabytes at the end."""

    rates: list[float] = field(default_factory=list)
    memory_mb: float = 0.0
    failed: str | None = None


class Server:
    """Clones of a predictor in one process, each in a separate thread."""

    def __init__(self, folder: Path, mode: str, clones: int) -> None:
        import paddle

        paddle.enable_static()
        program = paddle_models.saved(MODEL, folder)
        self._pictures = [_pictures(batch) for batch in BATCHES]
        self._expected = self._answers(_predictor(program, False, CORES))
        if mode in ENGINE:
            import paddle_ngraph

            paddle_ngraph.enable()
        first = _predictor(program, *MODES[mode])
        self._predictors = [first, *(first.clone() for _ in range(clones - 1))]
        for predictor in self._predictors:
            self._answers(predictor)
        if mode in ENGINE and paddle_ngraph.stats()["engine_runs"] == 0:
            raise PeerError("the engine did not run")

    def _answers(self, predictor: Any) -> list[Array]:
        return [_answer(predictor, pictures) for pictures in self._pictures]

    def serve(self, seconds: float) -> tuple[int, float, float]:
        """Returns the number of requests, their seconds, and the memory afterwards in MB."""
        counts: list[int] = []
        start = time.perf_counter()
        threads = [
            threading.Thread(target=self._serve, args=(each, start + seconds, counts))
            for each in self._predictors
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(counts) < len(threads):
            raise PeerError("wrong: an answer is not native Paddle's")
        return sum(counts), time.perf_counter() - start, memory_mb()

    def _serve(self, predictor: Any, end: float, counts: list[int]) -> None:
        count = 0
        while time.perf_counter() < end:
            number = count % len(BATCHES)
            found, right = _answer(predictor, self._pictures[number]), self._expected[number]
            if not np.abs(found - right).max() <= TOLERANCE * np.abs(right).max():
                return
            count += 1
        counts.append(count)


def _pictures(batch: int) -> Array:
    generator = np.random.default_rng(batch)
    return generator.standard_normal((batch, 3, 224, 224), dtype=np.float32)


def _predictor(program: Path, onednn: bool, threads: int) -> Any:
    import paddle

    config = paddle.inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(threads)
    config.enable_onednn() if onednn else config.disable_onednn()
    return paddle.inference.create_predictor(config)


def _answer(predictor: Any, pictures: Array) -> Array:
    handle = predictor.get_input_handle(predictor.get_input_names()[0])
    handle.reshape(list(pictures.shape))
    handle.copy_from_cpu(pictures)
    predictor.run()
    found: Array = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    return found


def measure(options: Namespace) -> None:
    """Measures the modes; writes ``serving.md`` and ``.json``."""
    seconds, rounds = (0.3, 1) if options.quick else (2.0, options.rounds)
    ways = {f"{CLONES} threads": (CLONES, 1), f"{PROCESSES} processes": (1, PROCESSES)}
    loads: dict[str, dict[str, Load]] = {}
    with tempfile.TemporaryDirectory() as folder, Progress("serving", len(ways)) as progress:
        for way, (clones, processes) in ways.items():
            loads[way] = {mode: Load() for mode in MODES}
            with ExitStack() as stack:
                servers = {
                    mode: _servers(stack, Path(folder), mode, clones, processes, loads[way][mode])
                    for mode in MODES
                }
                for _ in range(rounds):
                    for mode, load in loads[way].items():
                        if load.failed is None:
                            _load_once(servers[mode], seconds, load)
            progress.done(
                f"{way}: {', '.join(f'{m} {_rate(load)}' for m, load in loads[way].items())}"
            )
    _write(loads, options.output)


def _servers(
    stack: ExitStack, folder: Path, mode: str, clones: int, processes: int, load: Load
) -> list[Worker]:
    workers = [stack.enter_context(Worker({})) for _ in range(processes)]
    try:
        for worker in workers:
            worker.hold(Server, folder, mode, clones)
    except PeerError as error:
        load.failed = str(error)
    return workers


def _load_once(workers: Sequence[Worker], seconds: float, load: Load) -> None:
    answers: list[tuple[int, float, float]] = []
    failures: list[PeerError] = []

    def ask(worker: Worker) -> None:
        try:
            answers.append(worker.ask("serve", seconds))
        except PeerError as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        load.failed = str(failures[0])
        return
    load.rates.append(sum(count / duration for count, duration, _ in answers))
    load.memory_mb = max(memory for _, _, memory in answers)


def _ratio(loads: Mapping[str, Load]) -> float | None:
    """Returns the engine's throughput over plain Paddle's, in the fastest mode of each.

    The ratio is the median over the samples.
    """
    working = {mode: load.rates for mode, load in loads.items() if not load.failed}
    ours = [rates for mode, rates in working.items() if mode in ENGINE]
    native = [rates for mode, rates in working.items() if mode not in ENGINE]
    if not ours or not native:
        return None
    best = (map(max, zip(*of_modes)) for of_modes in (ours, native))
    return statistics.median(a / b for a, b in zip(*best))


def _rate(load: Load) -> str:
    return "crashes" if load.failed else f"{statistics.median(load.rates):.1f}"


def _write(loads: Mapping[str, Mapping[str, Load]], folder: Path) -> None:
    body, memory = [], []
    for way, modes in loads.items():
        ratio = _ratio(modes)
        shown = "-" if ratio is None else f"{ratio:.2f}x"
        body.append([way, *map(_rate, modes.values()), shown])
        memory.append([way, *(f"{load.memory_mb:.0f}" for load in modes.values())])
    header = ["requests in a second", *MODES, "engine by best native"]
    sections = [
        EXPLANATION,
        report.table(header, body),
        "## Memory of a process (MB)",
        report.table(["", *MODES], memory),
    ]
    failed = [
        f"- {way}, {mode}: {load.failed}"
        for way, modes in loads.items()
        for mode, load in modes.items()
        if load.failed
    ]
    if failed:
        sections += ["## Not measured", "\n".join(failed)]
    data = {way: {mode: vars(load) for mode, load in modes.items()} for way, modes in loads.items()}
    beside = report.column(header, body, header[-1])
    report.write(folder, "serving", "Serving under load", sections, {"loads": data}, beside)
