"""Tasks of one rank in a data-parallel step: all ranks run equal tasks at the same time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.simulation import collectives
from paddle_ngraph.simulation.collectives import ALGORITHMS, SimulatedLink
from paddle_ngraph.simulation.events import Task, total_ms
from paddle_ngraph.simulation.profile import Profile
from paddle_ngraph.simulation.reliability import expected

_CORE, _NETWORK = "core", "network"
# The number of slices in which each subgraph (interval) is simulated: sends get the core after any
# slice.
_SLICES = 8


@dataclass(frozen=True)
class Cluster:
    """Ranks on machines that are like the one of the profile.

    Attributes:
        ranks: The number of ranks; up to ``per_machine`` of them are all on one machine.
        per_machine: The maximum number of ranks of a machine.
        network: The link between two machines.
    """

    ranks: int
    per_machine: int
    network: SimulatedLink

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_machine < 1:
            raise NgraphError("there has to be at least 1 rank, and 1 on each machine")
        if self.ranks > self.per_machine and self.ranks % self.per_machine:
            raise NgraphError(
                f"{self.ranks} ranks do not fill machines of {self.per_machine}: give a multiple"
            )

    @property
    def local_ranks(self) -> int:
        """The number of ranks on each machine of the cluster."""
        return min(self.ranks, self.per_machine)

    @property
    def machines(self) -> int:
        return self.ranks // self.local_ranks

    def cores_of_rank(self, cores: int) -> int:
        """The number of cores of a rank on a machine of ``cores`` cores: rounded down, min. 1."""
        return max(1, cores // self.local_ranks)

    def ranks_per_core(self, cores: int) -> int:
        """The number of ranks that share a core."""
        return -(-self.local_ranks // cores)


@dataclass(frozen=True)
class AveragingStrategy:
    """A strategy of averaging gradients.

    Attributes:
        algorithm: One of :data:`~paddle_ngraph.simulation.collectives.ALGORITHMS`.
        overlaps: Whether a bucket is sent as soon as it is complete, concurrently with the backward
            pass; otherwise all buckets are sent after the backward pass.
    """

    algorithm: str
    overlaps: bool

    def __str__(self) -> str:
        return f"{self.algorithm}, overlap" if self.overlaps else self.algorithm


STRATEGIES = tuple(
    AveragingStrategy(algorithm, overlaps) for algorithm in ALGORITHMS for overlaps in (False, True)
)
PRESENT = STRATEGIES[0]  # the averaging strategy that the engine uses today


def step_ms(profile: Profile, cluster: Cluster, strategy: AveragingStrategy) -> float:
    """The expected duration of a step in milliseconds, including waits for slow ranks."""
    return expected(
        lambda slow_down: total_ms(tasks_of_step(profile, cluster, strategy, slow_down)),
        profile.spread,
        cluster.ranks,
    )


def compute_ms(profile: Profile, cluster: Cluster) -> float:
    """The milliseconds that a step computes, without communication and waits."""
    cores, ranks_per_core = _share(profile, cluster)
    return ranks_per_core * sum(
        [*(interval.ms[cores] for interval in profile.intervals), profile.update_ms[cores]]
    )


def tasks_of_step(
    profile: Profile, cluster: Cluster, strategy: AveragingStrategy, slow_down: float
) -> dict[Hashable, Task]:
    """The tasks of one rank in a step of data-parallel training, for the simulation.

    Args:
        profile: The measured times.
        cluster: The cluster.
        strategy: The strategy of averaging gradients.
        slow_down: Factor on the compute time of the slowest rank.

    Raises:
        NgraphError: The profile has no times for the number of cores of a rank.
    """
    cores, ranks_per_core = _share(profile, cluster)
    factor = ranks_per_core * slow_down
    computing: dict[Hashable, Task] = {}
    sending: dict[Hashable, Task] = {}
    last = len(profile.intervals) - 1
    for index, interval in enumerate(profile.intervals):
        for part in range(_SLICES):
            ms, before = interval.ms[cores] * factor / _SLICES, list(computing)[-1:]
            computing["interval", index, part] = Task(ms, before, _resources(_CORE))
        if interval.bucket_bytes and cluster.ranks > 1:
            ready = ("interval", index if strategy.overlaps else last, _SLICES - 1)
            after = [ready, *list(sending)[-1:]]
            sending.update(
                _all_reduce(
                    profile, cluster, strategy.algorithm, interval.bucket_bytes, index, after
                )
            )
    # Sends come first: they use the core briefly, and the network then works while the core
    # computes.
    tasks = {**sending, **computing}
    packing_ms = profile.packing_ms[cores] if sending else 0.0
    update_ms = (profile.update_ms[cores] + packing_ms) * factor
    tasks["update"] = Task(update_ms, list(tasks), _resources(_CORE))
    return tasks


def _share(profile: Profile, cluster: Cluster) -> tuple[int, int]:
    """The number of cores of a rank, and the number of ranks that share a core.

    Raises:
        NgraphError: The profile has no times for that number of cores.
    """
    cores, ranks_per_core = (
        cluster.cores_of_rank(profile.cores),
        cluster.ranks_per_core(profile.cores),
    )
    if cores not in profile.update_ms:
        known = ", ".join(map(str, sorted(profile.update_ms)))
        raise NgraphError(
            f"{cluster.local_ranks} ranks on {profile.cores} cores have {cores} each, and the "
            f"profile has times for {known}: give another number of ranks for each machine"
        )
    return cores, ranks_per_core


def _all_reduce(
    profile: Profile,
    cluster: Cluster,
    algorithm: str,
    size: int,
    bucket: int,
    after: Sequence[Hashable],
) -> dict[Hashable, Task]:
    """The sequential tasks of an all-reduce; the first one follows the tasks ``after``."""
    link = profile.link.shared(cluster.ranks_per_core(profile.cores))
    phases = collectives.phases(
        algorithm, cluster.machines, cluster.local_ranks, size, link, cluster.network
    )
    tasks: dict[Hashable, Task] = {}
    for index, phase in enumerate(phases):
        last: Hashable = ("copy", bucket, index)
        tasks[last] = Task(phase.core_ms, after, _resources(_CORE, _NETWORK))
        # A phase that takes no time gets no task: an empty task would let the backward pass take
        # the core between two phases.
        if phase.wire_ms:
            before, last = last, ("wire", bucket, index)
            tasks[last] = Task(phase.wire_ms, [before], _resources(_NETWORK))
        after = [last]
    return tasks


def _resources(*resources: str) -> list[frozenset[Hashable]]:
    return [frozenset(resources)]
