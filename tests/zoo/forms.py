"""The ways in which a network of the zoo is used: each natively and through the engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.inference import Config, create_predictor

import paddle_ngraph
from paddle_ngraph.ir.graph import plain_type
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.profiling.operator_calls import operator_times
from paddle_ngraph.utils import clock
from tests.models.comparing import (
    NUDGES,
    UNDECIDED,
    beyond_rounding,
    largest_difference,
    nudged,
)
from tests.zoo import networks
from tests.zoo import training as steps
from tests.zoo.families import NetworkFamily
from tests.zoo.networks import Array
from tests.zoo.old_ir import old_ir

TOLERANCE = 1e-5
# The autotuner decides by four native calls and seven compiled ones.
CALLS = {"compile": 3, "enable": 13}
LEFT = 5

Results = list[Array]
Feed = dict[str, Array]


class PaddleFails(Exception):
    """Native Paddle itself cannot do it: there is nothing to compare with."""


@dataclass
class Record:
    """The outcome of a form of a family.

    Attributes:
        family, form: The family's id, and one of ``FORMS``.
        outcome: ``equal``: within rounding of native Paddle's results, by the engine; ``wrong``;
            ``native``: the engine did not run; ``fails``: an error that native Paddle does not
            raise, or a crash; ``paddle``: native Paddle fails itself.
        why: The reason, where it is not ``equal``.
        error, rounding: The largest difference of a result, relative to its largest element (in
            training of an update, relative to its length), and what rounding explains of it.
        engine_runs: How often the engine ran a subgraph.
        coverage: The share of native time in operators that the engine computes itself.
        left: The operators that take most of the other time, with their shares.
        ratio: Time relative to Paddle's best, of timed forms.
        seconds: The processor time of the form.
        revision: The sources that it was run with.
    """

    family: str
    form: str
    outcome: str = "equal"
    why: str = ""
    error: float = 0.0
    rounding: float = 0.0
    engine_runs: int = 0
    coverage: float | None = None
    left: dict[str, float] = field(default_factory=dict)
    ratio: float | None = None
    seconds: float = 0.0
    revision: str = ""


class Subject:
    """A family, with what several forms need of it.

    Args:
        family: What is run.
        folder: Where its exports go.
    """

    def __init__(self, family: NetworkFamily, folder: Path) -> None:
        self.family = family
        names = [spec.name for spec in networks.specs(family)]
        self.feed: Feed = dict(zip(names, networks.arrays(family)))
        self._folder = folder
        self._exports: dict[bool, Path | str] = {}

    @property
    def tensors(self) -> list[Any]:
        """New tensors with the inputs."""
        return [paddle.to_tensor(value) for value in self.feed.values()]

    @cached_property
    def expected(self) -> Results:
        """The results of native Paddle in dynamic mode."""
        return natively(lambda: self.call(networks.network(self.family)))

    @cached_property
    def rounding(self) -> list[float]:
        """How far native results part from weights that differ in their last bit, by result."""
        found = [0.0] * len(self.expected)
        for number in range(NUDGES):
            other = networks.network(self.family)
            steps.set_state(other, nudged(steps.state(other), number))
            apart = differences(self.expected, self.call(other))
            found = [max(pair) for pair in zip(found, apart)]
        return found

    @cached_property
    def native_times(self) -> Counter[str]:
        """Nanoseconds of each type of operator in a native run of the exported PIR program."""
        with _executor(self.export(old=False), self.feed) as run, paddle_ngraph.use_ngraph(False):
            run()
            return operator_times(run)

    def call(self, function: Callable[..., Any]) -> Results:
        """The results of a call with the inputs, and always with the same random numbers."""
        paddle.seed(0)
        with paddle.set_grad_enabled(self.family.differentiates):
            return [np.array(result) for result in function(*self.tensors)]

    def export(self, old: bool) -> Path:
        """The exported network, without the suffix of its files.

        Args:
            old: Under the old IR, to a ``.pdmodel``.

        Raises:
            PaddleFails: Paddle cannot export it.
        """
        if old not in self._exports:
            path = self._folder / ("old" if old else "new")
            try:
                self._exports[old] = _exported(self.family, path, old)
            except Exception as error:
                self._exports[old] = _sentence(error)
        found = self._exports[old]
        if isinstance(found, str):
            raise PaddleFails(f"the export fails: {found}")
        return found


def _exported(family: NetworkFamily, path: Path, old: bool) -> Path:
    with ir(old):
        paddle.disable_static()
        try:
            paddle.jit.save(networks.network(family), str(path), networks.specs(family))
        except Exception:  # some networks read the batch
            paddle.disable_static()
            specs = networks.specs(family, any_batch=False)
            paddle.jit.save(networks.network(family), str(path), specs)
    paddle.disable_static()
    return path


@contextmanager
def ir(old: bool) -> Iterator[None]:
    """The old IR, as ``FLAGS_enable_pir_api=0``, or the present one."""
    if not old:
        yield
        return
    with old_ir():
        yield


def differences(expected: Results, actual: Results) -> list[float]:
    """The largest difference of each result; infinite where shapes, dtypes or integers differ."""
    if len(expected) != len(actual):
        return [np.inf] * len(expected)
    return [_difference(*pair) for pair in zip(expected, actual)]


def _difference(expected: Array, actual: Array) -> float:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return np.inf
    if expected.dtype.kind == "f":
        return largest_difference(expected, actual)
    return 0.0 if np.array_equal(expected, actual) else np.inf


def judge(record: Record, expected: Results, actual: Results, subject: Subject) -> None:
    """Compares results, and asks native Paddle for the effect of rounding where they differ."""
    apart = differences(expected, actual)
    record.error = max([record.error, *apart])
    if all(error <= TOLERANCE for error in apart):
        return
    rounding = subject.rounding
    if len(rounding) != len(apart):
        rounding = [max(rounding, default=0.0)] * len(apart)
    record.rounding = max([record.rounding, *rounding])
    _reject(record, beyond_rounding(_numbered(apart), _numbered(rounding), TOLERANCE))


def _reject(record: Record, wrong: dict[str, str]) -> None:
    """Records which tensors are wrong, and why, if there are any."""
    if wrong:
        record.outcome = "wrong"
        record.why = "; ".join(f"{name} is {reason}" for name, reason in list(wrong.items())[:3])


def _numbered(values: Sequence[float]) -> dict[str, float]:
    return {f"result {number}": value for number, value in enumerate(values)}


# -- dynamic mode --------------------------------------------------------------------------------


def dynamic(subject: Subject, record: Record) -> None:
    """Evaluation by native Paddle, with which the other forms are compared."""
    assert subject.expected, "the network has no result"
    record.engine_runs = 0


def compiled(subject: Subject, record: Record) -> None:
    """Evaluation by ``paddle_ngraph.compile``."""
    expected = subject.expected
    function = paddle_ngraph.compile(networks.network(subject.family))
    for _ in range(CALLS["compile"]):
        judge(record, expected, subject.call(function), subject)
    _count(record, lambda: str(paddle_ngraph.explain(function)))


def enabled(subject: Subject, record: Record) -> None:
    """Evaluation of the unchanged network under ``enable(dynamic=True)``."""
    expected = subject.expected
    network = networks.network(subject.family)
    paddle_ngraph.enable(dynamic=True)
    try:
        with clock.overridden(_SlowPaddle()):
            for _ in range(CALLS["enable"]):
                judge(record, expected, subject.call(network), subject)
        _count(record, lambda: str(paddle_ngraph.explain(network)))
    finally:
        paddle_ngraph.disable()


class _SlowPaddle:
    """A clock for which calls without the engine take long, so that the autotuner prefers it."""

    def __init__(self) -> None:
        self._now, self._runs = 0.0, 0

    def __call__(self) -> float:
        runs = paddle_ngraph.stats()["engine_runs"]
        self._now += 1e-3 if runs > self._runs else 1e3
        self._runs = runs
        return self._now


def training(subject: Subject, record: Record) -> None:
    """Four steps with momentum through ``compile``: losses, gradients and all that is updated."""
    if subject.family.untrained:
        record.outcome, record.why = "paddle", subject.family.untrained
        return
    scales = [max(float(np.mean(np.square(r, dtype="f8"))), 1e-12) for r in subject.expected]
    before = paddle_ngraph.stats()["engine_runs"]
    trained = steps.Training(subject.family, scales)
    errors, rounding, wrong = steps.judge(subject.family, scales, trained, natively(trained.run))
    record.engine_runs = paddle_ngraph.stats()["engine_runs"] - before
    decided = [name for name in errors if not rounding[name] > UNDECIDED] or list(errors)
    record.error = max(errors[name] for name in decided)
    record.rounding = max(rounding[name] for name in decided)
    _reject(record, wrong)
    if record.outcome == "equal" and not record.engine_runs:
        record.outcome, record.why = "native", "no graph of a step was built"


# -- exported ------------------------------------------------------------------------------------


def predicted(subject: Subject, record: Record, old: bool = False) -> None:
    """A predictor of the exported network."""
    path = subject.export(old)
    expected = natively(lambda: _predict(subject, path, engine=False))
    again = natively(lambda: _predict(subject, path, engine=False))
    if max(differences(expected, again), default=0) > TOLERANCE:
        raise PaddleFails("two runs of its native predictor differ")
    judge(record, expected, _predict(subject, path, engine=True), subject)
    report = paddle_ngraph.explain(_config(path))
    _cover(subject, record, report)
    _count(record, lambda: report.why_native or "no subgraph pays off")


def executed(subject: Subject, record: Record, old: bool = False) -> None:
    """The exported network as a program of an Executor."""
    path = subject.export(old)
    with _executor(path, subject.feed, old) as run:
        with paddle_ngraph.use_ngraph(False):
            expected = natively(run)
        with paddle_ngraph.use_ngraph(True):
            for _ in range(2):
                judge(record, expected, run(), subject)
        report = run.report()
    _cover(subject, record, report)
    _count(record, lambda: report.why_native or _reasons(report) or "no subgraph pays off")


def old_predicted(subject: Subject, record: Record) -> None:
    """A predictor of the network that was exported under the old IR."""
    predicted(subject, record, old=True)


def old_executed(subject: Subject, record: Record) -> None:
    """A ProgramDesc program of the network that was exported under the old IR."""
    executed(subject, record, old=True)


def _config(path: Path, onednn: bool = False) -> Config:
    suffix = next(s for s in (".json", ".pdmodel") if path.with_suffix(s).exists())
    config = Config(str(path.with_suffix(suffix)), str(path.with_suffix(".pdiparams")))
    config.disable_glog_info()
    if not onednn:
        config.disable_mkldnn()
    return config


class Predictor:
    """A predictor with its inputs in place.

    Args:
        path: The model, without the suffix of its files.
        feed: The inputs.
        engine: Whether the engine runs it.
        onednn: Whether it may run on Paddle's oneDNN.
    """

    def __init__(self, path: Path, feed: Feed, engine: bool, onednn: bool = False) -> None:
        self._engine = engine
        with paddle_ngraph.use_ngraph(engine):
            self._predictor = create_predictor(_config(path, onednn))
        for name in self._predictor.get_input_names():  # an export drops what nothing reads
            self._predictor.get_input_handle(name).copy_from_cpu(feed[name])

    def __call__(self) -> Results:
        """The results of a run."""
        paddle.seed(0)
        with paddle_ngraph.use_ngraph(self._engine):
            self._predictor.run()
        names = self._predictor.get_output_names()
        return [self._predictor.get_output_handle(name).copy_to_cpu() for name in names]


def _predict(subject: Subject, path: Path, engine: bool) -> Results:
    predictor = Predictor(path, subject.feed, engine)
    predictor()
    return predictor()


class Program:
    """An exported program in a scope of its own.

    Args:
        path: The model, without the suffix of its files.
        feed: The inputs.
    """

    def __init__(self, path: Path, feed: Feed) -> None:
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._scope = paddle.static.Scope()
        with paddle.static.scope_guard(self._scope), paddle_ngraph.use_ngraph(False):
            self._program, names, self._fetches = paddle.static.load_inference_model(
                str(path), self._executor
            )
        self._feed = {name: feed[name] for name in names}

    def __call__(self) -> Results:
        """The results of a run."""
        paddle.seed(0)
        with paddle.static.scope_guard(self._scope):
            results = self._executor.run(self._program, feed=self._feed, fetch_list=self._fetches)
        return [np.array(result) for result in results]

    def report(self) -> Report:
        """The report on the partitioned program."""
        report: Report = paddle_ngraph.explain(self._program)
        return report


@contextmanager
def _executor(path: Path, feed: Feed, old: bool = False) -> Iterator[Program]:
    with ir(old):
        paddle.enable_static()
        try:
            yield Program(path, feed)
        finally:
            paddle.disable_static()
    paddle.disable_static()


# -- what ran ------------------------------------------------------------------------------------


def _count(record: Record, reason: Callable[[], str]) -> None:
    """Counts the engine's runs since the form began."""
    record.engine_runs = paddle_ngraph.stats()["engine_runs"]
    if not record.engine_runs and record.outcome == "equal":
        record.outcome, record.why = "native", reason()[:600]


