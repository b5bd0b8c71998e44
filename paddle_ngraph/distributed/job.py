"""The processes of a job: ranks, cores and connections.

A launcher starts the processes: ``python -m paddle_ngraph launch``, or any other that sets the
environment variables of ``python -m paddle.distributed.launch``. The rendezvous uses the store of
the job. Collectives of programs transfer their data over gloo, links over sockets of their own.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from paddle_ngraph import flags
from paddle_ngraph.distributed import agreement, connections, reports, sockets, store
from paddle_ngraph.distributed.connections import Endpoint
from paddle_ngraph.distributed.rendezvous import RENDEZVOUS_TIMEOUT_SECONDS, Rendezvous
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.saved_model import last_line
from paddle_ngraph.paddle_private.names import global_store, make_gloo_context
from paddle_ngraph.paddle_private.protocols import Store
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.plan.data_parallel import check_divisible
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock

# The ring id that Paddle's collectives of all ranks have: their gloo context.
RING = 0
# Group ids of links between two ranks begin here, beyond those that Paddle uses.
_FIRST_LINK_ID = 7000
_LOOPBACK = "127.0.0.1"
# Environment variable with the name of the network interface at which gloo listens. Without it,
# that is the interface of the address which the name of the machine has.
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
# Environment variable without which Paddle waits for ranks on GPUs, even where it knows none.
_BACKEND = "PADDLE_DISTRI_BACKEND"
_SIOCGIFADDR = 0x8915  # the request of ioctl(2) for the IPv4 address of an interface
# Numbers for the jobs of this process, which distinguish their keys in the one store: all ranks
# create jobs in equal order.
_link_ids = count()


@dataclass(frozen=True)
class RankPlacement:
    """The rank of a process in its job.

    Attributes:
        rank: The rank.
        ranks: The number of ranks.
        local_rank: The rank on this machine.
        local_ranks: The number of ranks on this machine.
        master: ``host:port`` of the store, which rank 0 opens. Empty for a single rank.
        host: The address of this rank for other ranks.
        first_host: The address of rank 0 for this rank.
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    master: str = ""
    host: str = _LOOPBACK
    first_host: str = _LOOPBACK

    @classmethod
    def of_environment(cls, variables: Mapping[str, str]) -> RankPlacement:
        """The placement from the environment variables of ``paddle.distributed.launch``.

        Raises:
            NgraphError: A variable is missing, not an integer, or out of range.
        """
        ranks = _number(variables, "PADDLE_TRAINERS_NUM", 1)
        if ranks == 1:
            return cls()
        rank = _number(variables, "PADDLE_TRAINER_ID")
        local_rank = _number(variables, "PADDLE_LOCAL_RANK", rank)
        local_ranks = _number(variables, "PADDLE_LOCAL_SIZE", ranks)
        master = variables.get("PADDLE_MASTER", "")
        if not 0 <= rank < ranks or not 0 <= local_rank < local_ranks:
            raise NgraphError(
                f"rank {rank} of {ranks}, number {local_rank} of {local_ranks} on this machine: "
                "ranks are counted from 0 (PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM, "
                "PADDLE_LOCAL_RANK, PADDLE_LOCAL_SIZE)"
            )
        if not master.rpartition(":")[2].isdecimal():
            raise NgraphError(
                f"PADDLE_MASTER={master!r}: give host:port of rank 0, or start the job with "
                "python -m paddle_ngraph launch"
            )
        endpoint = master if rank == 0 else variables.get("PADDLE_CURRENT_ENDPOINT", master)
        # A launcher that counts all ranks on this machine says that there is no other machine.
        is_local = "PADDLE_LOCAL_SIZE" in variables and local_ranks == ranks
        host, first_host = (
            _LOOPBACK if is_local else each.rpartition(":")[0] for each in (endpoint, master)
        )
        return cls(rank, ranks, local_rank, local_ranks, master, host, first_host)


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name, "" if default is None else str(default))
    if not text.isdecimal() or (name.endswith(("NUM", "SIZE")) and int(text) == 0):
        raise NgraphError(
            f"{name}={text!r} in the environment is no number of processes: start the job with "
            "python -m paddle_ngraph launch"
        )
    return int(text)


class RankRing(NamedTuple):
    """The place of a rank in a group of ranks that have collectives of their own.

    Attributes:
        number: The ring id, equal on the ranks of the group, and of no other group of the job.
        rank: The rank in the group.
        ranks: The number of ranks in the group.
    """

    number: int
    rank: int
    ranks: int


