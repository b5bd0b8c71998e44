"""Comparison of the results of a graph by the engine with those of Paddle's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, TensorSpec
from paddle_ngraph.paddle_private.names import DenseTensor, copy_of, dtype_of
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.partitioning.analysis.block_view import dtype_name
from paddle_ngraph.utils import signals
from paddle_ngraph.verification.evaluation import (
    Evaluation,
    Noise,
    ReferenceProgram,
    Values,
    array_of,
    draws,
    rounding_of,
    specs_of,
    tensor_of,
    workspaces,
)
from paddle_ngraph.verification.judgement import (
    FLOAT32,
    SAMPLES,
    SPREAD,
    Rounding,
    Spread,
    differences,
    is_as_exact,
    is_nearer,
    median_error,
    usual_error,
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
            fallback.run(self.text, self.given[:count], states, outputs, self.graph)
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


@dataclass
class Tolerance:
    """Differences of a result that were judged right in float64: later ones need no judgement.

    Attributes:
        relative: The largest one, relative to an element, up to a hundredth.
        absolute: Larger ones, of each element, or Paddle's own error at half of the elements;
            ``None``: none.
    """

    relative: float = 0.0
    absolute: np.ndarray | None = None

    def covers(self, gaps: np.ndarray) -> np.ndarray:
        """Which differences, of all elements, are at most twice as large as before."""
        if self.absolute is None or self.absolute.shape != gaps.shape:
            return np.zeros(gaps.shape, bool)
        return np.asarray(gaps <= 2 * self.absolute)

    def add(self, relative: float, gaps: np.ndarray) -> None:
        """Adds a difference that was judged right, with the size of that of each element."""
        if relative <= MAX_TOLERANCE:
            self.relative = max(relative, self.relative)
        elif self.absolute is None or self.absolute.shape != gaps.shape:
            self.absolute = gaps
        else:
            self.absolute = np.fmax(self.absolute, gaps)


class Reference:
    """The float64 results of a computation, computed when they are needed.

    Args:
        evaluate: Computes the results by tensor id, with noise or without.
        rounding: The rounding of the arithmetic.
    """

    def __init__(
        self,
        evaluate: Callable[[Noise | None], Mapping[int, np.ndarray]],
        rounding: Rounding,
    ) -> None:
        self._evaluate = evaluate
        self.rounding = rounding
        self._exact: Mapping[int, np.ndarray] = {}
        self._spreads: dict[int, Spread] = {}
        self._samples = 0

    def exact(self, tensor: int) -> np.ndarray:
        """The float64 result."""
        if not self._exact:
            self._exact = self._evaluate(None)
        return self._exact[tensor]

    def unexplained(self, tensor: int, engine: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """Where rounding errors do not explain a result of the engine.

        Args:
            tensor: The id of the result.
            engine: The result.
            wrong: Where an explanation is needed. Samples are added until there is one.
        """
        if not self._spreads:
            self._spreads = {number: Spread(exact) for number, exact in self._exact.items()}
        while True:
            wrong = wrong & ~self._spreads[tensor].explains(engine, self.rounding)
            if self._samples == SAMPLES or not wrong.any():
                return wrong
            found = self._evaluate(Noise(self.rounding.noise, self._samples))
            for number, spread in self._spreads.items():
                spread.add(found[number])
            self._samples += 1


# The first samples of noise, which are less thorough and much faster: each is one program.
QUICK_SAMPLES = 12


class Judge:
    """The judge of the runs of a graph, with the programs and the rounding of earlier runs.

    One thread at a time uses it.

    Args:
        graph: The graph.
        tolerances: The differences in earlier runs by tensor id, which are updated: with them, most
            runs are judged without float64.
    """

    def __init__(self, graph: Graph, tolerances: dict[int, Tolerance] | None = None) -> None:
        self.tolerances = tolerances
        self._graph = graph
        self._evaluation: Evaluation | None = None
        # Without noise, and with it; ``None``: there is none.
        self._programs: dict[bool, ReferenceProgram | None] = {}

    def reference(self, run: SubgraphRun) -> Reference:
        """The float64 results of a run."""
        has_streams = False

        def evaluate(noise: Noise | None) -> Mapping[int, np.ndarray]:
            nonlocal has_streams
            if noise is None or noise.number < QUICK_SAMPLES:
                values = self._by_program(run, noise)
                if values is not None:
                    return _arrays(run, values)
            if noise is not None and not has_streams:
                self._by_operators(run, None)
            has_streams = True
            return _arrays(run, self._by_operators(run, noise))

        return Reference(evaluate, run.rounding)

    def _by_program(self, run: SubgraphRun, noise: Noise | None) -> Values | None:
        """The results by one program; ``None`` if there is none."""
        is_noisy = noise is not None
        if is_noisy and run.rounding is not FLOAT32:
            return None
        with signals.own_errors():
            try:
                if is_noisy not in self._programs:
                    self._programs[is_noisy] = ReferenceProgram(self._graph, is_noisy)
                program = self._programs[is_noisy]
                if program is not None:
                    with run.replaying():
                        return program.run(run.given, noise)
            except Exception:  # a kernel that is registered for float64, but rejects it
                self._programs[is_noisy] = None
        return None

    def _by_operators(self, run: SubgraphRun, noise: Noise | None) -> Values:
        if self._evaluation is None:
            self._evaluation = Evaluation(self._graph, widens=True)
        with run.replaying():
            streams = None if noise is None else self._evaluation.streams
            return self._evaluation.run(run.given, streams, noise)


def _arrays(run: SubgraphRun, values: Values) -> dict[int, np.ndarray]:
    return {spec.id: array_of(values[spec.id]) for spec in run.results}


def compare(
    run: SubgraphRun,
    engine: Sequence[Tensor],
    native: Sequence[Tensor],
    own_judge: Judge | None = None,
) -> list[Difference]:
    """The results of the engine that are wrong.

    Args:
        run: The run.
        engine, native: Its results by the engine and by Paddle.
        own_judge: The judge of earlier runs of its graph; by default a new one, of this run only.
    """
    chosen = own_judge or Judge(run.graph)
    reference, tolerances = chosen.reference(run), chosen.tolerances
    found, skipped = [], workspaces(run.graph)
    for index, (spec, ours, theirs) in enumerate(zip(run.results, engine, native)):
        if spec.id in skipped:
            continue
        judged = judge(reference, spec.id, ours, theirs, tolerances)
        if judged is not None:
            found.append(Difference(run.name(index), spec.id, *judged))
    return found


def judge(
    reference: Reference,
    tensor: int,
    ours: Tensor,
    theirs: Tensor,
    tolerances: dict[int, Tolerance] | None = None,
) -> tuple[str, float] | None:
    """The sentence about a wrong result, and its largest error; ``None`` if it is right.

    Args:
        reference: The float64 results.
        tensor: The id of the result.
        ours, theirs: The result by the engine and by Paddle.
        tolerances: See :class:`Judge`; updated.
    """
    kinds = [f"{dtype_name(dtype_of(each))} {list(each.shape())}" for each in (ours, theirs)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} instead of {kinds[1]}", float("nan")
    engine, native = array_of(ours), array_of(theirs)
    where = differences(native, engine, reference.rounding)
    if not where.any():
        return None
    known = Tolerance() if tolerances is None else tolerances.setdefault(tensor, Tolerance())
    gaps = _gaps(native, engine)
    where &= ~known.covers(gaps)
    relative = _relative_difference(native, gaps, where)
    if not where.any() or relative <= 2 * known.relative:
        return None
    exact = reference.exact(tensor)
    wrong = where.copy()
    wrong[where] = ~_is_right(exact, engine, native, where)
    if wrong.any():
        wrong = reference.unexplained(tensor, engine, wrong)
    if wrong.any():
        return _sentence(engine, native, exact, wrong)
    judged = np.where(where & np.isfinite(gaps), gaps, 0.0)
    known.add(relative, np.fmax(judged, median_error(exact, native) * SPREAD / 2))
    return None


def _is_right(
    exact: np.ndarray, engine: np.ndarray, native: np.ndarray, where: np.ndarray
) -> np.ndarray:
    """Which of the chosen elements of the engine are right without a look at noise."""
    chosen = exact[where], engine[where], native[where]
    right = is_nearer(*chosen)
    if right.all() or exact.dtype.kind != "f":
        return right
    return right | is_as_exact(*chosen, usual_error(exact, native))


# The largest difference, relative to an element, that later runs may have without float64.
MAX_TOLERANCE = 1e-2


def _gaps(native: np.ndarray, engine: np.ndarray) -> np.ndarray:
    """The absolute differences of floats; infinity where there is none, and for other dtypes."""
    if native.dtype.kind != "f":
        return np.full(native.shape, np.inf, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.nan_to_num(np.abs(engine - native), nan=np.inf, posinf=np.inf)


def _relative_difference(native: np.ndarray, gaps: np.ndarray, where: np.ndarray) -> float:
    """The largest relative difference; small elements count as a thousandth of the largest."""
    if not where.any():
        return 0.0
    size = np.abs(native[where].astype("float64"))
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.maximum(size, 1e-3 * float(np.abs(native).max()))
        found = gaps[where] / np.where(scale > 0, scale, 1)
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
