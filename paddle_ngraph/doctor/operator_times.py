"""Times of Paddle's operators in a native run, from Paddle's own profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from paddle import profiler


def short_name(name: str) -> str:
    """The type of an operator, without dialect and the mark of variants that run in place."""
    return name.rpartition(".")[2].rstrip("_")


def operator_times(run: Callable[[], object]) -> Counter[str]:
    """Returns the nanoseconds of each type of operator in a run by Paddle's kernels.

    Args:
        run: Runs a program once; its operators that contain others, such as loops, do not count.
    """
    times: Counter[str] = Counter()
    target = [profiler.ProfilerTarget.CPU]
    with profiler.Profiler(targets=target, on_trace_ready=lambda _: None) as observed:
        run()
    for root in observed.profiler_result.get_data().values():
        _add(root, times)
    return times


def _add(node: Any, times: Counter[str]) -> bool:
    """Adds the times of operators that contain no others; returns whether there is an operator."""
    inside = [_add(child, times) for child in node.children_node]
    is_operator = node.type == profiler.TracerEventType.Operator
    if is_operator and not any(inside):
        times[short_name(node.name)] += node.end_ns - node.start_ns
    return is_operator or any(inside)