def _reasons(report: Report) -> str:
    return "; ".join(sorted({f"{op.type}: {op.reason}" for op in report.native}))


def _cover(subject: Subject, record: Record, report: Report) -> None:
    """Records how much of the native time is in operators that the engine computes."""
    left = Counter(map(plain_type, [op.type for op in report.native] + report.kernel_calls))
    graphs = [i.graph for i in report.intervals if i.graph is not None]
    converted = (op for graph in graphs for op in graph.all_ops() if any(op.input_specs()))
    all_ops = left + Counter(plain_type(op.type) for op in converted)
    all_ops -= Counter(map(plain_type, report.kernel_calls))
    try:
        times = subject.native_times
    except PaddleFails:  # only the old IR exports it: operators count instead
        times = all_ops
    known = {name: times[name] for name in all_ops if times[name]}
    total = sum(known.values())
    if not total:
        return
    shares = {name: known.get(name, 0) * left[name] / all_ops[name] / total for name in left}
    if report.why_native is not None:
        record.coverage = 0.0
    else:
        record.coverage = 1 - sum(shares.values())
    largest = sorted(shares.items(), key=lambda pair: -pair[1])[:LEFT]
    record.left = {name: round(share, 4) for name, share in largest if share >= 1e-3}
    reasons = {f"{plain_type(op.type)}: {op.reason}" for op in report.native}
    if record.outcome == "equal":
        left = [reason for reason in sorted(reasons) if reason.partition(":")[0] in record.left]
        record.why = "; ".join(left)[:600]


Form = Callable[[Subject, Record], None]
FORMS: dict[str, Form] = {
    "old predictor": old_predicted,
    "old Executor": old_executed,
    "predictor": predicted,
    "Executor": executed,
    "dynamic": dynamic,
    "compile": compiled,
    "enable": enabled,
    "training": training,
}


def run(subject: Subject, form: str, function: Form) -> Record:
    """Runs one form of a family; errors become outcomes."""
    record = Record(subject.family.id, form)
    start = time.process_time()
    try:
        paddle_ngraph.reset_stats()
        function(subject, record)
    except PaddleFails as failure:
        record.outcome, record.why = "paddle", str(failure)
    except Exception as error:
        record.outcome, record.why = "fails", _sentence(error)
    record.seconds = round(time.process_time() - start, 1)
    return record


def natively(function: Callable[[], Any]) -> Any:
    """The result of a function that runs by Paddle alone.

    Raises:
        PaddleFails: It raises an error.
    """
    try:
        return function()
    except PaddleFails:
        raise
    except Exception as error:
        raise PaddleFails(_sentence(error)) from error


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if "Error" in line]
    text = (marked or lines or [""])[-1]
    return f"{type(error).__name__}: {text}"[:300]
