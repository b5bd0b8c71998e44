"""Bisection: the operator by which a result becomes wrong.

The functions of ever fewer operators are built, run and compared. Building a function changes which
operators the passes and the plugin fuse, so operators are removed from the end, which leaves all
before them as they were, and only then from the front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from paddle_ngraph.conversion.registry import Role, find_converter
from paddle_ngraph.errors import NgraphError, printable, summarized
from paddle_ngraph.ir.graph import Graph, Op, is_gradient
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.partitioning.analysis.block_view import (
    CAPTURED,
    COND,
    CONSTANTS,
    INITIAL_VALUES,
)
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.dtypes import DTYPES
from paddle_ngraph.verification.comparison import Difference, Judge, SubgraphRun, compare
from paddle_ngraph.verification.evaluation import (
    Evaluation,
    Values,
    array_of,
    draws,
    read_by,
    results_of,
)
from paddle_ngraph.verification.judgement import MAX_SAMPLES


@dataclass(frozen=True)
class Located:
    """The operators by which a result becomes wrong.

    Attributes:
        op: The operator whose result is the first wrong one.
        text: The sentence about it, with the operators that it takes.
        run: The run of these operators only; ``None`` if it could not be narrowed.
    """

    op: Op | None = field(repr=False)
    text: str
    run: SubgraphRun | None = field(default=None, repr=False)


# Runs with noise while the operator of a result is sought that is known to be wrong.
_SEARCH_SAMPLES = 4


def rerun(run: SubgraphRun) -> list[Difference]:
    """Compares a function that is built anew with Paddle's kernels, for a search."""
    return _rerun(run, _SEARCH_SAMPLES)[0]


def rerun_with_results(run: SubgraphRun) -> tuple[list[Difference], list[Tensor]]:
    """Compares a function that is built anew with Paddle's kernels; also returns its results."""
    return _rerun(run, MAX_SAMPLES)


def _rerun(run: SubgraphRun, max_samples: int) -> tuple[list[Difference], list[Tensor]]:
    # Kernels first by the engine: where Paddle's recurrent kernel crashes, the packed one raises.
    if run.kernel:
        engine, own_stream = run.by_new_function()
        native, stream = run.natively()
    else:
        native, stream = run.natively()
        engine, own_stream = run.by_new_function()
    found = compare(run, engine, native, Judge(run.graph, max_samples=max_samples))
    if run.is_stochastic and stream != own_stream:
        found.append(random_difference())
    return found, engine


