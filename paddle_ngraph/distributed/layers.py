"""Compiles dynamic layers before the first step of a job, without side effects.

A function that ``paddle_ngraph.compile`` returns is recorded in its first call, which is native,
and captured in later ones. A job that starts again from a checkpoint would round its first step in
another way than a job that was not interrupted. So programs are built here only, and calls that no
program computes are native in each start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import paddle

from paddle_ngraph.distributed import checkpoints
from paddle_ngraph.distributed.job import DistributedJob
from paddle_ngraph.frontends.dynamic.lazy import trace_graph

# The calls after which nothing new is expected: layers that differ in each call.
_MAX_CALLS = 5


def prepare(job: DistributedJob, state: Mapping[str, Any], passes: Callable[[], Any]) -> None:
    """See :func:`paddle_ngraph.distributed.prepare_layers`."""
    layers = [part for part in state.values() if isinstance(part, paddle.nn.Layer)]
    tensors = [each for layer in layers for each in [*layer.parameters(), *layer.buffers()]]
    values = [each.detach().clone() for each in tensors]
    streams = checkpoints.random_streams()
    try:
        _call_until_known(job, passes)
    finally:
        checkpoints.set_random_streams(streams)
        for each, value in zip(tensors, values):
            each.set_value(value)
            each.clear_gradient(False)


def _call_until_known(job: DistributedJob, passes: Callable[[], Any]) -> None:
    """Calls a function until a call builds nothing on any rank, and at least twice."""
    built: list[int] = []

    def may_build(operators: int) -> bool:
        built.append(operators)
        return True

    for number in range(_MAX_CALLS):
        built.clear()
        with trace_graph.building_in_jobs(may_build):
            passes()
        if not any(map(int, job.exchange(str(len(built))))) and number > 0:
            return
