"""Compares a Paddle program run through the engine with the same program run natively.

A test built on it fails when the engine did not run, or when an operator it is about stayed native.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph import _core
from tests.programs import floats, summary

Build = Callable[..., Any]


@dataclass
class Case:
    """A small program and what to expect of it.

    Attributes:
        build: Gets the input variables by name, returns one output variable or several.
        inputs: The feeds.
        converted: Operator types that must run in the engine, without ``pd_op.``.
        native: Operator types that must stay native.
        gradients: Whether to compare the gradients of every float input too.
        dynamic: Declares these inputs with open dimensions: name -> shape with -1.
        rtol, atol: Tolerances for floats; whole numbers must be equal.
        runs: How often to run: in-place state changes from run to run.
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
    """Runs a :class:`Case`, asserts that both ways agree, returns what the engine computed."""
    case = Case(build, inputs, converted, **options)
    program, startup, fetches, feed = _program(case)
    report = paddle_ngraph.explain(program)
    _assert_partition(case, report)
    native = _run(program, startup, fetches, feed, case, engine=False)
    engine = _run(program, startup, fetches, feed, case, engine=True)
    for number, (expected, actual) in enumerate(zip(native, engine)):
        _assert_same(expected, actual, case, f"output {number} of run {number // len(fetches)}")
    if case.converted:
        with intervals_run_natively():
            by_paddle = _run(program, startup, fetches, feed, case, engine=True)
        for number, (expected, actual) in enumerate(zip(native, by_paddle)):
            # Not to the last bit: Paddle's kernels depend on where a tensor lies in memory.
            _assert_same(expected, actual, replace(case, rtol=2e-6, atol=1e-6), f"{number}, Paddle")
    return engine


@contextmanager
def intervals_run_natively() -> Iterator[None]:
    """Every run of an engine operator is left to Paddle's kernels."""
    _core.fail_at("data")
    try:
        yield
    finally:
        _core.fail_at("")


def check_native(
    build: Build, inputs: Mapping[str, np.ndarray], native: Sequence[str], **options: Any
) -> None:
    """Asserts that operators out of the converters' limits stay native, and nothing changes."""
    check(build, inputs, (), native=native, **options)


def check_refused(build: Build, inputs: Mapping[str, np.ndarray], converted: Sequence[str]) -> None:
    """Asserts that a run on ``inputs``, which the engine refuses, ends as it does natively."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard():
        feeds = {n: paddle.static.data(n, v.shape, str(v.dtype)) for n, v in inputs.items()}
        out = build(**feeds)
    intervals = paddle_ngraph.explain(program).intervals
    assert set(converted) <= {kind.removeprefix("pd_op.") for i in intervals for kind in i.types}
    executor = paddle.static.Executor(paddle.CPUPlace())

    def outcome(engine: bool) -> Any:
        with paddle_ngraph.use_ngraph(engine):
            try:
                return executor.run(program, feed=dict(inputs), fetch_list=[out])[0].tobytes()
            except Exception as error:
                return type(error), summary(error)

    before = paddle_ngraph.stats()["engine_runs"]
    assert outcome(engine=True) == outcome(engine=False)
    assert paddle_ngraph.stats()["engine_runs"] == before, "the engine did not refuse"


def check_kinds(build: Build, shape: Sequence[int], types: Sequence[str], **options: Any) -> None:
    """Checks a float, an int32 and a bool tensor, with the gradient for the float one."""
    forward = [kind for kind in types if not kind.endswith("_grad")]
    for maker in MAKERS:
        check(build, {"x": maker(*shape)}, types if maker is strange else forward, **options)


def both(name: str) -> list[str]:
    """An operator and its gradient."""
    return [name, f"{name}_grad"]


def normal(shape: int | Sequence[int], seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32 numbers, times ``scale``."""
    return np.asarray(np.random.default_rng(seed).normal(size=shape) * scale, "float32")


def strange(*shape: int, seed: int = 3) -> np.ndarray:
    """Normally distributed numbers, but what kernels get wrong in front."""
    x = floats(*shape, seed=seed)
    specials = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], "float32")
    flat = x.reshape(-1)
    flat[: len(specials)] = specials[: flat.size]
    return x