def replayed(run: SubgraphRun) -> tuple[list[Difference], list[Tensor]]:
    """As :func:`rerun_with_results`, of a run that others have recorded.

    Raises:
        NgraphError: The engine or Paddle cannot run it.
    """
    with signals.own_errors():
        try:
            return rerun_with_results(run)
        except NgraphError:
            raise
        except Exception as error:  # of a kernel, whatever its type
            raise NgraphError(f"Paddle cannot run the subgraph: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """The message of an error, without the hint and the operator that Paddle adds."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("[Hint", "[operator"))]
    return printable(kept[-1])[:500] if kept else type(error).__name__


def random_difference() -> Difference:
    """The difference of random generators after a run."""
    return Difference(
        "random generator", -1, "is in another state than after Paddle's operators: other numbers"
    )


def locate(run: SubgraphRun, wrong: Difference, outdated: Sequence[int] = ()) -> Located:
    """Finds the operator by which a result becomes wrong.

    Args:
        run: The run.
        wrong: The result.
        outdated: The ids of weights of which the compiled function has former contents.
    """
    op = _producer(run.graph, wrong.tensor)
    if run.kernel:
        return Located(run.graph.ops[-1], run.description, run)
    with signals.own_errors():
        try:
            return _Search(run, wrong, outdated).locate()
        except Exception as error:  # a kernel that cannot run alone, for example
            return Located(op, f"{_named(op)}, not narrowed: {summarized(str(error))}")


def in_order(graph: Graph, differences: Iterable[Difference]) -> list[Difference]:
    """The differences in the order of the operators that compute the results."""
    position = {spec.id: n for n, op in enumerate(graph.ops) for spec in results_of(op)}
    return sorted(differences, key=lambda each: position.get(each.tensor, len(graph.ops)))


def _producer(graph: Graph, tensor: int) -> Op | None:
    found = (op for op in graph.ops for spec in results_of(op) if spec.id == tensor)
    return next(found, None)


def _named(op: Op | None) -> str:
    return "no operator" if op is None else f"{op.type}, operator {op.index} of its block"


class _Search:
    def __init__(self, run: SubgraphRun, wrong: Difference, outdated: Sequence[int]) -> None:
        self._run = run
        self._wrong = wrong
        self._outdated_weights = set(outdated)
        graph = run.graph
        ops = [op for op in graph.ops if op.type not in CONSTANTS]
        needed = _ancestors(graph, wrong.tensor) if wrong.tensor >= 0 else set(map(id, ops))
        # Stochastic operators stay, so that all others sample the same numbers.
        self._ops = [op for op in ops if id(op) in needed or draws(op)]

    def locate(self) -> Located:
        if not rerun(self._run):
            return self._outdated()
        with self._run.replaying():
            values = Evaluation(self._run.graph, widens=False).run(self._run.given)
        ops = self._ops
        if not self._is_wrong(ops, values):
            return self._locate_in_whole()
        end = _first(len(ops), lambda n: self._is_wrong(ops[: n + 1], values)) + 1
        start = end - 1 - _first(end, lambda n: self._is_wrong(ops[end - 1 - n : end], values))
        op, chosen = ops[end - 1], ops[start:end]
        narrow = self._narrow(chosen, values)
        if op.blocks and len(chosen) == 1 and (inner := _locate_inside(op, narrow, values)):
            return inner
        text = _named(op)
        if len(chosen) > 1:
            names = " → ".join(each.type.removeprefix("pd_op.") for each in chosen[-6:])
            dots = "… → " if len(chosen) > 6 else ""
            text += f", only after the operators before it ({dots}{names}): a pass over the model"
        return Located(op, text, narrow)

    def _outdated(self) -> Located:
        graph, outdated = self._run.graph, self._outdated_weights
        weights = {graph.inputs[index].id for index in graph.weights}
        readers = [op for op in graph.ops if (outdated or weights) & {s.id for s in read_by(op)}]
        if outdated and readers:
            others = "".join(f", {_named(op)}" for op in readers[1:])
            return Located(
                readers[0],
                f"{_named(readers[0])}{others}; a function that is built anew is right: the "
                "compiled function is outdated, with former contents of a weight that is read here",
            )
        op = _producer(graph, self._wrong.tensor)
        text = (
            f"{_named(op)}; a function that is built anew is right: the compiled function is "
            "outdated, or its memory was changed"
        )
        if readers:
            types = dict.fromkeys(op.type for op in readers)
            text += f"; weights are constants for {', '.join(types)}"
        return Located(op, text)

    def _locate_in_whole(self) -> Located:
        """Finds the operator by a function of all operators, whose results are all outputs."""
        graph = self._run.graph
        whole = self._run.of(cut(graph, [op for op in graph.ops if op.type not in CONSTANTS]), {})
        wrong = [*in_order(graph, rerun(whole)), self._wrong][0]
        op = _producer(graph, wrong.tensor)
        return Located(op, f"{_named(op)}, only in the whole subgraph", self._run)

    def _narrow(self, ops: Sequence[Op], values: Values) -> SubgraphRun:
        """The run of some operators; its results are those that the others read.

        A further result could change how operators are converted and fused.
        """
        chosen = set(map(id, ops))
        others = (spec for op in self._ops if id(op) not in chosen for spec in read_by(op))
        wanted = {spec.id for spec in others} | {self._wrong.tensor}
        return self._run.of(
            cut(self._run.graph, ops, wanted if self._wrong.tensor >= 0 else None), values
        )

    def _is_wrong(self, ops: Sequence[Op], values: Values) -> bool:
        with signals.own_errors():
            try:
                narrow = self._narrow(ops, values)
                return bool(narrow.results and rerun(narrow))
            except Exception:  # it has no function of its own
                return False


def _locate_inside(op: Op, run: SubgraphRun, values: Values) -> Located | None:
    """Finds the operator inside a loop or branch, by the body alone: its first iteration."""
    known = {**values, **dict(zip(_ids(run.graph), run.given))}
    body = op.blocks[0]
    if len(op.blocks) == 2:
        (condition,) = op.inputs[COND]
        body = op.blocks[0 if np.all(array_of(known[condition.id])) else 1]
    read = [*op.inputs[INITIAL_VALUES], *op.inputs[CAPTURED]]
    produced = {spec.id for inner in body.ops for spec in inner.output_specs()}
    outputs = [spec for spec in dict.fromkeys(body.outputs) if spec.id in produced]
    graph = replace(body, outputs=outputs, adapts=run.graph.adapts)
    inner = SubgraphRun(graph, [known[spec.id] for spec in read], run.random)
    with signals.own_errors():
        try:
            differences = in_order(graph, rerun(inner))
        except Exception:  # the body has no function of its own
            return None
    if not differences:
        return None
    located = locate(inner, differences[0])
    return replace(located, text=f"{located.text}, in the body of {_named(op)}")


def _first(count: int, is_wrong: Callable[[int], bool]) -> int:
    """The first index of ``count`` at which it is wrong, which it stays; or the last index."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_wrong(middle) else (middle + 1, high)
    return max(0, low)


def _ids(graph: Graph) -> list[int]:
    return [spec.id for spec in (*graph.inputs, *graph.states)]


def _ancestors(graph: Graph, tensor: int) -> set[int]:
    """The ``id()`` of each operator that a tensor depends on."""
    needed, found = {tensor}, set()
    for op in reversed(graph.ops):
        if needed.intersection(spec.id for spec in results_of(op)):
            found.add(id(op))
            needed.update(spec.id for spec in read_by(op))
    return found


def cut(graph: Graph, ops: Sequence[Op], wanted: Set[int] | None = None) -> Graph:
    """Some operators of a graph as a graph of their own.

    Constants that they read are added, and operators whose results exist inside a function only.

    Args:
        graph, ops: The graph, and the operators.
        wanted: The tensors that are results, as far as they are computed; ``None``: all. New
            states always are.
    """
    internal = _internal(graph)
    chosen = _closed(graph, ops, internal)
    produced = {spec.id for op in chosen for spec in results_of(op)}
    updated = [
        (state, new) for state, new in zip(graph.states, graph.state_outputs) if new.id in produced
    ]
    states, news = [state for state, _ in updated], [new for _, new in updated]
    hidden = internal | {
        spec.id for op in chosen if op.type in CONSTANTS for spec in results_of(op)
    }
    hidden |= {spec.id for spec in news}
    read = dict.fromkeys(spec for op in chosen for spec in read_by(op))
    inputs = [spec for spec in read if spec.id not in produced and spec not in states]
    known = {_ids(graph)[index] for index in graph.value_inputs} | set(_known_in_builds(chosen))
    weights = {graph.inputs[index].id for index in graph.weights}
    return replace(
        graph,
        ops=chosen,
        # Converters and passes depend on whether the graph trains.
        gradients=sorted(
            {*graph.gradients, *(op.type for op in graph.all_ops() if is_gradient(op.type))}
        ),
        inputs=inputs,
        states=states,
        outputs=[
            spec
            for op in chosen
            for spec in op.output_specs()
            if spec.id not in hidden and (wanted is None or spec.id in wanted)
        ],
        state_outputs=news,
        value_inputs=[i for i, spec in enumerate([*inputs, *states]) if spec.id in known],
        weights=[i for i, spec in enumerate(inputs) if spec.id in weights],
    )


def _closed(graph: Graph, ops: Sequence[Op], internal: Set[int]) -> list[Op]:
    """The operators, and those whose results they can only read in one graph with them."""
    producers = {spec.id: op for op in graph.ops for spec in results_of(op)}
    chosen = {id(op) for op in ops}
    waiting = list(ops)
    while waiting:
        for spec in read_by(waiting.pop()):
            op = producers.get(spec.id)
            if op is None or id(op) in chosen:
                continue
            if op.type in CONSTANTS or spec.id in internal:
                chosen.add(id(op))
                waiting.append(op)
    return [op for op in graph.ops if id(op) in chosen]


def _internal(graph: Graph) -> set[int]:
    """The tensors that have no representation, or another one, outside of a function."""
    found: set[int] = set()
    for op in graph.ops:
        found.update(spec.id for spec in results_of(op) if spec.dtype not in DTYPES)
        if (entry := find_converter(op.type)) is None:
            continue
        for role in (Role.WORKSPACE, Role.OMITTED, Role.SAVED):
            side = op.inputs if role.is_of_inputs else op.outputs
            for name in entry.named(role):
                found.update(spec.id for spec in side.get(name, ()) if spec is not None)
    return found


def _known_in_builds(ops: Sequence[Op]) -> Iterator[int]:
    """The tensors whose contents converters have to know."""
    for op in ops:
        entry = find_converter(op.type)
        for name in entry.named(Role.CONSTANT) if entry else ():
            yield from (spec.id for spec in op.inputs.get(name, ()))
