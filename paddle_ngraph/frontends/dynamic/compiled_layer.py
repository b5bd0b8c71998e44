"""Functions and layers that are compiled by name: what ``paddle_ngraph.compile`` returns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import update_wrapper, wraps
from inspect import signature
from sys import modules
from types import MethodType
from typing import Any

import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.dynamic.lazy import capture
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import StaticFunction, set_forward
from paddle_ngraph.partitioning.report import Report


class Compiled:
    """A function that is run through the engine, in as few graphs as it can be.

    It trains and infers, whatever the switch says. In a class it is a method.

    Args:
        function: A function, or a method with its object.
        full_graph: Whether it has to be one graph, see :func:`compile`.
    """

    def __init__(self, function: Callable[..., Any], full_graph: bool = False) -> None:
        update_wrapper(self, function)
        self._function = function
        self._is_forward = _is_forward(function)
        # What Paddle asks of a layer is the function with its object.
        named = function.__func__ if isinstance(function, MethodType) else function
        with suppress(TypeError, ValueError):  # some functions in C do not tell
            self.__signature__ = signature(named if self._is_forward else function)
        self._full_graph = full_graph
        self._trace_cache = capture.TraceCache()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        result = self._trace_cache.run(self.function, args, kwargs)
        if self._full_graph:
            self._require_single_graph()
        return result

    def _require_single_graph(self) -> None:
        breaks = self._trace_cache.breaks()
        if breaks:
            raise NgraphError(f"{self._function!r} is not one graph: it breaks at {breaks[0]}")

    def __get__(self, target: Any, kind: type | None = None) -> Any:
        """The method of an object."""
        return self if target is None else MethodType(self, target)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy that has compiled nothing yet; a method of a copied object belongs to the copy."""
        return Compiled(copy.deepcopy(self._function, memo), self._full_graph)

    def __reduce__(self) -> Any:
        name = getattr(self, "__qualname__", "")
        if getattr(modules.get(self.__module__), name, None) is self:
            return name  # it decorates: others find it where it is defined
        return Compiled, (self._function, self._full_graph)

    def __repr__(self) -> str:
        return f"<compiled {self._function!r}>"

    @property
    def function(self) -> Callable[..., Any]:
        """The function as it was; of a layer that does not have its own, the one of its class."""
        if not self._is_forward:
            return self._function
        layer = getattr(self._function, "__self__")  # noqa: B009
        return _original_of(MethodType(type(layer).forward, layer))

    def explain(self, *args: Any, **kwargs: Any) -> CompiledReport:
        """What the graphs are, why there are several, and what the engine takes of each.

        Args:
            args, kwargs: If there are any, the function is called with them first, twice.

        Raises:
            NgraphError: It was not called twice yet.
        """
        if args or kwargs:
            self(*args, **kwargs)
            self(*args, **kwargs)
        return explain_traces(self._trace_cache)


def _unwrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Paddle makes static functions of what is compiled as of what it was before."""

    @wraps(original)
    def unwrap_decorators(func: Any) -> Any:
        return original(_original_of(func))

    return unwrap_decorators


replaced.UNWRAP.replace(_unwrapping)
replaced.UNWRAP_CALLED.replace(_unwrapping)


def compile(target: Any, full_graph: bool = False) -> Any:
    """A layer or function that runs through the engine; see ``paddle_ngraph.compile``."""
    if isinstance(target, paddle.nn.Layer):
        set_forward(target, Compiled(_original_of(target.forward), full_graph))
        return target
    if not callable(target) or isinstance(target, type):
        raise NgraphError(f"compile() takes a layer or a function, not {target!r}")
    return Compiled(_original_of(target), full_graph)


def compiled_in(target: Any) -> Compiled | None:
    """The compiled function that a thing is, or computes by."""
    function = getattr(target, "forward", target)
    if isinstance(function, MethodType) and isinstance(function.__func__, Compiled):
        function = function.__func__
    return function if isinstance(function, Compiled) else None


def _is_forward(function: Any) -> bool:
    """Whether it is what a layer has of its class."""
    layer = getattr(function, "__self__", None)
    if not isinstance(layer, paddle.nn.Layer):
        return False
    return _original_of(MethodType(type(layer).forward, layer)) == function


def _original_of(function: Any) -> Any:
    if isinstance(function, Compiled):
        return function.function
    if isinstance(function, MethodType) and isinstance(function.__func__, Compiled):
        return MethodType(function.__func__.function, function.__self__)
    return function.dygraph_function if isinstance(function, StaticFunction) else function


# -- what became of it -----------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphReport:
    """One graph.

    Attributes:
        operators: How many operators of dynamic mode it has.
        reports: What the engine takes of its programs. There are several where the user has a
            tensor from its middle, which autograd has to find.
        why_native: Why its operators are called one by one instead, where that is so.
    """

    operators: int
    reports: list[Report]
    why_native: str | None

    def __str__(self) -> str:
        title = f"{self.operators} operators"
        if self.why_native is not None:
            return f"{title}: native, {self.why_native}"
        return f"{title}: " + "; ".join(map(str, self.reports))


@dataclass(frozen=True)
class CompiledReport:
    """A function or layer. ``str()`` of it is meant to be read.

    Attributes:
        graphs: Its graphs so far.
        breaks: Where one ends: what was called there, and the line of the user's code.
        why_native: Why all of it runs natively nevertheless.
    """

    graphs: list[GraphReport]
    breaks: list[str]
    why_native: str | None = None

    def __str__(self) -> str:
        lines = [] if self.why_native is None else [f"Runs natively: {self.why_native}."]
        lines.append(f"{len(self.graphs)} graphs, {len(self.breaks)} breaks.")
        lines += [f"graph {number}, {graph}" for number, graph in enumerate(self.graphs)]
        lines += [f"break at {each}" for each in self.breaks]
        return "\n".join(lines)


def explain_traces(traces: capture.TraceCache, why_native: str | None = None) -> CompiledReport:
    """What a function was compiled to.

    Raises:
        NgraphError: It was not called twice yet.
    """
    graphs = [
        GraphReport(graph.number_of_calls, graph.reports, graph.why_native)
        for graph in traces.graphs()
    ]
    if not graphs and not traces.breaks() and why_native is None:
        raise NgraphError("there is no graph of it yet: call it twice")
    return CompiledReport(graphs, traces.breaks(), why_native)
