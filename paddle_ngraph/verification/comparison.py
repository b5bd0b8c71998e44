"""Comparison of the results of a graph by the engine with those of Paddle's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, TensorSpec
from paddle_ngraph.paddle_private.names import DenseTensor, copy_of
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.verification.evaluation import (
    Evaluation,
    Noise,
    Values,
    array_of,
    draws,
    rounding_of,
    specs_of,
    tensor_of,
    workspaces,
)
from paddle_ngraph.verification.judgement import (
    SAMPLES,
    Rounding,
    Spread,
    differences,
    is_as_exact,
    is_nearer,
)


@dataclass(frozen=True)
class Difference:
    """A result of the engine that rounding does not explain.

    Attributes:
        name: ``output 0``, ``state 2`` or ``random generator``.
        tensor: The id of the tensor in the graph; -1 for the random generator.
        text: The sentence about it.
        error: The largest error of an element; NaN without numbers.
    """

    name: str
    tensor: int
    text: str
    error: float = float("nan")


@dataclass(frozen=True)
class SubgraphRun:
    """The data of one run of a graph.

    Attributes:
        graph: The graph.
        given: Inputs and states before the run. Nothing here writes to them.
        random: The random generator before the run.
        known_text: The graph string, if it is known.
    """

    graph: Graph = field(repr=False)
    given: list[Tensor] = field(repr=False)
    random: Any = field(repr=False)
    known_text: str = field(default="", repr=False)

    @cached_property
    def text(self) -> str:
        """The graph string."""
        return self.known_text or self.graph.to_string()

    def of(self, graph: Graph, values: Values) -> SubgraphRun:
        """The run of some of its operators.

        Args:
            graph: The operators.
            values: Results of the other operators.
        """
        own = [spec.id for spec in (*self.graph.inputs, *self.graph.states)]
        known = {**values, **dict(zip(own, self.given))}
        given = [known[spec.id] for spec in (*graph.inputs, *graph.states)]
        return SubgraphRun(graph, given, self.random)

    @property
    def results(self) -> list[TensorSpec]:
        """The tensors that the run computes: outputs, then new states."""
        return [*self.graph.outputs, *self.graph.state_outputs]

    def name(self, index: int) -> str:
        """The name of a result."""
        count = len(self.graph.outputs)
        return f"output {index}" if index < count else f"state {index - count}"

    @property
    def is_stochastic(self) -> bool:
        """Whether an operator samples random numbers."""
        return any(map(draws, self.graph.all_ops()))

    @property
    def rounding(self) -> Rounding:
        """The rounding of its arithmetic."""
        dtypes = (spec.dtype for op in self.graph.all_ops() for spec in specs_of(op))
        return rounding_of(dtypes, flags.get("ngraph_precision"))

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Sets the random generator as before the run, and back at the end."""
        if not self.is_stochastic:
            yield
            return
        with _core.GeneratorChange():
            now = _core.RandomState()
            try:
                self.random.restore()
                yield
            finally:
                now.restore()

    def natively(self) -> tuple[list[Tensor], Any]:
        """Runs the fallback program; returns the results, and the random generator after it.

        Without kernels for bfloat16, Paddle runs the operators in float64, one by one.
        """
        try:
            fallback.require_kernels(self.graph)
        except NgraphError:
            return self._in_float64()
        count = len(self.graph.inputs)
        states = [copy_of(tensor, paddle.CPUPlace()) for tensor in self.given[count:]]
        outputs = [DenseTensor() for _ in self.graph.outputs]
        with self.replaying():
            fallback.run(self.text, self.given[:count], states, outputs)
            return [*outputs, *states], _core.RandomState()

    def _in_float64(self) -> tuple[list[Tensor], Any]:
        with self.replaying():
            values = Evaluation(self.graph, widens=True).run(self.given)
            stream = _core.RandomState()
        results = [tensor_of(array_of(values[s.id]), s.dtype) for s in self.results]
        return results, stream

    def by_new_function(self) -> tuple[list[Tensor], Any]:
        """Runs a function that is built for it; returns the results as :meth:`natively`."""
        with self.replaying():
            results = _core.run_new_function(self.text, self.given)
            return results, _core.RandomState()


