"""Compares a Paddle program run by the engine with the same program run by Paddle.

A test based on it fails if the engine did not run, or if an operator under test fell back. What a
converter refuses has to fall back: functions call no kernels (tests/conversion/test_kernel_calls.py
tests these).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.frontends.executor import pass_results
from paddle_ngraph.partitioning import program_pass
from tests.ops import merging
from tests.programs import floats, summary

Build = Callable[..., Any]


@dataclass
class Case:
    """A small program and its expectations.

    Attributes:
        build: Receives the input variables by name, returns one output variable or several.
        inputs: The feeds.
        converted: Operator types that must run in the engine, without ``pd_op.``.
        native: Operator types that must fall back.
        gradients: Whether to compare the gradients of every float input too.
        dynamic: Declares these inputs with dynamic dimensions: name -> shape with -1.
        rtol, atol: Tolerances for floats; integers must be equal.
        runs: The number of runs; in-place state changes from run to run.
    """

    build: Build
    inputs: Mapping[str, np.ndarray]
    converted: Sequence[str] = ()
    native: Sequence[str] = ()
    gradients: bool = True
    dynamic: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6
    runs: int = 1


def check(
    build: Build,
    inputs: Mapping[str, np.ndarray],
    converted: Sequence[str] = (),
    **options: Any,
) -> list[np.ndarray]:
    """Runs a :class:`Case`, asserts that Paddle and engine agree, returns the engine's results.

    In tests marked :func:`~tests.ops.merging.merged` the case has run together with others.
    """
    case = Case(build, inputs, converted, **options)
    if merging.records(case):
        return []
    outcome = merging.outcome_of(case) or run_together([case])[0]
    for number, (expected, actual) in enumerate(zip(outcome.native, outcome.engine)):
        _assert_same(
            expected,
            actual,
            case,
            f"output {number % outcome.outputs} of run {number // outcome.outputs}",
        )
    for number, (expected, actual) in enumerate(zip(outcome.native, outcome.fallback)):
        # Results may differ in the last bit, since Paddle's kernels depend on the address of a
        # tensor.
        near = replace(case, rtol=2e-6, atol=max(case.atol, 1e-6))
        _assert_same(expected, actual, near, f"output {number} of the fallback")
    return outcome.engine


@dataclass
class Outcome:
    """Results of all runs of a case: by plain Paddle, the engine, and its fallback."""

    outputs: int
    native: list[np.ndarray]
    engine: list[np.ndarray]
    fallback: list[np.ndarray]


def run_together(cases: Sequence[Case]) -> list[Outcome]:
    """Runs cases as one program with one compile.

    Several cases have the same ``runs``.

    Raises:
        AssertionError: The engine did not run, or operators were rejected that have to be
            converted, or vice versa.
    """
    group = _Group(cases)
    native = group.run("native")
    with kernel_calls.disabled():
        engine = group.run("engine")
    fallback = []
    if any(case.converted for case in cases):
        with forced_fallback(), kernel_calls.disabled():
            fallback = group.run("fallback")
    parts = zip(group.split(native), group.split(engine), group.split(fallback))
    counts = [stop - start for start, stop in group.bounds]
    return [Outcome(count, *part) for count, part in zip(counts, parts)]


@contextmanager
def reports_of_partitions() -> Iterator[list[Any]]:
    """Collects the reports of the programs that are partitioned inside the ``with`` block."""
    pass_results.clear()  # an equal program would not be partitioned again
    original, reports = program_pass.apply, []

    def apply(*arguments: Any, **options: Any) -> Any:
        reports.append(original(*arguments, **options))
        return reports[-1]

    with mock.patch.object(program_pass, "apply", apply):
        yield reports


@contextmanager
def forced_fallback() -> Iterator[None]:
    """Makes every run of an engine operator fall back."""
    _core.fail_at("data")
    try:
        yield
    finally:
        _core.fail_at("")


def check_derivatives(
    function: Build,
    inputs: Mapping[str, np.ndarray],
    converted: Sequence[str],
    order: int = 2,
    **options: Any,
) -> None:
    """Checks derivatives of a function up to ``order``: 2 or 3.

    A gradient is differentiated by the operands and by the gradient of the result, so that each
    input and output of the operators is used.
    """
    feeds, counts = dict(inputs), []
    shapes = [_shape_of(function, inputs)]
    for level in range(order - 1):
        names = [f"gradient_{level}_{number}" for number in range(len(shapes))]
        sources = [feeds[name].shape for name in feeds]
        feeds.update({n: normal(s, 20 + level) for n, s in zip(names, shapes)})
        counts.append(names)
        shapes = sources

    def build(**given: Any) -> Any:
        sources = {name: given[name] for name in inputs}
        results = [function(**sources)]
        for names in counts:
            cotangents = [given[name] for name in names]
            results = paddle.static.gradients(results, list(sources.values()), cotangents)
            sources.update(zip(names, cotangents))
        return [result for result in results if result is not None]

    if dynamic := options.pop("dynamic", None):
        options["dynamic"] = {name: dynamic for name in feeds}
    check(build, feeds, converted, **options)


def _shape_of(function: Build, inputs: Mapping[str, np.ndarray]) -> list[int]:
    """The shape of the result of a function."""
    with paddle.static.program_guard(paddle.static.Program()):
        return list(
            function(**{n: paddle.static.data(n, x.shape) for n, x in inputs.items()}).shape
        )


def check_fallback(
    build: Build, inputs: Mapping[str, np.ndarray], native: Sequence[str], **options: Any
) -> None:
    """Asserts that operators outside the converters' limits fall back, with unchanged results."""
    check(build, inputs, (), native=native, **options)


