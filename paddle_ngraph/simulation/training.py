"""One step of data parallelism, as tasks of one rank: all ranks do the same at the same time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.simulation import collectives
from paddle_ngraph.simulation.collectives import ALGORITHMS, Link
from paddle_ngraph.simulation.events import Task, total_ms
from paddle_ngraph.simulation.profile import Profile
from paddle_ngraph.simulation.reliability import expected

_CORE, _NETWORK = "core", "network"
# What sends gets the core in the middle of an interval, as soon as one of so many parts has ended.
_SLICES = 8


@dataclass(frozen=True)
class Cluster:
    """Ranks on machines that are like the one of the profile.

    Attributes:
        ranks: How many there are; fewer than a machine may have are all on one.
        per_machine: How many of them a machine has, at most.
        network: What connects two machines.
    """

    ranks: int
    per_machine: int
    network: Link

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_machine < 1:
            raise NgraphError("there has to be at least 1 rank, and 1 on each machine")
        if self.ranks > self.per_machine and self.ranks % self.per_machine:
            raise NgraphError(
                f"{self.ranks} ranks do not fill machines of {self.per_machine}: give a multiple"
            )

    @property
    def local_ranks(self) -> int:
        """The ranks of each machine."""
        return min(self.ranks, self.per_machine)

    @property
    def machines(self) -> int:
        return self.ranks // self.local_ranks

    def cores_of_rank(self, cores: int) -> int:
        """How many cores of a machine a rank has, if it has fewer than the others."""
        return max(1, cores // self.local_ranks)

    def ranks_per_core(self, cores: int) -> int:
        """How many ranks take turns on a core."""
        return -(-self.local_ranks // cores)


@dataclass(frozen=True)
class Way:
    """How gradients are averaged.

    Attributes:
        algorithm: Of :data:`~paddle_ngraph.simulation.collectives.ALGORITHMS`.
        overlaps: Whether a bucket goes as soon as it is complete, while the backward pass goes on;
            otherwise all go after it.
    """

    algorithm: str
    overlaps: bool

    def __str__(self) -> str:
        return f"{self.algorithm}, overlap" if self.overlaps else self.algorithm


WAYS = tuple(Way(algorithm, overlaps) for algorithm in ALGORITHMS for overlaps in (False, True))
PRESENT = WAYS[0]  # what the engine does today


def step_ms(profile: Profile, cluster: Cluster, way: Way) -> float:
    """The expected time of a step in milliseconds, slow ranks included."""
    return expected(
        lambda slow_down: total_ms(tasks_of_step(profile, cluster, way, slow_down)),
        profile.spread,
        cluster.ranks,
    )


def compute_ms(profile: Profile, cluster: Cluster) -> float:
    """The time of a step if ranks had not to talk or wait, in milliseconds."""
    cores, turns = _share(profile, cluster)
    return turns * sum(
        [*(interval.ms[cores] for interval in profile.intervals), profile.update_ms[cores]]
    )


def tasks_of_step(
    profile: Profile, cluster: Cluster, way: Way, slow_down: float
) -> dict[Hashable, Task]:
    """The tasks of one rank.

    Args:
        profile: What its intervals take.
        cluster: Where it is.
        way: How it averages gradients.
        slow_down: How many times as long as usual the slowest rank computes.

    Raises:
        NgraphError: The profile has no times for so many cores for each rank.
    """
    cores, turns = _share(profile, cluster)
    factor = turns * slow_down
    computing: dict[Hashable, Task] = {}
    sending: dict[Hashable, Task] = {}
    last = len(profile.intervals) - 1
    for number, interval in enumerate(profile.intervals):
        for part in range(_SLICES):
            ms, before = interval.ms[cores] * factor / _SLICES, list(computing)[-1:]
            computing["interval", number, part] = Task(ms, before, _resources(_CORE))
        if interval.bucket_bytes and cluster.ranks > 1:
            ready = ("interval", number if way.overlaps else last, _SLICES - 1)
            after = [ready, *list(sending)[-1:]]
            sending.update(
                _all_reduce(profile, cluster, way.algorithm, interval.bucket_bytes, number, after)
            )
    # What sends goes first: it takes the core for a moment, and then the network works beside it.
    tasks = {**sending, **computing}
    packing_ms = profile.packing_ms[cores] if sending else 0.0
    update_ms = (profile.update_ms[cores] + packing_ms) * factor
    tasks["update"] = Task(update_ms, list(tasks), _resources(_CORE))
    return tasks


def _share(profile: Profile, cluster: Cluster) -> tuple[int, int]:
    """The cores of a rank, and how many ranks take turns on them.

    Raises:
        NgraphError: The profile has no times for so many cores.
    """
    cores, turns = cluster.cores_of_rank(profile.cores), cluster.ranks_per_core(profile.cores)
    if cores not in profile.update_ms:
        known = ", ".join(map(str, sorted(profile.update_ms)))
        raise NgraphError(
            f"{cluster.local_ranks} ranks on {profile.cores} cores have {cores} each, and the "
            f"profile has times for {known}: give another number of ranks for each machine"
        )
    return cores, turns


def _all_reduce(
    profile: Profile,
    cluster: Cluster,
    algorithm: str,
    size: int,
    bucket: int,
    after: Sequence[Hashable],
) -> dict[Hashable, Task]:
    """The tasks of an all-reduce, each after the one before, the first after some others."""
    link = profile.link.shared(cluster.ranks_per_core(profile.cores))
    phases = collectives.phases(
        algorithm, cluster.machines, cluster.local_ranks, size, link, cluster.network
    )
    tasks: dict[Hashable, Task] = {}
    for number, phase in enumerate(phases):
        last: Hashable = ("copy", bucket, number)
        tasks[last] = Task(phase.core_ms, after, _resources(_CORE, _NETWORK))
        if phase.wire_ms:  # or the backward pass would get the core in between
            before, last = last, ("wire", bucket, number)
            tasks[last] = Task(phase.wire_ms, [before], _resources(_NETWORK))
        after = [last]
    return tasks


def _resources(*resources: str) -> list[frozenset[Hashable]]:
    return [frozenset(resources)]
