"""How long an all-reduce takes, and how much of that time its core is busy.

The ring is that of P. Patarasu and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", Journal of Parallel and Distributed Computing 69 (2009): in 2 (n - 1) steps each
rank sends and receives 1/n of the data. In a machine, data is reduced to one rank, and broadcast by
it, along a binomial tree (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective
communication operations in MPICH", International Journal of High Performance Computing Applications
19 (2005)).
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
class Link:
    """What connects two ranks.

    Attributes:
        latency_us: What a message takes besides its bytes, in microseconds.
        gigabytes_per_s: Bytes in each direction at once, in 10^9 per second.
        call_us: What a collective takes besides its messages: until all are there and have woken.
    """

    latency_us: float
    gigabytes_per_s: float
    call_us: float = 0.0

    def message_ms(self, size: float) -> float:
        """What a message of so many bytes takes, in milliseconds."""
        return self.latency_us / 1e3 + self.bytes_ms(size)

    def bytes_ms(self, size: float) -> float:
        """What the bytes alone take, in milliseconds."""
        return size / (self.gigabytes_per_s * 1e6)

    def shared(self, turns: int) -> Link:
        """The link of ranks of which so many share a core: each waits while the others send."""
        return Link(self.latency_us * turns, self.gigabytes_per_s / turns, self.call_us * turns)


class Phase(NamedTuple):
    """A part of an all-reduce.

    Attributes:
        core_ms: So long it takes the core, which copies data; in milliseconds.
        wire_ms: So long afterwards it takes the network alone, and the core is free.
    """

    core_ms: float
    wire_ms: float


def ring_ms(ranks: int, size: float, link: Link) -> float:
    """A ring all-reduce in which each pair of neighbours has a link of its own, in milliseconds.

    Args:
        ranks: How many take part.
        size: The bytes of one of them.
        link: What connects neighbours.
    """
    if ranks == 1:
        return 0.0
    return link.call_us / 1e3 + 2 * (ranks - 1) * link.message_ms(size / ranks)


def tree_ms(ranks: int, size: float, link: Link) -> float:
    """A reduction to one of the ranks, or a broadcast by it, in milliseconds."""
    if ranks == 1:
        return 0.0
    return link.call_us / 1e3 + math.ceil(math.log2(ranks)) * link.message_ms(size)


def phases(
    algorithm: str, machines: int, ranks: int, size: float, local: Link, network: Link
) -> list[Phase]:
    """An all-reduce of ranks on machines, one phase after the other.

    In a machine, data is copied by the cores that compute. Between machines the cores have to copy
    what is sent, too (the same bytes at the same cost as in a machine), and the rest of the time
    that the network takes they are free.

    Args:
        algorithm: ``ring``, through all ranks, those of a machine one after the other; or
            ``hierarchical``: a reduction in each machine, a ring of the machines, a broadcast.
        machines: How many machines there are.
        ranks: How many ranks each of them has.
        size: The bytes of one rank.
        local: What connects two ranks of a machine.
        network: What connects two machines.
    """
    if algorithm == "ring" and machines == 1:
        return [Phase(ring_ms(ranks, size, local), 0.0)]
    if algorithm == "ring":
        slowest = Link(
            max(local.latency_us, network.latency_us) if ranks > 1 else network.latency_us,
            network.gigabytes_per_s,
        )
        return [_across(machines * ranks, size, local, slowest)]
    tree = Phase(tree_ms(ranks, size, local), 0.0)
    across = [_across(machines, size, local, network)] if machines > 1 else []
    return [tree, *across, tree] if ranks > 1 else across


def _across(ranks: int, size: float, local: Link, network: Link) -> Phase:
    """A ring through a network, which takes as long to call as one in a machine."""
    core = ring_ms(ranks, size, Link(0.0, local.gigabytes_per_s, local.call_us))
    called = replace(network, call_us=local.call_us)
    return Phase(core, max(0.0, ring_ms(ranks, size, called) - core))


class Sample(NamedTuple):
    """A ring all-reduce that was measured.

    Attributes:
        ranks: How many took part, on one machine.
        ranks_per_core: How many of them share a core.
        size: The bytes of one of them.
        ms: What it took, in milliseconds.
    """

    ranks: int
    ranks_per_core: int
    size: float
    ms: float


def fitted(samples: Sequence[Sample]) -> Link:
    """The link that explains measured all-reduces: least squares of the relative error.

    Raises:
        NgraphError: The samples do not tell latency and bandwidth apart.
    """
    # ms = call_ms + latency_ms * messages + ms_per_byte * bytes, each equation divided by its ms.
    columns = np.array(
        [(1.0, 2 * (s.ranks - 1), 2 * (s.ranks - 1) / s.ranks * s.size) for s in samples]
    )
    columns *= np.array([[s.ranks_per_core / s.ms] for s in samples])
    # What comes out below nothing is nothing.
    for used in ([0, 1, 2], [1, 2], [0, 2]):
        found, _, rank, _ = np.linalg.lstsq(columns[:, used], np.ones(len(samples)))
        if rank == len(used) and min(found) >= 0 and found[-1] > 0:
            per = dict(zip(used, map(float, found)))
            return Link(per.get(1, 0.0) * 1e3, 1 / per[2] / 1e6, per.get(0, 0.0) * 1e3)
    raise NgraphError(
        "the measured all-reduces give no latency and bandwidth: measure small and large ones "
        "again, while nothing else runs"
    )