def check_rejected(
    build: Build, inputs: Mapping[str, np.ndarray], converted: Sequence[str]
) -> None:
    """Asserts that a run on ``inputs``, which the engine rejects, ends as in plain Paddle."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard():
        feeds = {n: paddle.static.data(n, v.shape, str(v.dtype)) for n, v in inputs.items()}
        out = build(**feeds)
    with kernel_calls.disabled():
        intervals = paddle_ngraph.explain(program).intervals
    assert set(converted) <= {kind.removeprefix("pd_op.") for i in intervals for kind in i.types}
    executor = paddle.static.Executor(paddle.CPUPlace())

    def outcome(engine: bool) -> Any:
        with paddle_ngraph.use_ngraph(engine), kernel_calls.disabled():
            try:
                return executor.run(program, feed=dict(inputs), fetch_list=[out])[0].tobytes()
            except Exception as error:
                return type(error), summary(error)

    before = paddle_ngraph.stats()["engine_runs"]
    assert outcome(engine=True) == outcome(engine=False)
    assert paddle_ngraph.stats()["engine_runs"] == before, "the engine did not refuse"


def check_dtypes(build: Build, shape: Sequence[int], types: Sequence[str], **options: Any) -> None:
    """Checks a float, an int32 and a bool tensor, with the gradient for the float one."""
    forward = [kind for kind in types if not kind.endswith("_grad")]
    for create in MAKERS:
        check(build, {"x": create(*shape)}, types if create is strange else forward, **options)


def both(name: str) -> list[str]:
    """Returns the types of an operator and its gradient."""
    return [name, f"{name}_grad"]


def normal(shape: int | Sequence[int], seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32 numbers, times ``scale``."""
    return np.asarray(np.random.default_rng(seed).normal(size=shape) * scale, "float32")


def strange(*shape: int, seed: int = 3) -> np.ndarray:
    """Normally distributed values, preceded by values that kernels often get wrong."""
    x = floats(*shape, seed=seed)
    specials = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], "float32")
    flat = x.reshape(-1)
    flat[: len(specials)] = specials[: flat.size]
    return x