class Reference:
    """The float64 results of a run, computed when they are needed."""

    def __init__(self, run: SubgraphRun) -> None:
        self._run = run
        self._evaluation: Evaluation | None = None
        self._exact: Values = {}
        self._spreads: dict[int, Spread] = {}
        self._samples = 0

    def exact(self, tensor: int) -> np.ndarray:
        """The float64 result."""
        if self._evaluation is None:
            self._evaluation = Evaluation(self._run.graph, widens=True)
            with self._run.replaying():
                self._exact = self._evaluation.run(self._run.given)
        return array_of(self._exact[tensor])

    def unexplained(self, tensor: int, engine: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """Where rounding errors do not explain a result of the engine.

        Args:
            tensor: The id of the result.
            engine: The result.
            wrong: Where an explanation is needed. Samples are added until there is one.
        """
        if not self._spreads:
            self._spreads = {spec.id: Spread(self.exact(spec.id)) for spec in self._run.results}
        rounding = self._run.rounding
        while True:
            wrong = wrong & ~self._spreads[tensor].explains(engine, rounding)
            if self._samples == SAMPLES or not wrong.any():
                return wrong
            self._sample(Noise(rounding.noise, self._samples))
            self._samples += 1

    def _sample(self, noise: Noise) -> None:
        assert self._evaluation is not None
        with self._run.replaying():
            values = self._evaluation.run(self._run.given, self._evaluation.streams, noise)
        for tensor, spread in self._spreads.items():
            spread.add(array_of(values[tensor]))


def compare(
    run: SubgraphRun,
    engine: Sequence[Tensor],
    native: Sequence[Tensor],
    tolerances: dict[int, float] | None = None,
) -> list[Difference]:
    """The results of the engine that are wrong.

    Args:
        run: The run.
        engine, native: Its results by the engine and by Paddle.
        tolerances: The rounding of earlier runs by index of the result, which is updated: with it,
            most runs are judged without float64.
    """
    reference = Reference(run)
    found, skipped = [], workspaces(run.graph)
    for index, (spec, ours, theirs) in enumerate(zip(run.results, engine, native)):
        if spec.id in skipped:
            continue
        judged = _judge(run, reference, spec.id, array_pair(ours, theirs), index, tolerances)
        if judged is not None:
            found.append(Difference(run.name(index), spec.id, *judged))
    return found


def array_pair(ours: Tensor, theirs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Two tensors as arrays."""
    return array_of(ours), array_of(theirs)


def _judge(
    run: SubgraphRun,
    reference: Reference,
    tensor: int,
    pair: tuple[np.ndarray, np.ndarray],
    index: int,
    tolerances: dict[int, float] | None,
) -> tuple[str, float] | None:
    engine, native = pair
    if engine.shape != native.shape or engine.dtype != native.dtype:
        return f"{engine.dtype} {engine.shape} instead of {native.dtype} {native.shape}", np.nan
    where = differences(native, engine, run.rounding)
    if not where.any():
        return None
    relative = _relative_difference(native, engine)
    if tolerances is not None and relative <= 2 * tolerances.get(index, 0.0):
        return None
    exact = reference.exact(tensor)
    wrong = where & ~is_nearer(exact, engine, native) & ~is_as_exact(exact, engine, native)
    if wrong.any():
        wrong = reference.unexplained(tensor, engine, wrong)
    if wrong.any():
        return _sentence(engine, native, exact, wrong)
    if tolerances is not None and relative <= MAX_TOLERANCE:
        tolerances[index] = max(relative, tolerances.get(index, 0.0))
    return None


# The largest difference, relative to an element, that later runs may have without float64.
MAX_TOLERANCE = 1e-2


def _relative_difference(native: np.ndarray, engine: np.ndarray) -> float:
    """The largest relative difference; small elements count as a thousandth of the largest."""
    if native.dtype.kind != "f" or not native.size:
        return np.inf
    with np.errstate(invalid="ignore"):
        scale = np.maximum(np.abs(native), 1e-3 * np.abs(native).max())
        found = np.abs(engine - native) / np.where(scale > 0, scale, 1)
    return float(found.max()) if np.isfinite(found).all() else np.inf


def _sentence(
    engine: np.ndarray, native: np.ndarray, exact: np.ndarray, wrong: np.ndarray
) -> tuple[str, float]:
    with np.errstate(invalid="ignore"):
        errors = np.abs(engine.astype("float64") - exact.astype("float64"))
    worst = np.where(wrong, np.nan_to_num(errors, nan=np.inf), -1.0)
    place = tuple(int(n) for n in np.unravel_index(int(worst.argmax()), worst.shape))
    first = tuple(int(n) for n in np.argwhere(wrong)[0])
    text = (
        f"{engine.dtype} {list(engine.shape)}, {int(wrong.sum())} of {wrong.size} elements are "
        f"wrong, the first at {list(first)}, the worst at {list(place)}: engine "
        f"{engine[place].item()!r}, Paddle {native[place].item()!r}, in float64 "
        f"{exact[place].item()!r}"
    )
    return text, float(errors[place])
