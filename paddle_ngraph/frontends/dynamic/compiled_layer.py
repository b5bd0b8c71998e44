"""The callable objects that ``paddle_ngraph.compile`` returns for functions and layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import update_wrapper, wraps
from inspect import signature
from sys import modules
from types import MethodType
from typing import Any

import paddle

from paddle_ngraph import flags
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.frontends.dynamic.autotuner import Tuner
from paddle_ngraph.frontends.dynamic.lazy import capture, trace_graph
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import StaticFunction, set_forward
from paddle_ngraph.pages.page import Page
from paddle_ngraph.partitioning import background_compile, report_page
from paddle_ngraph.partitioning.last_runs import History
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.partitioning.report_page import NativeTimes
from paddle_ngraph.warning_codes import LOGGER


class Compiled:
    """A function that runs through the engine, in as few graphs as possible.

    Training and inference calls are compiled, independent of ``enable(dynamic=...)``. As an
    attribute of a class, the function is a method.

    Args:
        function: A function, or a bound method.
        full_graph: Whether a graph break is an error, see :func:`compile`.
    """

    def __init__(self, function: Callable[..., Any], full_graph: bool = False) -> None:
        update_wrapper(self, function)
        self._function = function
        self._is_forward = _is_forward(function)
        # A C function may have no signature: then the compiled object gets none either.
        with suppress(TypeError, ValueError):
            self.__signature__ = signature(function)
        self._full_graph = full_graph
        self._name = getattr(self, "__qualname__", "a function")
        self._tuner = Tuner(trains=True, name=self._name)
        self._has_logged = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, as compiled graphs where a trace of it is known.

        Where that is slower than Paddle, it runs natively, unless it is to be one graph; and in a
        distributed job, unless its layer was prepared.
        """
        function = self.function
        if self._full_graph:
            result = self._captured(function, args, kwargs)
            self._require_single_graph()
            return result
        if flags.get("ngraph_tuning_ms") < 0 or background_compile.is_paused():
            return self._captured(function, args, kwargs)
        return self._tuner.run(function, args, kwargs, getattr(function, "__self__", None))

    def _captured(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        in_job = background_compile.is_disabled()
        with trace_graph.job_budget_set(self._log_unprepared) if in_job else nullcontext():
            return self._tuner.traces.run(function, args, kwargs)

    def _log_unprepared(self) -> None:
        """Logs once that a call in a distributed job has no program."""
        if not self._has_logged:
            self._has_logged = True
            LOGGER.warning(
                "%s runs natively: distributed.prepare_layers has not compiled this call",
                self._name,
            )

    def _require_single_graph(self) -> None:
        breaks = self._tuner.traces.breaks()
        if breaks:
            raise NgraphError(f"{self._function!r} is not one graph: it breaks at {breaks[0]}")

    def __get__(self, target: Any, owner: type | None = None) -> Any:
        """Binds a compiled function that is an attribute of a class to an instance, ``target``.

        As an attribute of the class itself (``target`` is ``None``), the function is unbound.
        """
        return self if target is None else MethodType(self, target)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """Returns a copy of the compiled function, without traces.

        A compiled method of an object that is copied is bound to the copy of the object.
        """
        return Compiled(copy.deepcopy(self._function, memo), self._full_graph)

    def __reduce__(self) -> Any:
        name = getattr(self, "__qualname__", "")
        if getattr(modules.get(self.__module__), name, None) is self:
            # For a decorated function, its name is pickled, by which unpickling imports it.
            return name
        return Compiled, (self._function, self._full_graph)

    def __repr__(self) -> str:
        return f"<compiled {self._function!r}>"

    @property
    def function(self) -> Callable[..., Any]:
        """The function that was compiled; for a layer, its ``forward`` before it was compiled."""
        if not self._is_forward:
            return self._function
        layer = getattr(self._function, "__self__")  # noqa: B009
        return _original_of(MethodType(type(layer).forward, layer))

    def explain(self, *args: Any, **kwargs: Any) -> CompiledReport:
        """Returns the graphs, the reasons of graph breaks, and the subgraphs of each graph.

        Args:
            args, kwargs: If given, the function is first called with them, twice.

        Raises:
            NgraphError: The function was not called twice yet.
        """
        if args or kwargs:
            self(*args, **kwargs)
            self(*args, **kwargs)
        return explain_traces(self._tuner.traces, self._tuner.why_native)


def _unwrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch of Paddle's ``unwrap_decorators``: ``to_static`` gets the uncompiled function."""

    @wraps(original)
    def unwrap_decorators(func: Any) -> Any:
        return original(_original_of(func))

    return unwrap_decorators


def _naming_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch of Paddle's ``extract_args``: ``Model`` counts ``self``, as in a bound method."""

    @wraps(original)
    def extract_args(func: Any) -> Any:
        return original(_original_of(func))

    return extract_args


replaced.EXTRACT_ARGS.replace(_naming_arguments)
replaced.UNWRAP.replace(_unwrapping)
replaced.UNWRAP_CALLED.replace(_unwrapping)


def compile(target: Any, full_graph: bool = False) -> Any:
    """Returns a layer or function that runs through the engine; see ``paddle_ngraph.compile``."""
    if isinstance(target, paddle.nn.Layer):
        set_forward(target, Compiled(_original_of(target.forward), full_graph))
        return target
    if not callable(target) or isinstance(target, type):
        raise NgraphError(f"compile() takes a layer or a function, not {target!r}")
    return Compiled(_original_of(target), full_graph)


def compiled_in(target: Any) -> Compiled | None:
    """Returns the compiled function of a layer, method or function; ``None`` if there is none."""
    function = getattr(target, "forward", target)
    if isinstance(function, MethodType) and isinstance(function.__func__, Compiled):
        function = function.__func__
    return function if isinstance(function, Compiled) else None


def _is_forward(function: Any) -> bool:
    """Returns whether a function is the bound ``forward`` that a layer inherits from its class."""
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


# -- reports ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphReport:
    """Report of one graph.

    Attributes:
        operators: Number of operators of dynamic mode in the graph.
        reports: Partitioning report of each of its programs. There are several if the user holds
            a tensor from the middle of the graph, which autograd has to reach.
        why_native: Reason why its operators are called one by one instead, or ``None``.
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
    """Report of a compiled function or layer, printed by ``str()``.

    Attributes:
        graphs: Graphs built so far.
        breaks: Graph breaks: name of the call, and the line of the user's code.
        why_native: Reason why Paddle runs all of it nevertheless, or ``None``.
        program: Id of the traces in events.
    """

    graphs: list[GraphReport]
    breaks: list[str]
    why_native: str | None = None
    program: int = 0

    def __str__(self) -> str:
        graphs = [f"graph {number}, {graph}" for number, graph in enumerate(self.graphs)]
        return printable("\n".join([*self._summary(), *graphs, *self._breaks()]))

    def _summary(self) -> list[str]:
        lines = [] if self.why_native is None else [f"Runs natively: {self.why_native}."]
        lines += History().of_program(self.program).lines()
        return [*lines, f"{len(self.graphs)} graphs, {len(self.breaks)} breaks."]

    def _breaks(self) -> list[str]:
        return [f"break at {each}" for each in self.breaks]

    def page(self, native_times: NativeTimes | None = None) -> Page:
        """Returns the report as the contents of a page: see :meth:`to_html`."""
        lines = [*self._summary(), *self._breaks()]
        programs = []
        for number, graph in enumerate(self.graphs):
            if graph.why_native is not None:
                lines.append(f"graph {number}, {graph}")
            for part, report in enumerate(graph.reports):
                rest = f", program {part}" if len(graph.reports) > 1 else ""
                programs.append((f"graph {number}{rest}", report.blocks))
        return report_page.page("Compiled function", lines, programs, native_times)

    def to_html(self, native_times: NativeTimes | None = None) -> str:
        """Returns the report as one HTML file, which loads nothing: see ``Report.to_html``."""
        return self.page(native_times).html()

    def _repr_html_(self) -> str:
        return self.page().frame()


def explain_traces(traces: capture.TraceCache, why_native: str | None = None) -> CompiledReport:
    """Returns the report of a function with these traces.

    Raises:
        NgraphError: The function was not called yet.
    """
    graphs = [
        GraphReport(graph.number_of_calls, graph.reports, graph.why_native)
        for graph in traces.graphs()
    ]
    has_reason = why_native is not None or History().of_program(traces.id).runs
    if not graphs and not traces.breaks() and not has_reason:
        raise NgraphError("there is no graph of it yet: call it twice")
    return CompiledReport(graphs, traces.breaks(), why_native, traces.id)