def pixels(*shape: int) -> np.ndarray:
    """Normally distributed values with a NaN and both infinities far from each other."""
    x = floats(*shape)
    flat = x.reshape(-1)
    flat[1], flat[-2], flat[flat.size // 2] = np.nan, np.inf, -np.inf
    return x


def whole(*shape: int) -> np.ndarray:
    """int32 values that float32 cannot represent, and a few that it can."""
    edges = [2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**30 + 1, 0, -7]
    return np.resize(np.array(edges, "int32"), shape)


def truths(*shape: int) -> np.ndarray:
    """Random bools."""
    return np.resize(np.array([True, False, False, True, True]), shape)


MAKERS = [strange, whole, truths]


def ids(high: int, *shape: int, dtype: str = "int64", low: int = 0) -> np.ndarray:
    """Random integers from ``low`` up to, but not including, ``high``."""
    return np.random.default_rng(5).integers(low, high, shape).astype(dtype)


class _Group:
    """One program of several cases.

    Attributes:
        main, startup: The program and its startup program.
        feed: Inputs of all cases, named apart, and the gradients of their outputs.
        bounds: For each case, where its results begin and end among the fetched ones.
    """

    def __init__(self, cases: Sequence[Case], differentiate: bool = True) -> None:
        self.cases = cases
        self._differentiate = differentiate
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._scope = paddle.static.Scope()
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.feed: dict[str, np.ndarray] = {}
        self.bounds: list[tuple[int, int]] = []
        self._fetches: list[Any] = []
        self._types: list[Counter[str]] = []  # of each case's operators
        self._targets: list[Any] = []  # outputs for which gradients are requested
        self._cotangents: list[str] = []  # names of their gradients, which are fed
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            for number, case in enumerate(cases):
                self._add(case, f"case_{number}_" if len(cases) > 1 else "")

    def _add(self, case: Case, prefix: str) -> None:
        block = self.main.global_block()
        before, first_fetch = _types_in(block), len(self._fetches)
        feed = {name: np.asarray(value) for name, value in case.inputs.items()}
        variables = {name: _input(prefix, name, feed[name], case) for name in feed}
        self.feed.update({f"{prefix}{name}": value for name, value in feed.items()})
        outputs = case.build(**variables)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        self._fetches += outputs
        if case.gradients:
            self._fetches += self._gradients(outputs, list(variables.values()), prefix)
        self.bounds.append((first_fetch, len(self._fetches)))
        self._types.append(_types_in(block) - before)

    def _gradients(self, outputs: list[Any], variables: list[Any], prefix: str) -> list[Any]:
        """Returns gradients of every float input, for random gradients of every float output."""
        targets = [out for out in outputs if "float" in str(out.dtype) and not out.stop_gradient]
        sources = [variable for variable in variables if "float" in str(variable.dtype)]
        if not targets or not sources:
            return []
        self._targets += targets
        if not self._differentiate:
            return []
        cotangents = []
        for number, target in enumerate(targets):
            self._cotangents.append(f"{prefix}cotangent_{number}")
            shape = list(target.shape)
            cotangents.append(paddle.static.data(self._cotangents[-1], shape, "float32"))
        found = paddle.static.gradients(targets, sources, cotangents)
        return [gradient for gradient in found if gradient is not None]

    def _assert_partitions(self, reports: Sequence[Any]) -> None:
        """Asserts which operators were converted in a run, where trial conversions may fail.

        Programs with empty feeds are not partitioned.
        """
        for report in reports or [paddle_ngraph.explain(self.main)]:
            self._assert_partition(report)
            if len(self.cases) > 1 and report.drawing:
                raise merging.CannotMerge("cases that draw take numbers of one stream")
        assert reports or not any(case.converted for case in self.cases), "not partitioned"

    def _assert_partition(self, report: Any) -> None:
        """Asserts for each case which operators were converted, and which fell back.

        In a program of several cases, an operator type has to have the same outcome in all of them.
        """
        types = (kind for interval in report.intervals for kind in interval.types)
        converted = Counter(_out_of_place(kind) for kind in types)
        native = {op.type.removeprefix("pd_op."): op.reason for op in report.native}
        present = _out_of_place_types(_types_in(self.main.global_block()))
        for case, types_of_case in zip(self.cases, self._types):
            own = _out_of_place_types(types_of_case)
            for kind in case.converted:
                made = _out_of_place(kind)
                if len(self.cases) > 1 and kind in native:  # perhaps in another case
                    raise merging.CannotMerge(f"{kind} stayed native: {native[kind]}")
                assert kind not in native, f"{kind} stayed native: {native.get(kind)}"
                assert made in converted, f"{kind} is not in the program: {sorted(converted)}"
                if len(self.cases) > 1 and not (made in own and converted[made] == present[made]):
                    raise merging.CannotMerge(f"{kind} is native elsewhere")
            for kind in case.native:
                assert kind in native, f"{kind} was converted, or is not in the program:\n{report}"
                if len(self.cases) > 1 and (
                    kind not in types_of_case or _out_of_place(kind) in converted
                ):
                    raise merging.CannotMerge(f"{kind} is converted elsewhere")

    def run(self, by: str) -> list[np.ndarray]:
        """Returns results of all runs, one run after the other.

        Args:
            by: ``"native"`` Paddle, the ``"engine"``, or the ``"fallback"`` of its subgraphs.

        Raises:
            AssertionError: Another path ran a subgraph.
        """
        results: list[np.ndarray] = []
        with paddle.static.scope_guard(self._scope), reports_of_partitions() as reports:
            with paddle_ngraph.use_ngraph(False):
                paddle.seed(1)
                self._executor.run(self.startup)
                self._make_cotangents()
            paddle.seed(1)
            paddle_ngraph.reset_stats()
            with paddle_ngraph.use_ngraph(by != "native"):
                for _ in range(self.cases[0].runs):
                    results += self._executor.run(
                        self.main, feed=self.feed, fetch_list=self._fetches
                    )
            stats = paddle_ngraph.stats()
        if by == "engine":
            self._assert_partitions(reports)
        runs = {"engine": stats["engine_runs"], "fallback": stats["native_runs"]}
        others = [name for name in runs if name != by and runs[name] > 0]
        assert not others, f"what {by} should run was run by {others}"
        if by != "native" and any(case.converted for case in self.cases):
            assert runs[by] > 0, f"nothing was run by {by}"
        return results

    def split(self, results: list[np.ndarray]) -> list[list[np.ndarray]]:
        """Splits the results by case, for all runs in a row."""
        each = len(self._fetches)
        runs = [results[first : first + each] for first in range(0, len(results), each)]
        return [[x for run in runs for x in run[start:stop]] for start, stop in self.bounds]

    def _make_cotangents(self) -> None:
        """Samples the gradients of outputs once, in shapes of a run: Paddle infers some wrong."""
        if not self._cotangents or self._cotangents[0] in self.feed:
            return
        forward = _Group(self.cases, differentiate=False)
        with paddle.static.scope_guard(paddle.static.Scope()):
            self._executor.run(forward.startup)
            values = self._executor.run(forward.main, feed=self.feed, fetch_list=forward._targets)
        for name, value in zip(self._cotangents, values):
            if name.endswith("cotangent_0"):
                generator = np.random.default_rng(7)
            self.feed[name] = generator.normal(size=value.shape).astype("float32")


def _out_of_place(kind: str) -> str:
    """Returns the out-of-place variant of an operator, which the pass prefers."""
    return kind.removeprefix("pd_op.").removesuffix("_")


def _out_of_place_types(types: Mapping[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for kind, count in types.items():
        counts[_out_of_place(kind)] += count
    return counts


def _types_in(block: Any) -> Counter[str]:
    return Counter(op.name().removeprefix("pd_op.") for op in block.ops)


def _input(prefix: str, name: str, value: np.ndarray, case: Case) -> Any:
    shape = list(case.dynamic.get(name, value.shape))
    variable = paddle.static.data(f"{prefix}{name}", shape, str(value.dtype))
    variable.stop_gradient = value.dtype.kind != "f"
    return variable


def _assert_same(expected: np.ndarray, actual: np.ndarray, case: Case, what: str) -> None:
    assert expected.dtype == actual.dtype, f"{what}: {actual.dtype}, native {expected.dtype}"
    assert expected.shape == actual.shape, f"{what}: {actual.shape}, native {expected.shape}"
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, case.rtol, case.atol, err_msg=what)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=what)
