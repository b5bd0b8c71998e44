"""Programs that consist of one engine operator run without Paddle's interpreter.

The interpreter's overhead for half a dozen operators that compute nothing exceeds the time of a
small network; and binding the parameters of a program of dynamic mode takes Paddle longer than
running the program.
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
from paddle_ngraph.partitioning.analysis.block_view import SHADOW_OUTPUT
from paddle_ngraph.partitioning.whole_program import Whole, find_whole_program
from paddle_ngraph.utils.dtypes import NUMPY_DTYPES


class Fetched(list[Any]):
    """The list of a run's results, in place of the ``FetchList`` of Paddle's executor."""

    def _move_to_list(self) -> list[Any]:
        return list(self)


class WholeProgram:
    """A program that consists of one engine operator, which runs without Paddle's interpreter."""

    def __init__(self, whole: Whole, scope: Scope) -> None:
        self._feed_order = [source.name for source in whole.sources if source.is_fed]
        has_numpy_dtypes = all(target.dtype in NUMPY_DTYPES for target in whole.targets)
        self._takes_arrays = has_numpy_dtypes and whole.fed == set(self._feed_order)
        self._program = _in_scope(whole, scope)

    def run(self) -> list[Any]:
        """Runs the program on the contents of the scope, and clears the variables of the feeds.

        Raises:
            Exception: Any error of the engine operator.
        """
        return self._program.run()

    def run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Runs the program on arrays, as :meth:`DirectProgram.run_on`."""
        if not self._takes_arrays or len(feed) != len(self._feed_order):
            return None
        arrays = [feed.get(name) for name in self._feed_order]
        return self._program.run_on(arrays)


class WholePredictor:
    """The program of a predictor that consists of one engine operator.

    Args:
        whole: The program.
        scope: The scope of the predictor, which has run the program before.

    Raises:
        LookupError: A variable does not exist.
    """

    def __init__(self, whole: Whole, scope: Scope) -> None:
        self._program = _in_scope(whole, scope)
        self._targets = [_tensor(scope, target.name) for target in whole.targets]

    def run(self) -> bool:
        """Runs the predictor's program on the tensors of its input and output handles.

        Returns:
            Whether the program ran. ``False`` if an input does not match the program's
            declaration, or if an observer needs to see operators one by one.

        Raises:
            Exception: Any error of the engine operator.
        """
        return not _core.observes_operators() and self._program.run_into(self._targets)


class WholeLayer:
    """A forward program of dynamic mode that consists of one engine operator.

    See :func:`find_layer`.
    """

    def __init__(
        self,
        whole: Whole,
        input_names: Sequence[str],
        output_names: Sequence[str],
        fetches: list[int],
    ) -> None:
        self._whole = whole
        self._output_names = list(output_names)
        self._order = [input_names.index(source.name) for source in whole.sources]
        self._program = _core.WholeProgram(
            whole.graph,
            whole.interval,
            [None for _ in whole.sources],
            [(i, source.dtype, source.shape) for i, source in enumerate(whole.sources)],
            fetches,
        )

    def run_on(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Runs the program on tensors: its inputs, then its parameters.

        Returns:
            The outputs. ``None``, without a run, if a tensor does not match the program's
            declaration, or if an observer needs to see operators one by one.

        Raises:
            Exception: Any error of the engine operator.
        """
        if _core.observes_operators():
            return None
        tensors = [inputs[index] for index in self._order]
        return self._program.run_on_tensors(tensors, self._output_names)

    def expect_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Registers the shapes of coming runs, so that functions are built with dynamic dimensions.

        Args:
            shapes: The shapes of the program's inputs, then of its parameters.
        """
        types = [element_type(source.dtype).get_type_name() for source in self._whole.sources]
        signature = [(type, tuple(shapes[index])) for type, index in zip(types, self._order)]
        dynamic_shapes.remember(self._whole.graph, tuple(signature), {})


def in_scope(whole: Whole, scope: Scope) -> WholeProgram | None:
    """A program of one engine operator, bound to the variables of a scope.

    Args:
        whole: The program.
        scope: The scope of its variables.

    Returns:
        ``None`` if it names other values than the operator's, or if a variable does not exist.
    """
    if [target.column for target in whole.targets] != [*range(len(whole.targets))]:
        return None
    try:
        return WholeProgram(whole, scope)
    except LookupError:
        return None


def find_layer(
    program: Program, input_names: Sequence[str], output_names: Sequence[str]
) -> WholeLayer | None:
    """Returns a forward program of dynamic mode as its only engine operator, which runs directly.

    Args:
        program: A PIR program after the program pass, which writes none of its variables.
        input_names: The names of its inputs and parameters.
        output_names: The names of its outputs.

    Returns:
        ``None`` if the program computes other values than the operator's, or returns one of its
        inputs.
    """
    whole = find_whole_program(program.global_block(), SHADOW_OUTPUT)
    if whole is None:
        return None
    outputs = {target.name: target.output for target in whole.targets}
    fetches = [outputs.get(name) for name in output_names]
    if None in fetches or not len(set(fetches)) == len(fetches) == len(outputs):
        return None
    if any(source.name not in input_names for source in whole.sources):
        return None
    return WholeLayer(whole, input_names, output_names, fetches)  # type: ignore[arg-type]


def _in_scope(whole: Whole, scope: Scope) -> _core.WholeProgram:
    """The program, bound to the variables of a scope.

    Raises:
        LookupError: A variable does not exist.
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
