"""Runs a saved model or a script, and sums up the events of its runs."""

from __future__ import annotations

import runpy
import statistics as stdlib_statistics
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import paddle
from paddle.inference import create_predictor

from paddle_ngraph import api, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import verified_use
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.ir.graph import plain_type
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.profiling.operator_calls import operator_times
from paddle_ngraph.statistics import Event
from paddle_ngraph.utils import clock, signals

# Choices between oneDNN and the engine are made by the first pairs of runs of a predictor.
_WARM_RUNS = 12
_MOST_PAIRS, _MOST_SECONDS = 50, 4.0


@dataclass(frozen=True)
class NativeOperator:
    """A type of operator that Paddle's kernels compute.

    Attributes:
        type: The type, without dialect.
        count: How many operators of the program have the type.
        share: Their share of the time of a native run; 0 where that was not measured.
        reason: Why they are not converted.
        is_small: Whether the cost rule alone leaves them to Paddle.
    """

    type: str
    count: int
    share: float
    reason: str
    is_small: bool = False


@dataclass(frozen=True)
class Observation:
    """Runs of a model or a script.

    Attributes:
        kind: ``model`` or ``script``.
        runs: Numbers of runs by outcome or, of native and raised ones, by reason.
        ms: Their total times, by the same names.
        functions: How many functions were built or loaded.
        functions_of_one_subgraph: The most of them that belong to one subgraph.
        build_ms: The total time of the builds.
        converted: Share of the operators of a model that the engine computes.
        native: The operators of a model that Paddle's kernels compute, most time first.
        why_native: Why a model runs natively as a whole, if it does.
        native_run_ms, engine_run_ms: Median times of a run of a model, in alternating pairs.
        seconds: The duration of a script.
        is_dynamic: Whether a script ended in dynamic mode.
        failure: The error that ended a script, if one did.
    """

    kind: str
    runs: Mapping[str, int]
    ms: Mapping[str, float]
    functions: int
    functions_of_one_subgraph: int
    build_ms: float
    converted: float = 0.0
    native: Sequence[NativeOperator] = ()
    why_native: str | None = None
    native_run_ms: float = 0.0
    engine_run_ms: float = 0.0
    seconds: float = 0.0
    is_dynamic: bool = False
    failure: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the observation as data for JSON."""
        return asdict(self)


@dataclass
class _Sums:
    """Events added up by the names that a report shows."""

    runs: Counter[str] = field(default_factory=Counter)
    ns: Counter[str] = field(default_factory=Counter)
    functions: Counter[int] = field(default_factory=Counter)
    build_ns: int = 0

    def add(self, event: Event) -> None:
        if event.outcome == "function":
            self.functions[event.subgraph] += 1
            self.build_ns += event.ns
        else:
            self.runs[event.reason] += 1
            self.ns[event.reason] += event.ns

    def fields(self) -> dict[str, Any]:
        """The fields of an ``Observation`` that come from events."""
        return {
            "runs": dict(self.runs),
            "ms": {name: round(ns / 1e6, 3) for name, ns in self.ns.items()},
            "functions": sum(self.functions.values()),
            "functions_of_one_subgraph": max(self.functions.values(), default=0),
            "build_ms": round(self.build_ns / 1e6, 1),
        }


def _summed_events() -> dict[str, Any]:
    sums = _Sums()
    for event in api.events():
        sums.add(event)
    return sums.fields()


def observe_model(path: str, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> Observation:
    """Runs a saved model natively and by the engine in turn, with random inputs.

    Args:
        path: As for ``python -m paddle_ngraph explain``, of one model.
        shapes: Shapes of inputs with dynamic dimensions, by name; others have the size 2.
        seed: For random inputs.

    Raises:
        NgraphError: There is no such model, or Paddle itself cannot run it with these inputs.
    """
    model = saved_model.SavedModel.at(saved_model.find_only(path))
    feed, times = _run_natively(model, shapes, seed)
    api.reset_stats()
    native_ms, engine_ms = _times_of_pairs(model, feed)
    report = api.explain(model.config())  # after the runs: a choice between libraries is measured
    small = _types(report) - _types(_report_without_cost_rule(model))
    return Observation(
        kind="model",
        converted=round(report.share, 4),
        native=_native_operators(report, times, small),
        why_native=report.why_native,
        native_run_ms=native_ms,
        engine_run_ms=engine_ms,
        **_summed_events(),
    )


def explain_model(path: str, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> Report:
    """Runs a saved model natively and by the engine, and explains it with what was measured.

    Args:
        path, shapes, seed: As for :func:`observe_model`. A model that Paddle cannot run with these
            inputs is explained all the same.

    Raises:
        NgraphError: There is no such model.
    """
    model = saved_model.SavedModel.at(saved_model.find_only(path))
    times: Mapping[str, int] = {}
    why = ""
    fed: Mapping[str, Sequence[int]] = {}
    try:
        model.try_reading()
        feed, times = _run_natively(model, shapes, seed)
        fed = {name: array.shape for name, array in feed.items()}
        _run_by_engine(model, feed)
    except NgraphError as error:
        why = f"Not measured: {error}"
    # After the runs, which are part of it.
    report: Report = api.explain(model.config(), input_shapes=fed)
    return replace(report, name=Path(path).name, native_times=times, why_unmeasured=why)


def _run_natively(
    model: saved_model.SavedModel, shapes: Mapping[str, Sequence[int]], seed: int
) -> tuple[dict[str, np.ndarray], Counter[str]]:
    """Random inputs, and the native times of a second run with them by type of operator.

    Raises:
        NgraphError: Paddle cannot run the model with these inputs.
    """
    program, scope = model.load()
    feed = verified_use.sample_feed(program, shapes, seed=seed)
    fetches = paddle.static.pir_io.get_pir_feed_and_fetch(program)[1]
    executor: Any = paddle.static.Executor(paddle.CPUPlace())

    def run() -> None:
        with api.use_ngraph(False), paddle.pir_utils.IrGuard():
            executor.run(program, feed=feed, fetch_list=fetches, scope=scope)

    verified_use.attempt_native(run)
    return feed, operator_times(run)


def _run_by_engine(model: saved_model.SavedModel, feed: Mapping[str, np.ndarray]) -> None:
    """Runs a model by a predictor of the engine until its functions are compiled, and once more."""
    with api.use_ngraph():
        predictor = _predictor(model, feed)
        for _ in range(_WARM_RUNS):
            api.wait_for_compiles()
            _run_predictor(predictor, feed)


def _predictor(model: saved_model.SavedModel, feed: Mapping[str, np.ndarray]) -> Any:
    """A predictor that has run once: with oneDNN, or without it where Paddle raises with it.

    Raises:
        NgraphError: Paddle cannot run the model with these inputs.
    """

    def created(has_onednn: bool) -> Any:
        config = model.config()
        config.disable_glog_info()
        if not has_onednn:
            config.disable_onednn()
        predictor = create_predictor(config)  # type: ignore[arg-type]
        _run_predictor(predictor, feed)
        return predictor

    with suppress(NgraphError):
        return verified_use.attempt_native(partial(created, True))
    return verified_use.attempt_native(partial(created, False))


def _run_predictor(predictor: Any, feed: Mapping[str, np.ndarray]) -> None:
    for name, value in feed.items():
        predictor.get_input_handle(name).copy_from_cpu(value)
    predictor.run()


def _types(report: Report) -> set[str]:
    return {plain_type(op.type) for op in report.native}


def _report_without_cost_rule(model: saved_model.SavedModel) -> Report:
    before = flags.get("ngraph_min_interval_us")
    flags.set("ngraph_min_interval_us", 0)
    try:
        report: Report = api.explain(model.config())
        return report
    finally:
        flags.set("ngraph_min_interval_us", before)


def _native_operators(
    report: Report, times: Counter[str], small: Collection[str]
) -> list[NativeOperator]:
    reasons = {plain_type(op.type): op.reason for op in report.native}
    counts = Counter(plain_type(op.type) for op in report.native)
    for name in map(plain_type, report.kernel_calls):
        counts[name] += 1
        reasons.setdefault(name, "Paddle's kernel, called in the function")
    total = sum(times.values()) or 1
    found = [
        NativeOperator(name, count, round(times[name] / total, 4), reasons[name], name in small)
        for name, count in counts.items()
    ]
    return sorted(found, key=lambda each: -each.share)


def _times_of_pairs(
    model: saved_model.SavedModel, feed: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """Median milliseconds of a run by a native predictor and by the engine's, in turn."""
    predictors = {}
    for engine in (False, True):
        with api.use_ngraph(engine):
            predictors[engine] = _predictor(model, feed)
    times: dict[bool, list[float]] = {False: [], True: []}

    def run(engine: bool) -> None:
        with api.use_ngraph(engine):
            predictor = predictors[engine]
            for name, value in feed.items():
                predictor.get_input_handle(name).copy_from_cpu(value)
            begin = clock.now()
            predictor.run()
            times[engine].append(clock.now() - begin)

    for engine in (False, True):
        for _ in range(_WARM_RUNS):
            run(engine)
            api.wait_for_compiles()
    times = {False: [], True: []}
    end = clock.now() + _MOST_SECONDS
    while len(times[True]) < _MOST_PAIRS and (not times[True] or clock.now() < end):
        for engine in (False, True) if len(times[True]) % 2 else (True, False):
            run(engine)
    native, engine_ms = (1e3 * stdlib_statistics.median(times[each]) for each in (False, True))
    return round(native, 3), round(engine_ms, 3)


def observe_script(
    script: str, arguments: Sequence[str], dynamic: bool | Literal["training"] = False
) -> Observation:
    """Runs a script as ``__main__`` with the engine on, as ``python -m paddle_ngraph run`` does.

    An error of the script is printed, and noted.

    Raises:
        NgraphError: There is no such script.
    """
    path = Path(script)
    if not path.is_file():
        raise NgraphError(f"there is no script {script}: give the path of a Python file")
    api.enable(dynamic=dynamic)
    api.reset_stats()
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.resolve().parent)
    begin = clock.now()
    failure = _failure_of(lambda: runpy.run_path(str(path), run_name="__main__"))
    return Observation(
        kind="script",
        seconds=round(clock.now() - begin, 3),
        is_dynamic=bool(paddle.in_dynamic_mode()),
        failure=failure,
        **_summed_events(),
    )


def _failure_of(run: Callable[[], object]) -> str:
    """Calls ``run``, and returns the type of the error that ended it, or an empty string."""
    with signals.recognized_signals():
        try:
            run()
        except SystemExit as ended:
            return "" if ended.code in (None, 0) else f"exit status {ended.code}"
        except Exception as error:
            signals.raise_if_from_outside(error)
            traceback.print_exc()
            return type(error).__name__
    return ""
