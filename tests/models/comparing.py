"""Runs a model natively and through the engine, from the same state on the same data."""

from __future__ import annotations

import gc
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

import paddle_ngraph
from paddle_ngraph.partitioning.report import Report
from tests.models.zoo import Model

Array = NDArray[Any]
Values = dict[str, Array]
UNDECIDED = 0.1
NUDGES = 4


@dataclass(frozen=True)
class Outcome:
    """The runs of a model by Paddle and by the engine.

    Attributes:
        report: Which of its operators are converted.
        errors: How far native and engine part in everything fetched and, where the model trains, in
            everything left in the scope: see :func:`distances`.
        rounding: How far native runs part, one of them from weights as they are, others from
            weights changed in their last bit: the effect of rounding alone on this model.
        engine_runs: How often an engine operator ran.
    """

    report: Report
    errors: dict[str, float]
    rounding: dict[str, float]
    engine_runs: int

    @property
    def undecided(self) -> list[str]:
        """Tensors whose updates are rounding errors alone: runs by Paddle differ in them, too.

        The gradient of the key's bias in attention is 0, and that of a bias before a
        normalization; Adam divides the rounding error of such a gradient by itself.
        """
        return [name for name, apart in self.rounding.items() if apart > UNDECIDED]

    @property
    def error(self) -> float:
        """The largest of ``errors``, the undecided left out."""
        return max(self.errors[name] for name in self.errors.keys() - set(self.undecided))

    @property
    def native_error(self) -> float:
        """The largest of ``rounding``, the undecided left out."""
        return max(self.rounding[name] for name in self.errors.keys() - set(self.undecided))

    def wrong(self, tolerance: float = 1e-5, factor: float = 10.0) -> dict[str, str]:
        """The tensors that part further than ``tolerance``, and than ``factor`` times rounding."""
        return beyond_rounding(self.errors, self.rounding, tolerance, factor)


def beyond_rounding(
    errors: dict[str, float],
    rounding: dict[str, float],
    tolerance: float = 1e-5,
    factor: float = 10.0,
) -> dict[str, str]:
    """Tensors that differ by more than ``tolerance``, and than ``factor`` times their rounding."""
    return {
        name: f"{error:.1e} apart, rounding explains {rounding[name]:.1e}"
        for name, error in errors.items()
        if not error <= max(tolerance, factor * rounding[name])
    }


def compare(model: Model, seed: int = 0, tolerance: float = 0.0) -> Outcome:
    """Builds a model and runs it over its feeds, natively and by the engine.

    If results differ by more than ``tolerance``, Paddle runs again, to measure the effect of
    rounding: from other weights each time, until rounding explains the difference, since a near tie
    falls the other way in some of these runs only.
    """
    with closing(_Runner(model, seed)) as runner:
        native = runner.run(engine=False)
        paddle_ngraph.reset_stats()
        errors = distances(native, runner.run(engine=True))
        engine_runs = paddle_ngraph.stats()["engine_runs"]
        rounding = dict.fromkeys(errors, 0.0)
        for nudge in range(NUDGES):
            if not beyond_rounding(errors, rounding, model.tolerance if nudge else tolerance):
                break
            apart = distances(native, runner.run(engine=False, nudge=nudge), exactly=True)
            rounding = {name: max(rounding[name], apart[name]) for name in rounding}
    return Outcome(
        report=paddle_ngraph.explain(runner.main),
        errors=errors,
        rounding=rounding,
        engine_runs=engine_runs,
    )


def agreeing(model: Model, attempts: int = 6, thorough: bool = False) -> Outcome:
    """Compares from other weights where the first ones do not agree, and again.

    ReLU and max pooling decide by comparing numbers. In a network of a million activations some
    near tie falls the other way now and then, and near the end of a small network a single one
    changes every gradient by percents. It is another one, or none, from other weights; a wrong
    formula is wrong from all of them.

    ``thorough``: measure the effect of rounding also if the results agree.
    """
    for seed in range(attempts):
        outcome = compare(model, seed, 0.0 if thorough else model.tolerance)
        if not outcome.wrong(model.tolerance):
            break
    return outcome


@dataclass(frozen=True)
class Run:
    """The initial state of a run, its results and its final state.

    Attributes:
        start: The state before the run, by name.
        values: Results, and the state after the run under the names that it has in ``start``.
    """

    start: Values
    values: Values