class DistributedJob:
    """The job of this process.

    Args:
        placement: The rank of this process.

    Attributes:
        num_exchanges: The number of rendezvous so far, equal on all ranks.
        checkpoints: The checkpoints in use, by folder.
    """

    def __init__(self, placement: RankPlacement) -> None:
        self.placement = placement
        self._number = next(_link_ids)
        self.num_exchanges = 0
        # The checkpoints of the job, by their folder; checkpoints.of_job adds them.
        self.checkpoints: dict[Path, Any] = {}

    @cached_property
    def store(self) -> Store:
        """The key-value store of all ranks: one of ours, if the job has a secret.

        Raises:
            NgraphError: Rank 0 cannot open the store.
            OSError: A rank is lost, or does not arrive in time.
        """
        if not paddle.distributed.is_initialized():
            secret = connections.secret_of(os.environ)
            if secret:
                _open_store(self.placement, os.environ.get(reports.JOB_VARIABLE, ""), secret)
            elif self.placement.rank == 0:
                _reject_used_port(self.placement.master)
        return global_store()

    @cached_property
    def _rendezvous(self) -> Rendezvous:
        name = os.environ.get(reports.JOB_VARIABLE, "")
        # The key contains the name of the job: if another job's store has the port, this rank never
        # joins that job.
        endpoint = replace(
            self.endpoint(f"ngraph/meetings/{name}/{self._number}"),
            listening_host=self.placement.first_host,
        )
        return Rendezvous(self.placement.rank, self.placement.ranks, endpoint)

    def endpoint(self, key: str) -> Endpoint:
        """The endpoint at which a rank accepts connections of others.

        Args:
            key: The key in the store: equal on all ranks, and unique.
        """
        secret = connections.secret_of(os.environ)
        return Endpoint(self.store, key, self.placement.host, secret)

    def link_number(self, number: int) -> int:
        """The id of a new link, equal on both ranks and unique up to the next rendezvous.

        Args:
            number: The index among the links between two rendezvous, below ``2 * ranks``.
        """
        return _FIRST_LINK_ID + self.num_exchanges * 2 * self.placement.ranks + number

    def connect(self, initializes_paddle: bool) -> None:
        """Creates the gloo context that collective operators of static programs use.

        Args:
            initializes_paddle: Whether to call ``init_parallel_env`` of Paddle, too.

        Raises:
            NgraphError: That is to be called in static mode; or as :meth:`exchange`.
        """
        if self.placement.ranks == 1:
            return
        initializes_paddle &= not paddle.distributed.is_initialized()
        if initializes_paddle and not paddle.in_dynamic_mode():
            # Paddle would open a server at all addresses instead, and wait for it.
            raise NgraphError(
                "distributed.init(dynamic=True) in static mode: call it before "
                "paddle.enable_static(), or without dynamic=True"
            )
        # All ranks arrive before gloo connects them: the barrier has a longer timeout than gloo's.
        self.barrier()
        interface = interface_of(self.placement.host)
        if interface:
            os.environ.setdefault(_GLOO_INTERFACE, interface)
        before = sockets.connected()
        if initializes_paddle:
            os.environ.setdefault(_BACKEND, "gloo")
            paddle.distributed.init_parallel_env()
        # Paddle's own initialization creates the gloo context, too.
        if not paddle.distributed.is_initialized():
            make_gloo_context(self.store, str(RING), self.placement.rank, self.placement.ranks)
        self._check_peers(sockets.connected() - before)

    def connect_rings(self, rings: Sequence[RankRing]) -> None:
        """Creates gloo contexts of groups of ranks, this rank in each; called by all ranks.

        Raises:
            NgraphError: As :meth:`exchange`; or a stranger has connected.
        """
        before = sockets.connected()
        for ring in rings:
            make_gloo_context(self.store, str(ring.number), ring.rank, ring.ranks)
        self._check_peers(sockets.connected() - before)

    def _check_peers(self, made: Set[sockets.Connection]) -> None:
        """Compares the connections that gloo has made on this rank with those on others.

        Raises:
            NgraphError: A process has connected as a rank that is none.
        """
        found = [sockets.unpacked(text) for text in self.exchange(sockets.packed(made))]
        ends = set().union(*found)
        for rank, each in enumerate(found):
            if strange := sorted(peer for own, peer in each if (peer, own) not in ends):
                raise NgraphError(
                    f"rank {rank} is connected to {strange[0]}, which is no rank of this job: "
                    "another process has come first, or the network changes addresses"
                )

    def exchange(self, text: str) -> list[str]:
        """An all-gather of texts, by rank; blocks until all ranks have called it.

        Raises:
            NgraphError: Another rank is lost, or does not arrive for 15 minutes; or the store
                cannot be opened.
        """
        if self.placement.ranks == 1:
            return [text]
        self.num_exchanges += 1
        reports.report_meeting(self.num_exchanges)
        with signals.recognized_signals():
            try:
                return self._rendezvous.exchange(text)
            except NgraphError:
                raise
            except Exception as error:
                signals.raise_if_from_outside(error)
                # Catches all exceptions, since Paddle raises errors of many types.
                raise NgraphError(
                    f"rank {self.placement.rank} timed out waiting for the other ranks: rank 0 has "
                    f"ended, or another one has not joined ({last_line(error)})"
                ) from error

    def barrier(self) -> None:
        """Waits until every rank has called this method."""
        self.exchange("here")


