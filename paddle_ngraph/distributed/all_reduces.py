"""The choice between all-reduces in a ring through all ranks, and in two levels."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from paddle_ngraph.distributed import first_run
from paddle_ngraph.distributed.job import RING, DistributedJob, RankRing
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.protocols import Program
from paddle_ngraph.transpiler import two_level_sums
from paddle_ngraph.transpiler.building import Builder
from paddle_ngraph.transpiler.two_level_sums import ALL_REDUCE, TwoLevels

CHOICES = ("ring", "two levels", "measured")
# Ids of rings begin here, beyond those of Paddle and of links.
_FIRST_RING = 100_000
# Runs that are measured, after one that is not.
_RUNS = 3


def choose(job: DistributedJob, program: Program, choice: str) -> None:
    """Replaces the all-reduces of a program if that is chosen; called by all ranks.

    Raises:
        NgraphError: See :func:`paddle_ngraph.distributed.prepare`.
    """
    if choice not in CHOICES:
        raise NgraphError(f"all_reduce={choice!r}: give one of {', '.join(CHOICES)}")
    if choice == "ring":
        return
    hosts = job.exchange(job.placement.host)
    levels = levels_of(hosts, job.placement.rank)
    if levels is None:
        if choice == "measured":
            return
        raise NgraphError(
            "all_reduce='two levels' needs several machines with equally many ranks, two or more "
            f"on each, and not those on {', '.join(hosts)}"
        )
    inside, between = levels
    plan = TwoLevels(inside.rank, inside.ranks, inside.number, between.number)
    sizes = two_level_sums.buckets(program, RING, plan.local_ranks)
    if not sizes:
        return
    job.connect_rings(levels)
    if choice == "two levels" or _gains(job, sizes, plan):
        first_run.replace_all_reduces(program, plan)


def levels_of(hosts: Sequence[str], rank: int) -> tuple[RankRing, RankRing] | None:
    """The rings of a rank inside its machine, and between machines.

    Args:
        hosts: The address of each rank, equal for those of a machine.
        rank: This rank.

    Returns:
        ``None`` if there are no two levels.
    """
    members = [[r for r, host in enumerate(hosts) if host == each] for each in dict.fromkeys(hosts)]
    sizes = {len(each) for each in members}
    if len(members) == 1 or len(sizes) != 1 or sizes == {1}:
        return None
    (machine,) = (number for number, each in enumerate(members) if rank in each)
    local = members[machine].index(rank)
    return (
        RankRing(_FIRST_RING + machine, local, len(members[0])),
        RankRing(_FIRST_RING + len(members) + local, machine, len(members)),
    )


def _gains(job: DistributedJob, sizes: Sequence[tuple[int, str]], plan: TwoLevels) -> bool:
    """Whether two levels take less time; the same on all ranks."""
    in_a_ring, in_levels = _sums(sizes), _sums(sizes)
    two_level_sums.replace_all_reduces(in_levels[0], RING, plan)
    taken = [_seconds(job, *each) for each in (in_a_ring, in_levels)]
    # A sum takes as long as on the slowest rank.
    ring, levels = np.max([json.loads(text) for text in job.exchange(json.dumps(taken))], axis=0)
    return bool(levels < ring)


def _sums(sizes: Sequence[tuple[int, str]]) -> tuple[Any, list[Any]]:
    """A program that sums tensors of zeros over all ranks, and what a run fetches."""
    program: Any = paddle.static.Program()
    build = Builder(program.global_block())
    results = []
    for length, dtype in sizes:
        zeros = build.zeros([length], dtype)
        summed = build(ALL_REDUCE, [zeros], ring_id=RING, reduce_type=0)
        results.append(build("pd_op.mean_all", [summed]))
    return program, results


def _seconds(job: DistributedJob, program: Any, results: list[Any]) -> float:
    """The median of the seconds of a run."""
    executor = paddle.static.Executor(paddle.CPUPlace())
    taken = []
    for _ in range(1 + _RUNS):
        job.barrier()
        begun = time.perf_counter()
        executor.run(program, fetch_list=results)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])
