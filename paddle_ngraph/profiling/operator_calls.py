"""Calls of Paddle's operators, from Paddle's own profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from paddle import profiler

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import plain_type
from paddle_ngraph.profiling.timeline import TimelineSpan

ENGINE = "ngraph_engine"
_KERNEL = " kernel launch"


class OperatorCall(NamedTuple):
    """A call of an operator that contains no other.

    Attributes:
        type: The type, without dialect and the mark of variants that run in place.
        thread: Paddle's number of the thread.
        start_ns: The beginning, on the clock of ``time.time_ns()``.
        ns: The duration.
    """

    type: str
    thread: int
    start_ns: int
    ns: int


def new_profiler() -> Any:
    """Returns Paddle's profiler of the processor, which writes no file when it stops.

    ``None`` while the process has another one, running or not: Paddle creates one at a time.
    """
    target = [profiler.ProfilerTarget.CPU]
    made = profiler.Profiler(targets=target, on_trace_ready=lambda _: None)
    return None if made.profiler is None else made


def calls_of(stopped: Any) -> list[OperatorCall]:
    """Returns the calls that a stopped profiler has seen, without those of the engine."""
    found: list[OperatorCall] = []
    for thread, root in stopped.profiler_result.get_data().items():
        _add(root, thread, found)
    return [call for call in found if ENGINE not in call.type]


def timeline_of(stopped: Any, clock_ns: int) -> list[TimelineSpan]:
    """Returns all that a stopped profiler has seen.

    Args:
        stopped: The profiler.
        clock_ns: The lead of its clock, ``time.time_ns()``, over ``time.monotonic_ns()``.

    Raises:
        NgraphError: It has recorded nothing.
    """
    result = getattr(stopped, "profiler_result", None)
    if result is None:
        raise NgraphError("the profiler has recorded nothing: stop it first")
    found: list[TimelineSpan] = []
    for root in result.get_data().values():
        pending = list(root.children_node)
        while pending:
            node = pending.pop()
            pending += node.children_node
            start, ns = node.start_ns - clock_ns, node.end_ns - node.start_ns
            found.append(TimelineSpan(node.name, node.type.name, node.thread_id, start, ns))
    return found


def operator_times(run: Callable[[], object]) -> Counter[str]:
    """Returns the nanoseconds of each type of operator in a run by Paddle's kernels.

    Args:
        run: Runs a program once; its operators that contain others, such as loops, do not count.

    Returns:
        The times; empty while the process has another profiler of Paddle.
    """
    observed = new_profiler()
    if observed is None:
        run()
        return Counter()
    with observed:
        run()
    return _times(calls_of(observed))


def _times(calls: list[OperatorCall]) -> Counter[str]:
    times: Counter[str] = Counter()
    for call in calls:
        times[call.type] += call.ns
    return times


def _add(node: Any, thread: int, found: list[OperatorCall]) -> bool:
    """Adds the operators that contain no others; returns whether there is an operator."""
    inside = [_add(child, thread, found) for child in node.children_node]
    is_operator = node.type == profiler.TracerEventType.Operator
    if is_operator and not any(inside):
        found.append(OperatorCall(_type(node), thread, node.start_ns, node.end_ns - node.start_ns))
    return is_operator or any(inside)


def _type(operator: Any) -> str:
    """The type of an operator: "matmul dygraph" in dynamic mode, whose gradients are autograd's."""
    names = [operator.name, *(name for name in _names_inside(operator) if name.endswith(_KERNEL))]
    is_gradient = operator.name.startswith("Global_")
    return plain_type(names[-1 if is_gradient else 0].split(" ")[0])


def _names_inside(node: Any) -> Iterator[str]:
    for child in node.children_node:
        yield child.name
        yield from _names_inside(child)


def by_type(calls: list[OperatorCall]) -> Iterator[tuple[str, int, int]]:
    """Yields type, number and nanoseconds of calls, the longest total first."""
    numbers: Counter[str] = Counter(call.type for call in calls)
    for type, ns in _times(calls).most_common():
        yield type, numbers[type], ns