def distances(expected: Run, actual: Run, exactly: bool = False) -> dict[str, float]:
    """The distance of each tensor from the expected one.

    State: the difference of the updates, relative to the expected update (norms), less the spacing
    of float32 unless ``exactly``: what rounding explains has that spacing in it. Results: the
    largest difference, relative to the largest element. Integers, shapes, NaN and infinities must
    be equal: otherwise the distance is infinite.
    """
    assert expected.values.keys() == actual.values.keys()
    found = {}
    for name, value in expected.values.items():
        other = actual.values[name]
        if value.dtype != other.dtype or value.shape != other.shape:
            found[name] = np.inf
        elif value.dtype.kind != "f":
            found[name] = 0.0 if np.array_equal(value, other) else np.inf
        elif name in expected.start:
            way = np.subtract(value, expected.start[name], dtype="float64")
            apart = np.subtract(other, actual.start[name], dtype="float64")
            apart -= way
            # The spacing of the numbers that the state can hold.
            spacing = 0.0 if exactly else 2**-23 * np.linalg.norm(value)
            found[name] = _share(max(0, np.linalg.norm(apart) - spacing), np.linalg.norm(way))
        else:
            found[name] = largest_difference(value, other)
    return found


def largest_difference(expected: Array, actual: Array) -> float:
    """The largest difference of two arrays, relative to the largest finite element expected."""
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    apart = np.subtract(actual[finite], expected[finite], dtype="float64")
    return _share(np.abs(apart).max(), np.abs(expected[finite]).max())


def _share(apart: Any, whole: Any) -> float:
    if apart == 0:
        return 0.0
    return float(apart / whole) if whole > 0 and np.isfinite(apart) else np.inf


class _Runner:
    """A model's program, and its scope as the startup program left it."""

    def __init__(self, model: Model, seed: int) -> None:
        self._model = model
        self._seed = seed
        self.main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, startup), paddle.utils.unique_name.guard():
            paddle.seed(seed)
            fetches = model.build()
        self._fetches = list(fetches) if isinstance(fetches, (list, tuple)) else [fetches]
        self._scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(self._scope), paddle_ngraph.use_ngraph(False):
            paddle.seed(seed)
            self._executor.run(startup)
        self._start = variables(self.main, self._scope)

    def run(self, engine: bool, nudge: int | None = None) -> Run:
        """Runs over every feed from the first state.

        Args:
            engine: Natively, or through the engine.
            nudge: Start from weights that are changed in their last bit, in one of several ways.
        """
        start = self._start if nudge is None else nudged(self._start, nudge)
        set_variables(self._scope, start)
        values: Values = {}
        with paddle.static.scope_guard(self._scope), paddle_ngraph.use_ngraph(engine):
            paddle.seed(self._seed)
            for number, feed in enumerate(self._model.feeds):
                results = self._executor.run(self.main, feed=feed, fetch_list=self._fetches)
                for index, value in enumerate(results):
                    values[f"result {index} of run {number}"] = np.array(value)
        if self._model.trains:
            values |= variables(self.main, self._scope)
        return Run(start, values)

    def close(self) -> None:
        """Frees functions and scopes, which the process would retain."""
        del self._executor
        gc.collect()
        self._scope.erase(self._scope.local_var_names())
        paddle_ngraph.clear_cache()


def nudged(values: Values, number: int = 0, size: float = 2**-23) -> Values:
    """``values`` with the float32 numbers in tensors, not in scalars, changed by a relative size.

    Args:
        values: The tensors.
        number: Which numbers grow, and which shrink.
        size: By how much; without, by the last bit.
    """
    draw = np.random.default_rng(number)
    changed = {}
    for name, value in values.items():
        if value.dtype == np.float32 and value.size > 1:
            signs = draw.integers(0, 2, value.shape, dtype="int8") * np.float32(2) - 1
            value = value * (1 + signs * np.float32(size))
        changed[name] = value
    return changed


def variables(program: Any, scope: Any) -> Values:
    """The state of ``program`` in ``scope`` between runs: weights, optimizer slots, statistics."""
    return {name: np.array(value) for name, value in program.state_dict("all", scope).items()}


def set_variables(scope: Any, values: Values) -> None:
    """Writes ``values`` into the variables of ``scope`` that have their names."""
    for name, value in values.items():
        scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())