def pixels(*shape: int) -> np.ndarray:
    """Normally distributed numbers with a NaN and both infinities far from each other."""
    x = floats(*shape)
    flat = x.reshape(-1)
    flat[1], flat[-2], flat[flat.size // 2] = np.nan, np.inf, -np.inf
    return x


def whole(*shape: int) -> np.ndarray:
    """int32 numbers that float32 cannot hold, and a few that it can."""
    edges = [2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**30 + 1, 0, -7]
    return np.resize(np.array(edges, "int32"), shape)


def truths(*shape: int) -> np.ndarray:
    """Bools of either kind."""
    return np.resize(np.array([True, False, False, True, True]), shape)


MAKERS = [strange, whole, truths]


def ids(high: int, *shape: int, dtype: str = "int64", low: int = 0) -> np.ndarray:
    """Random whole numbers from ``low`` up to, but not including, ``high``."""
    return np.random.default_rng(5).integers(low, high, shape).astype(dtype)


def _program(case: Case) -> tuple[Any, Any, list[Any], dict[str, np.ndarray]]:
    main, startup = paddle.static.Program(), paddle.static.Program()
    feed = {name: np.asarray(value) for name, value in case.inputs.items()}
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        variables, outputs = _outputs(case)
        fetches = list(outputs)
        if case.gradients:
            fetches += _gradients(outputs, variables, feed)
    return main, startup, fetches, feed


def _outputs(case: Case) -> tuple[dict[str, Any], list[Any]]:
    variables = {}
    for name, value in case.inputs.items():
        shape = list(case.dynamic.get(name, value.shape))
        variables[name] = paddle.static.data(name, shape, str(value.dtype))
        variables[name].stop_gradient = value.dtype.kind != "f"
    outputs = case.build(**variables)
    return variables, list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _gradients(
    outputs: Sequence[Any], variables: Mapping[str, Any], feed: dict[str, np.ndarray]
) -> list[Any]:
    """Gradients of every float input, for random gradients of every float output."""
    targets = [out for out in outputs if "float" in str(out.dtype) and not out.stop_gradient]
    sources = [var for var in variables.values() if "float" in str(var.dtype)]
    if not targets or not sources:
        return []
    cotangents = []
    for number, target in enumerate(targets):
        name = f"cotangent_{number}"
        cotangents.append(paddle.static.data(name, list(target.shape), "float32"))
        feed[name] = np.zeros(0, "float32")  # filled when the shape is known
    found = paddle.static.gradients(targets, sources, cotangents)
    return [gradient for gradient in found if gradient is not None]


def _fill_cotangents(feed: dict[str, np.ndarray], shapes: Sequence[tuple[int, ...]]) -> None:
    generator = np.random.default_rng(7)
    number = 0
    while f"cotangent_{number}" in feed:
        feed[f"cotangent_{number}"] = generator.normal(size=shapes[number]).astype("float32")
        number += 1


def _run(
    program: Any,
    startup: Any,
    fetches: list[Any],
    feed: dict[str, np.ndarray],
    case: Case,
    engine: bool,
) -> list[np.ndarray]:
    executor = paddle.static.Executor(paddle.CPUPlace())
    results: list[np.ndarray] = []
    with paddle.static.scope_guard(paddle.static.Scope()):
        with paddle_ngraph.use_ngraph(False):
            paddle.seed(1)
            executor.run(startup)
        _prepare(executor, case, feed)
        paddle.seed(1)
        paddle_ngraph.reset_stats()
        with paddle_ngraph.use_ngraph(engine):
            for _ in range(case.runs):
                results += executor.run(program, feed=feed, fetch_list=fetches)
        stats = paddle_ngraph.stats()
        runs = stats["engine_runs"] + stats["native_runs"]
    if engine and case.converted:
        assert runs > 0, "the engine did not run"
    if not engine:
        assert runs == 0, "the native run went through the engine"
    return results


def _prepare(executor: Any, case: Case, feed: dict[str, np.ndarray]) -> None:
    """Gives the cotangents the shapes of the outputs, from a native forward run."""
    if "cotangent_0" not in feed or feed["cotangent_0"].size:
        return
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        _, outputs = _outputs(case)
        targets = [out for out in outputs if "float" in str(out.dtype) and not out.stop_gradient]
    with paddle_ngraph.use_ngraph(False), paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        values = executor.run(main, feed=dict(case.inputs), fetch_list=targets)
    _fill_cotangents(feed, [value.shape for value in values])


def _assert_partition(case: Case, report: Any) -> None:
    converted = {kind.removeprefix("pd_op.") for i in report.intervals for kind in i.types}
    native = {op.type.removeprefix("pd_op."): op.reason for op in report.native}
    for kind in case.converted:
        assert kind not in native, f"{kind} stayed native: {native.get(kind)}"
        # A variable of the program's own is not overwritten: there is a new one instead.
        names = {kind, kind.removesuffix("_")}
        assert names & converted, f"{kind} is not in the program: {sorted(converted)}"
    for kind in case.native:
        assert kind in native, f"{kind} was converted, or is not in the program:\n{report}"


def _assert_same(expected: np.ndarray, actual: np.ndarray, case: Case, what: str) -> None:
    assert expected.dtype == actual.dtype, f"{what}: {actual.dtype}, native {expected.dtype}"
    assert expected.shape == actual.shape, f"{what}: {actual.shape}, native {expected.shape}"
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, case.rtol, case.atol, err_msg=what)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=what)
