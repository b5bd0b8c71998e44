"""Results of every operator of a subgraph: by the engine, by Paddle, and in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.partitioning.analysis.block_view import CONSTANTS
from paddle_ngraph.utils import signals
from paddle_ngraph.verification.bisection import cut
from paddle_ngraph.verification.comparison import SubgraphRun
from paddle_ngraph.verification.evaluation import Evaluation, array_of, read_by, results_of


@dataclass(frozen=True)
class Intermediate:
    """A result of an operator.

    Attributes:
        op: The operator.
        tensor: The id of the result.
        engine, native, exact: The result by a function with all results as outputs, by Paddle, and
            in float64. Such a function fuses fewer operators than that of the subgraph.
    """

    op: Op
    tensor: int
    engine: np.ndarray
    native: np.ndarray
    exact: np.ndarray

    def error(self, array: np.ndarray) -> float:
        """The largest error of a result, relative to the largest element; of integers, a share."""
        if self.exact.dtype.kind != "f":
            return float(np.mean(array != self.exact)) if self.exact.size else 0.0
        finite = np.isfinite(self.exact)
        if not np.array_equal(finite, np.isfinite(array)):
            return float("inf")
        if not finite.any():
            return 0.0
        largest = float(np.abs(self.exact[finite]).max())
        return float(np.abs(array[finite] - self.exact[finite]).max()) / (largest or 1.0)


def intermediates(run: SubgraphRun) -> list[Intermediate]:
    """The results of all operators, in their order.

    Raises:
        NgraphError: Paddle cannot run the operators one by one, or no function has all results.
    """
    ops = [op for op in run.graph.ops if op.type not in CONSTANTS]
    whole = run.of(cut(run.graph, ops), {})
    with signals.own_errors():
        try:
            engine, _ = whole.by_new_function()
            with run.replaying():
                native = Evaluation(run.graph, widens=False).run(run.given)
            with run.replaying():
                exact = Evaluation(run.graph, widens=True).run(run.given)
        except Exception as error:
            raise NgraphError(f"the operators cannot be run one by one: {error}") from error
    producers = {spec.id: op for op in run.graph.ops for spec in results_of(op)}
    return [
        Intermediate(
            producers[spec.id],
            spec.id,
            array_of(tensor),
            array_of(native[spec.id]),
            array_of(exact[spec.id]),
        )
        for spec, tensor in zip(whole.results, engine)
        if spec.id in native
    ]


def table(found: Sequence[Intermediate], rows: int = 10) -> str:
    """The operators that add most to the errors of the engine, as text.

    An error that an operand already has, or that Paddle has too, adds nothing.
    """
    errors = {each.tensor: each.error(each.engine) for each in found}
    lines = []
    for each in found:
        engine, native = errors[each.tensor], each.error(each.native)
        operands = max((errors.get(spec.id, 0.0) for spec in read_by(each.op)), default=0.0)
        growth = engine / max(operands, native, 1e-7)
        name = f"{each.op.type} ({each.op.index})"
        shape = f"{each.engine.dtype.name} {list(each.engine.shape)}"
        text = f"{name:44} {each.tensor:6} {growth:9.2g} {engine:10.2e} {native:10.2e}  {shape}"
        lines.append((-growth, text))
    head = f"{'operator':44} {'tensor':>6} {'times':>9} {'engine':>10} {'Paddle':>10}  shape"
    return "\n".join([head, *(text for _, text in sorted(lines, key=lambda line: line[0])[:rows])])


def arrays_of(found: Iterable[Intermediate]) -> dict[str, np.ndarray]:
    """The results as arrays by name, for a file."""
    arrays = {}
    for number, each in enumerate(found):
        for kind in ("engine", "native", "exact"):
            arrays[f"{number:04} {each.op.type} {each.tensor} {kind}"] = getattr(each, kind)
    return arrays