@functools.cache
def _open_store(placement: RankPlacement, name: str, secret: str) -> None:
    """Opens the store that Paddle then takes for its own; once in a process.

    Raises:
        NgraphError: The port is in use.
        OSError: A rank is lost, or does not arrive in time.
    """
    with signals.recognized_signals():
        try:
            store.open_store(
                placement.rank,
                placement.ranks,
                placement.master,
                placement.first_host,
                name,
                secret,
                RENDEZVOUS_TIMEOUT_SECONDS,
            )
        except OSError as error:
            signals.raise_if_from_outside(error)
            if error.errno != errno.EADDRINUSE:
                raise
            raise _unusable_port(placement.master, error) from error


def _reject_used_port(master: str) -> None:
    """Raises NgraphError if the port of ``master`` is in use: Paddle's store would abort then."""
    port = master.rpartition(":")[2]
    with socket.socket() as probe, signals.own_errors():
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except (OSError, OverflowError) as error:
            raise _unusable_port(master, error) from error


def _unusable_port(master: str, error: Exception) -> NgraphError:
    port = master.rpartition(":")[2]
    return NgraphError(
        f"port {port} of this machine cannot be used ({error}): give another one, with --port of "
        "paddle_ngraph launch, --master of paddle.distributed.launch, or PADDLE_MASTER"
    )


def interface_of(host: str) -> str:
    """The name of the network interface that has the IPv4 address of a host.

    Args:
        host: A name or an address.

    Returns:
        The empty string if this machine has no such address, as behind a router.
    """
    with signals.own_errors():
        try:
            wanted = socket.inet_aton(socket.gethostbyname(host))
        except OSError:
            return ""
        for _, name in socket.if_nameindex():
            if _address_of(name) == wanted:
                return name
    return ""


def _address_of(interface: str) -> bytes:
    """The first IPv4 address of an interface; no bytes if there is none."""
    request = struct.pack("256s", os.fsencode(interface))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, signals.own_errors():
        try:
            return fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24]
        except OSError:
            return b""


def share_of(name: str, batch: Any, placement: RankPlacement) -> Any:
    """The rows of a batch that a rank computes; see :func:`slice_of`."""
    return slice_of(name, batch, placement.rank, placement.ranks, "ranks")


def slice_of(name: str, batch: Any, number: int, num_slices: int, what: str) -> Any:
    """One of ``num_slices`` equal slices of an array along axis 0.

    Args:
        name: The name of the feed.
        batch: The array.
        number: The index of the slice.
        num_slices: The number of slices.
        what: The name of the slices in the error message.

    Raises:
        NgraphError: The batch is not divisible.
    """
    batch = batch if hasattr(batch, "shape") else np.asarray(batch)
    size = batch.shape[0] if len(batch.shape) > 0 else 0
    check_divisible(name, size, num_slices, what)
    size //= num_slices
    return batch[number * size : (number + 1) * size]


# -- cores ---------------------------------------------------------------------------------------


def cores_of(usable: Sequence[int], local_rank: int, local_ranks: int) -> list[int]:
    """The cores of a rank: ranks of one machine divide the cores evenly.

    Args:
        usable: The cores that the job may use.
        local_rank: The rank on its machine.
        local_ranks: The number of ranks on it; if more than cores, several ranks use one core.
    """
    cores = sorted(usable)
    if local_ranks >= len(cores):
        return [cores[local_rank % len(cores)]]
    first, last = (len(cores) * number // local_ranks for number in (local_rank, local_rank + 1))
    return cores[first:last]


def pin(placement: RankPlacement) -> list[int]:
    """Pins all threads of this process to the cores of its rank; returns the cores."""
    cores = cores_of(list(os.sched_getaffinity(0)), placement.local_rank, placement.local_ranks)
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:  # the thread has ended in the meantime
            continue
    if flags.get("ngraph_num_threads") == 0:
        flags.set("ngraph_num_threads", len(cores))
    return cores


# -- this process --------------------------------------------------------------------------------

_lock = new_lock()
_jobs: list[DistributedJob] = []


def start(
    seed: int | None, pins_cores: bool, *, initializes_paddle: bool = False
) -> DistributedJob:
    """Joins the job; returns the existing job if this process has joined already.

    Args:
        seed, pins_cores: See :func:`paddle_ngraph.distributed.init`.
        initializes_paddle: See :meth:`DistributedJob.connect`.
    """
    with _lock:
        if not _jobs:
            reports.connect(os.environ)
            placement = RankPlacement.of_environment(os.environ)
            job = DistributedJob(placement)
            job.connect(initializes_paddle)
            if initializes_paddle or paddle.distributed.is_initialized():
                agreement.install(job.exchange)
            # No rank falls back while it compiles: all ranks compile before the first step, and
            # compute bitwise equal results.
            background_compile.disable()
            if pins_cores and placement.local_ranks > 1:
                pin(placement)
            _jobs.append(job)
        if seed is not None:
            paddle.seed(seed + _jobs[0].placement.rank)
        return _jobs[0]


def current() -> DistributedJob:
    """The job that this process has joined.

    Raises:
        NgraphError: The process has not joined a job.
    """
    if not _jobs:
        raise NgraphError("this process is in no job yet: call paddle_ngraph.distributed.init()")
    return _jobs[0]
