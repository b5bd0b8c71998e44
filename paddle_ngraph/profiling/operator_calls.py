"""Calls of Paddle's operators, from Paddle's own profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from paddle import profiler

from paddle_ngraph.ir.graph import plain_type

ENGINE = "ngraph_engine"


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
        type = plain_type(node.name.split(" ")[0])  # "matmul dygraph" in dynamic mode
        found.append(OperatorCall(type, thread, node.start_ns, node.end_ns - node.start_ns))
    return is_operator or any(inside)


def by_type(calls: list[OperatorCall]) -> Iterator[tuple[str, int, int]]:
    """Yields type, number and nanoseconds of calls, the longest total first."""
    numbers: Counter[str] = Counter(call.type for call in calls)
    for type, ns in _times(calls).most_common():
        yield type, numbers[type], ns
