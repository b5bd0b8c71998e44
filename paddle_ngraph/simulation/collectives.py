"""Cost model of all-reduce: time on the core, and time on the network alone.

The ring is that of P. Patarasu and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", Journal of Parallel and Distributed Computing 69 (2009): in 2 (n - 1) steps each
rank sends and receives 1/n of the data. In a machine, data is reduced to one rank and broadcast
from there along a binomial tree (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
collective communication operations in MPICH", International Journal of High Performance Computing
Applications 19 (2005)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from paddle_ngraph.errors import NgraphError

ALGORITHMS = ("ring", "hierarchical")


@dataclass(frozen=True)
class SimulatedLink:
    """The connection of two ranks.

    Attributes:
        latency_us: Latency of a message in microseconds.
        gigabytes_per_s: Full-duplex bandwidth in each direction, in 10^9 bytes per second.
        call_us: Overhead of a collective in microseconds: rendezvous and wake-up of all ranks.
    """

    latency_us: float
    gigabytes_per_s: float
    call_us: float = 0.0

    def message_ms(self, size: float) -> float:
        """Time of a message of ``size`` bytes in milliseconds, with latency."""
        return self.latency_us / 1e3 + self.bytes_ms(size)

    def bytes_ms(self, size: float) -> float:
        """Time of ``size`` bytes in milliseconds, without latency."""
        return size / (self.gigabytes_per_s * 1e6)

    def shared(self, ranks_per_core: int) -> SimulatedLink:
        """The link as each rank of a shared core gets it: it waits for the sends of the others."""
        return SimulatedLink(
            self.latency_us * ranks_per_core,
            self.gigabytes_per_s / ranks_per_core,
            self.call_us * ranks_per_core,
        )


class Phase(NamedTuple):
    """A phase of an all-reduce.

    Attributes:
        core_ms: Milliseconds in which the core is busy with copies of data.
        wire_ms: Further milliseconds of the network alone, in which the core is free.
    """

    core_ms: float
    wire_ms: float


def ring_ms(ranks: int, size: float, link: SimulatedLink) -> float:
    """Milliseconds of a ring all-reduce in which each pair of neighbours has its own link.

    Args:
        ranks: The number of ranks.
        size: The bytes of one rank.
        link: The link between neighbours.
    """
    if ranks == 1:
        return 0.0
    return link.call_us / 1e3 + 2 * (ranks - 1) * link.message_ms(size / ranks)


def tree_ms(ranks: int, size: float, link: SimulatedLink) -> float:
    """Milliseconds of a reduction to one rank, or of a broadcast from it, along a tree."""
    if ranks == 1:
        return 0.0
    return link.call_us / 1e3 + math.ceil(math.log2(ranks)) * link.message_ms(size)


def phases(
    algorithm: str,
    machines: int,
    ranks: int,
    size: float,
    local: SimulatedLink,
    network: SimulatedLink,
) -> list[Phase]:
    """Returns the sequential phases of an all-reduce of ranks on machines.

    In a machine, the cores that compute also copy data. Between machines, the cores have to copy
    all sent data too (an equal number of bytes at the cost inside a machine), and are free for the
    rest of the network time.

    Args:
        algorithm: ``ring``: through all ranks, with the ranks of a machine adjacent; or
            ``hierarchical``: a reduction in each machine, a ring of the machines, a broadcast.
        machines: The number of machines.
        ranks: The number of ranks of each machine.
        size: The bytes of one rank.
        local: The link between two ranks of a machine.
        network: The link between two machines.
    """
    if algorithm == "ring" and machines == 1:
        return [Phase(ring_ms(ranks, size, local), 0.0)]
    if algorithm == "ring":
        slowest = SimulatedLink(
            max(local.latency_us, network.latency_us) if ranks > 1 else network.latency_us,
            network.gigabytes_per_s,
        )
        return [_across(machines * ranks, size, local, slowest)]
    tree = Phase(tree_ms(ranks, size, local), 0.0)
    across = [_across(machines, size, local, network)] if machines > 1 else []
    return [tree, *across, tree] if ranks > 1 else across


def _across(ranks: int, size: float, local: SimulatedLink, network: SimulatedLink) -> Phase:
    """The phase of an all-reduce that is a ring of machines through a network, with its times.

    The overhead of the call is that of a ring in a machine.
    """
    core = ring_ms(ranks, size, SimulatedLink(0.0, local.gigabytes_per_s, local.call_us))
    called = replace(network, call_us=local.call_us)
    return Phase(core, max(0.0, ring_ms(ranks, size, called) - core))


class Sample(NamedTuple):
    """A measured ring all-reduce.

    Attributes:
        ranks: The number of ranks, on one machine.
        ranks_per_core: The number of ranks that share a core.
        size: The bytes of one rank.
        ms: The measured time in milliseconds.
    """

    ranks: int
    ranks_per_core: int
    size: float
    ms: float


def fitted(samples: Sequence[Sample]) -> SimulatedLink:
    """Fits a link to measured all-reduces by least squares of the relative error.

    Raises:
        NgraphError: The samples do not determine latency and bandwidth.
    """
    # For each sample: ms = call_ms + latency_ms * messages + ms_per_byte * bytes. Each equation is
    # divided by the measured ms, for the relative error.
    columns = np.array(
        [(1.0, 2 * (s.ranks - 1), 2 * (s.ranks - 1) / s.ranks * s.size) for s in samples]
    )
    columns *= np.array([[s.ranks_per_core / s.ms] for s in samples])
    # If a fitted coefficient is negative, it is fixed to 0 and the others are fitted again. Samples
    # of one number of ranks do not tell the call from the messages: then all of it is the call.
    fits = []
    for used in ([0, 1, 2], [0, 2], [1, 2]):
        found, _, rank, _ = np.linalg.lstsq(columns[:, used], np.ones(len(samples)))
        if rank == len(used) and min(found) >= 0 and found[-1] > 0:
            error = float(np.linalg.norm(columns[:, used] @ found - 1))
            fits.append((round(error, 9), dict(zip(used, map(float, found)))))
    if fits:
        _, per = min(fits, key=lambda fit: fit[0])
        return SimulatedLink(per.get(1, 0.0) * 1e3, 1 / per[2] / 1e6, per.get(0, 0.0) * 1e3)
    raise NgraphError(
        "the measured all-reduces give no latency and bandwidth: measure small and large ones "
        "again, while nothing else runs"
    )
