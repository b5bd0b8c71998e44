"""Comparison of the results of a graph by the engine with those of Paddle's kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph, TensorSpec
from paddle_ngraph.paddle_private.names import DenseTensor, copy_of, dtype_of
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.partitioning.analysis.block_view import dtype_name
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.verification.evaluation import (
    Crossings,
    Evaluation,
    Noise,
    ReferenceProgram,
    Steps,
    Values,
    array_of,
    draws,
    finished,
    rounding_of,
    specs_of,
    tensor_of,
    workspaces,
)
from paddle_ngraph.verification.judgement import (
    FLOAT32,
    MAX_SAMPLES,
    SAMPLES,
    SPREAD,
    Rounding,
    Spread,
    UsualErrors,
    differences,
    is_as_exact,
    is_nearer,
    scale_of,
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

    # The kind of kernel outside of subgraphs, if it is a run of one.
    kernel: ClassVar[str] = ""

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
        weight_format = flags.get("ngraph_weights") if self.graph.infers else "as given"
        return rounding_of(dtypes, flags.get("ngraph_precision"), weight_format)

    @contextmanager
    def replaying(self, stream: Any = None) -> Iterator[None]:
        """Sets the random generator as before the run, and back at the end.

        Args:
            stream: Its state in the midst of the run.
        """
        if not self.is_stochastic:
            yield
            return
        with _core.GeneratorChange():
            now = _core.RandomState()
            try:
                (stream or self.random).restore()
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

    @property
    def description(self) -> str:
        """The kernel in a sentence."""
        raise NotImplementedError

    def evaluated(self, noise: Noise | None) -> Mapping[int, np.ndarray] | None:
        """The float64 results by tensor id, with noise or without; ``None``: those of its graph."""
        return None

    def by_new_function(self) -> tuple[list[Tensor], Any]:
        """Runs a function that is built for it; returns the results as :meth:`natively`."""
        with self.replaying():
            results = _core.run_new_function(self.text, self.given)
            return results, _core.RandomState()


# Elements of a result whose measured differences are remembered one by one.
_MAX_REMEMBERED = 1 << 16


@dataclass
class Remembered:
    """Errors that were measured in judged runs: differences of their size spare a judgement.

    Attributes:
        errors: The usual errors of Paddle's, by the size of the elements.
        elements: Elements with larger errors, in order, and the largest that was measured at each,
            relative to the scale of the result. Replaced as a whole, since threads share it.
        spared: The numbers of the runs that are spared: threads get one each.
    """

    errors: UsualErrors = field(default_factory=UsualErrors)
    elements: tuple[np.ndarray, np.ndarray] = field(
        default_factory=lambda: (np.zeros(0, np.int64), np.zeros(0))
    )
    spared: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def explained(
        self, native: np.ndarray, engine: np.ndarray, where: np.ndarray, rounding: Rounding
    ) -> bool:
        """Whether differences in a later run are no larger than errors that were measured."""
        if native.dtype.kind != "f":
            return False
        with np.errstate(invalid="ignore"):
            gaps = np.abs(engine[where].astype("float64") - native[where])
            large = ~(gaps <= SPREAD * self.errors.at(native, where, rounding))
            bounds = self._bounds(np.flatnonzero(where)[large]) * scale_of(native)
            is_known = bool((gaps[large] <= bounds).all())
        return is_known and next(self.spared) % MAX_SPARED != 0

    def _bounds(self, elements: np.ndarray) -> np.ndarray:
        known, bounds = self.elements
        if not known.size:
            return np.zeros(elements.shape)
        places = np.searchsorted(known, elements) % known.size
        return np.where(known[places] == elements, bounds[places], 0.0)

    def add(self, usual: UsualErrors, elements: np.ndarray, bounds: np.ndarray) -> None:
        """Adds what was measured in a judged run.

        Args:
            usual: The usual errors.
            elements: The elements with larger ones, in order.
            bounds: Their errors, relative to the scale.
        """
        self.errors = self.errors.joined(usual)
        bounds = np.fmax(bounds, self._bounds(elements))
        known = self.elements
        others = ~np.isin(known[0], elements)
        pairs = zip(known, (elements, bounds))
        joined, largest = (np.concatenate([old[others], new]) for old, new in pairs)
        order = np.argsort(joined)
        if order.size <= _MAX_REMEMBERED:
            self.elements = joined[order], largest[order]


# One run in this many is judged in float64, although its differences have such a size.
MAX_SPARED = 16


class PostponedError(NgraphError):
    """A run is not judged, since the judgement of an earlier one pauses."""


# The seconds that Paddle's executor needs for the smallest program.
_SHORTEST_RUN = 1e-3


class Budget:
    """The time for judgements in each run of a subgraph: a multiple of the time of Paddle's run.

    The first judgement takes as long as it takes: a short script gets its answer. Later ones pause
    when the time is up, and are continued in the next runs.

    Attributes:
        is_waiting: Whether a judgement pauses: then no other one begins.
    """

    def __init__(self, ratio: float = math.inf) -> None:
        self._ratio = ratio
        self._end = math.inf
        self._judgements = 0
        self.is_waiting = False

    def begin_run(self, seconds: float) -> None:
        """Begins the time of a run, which took Paddle ``seconds``."""
        self._end = clock.now() + self._ratio * max(seconds, _SHORTEST_RUN)

    def end_limit(self) -> None:
        """From now on, what has begun is finished at once."""
        self._end = math.inf

    def begin_judgement(self) -> None:
        """Counts a judgement.

        Raises:
            PostponedError: Another one pauses.
        """
        if self.is_waiting:
            raise PostponedError(
                "differences to be judged in later runs: that of an earlier run is still judged"
            )
        self._judgements += 1

    @property
    def is_spent(self) -> bool:
        """Whether a judgement has to pause."""
        return self._judgements > 1 and clock.now() > self._end


class Reference:
    """The float64 results of a computation, computed when they are needed.

    Args:
        evaluate: Computes the results by tensor id, with noise or without.
        rounding: The rounding of the arithmetic.
        max_samples: The runs with noise, at most.
    """

    def __init__(
        self,
        evaluate: Callable[[Noise | None], Steps[Mapping[int, np.ndarray]]],
        rounding: Rounding,
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        self._evaluate = evaluate
        self._max_samples = max_samples
        self.rounding = rounding

    def exact(self) -> Steps[Mapping[int, np.ndarray]]:
        """The float64 results."""
        return self._evaluate(None)

    def noises(self) -> Iterator[Noise]:
        """The noise of one sample after another."""
        crossings = Crossings()
        for number in range(self._max_samples):
            yield Noise(self.rounding, number, crossings)

    def sample(self, noise: Noise) -> Steps[Mapping[int, np.ndarray]]:
        """The results with noise."""
        return self._evaluate(noise)


# The first samples of noise, which are less thorough and much faster: each is one program.
QUICK_SAMPLES = 12
_FEW_SAMPLES = QUICK_SAMPLES + 4


class Judge:
    """The judge of the runs of a graph, with the programs and the errors of earlier runs.

    One thread at a time uses it.

    Args:
        graph: The graph.
        remembered: The errors of earlier runs by tensor id, which are updated.
        budget: The time for judgements; by default unlimited.
        max_samples: See :class:`Reference`.
    """

    def __init__(
        self,
        graph: Graph,
        remembered: dict[int, Remembered] | None = None,
        budget: Budget | None = None,
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        self.remembered = remembered
        self._budget = budget or Budget()
        self._max_samples = max_samples
        self._graph = graph
        self._evaluation: Evaluation | None = None
        # Without noise, and with it; ``None``: there is none.
        self._programs: dict[bool, ReferenceProgram | None] = {}

    def reference(self, run: SubgraphRun) -> Reference:
        """The float64 results of a run."""
        has_streams = False

        def evaluate(noise: Noise | None) -> Steps[Mapping[int, np.ndarray]]:
            nonlocal has_streams
            if noise is None:
                self._budget.begin_judgement()
            elif self._budget.is_spent:
                yield
            found = run.evaluated(noise)
            if found is None and (noise is None or noise.number < QUICK_SAMPLES):
                program = self._program(run, noise is not None)
                if self._budget.is_spent:  # it was built now
                    yield
                values = program and self._by_program(run, program, noise)
                found = _arrays(run, values) if values else None
            if found is None:
                if noise is not None and not has_streams and run.is_stochastic:
                    yield from self._by_operators(run, None)
                has_streams = True
                found = _arrays(run, (yield from self._by_operators(run, noise)))
            return found

        return Reference(evaluate, run.rounding, self._max_samples)

    def _program(self, run: SubgraphRun, is_noisy: bool) -> ReferenceProgram | None:
        """The program with or without noise; ``None`` if there is none."""
        if is_noisy and run.rounding is not FLOAT32:
            return None
        if is_noisy not in self._programs:
            self._programs[is_noisy] = None
            with signals.own_errors(), suppress(Exception):
                self._programs[is_noisy] = ReferenceProgram(self._graph, is_noisy)
        return self._programs[is_noisy]

    def _by_program(
        self, run: SubgraphRun, program: ReferenceProgram, noise: Noise | None
    ) -> Values | None:
        """The results by a program; ``None`` if it cannot run."""
        with signals.own_errors():
            try:
                with run.replaying():
                    return program.run(run.given, noise)
            except Exception:  # a kernel that is registered for float64, but rejects it
                self._programs[noise is not None] = None
        return None

    def _by_operators(self, run: SubgraphRun, noise: Noise | None) -> Steps[Values]:
        if self._evaluation is None:
            self._evaluation = Evaluation(self._graph, widens=True)
        streams = None if noise is None else self._evaluation.streams
        steps = self._evaluation.steps(run.given, streams, noise)
        stream = run.random
        while True:
            with run.replaying(stream):
                self._graph.set_op_ids()  # a search in another thread shares its operators
                try:
                    while not self._budget.is_spent:
                        next(steps)
                except StopIteration as end:
                    return cast("Values", end.value)
                stream = _core.RandomState()
            yield


def _arrays(run: SubgraphRun, values: Values) -> dict[int, np.ndarray]:
    return {spec.id: array_of(values[spec.id]) for spec in run.results}


def compare(
    run: SubgraphRun, engine: Sequence[Tensor], native: Sequence[Tensor], judge: Judge | None = None
) -> list[Difference]:
    """The results of the engine that are wrong.

    Args:
        run: The run.
        engine, native: Its results by the engine and by Paddle.
        judge: By default a new one, of this run only.
    """
    return finished(comparison(run, engine, native, judge or Judge(run.graph)))


def comparison(
    run: SubgraphRun, engine: Sequence[Tensor], native: Sequence[Tensor], judge: Judge
) -> Steps[list[Difference]]:
    """As :func:`compare`, with pauses when the time of the judge is up."""
    skipped = workspaces(run.graph)
    pairs = [
        Pair(run.name(index), spec.id, ours, theirs)
        for index, (spec, ours, theirs) in enumerate(zip(run.results, engine, native))
        if spec.id not in skipped
    ]
    return compare_pairs(pairs, judge.reference(run), judge.remembered)


@dataclass(frozen=True)
class Pair:
    """A result by the engine and by Paddle.

    Attributes:
        name, tensor: See :class:`Difference`.
        ours, theirs: The result by the engine and by Paddle.
    """

    name: str
    tensor: int
    ours: Tensor
    theirs: Tensor

    @property
    def difference_of_kind(self) -> Difference | None:
        """The difference in dtype or shape."""
        kinds = [
            f"{dtype_name(dtype_of(each))} {list(each.shape())}"
            for each in (self.ours, self.theirs)
        ]
        if kinds[0] == kinds[1]:
            return None
        return Difference(self.name, self.tensor, f"{kinds[0]} instead of {kinds[1]}")


def compare_pairs(
    pairs: Sequence[Pair], reference: Reference, remembered: dict[int, Remembered] | None = None
) -> Steps[list[Difference]]:
    """The results of the engine that are wrong: of another dtype or shape, or else other values.

    Args:
        pairs: The results.
        reference: The float64 results.
        remembered: See :class:`Judge`; updated.
    """
    known = {} if remembered is None else remembered
    of_kind = [each for each in (pair.difference_of_kind for pair in pairs) if each is not None]
    if of_kind:
        return of_kind
    differing = [
        (pair, where)
        for pair in pairs
        if (where := _unusual(pair, reference.rounding, known)) is not None
    ]
    if not differing:
        return []
    exact = yield from reference.exact()
    rounding = reference.rounding
    judged = [
        _JudgedPair(pair, exact[pair.tensor], where, rounding, known[pair.tensor])
        for pair, where in differing
    ]
    judged = [each for each in judged if not each.is_explained()]
    for noise in reference.noises() if judged else ():
        # Of most faults, some samples of each kind tell as much as all.
        if noise.number in (_FEW_SAMPLES, SAMPLES):
            margin = 4.0 if noise.number == _FEW_SAMPLES else 1.0
            if certain := [each for each in judged if each.is_certain(margin)]:
                return [result.difference() for result in certain]
        sample = yield from reference.sample(noise)
        for result in judged:
            result.add(sample, noise.width)
        judged = [each for each in judged if not each.is_explained()]
        if not judged:
            break
    return [result.difference() for result in judged]


def _unusual(pair: Pair, rounding: Rounding, known: dict[int, Remembered]) -> np.ndarray | None:
    """Where a result differs by more than rounding; ``None`` if what was measured explains it."""
    engine, native = array_of(pair.ours), array_of(pair.theirs)
    where = differences(native, engine, rounding)
    if not where.any():
        return None
    remembered = known.setdefault(pair.tensor, Remembered())
    return None if remembered.explained(native, engine, where, rounding) else where


class _JudgedPair:
    """A result that is judged in float64, and by noise where that does not suffice.

    Args:
        pair: The result.
        result: That in float64.
        where: The elements that differ by more than rounding.
        rounding: The rounding of the arithmetic.
        remembered: Measured errors, which are updated.
    """

    def __init__(
        self,
        pair: Pair,
        result: np.ndarray,
        where: np.ndarray,
        rounding: Rounding,
        remembered: Remembered,
    ) -> None:
        self._pair, self._exact = pair, result
        self._rounding, self._remembered = rounding, remembered
        self._engine, self._native = array_of(pair.ours), array_of(pair.theirs)
        self._usual = UsualErrors.of(self._exact, self._native)
        self._where = where
        chosen = [each[where] for each in (self._exact, self._engine, self._native)]
        self._chosen_engine = chosen[1]
        usual = self._usual.at(self._exact, where, self._rounding)
        exact, engine, native = chosen
        self._is_right = is_nearer(exact, engine, native)
        self._is_right |= is_as_exact(exact, engine, native, usual)
        self._spread = Spread(exact[~self._is_right])

    def add(self, sample: Mapping[int, np.ndarray], width: float) -> None:
        """Adds the results of a run with noise; see :meth:`Spread.add`."""
        self._spread.add(sample[self._pair.tensor][self._where][~self._is_right], width)

    def is_explained(self) -> bool:
        """Whether rounding errors explain all elements; what was measured then is remembered."""
        is_right = not self._unexplained().any()
        if is_right and self._native.dtype.kind == "f":
            self._remember()
        return is_right

    def is_certain(self, margin: float) -> bool:
        """Whether an element is wrong that hardly changes with noise: more of it tells nothing.

        Args:
            margin: Of floats, how often the error exceeds what noise explains; integers are certain
                without a margin only.
        """
        engine = self._chosen_engine[~self._is_right]
        return bool((~self._spread.may_explain(engine, self._rounding, margin)).any())

    def _unexplained(self) -> np.ndarray:
        explained = self._spread.explains(self._chosen_engine[~self._is_right], self._rounding)
        found = ~self._is_right
        found[found] = ~explained
        return found

    def _remember(self) -> None:
        exact, engine, native = (
            each[self._where].astype("float64")
            for each in (self._exact, self._engine, self._native)
        )
        with np.errstate(invalid="ignore"):
            gaps = np.abs(engine - native)
            measured = np.abs(engine - exact) + np.abs(native - exact)
            measured[~self._is_right] = np.fmax(gaps[~self._is_right], self._spread.width)
            usual = self._usual.at(self._native, self._where, self._rounding)
            is_large = np.isfinite(measured) & (gaps > SPREAD * usual)
        self._remembered.add(
            self._usual,
            np.flatnonzero(self._where)[is_large],
            measured[is_large] / scale_of(self._native),
        )

    def difference(self) -> Difference:
        """The difference that is not explained."""
        wrong = self._where.copy()
        wrong[self._where] = self._unexplained()
        sentence = _sentence(self._engine, self._native, self._exact, wrong)
        return Difference(self._pair.name, self._pair.tensor, *sentence)


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
