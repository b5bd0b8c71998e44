"""Programs that consist of one engine operator run without Paddle's interpreter.

For half a dozen operators that compute nothing, the interpreter takes longer than a small network;
and giving a program of dynamic mode its parameters takes Paddle longer than running it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_ngraph import _core
from paddle_ngraph.conversion import dynamic_shapes
from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.frontends.executor import weight_writes
from paddle_ngraph.paddle_private.protocols import Program, Scope, Tensor
from paddle_ngraph.partitioning.analysis.block_view import FETCH, SHADOW_OUTPUT
from paddle_ngraph.partitioning.whole_program import Whole, find_whole_program
from paddle_ngraph.utils.dtypes import NUMPY_DTYPES


class Fetched(list[Any]):
    """What a run returns, instead of Paddle's ``FetchList``."""

    def _move_to_list(self) -> list[Any]:
        return list(self)


class WholeProgram:
    """A program that consists of one engine operator. See :func:`find`."""

    def __init__(self, whole: Whole, scope: Scope) -> None:
        self._feed_order = [source.name for source in whole.sources if source.is_fed]
        fits = all(target.dtype in NUMPY_DTYPES for target in whole.targets)
        self._takes_arrays = fits and whole.fed == set(self._feed_order)
        self._program = _in_scope(whole, scope)

    def run(self) -> list[Any]:
        """Runs it on the contents of the scope, and consumes the feeds.

        Raises:
            What the engine operator raises.
        """
        return self._program.run()

    def run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Runs it on arrays, as ``PlannedProgram.run_on`` does."""
        if not self._takes_arrays or len(feed) != len(self._feed_order):
            return None
        arrays = [feed.get(name) for name in self._feed_order]
        return self._program.run_on(arrays)


class WholePredictor:
    """The program of a predictor that consists of one engine operator.

    Args:
        whole: The program.
        scope: That of the predictor, which has run it.

    Raises:
        LookupError: A variable does not exist.
    """

    def __init__(self, whole: Whole, scope: Scope) -> None:
        self._program = _in_scope(whole, scope)
        self._targets = [_tensor(scope, target.name) for target in whole.targets]

    def run(self) -> bool:
        """Runs it on what the handles of inputs hold, and has those of outputs hold the results.

        Returns:
            Whether it did. Not if an input is not what the program declares, or if something wants
            to see operators one by one.

        Raises:
            What the engine operator raises.
        """
        return not _core.observes_operators() and self._program.run_into(self._targets)


class WholeLayer:
    """A forward program of dynamic mode that consists of one engine operator.

    See :func:`find_layer`.
    """

    def __init__(
        self, whole: Whole, given: Sequence[str], returned: Sequence[str], fetches: list[int]
    ) -> None:
        self._whole = whole
        self._returned = list(returned)
        self._order = [given.index(source.name) for source in whole.sources]
        self._program = _core.WholeProgram(
            whole.graph,
            whole.interval,
            [None for _ in whole.sources],
            [(i, source.dtype, source.shape) for i, source in enumerate(whole.sources)],
            fetches,
        )

    def run_on(self, given: Sequence[Any]) -> list[Any] | None:
        """Runs it on tensors: what the program takes, then its parameters.

        Returns:
            What it computes. ``None``, without having run anything, if a tensor is not what the
            program declares, or if something wants to see operators one by one.

        Raises:
            What the engine operator raises.
        """
        if _core.observes_operators():
            return None
        tensors = [given[number] for number in self._order]
        return self._program.run_on_tensors(tensors, self._returned)

    def expect_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Says that runs will be given these shapes, so that its functions are made for others too.

        Args:
            shapes: Those of what the program takes, then of its parameters.
        """
        types = [element_type(source.dtype).get_type_name() for source in self._whole.sources]
        signature = [(kind, tuple(shapes[at])) for kind, at in zip(types, self._order)]
        dynamic_shapes.remember(self._whole.graph, tuple(signature), {})


def find(program: Program, scope: Scope) -> WholeProgram | None:
    """The program as one engine operator.

    Args:
        program: A PIR program after the program pass.
        scope: Where its variables are.

    Returns:
        ``None`` if it computes or names anything besides what the operator computes, or if a
        variable does not exist.
    """
    whole = find_whole_program(program.global_block().ops, FETCH)
    if whole is None or [target.column for target in whole.targets] != [*range(len(whole.targets))]:
        return None
    try:
        return WholeProgram(whole, scope)
    except LookupError:
        return None


def find_layer(
    program: Program, given: Sequence[str], returned: Sequence[str]
) -> WholeLayer | None:
    """The forward program of dynamic mode as one engine operator.

    Args:
        program: A PIR program after the program pass, which writes none of its variables.
        given: The names of what it takes, and of its parameters.
        returned: The names of what it returns.

    Returns:
        ``None`` if it computes anything besides what the operator computes, or returns something
        that it was given.
    """
    whole = find_whole_program(program.global_block().ops, SHADOW_OUTPUT)
    if whole is None:
        return None
    outputs = {target.name: target.output for target in whole.targets}
    fetches = [outputs.get(name) for name in returned]
    if None in fetches or not len(set(fetches)) == len(fetches) == len(outputs):
        return None
    if any(source.name not in given for source in whole.sources):
        return None
    return WholeLayer(whole, given, returned, fetches)  # type: ignore[arg-type]


def _in_scope(whole: Whole, scope: Scope) -> _core.WholeProgram:
    """A program on the variables of a scope.

    Raises:
        LookupError: One does not exist.
    """
    return _core.WholeProgram(
        whole.graph,
        whole.interval,
        [_tensor(scope, source.name) for source in whole.sources],
        [(i, each.dtype, each.shape) for i, each in enumerate(whole.sources) if each.is_fed],
        [target.output for target in whole.targets],
    )


def _tensor(scope: Scope, name: str) -> Tensor:
    variable = scope.find_var(name)
    if variable is None:
        raise LookupError(f"there is no variable {name}")
    return weight_writes.tensor_of(variable)
