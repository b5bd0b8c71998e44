"""Calls of captured operators, and the metadata of their values, from which graphs are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import paddle

from paddle_ngraph import _core
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import (
    EVALUATION_ARGUMENTS,
    STATISTICS_WRITERS,
    STOCHASTIC,
    eager_function,
)
from paddle_ngraph.paddle_private.names import has_gradients, set_gradients


class TracedCall(NamedTuple):
    """A recorded call of an operator; see ``TracedCall`` in core/lazy/traced_call.h."""

    name: str
    is_method: bool
    arguments: list[Any]
    keywords: list[str]
    result: Any
    has_gradient: bool
    first_value: int
    first_result: int
    views: dict[int, int]

    def apply(self, function: Callable[..., Any], values: dict[int, Any]) -> Any:
        """Calls ``function`` with the call's arguments, in which ids are replaced by ``values``."""
        arguments = substituted(self.arguments, values)
        first = len(arguments) - len(self.keywords)
        return function(*arguments[:first], **dict(zip(self.keywords, arguments[first:])))

    def with_views(self, views: dict[int, int]) -> TracedCall:
        """Returns the call with other views: the values that share memory, by result."""
        return TracedCall(*self[:-1], views)

    @property
    def reads(self) -> list[int]:
        """The ids of all values that are arguments, repeated as often as they occur."""
        return list(values_in(self.arguments))

    @property
    def results(self) -> list[int]:
        """The ids of the values that the call returns."""
        return list(values_in(self.result))

    @property
    def writes(self) -> bool:
        """Whether the call writes to an argument, such as the statistics of a normalization."""
        return self.name in STATISTICS_WRITERS and bool(self.views) and not self._is_inference

    @property
    def is_stochastic(self) -> bool:
        """Whether the call samples random numbers."""
        return self.name in STOCHASTIC and not self._is_inference

    @property
    def _is_inference(self) -> bool:
        """Whether arguments of the operator select evaluation mode, in which it has no effects."""
        arguments = dict(enumerate(self.arguments))
        return all(
            arguments.get(at) is value for at, value in EVALUATION_ARGUMENTS[self.name].items()
        )

    @property
    def has_effect(self) -> bool:
        """Whether the operator has to run even if its results have no reader."""
        return self.writes or self.is_stochastic


class TensorMeta(NamedTuple):
    """Dtype, shape and flags of a value in a trace. A dynamic dimension is -1."""

    dtype: str
    shape: list[int]
    stop_gradient: bool
    is_contiguous: bool
    is_parameter: bool

    @property
    def detached(self) -> TensorMeta:
        """The metadata that the value has after ``detach``, which stops its gradient."""
        return TensorMeta(self.dtype, self.shape, True, self.is_contiguous, self.is_parameter)


def values_in(argument: Any) -> Iterator[int]:
    """Yields the ids of the values in an argument or a result, from left to right."""
    if isinstance(argument, _core.TracedValue):
        yield argument.index
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from values_in(each)
    elif isinstance(argument, slice):
        yield from values_in((argument.start, argument.stop, argument.step))


def substituted(argument: Any, values: dict[int, Any]) -> Any:
    """Returns an argument in which traced values are replaced by ``values``, by their ids."""
    if isinstance(argument, _core.TracedValue):
        return values[argument.index]
    if isinstance(argument, (list, tuple)):
        return type(argument)(substituted(each, values) for each in argument)
    if isinstance(argument, slice):
        bounds = argument.start, argument.stop, argument.step
        return slice(*(substituted(each, values) for each in bounds))
    return argument


def placeholder(value_id: int, meta: TensorMeta) -> Any:
    """Adds an input to the program that is being built, and returns its value."""
    return paddle.static.data(f"captured_{value_id}", meta.shape, meta.dtype)


# Returns a context manager that switches gradients of this thread on or off.
gradients_enabled = partial(_core.GradientMode, has_gradients, set_gradients)


def call_eagerly(call: TracedCall, values: dict[int, Any]) -> None:
    """Calls an operator of dynamic mode, with the gradient mode of the user's call."""
    with gradients_enabled(call.has_gradient):
        bind(call.result, call.apply(eager_function(call.name, call.is_method), values), values)


def bind(expected: Any, result: Any, values: dict[int, Any]) -> None:
    """Adds the results of a call to ``values``, by the ids in ``expected``, its recorded result."""
    if isinstance(expected, _core.TracedValue):
        values[expected.index] = result
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(expected, result):
            bind(one, other, values)
