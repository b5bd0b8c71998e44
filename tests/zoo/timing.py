"""Times the ways in which a network of the zoo runs: Paddle, Paddle with oneDNN, and the engine.

Runs alternate, and the ratio is the median of those of pairs, so that it means the same on a
processor that is slower, or slower now. Runs on one thread are measured in processor time, which
other processes hardly change.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import paddle

import paddle_ngraph
from tests.zoo import networks
from tests.zoo.forms import PaddleFails, Predictor, Program, Record, Subject, ir, natively

THREADS = {"one thread": 1, "default": 0}
CLOCKS = {"one thread": time.process_time, "default": time.perf_counter}
# Of to_static and jit.load, Paddle's oneDNN raises an error or crashes.
ONEDNN = ("predictor", "old predictor", "Executor")
# Runs before times count: a choice between oneDNN and the engine takes two runs and five pairs.
WARM_RUNS = 3
DECIDING_RUNS = 14
ROUNDS, MOST_ROUNDS, SECONDS = 15, 400, 1.0
MILLISECONDS = 1e3
ENGINE = "engine"

Run = Callable[[], Any]


def timed(form: str, subject: Subject, record: Record) -> None:
    """Records the time by the engine relative to Paddle's best."""
    kind, threads = form.split(", ")
    measure(prepared(kind, threads, subject), threads, record)


def prepared(kind: str, threads: str, subject: Subject) -> dict[str, Run]:
    """The runs of each side, after a few that do not count.

    Raises:
        PaddleFails: Paddle cannot run it at all.
    """
    sides, failures = {}, []
    with _threads(threads):
        for name, onednn in (("plain", False), ("oneDNN", True)):
            if onednn and (kind not in ONEDNN or not subject.family.onednn):
                continue
            try:
                sides[name] = natively(partial(_warm, kind, subject, False, onednn))
            except PaddleFails as failure:  # Paddle's oneDNN does not run all networks
                failures.append(str(failure))
        if not sides:
            raise PaddleFails(failures[0])
        # A predictor has oneDNN by default.
        sides[ENGINE] = _warm(kind, subject, True, "predictor" in kind and "oneDNN" in sides)
        paddle_ngraph.wait_for_compiles()
    return sides


def _warm(kind: str, subject: Subject, engine: bool, onednn: bool) -> Run:
    run = _side(kind, subject, engine, onednn)
    for _ in range(WARM_RUNS):
        run()
    return run


def _side(kind: str, subject: Subject, engine: bool, onednn: bool) -> Run:
    if "predictor" in kind:
        path = subject.export(old=kind.startswith("old"))
        return Predictor(path, subject.feed, engine, onednn)
    if kind == "Executor":
        with _static():
            program = Program(subject.export(old=False), subject.feed)
        run: Run = partial(_in_static_mode, program)
    else:
        layer = (
            paddle.jit.load(str(subject.export(old=False)))
            if kind == "jit.load"
            else paddle.jit.to_static(networks.network(subject.family))
        )
        run = partial(_call, layer, subject.tensors)
    return partial(_by, engine, onednn, run)


def _in_static_mode(program: Program) -> None:
    with _static():
        program()


@contextmanager
def _static() -> Iterator[None]:
    with ir(old=False):
        paddle.enable_static()
        try:
            yield
        finally:
            paddle.disable_static()


def _call(layer: Any, tensors: list[Any]) -> None:
    with paddle.no_grad():
        layer(*tensors)


def _by(engine: bool, onednn: bool, run: Run) -> None:
    with paddle_ngraph.use_ngraph(engine):
        if not onednn:
            run()
            return
        paddle.set_flags({"FLAGS_use_mkldnn": True})
        try:
            run()
        finally:
            paddle.set_flags({"FLAGS_use_mkldnn": False})


@contextmanager
def _threads(name: str) -> Iterator[None]:
    before = paddle.get_flags("FLAGS_ngraph_num_threads")
    paddle.set_flags({"FLAGS_ngraph_num_threads": THREADS[name]})
    try:
        yield
    finally:
        paddle.set_flags(before)


def measure(
    sides: Mapping[str, Run], threads: str, record: Record, seconds: float = SECONDS
) -> None:
    """Runs the sides in turn, after the engine has decided, and records the ratio of times."""
    now = CLOCKS[threads]
    with _threads(threads):
        for _ in range(DECIDING_RUNS):
            sides[ENGINE]()
        paddle_ngraph.wait_for_compiles()
        times: dict[str, list[float]] = {name: [] for name in sides}
        begin, number = time.perf_counter(), 0
        while number < ROUNDS or (number < MOST_ROUNDS and time.perf_counter() - begin < seconds):
            for name in sorted(sides, reverse=bool(number % 2)):
                start = now()
                sides[name]()
                times[name].append(now() - start)
            number += 1
    medians = {name: MILLISECONDS * statistics.median(values) for name, values in times.items()}
    record.why = ", ".join(f"{name} {medians[name]:.2f} ms" for name in sorted(medians))
    best = min(medians.keys() - {ENGINE}, key=medians.__getitem__)
    record.ratio = statistics.median(a / b for a, b in zip(times[ENGINE], times[best]))
    record.engine_runs = paddle_ngraph.stats()["engine_runs"]
