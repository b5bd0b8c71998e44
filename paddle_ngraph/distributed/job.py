"""The processes of a job: who they are, their cores, and what connects them.

A launcher starts the processes: ``python -m paddle_ngraph launch``, or anything else that sets the
same environment variables as ``python -m paddle.distributed.launch``. Paddle's TCPStore introduces
them, and gloo moves the data.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import flags
from paddle_ngraph.distributed import reports
from paddle_ngraph.distributed.meetings import Meetings
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.saved_model import last_line
from paddle_ngraph.paddle_private.names import global_store, make_gloo_context, new_store
from paddle_ngraph.paddle_private.protocols import Store
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.plan.data_parallel import check_divisible
from paddle_ngraph.utils.fork_safe_locks import new_lock

# The gloo context of all ranks, as Paddle numbers it.
RING = 0
# The links of two ranks have numbers from here on.
_FIRST_LINK_ID = 7000
# Of the jobs of a process, which have one store: all ranks make them in the same order.
_link_ids = count()


@dataclass(frozen=True)
class RankPlacement:
    """Where a process stands in its job.

    Attributes:
        rank: Its number.
        ranks: How many there are.
        local_rank: Its number on this machine.
        local_ranks: How many there are on this machine.
        master: ``host:port`` of the store; rank 0 opens it. Empty where there is one rank.
        host: By which other ranks find this one.
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    master: str = ""
    host: str = "127.0.0.1"

    @classmethod
    def of_environment(cls, variables: Mapping[str, str]) -> RankPlacement:
        """The place that ``paddle.distributed.launch`` has given a process.

        Raises:
            NgraphError: A variable is missing or no number in range.
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
        return cls(rank, ranks, local_rank, local_ranks, master, host=endpoint.rpartition(":")[0])


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name, "" if default is None else str(default))
    if not text.isdecimal() or (name.endswith(("NUM", "SIZE")) and int(text) == 0):
        raise NgraphError(
            f"{name}={text!r} in the environment is no number of processes: start the job with "
            "python -m paddle_ngraph launch"
        )
    return int(text)


class Job:
    """The job that this process is part of.

    Args:
        place: Where it stands there.

    Attributes:
        num_exchanges: How often the ranks have met: the same number on all of them.
        checkpoints: Those in use, by their folder.
    """

    def __init__(self, place: RankPlacement) -> None:
        self.place = place
        self._number = next(_link_ids)
        self.num_exchanges = 0
        self.checkpoints: dict[Path, Any] = {}  # see checkpoints.of_job

    @cached_property
    def store(self) -> Store:
        """The table that all ranks share.

        Raises:
            NgraphError: Rank 0 cannot open it.
        """
        if self.place.rank == 0 and not paddle.distributed.is_initialized():
            _reject_used_port(self.place.master)
        return global_store()

    @cached_property
    def _meeting_place(self) -> Meetings:
        place, name = self.place, os.environ.get(reports.JOB_VARIABLE, "")
        # A rank that finds the store of another job at its port waits there in vain.
        key = f"ngraph/meetings/{name}/{self._number}"
        host = place.master.rpartition(":")[0]
        return Meetings(place.rank, place.ranks, host, self.store, key)

    def link_number(self, number: int) -> int:
        """The number of a new link; the same for both ranks, until all ranks meet again.

        Args:
            number: Of the links that are made between two meetings, below ``2 * ranks``.
        """
        return _FIRST_LINK_ID + self.num_exchanges * 2 * self.place.ranks + number

    def new_store(self, name: str, opens: bool) -> Store:
        """Another table, which one rank opens and another one uses.

        Args:
            name: Of the table, the same for both; every table has another one.
            opens: Whether this rank opens it.
        """
        if opens:
            with socket.socket() as reserved:  # Paddle listens there beside it
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserved.bind(("", 0))
                port = int(reserved.getsockname()[1])
                store = new_store("127.0.0.1", port, True, 0)
            self.store.set(name, f"{self.place.host}:{port}")
            return store
        host, _, port_there = self.store.get(name).decode().rpartition(":")
        return new_store(host, int(port_there), False, 0)

    def connect(self) -> None:
        """Makes the gloo context that collective operators of static programs need."""
        if self.place.ranks == 1:
            return
        self.barrier()  # gloo would not wait as long
        if not paddle.distributed.is_initialized():  # init_parallel_env() has made it
            make_gloo_context(self.store, str(RING), self.place.rank, self.place.ranks)

    def exchange(self, text: str) -> list[str]:
        """What each rank says here, by rank; returns when all have said it.

        Raises:
            NgraphError: Another rank has gone, or has not come for 15 minutes; or the store cannot
                be opened.
        """
        if self.place.ranks == 1:
            return [text]
        self.num_exchanges += 1
        reports.report_meeting(self.num_exchanges)
        try:
            return self._meeting_place.exchange(text)
        except NgraphError:
            raise
        except Exception as error:  # Paddle's own have many types
            raise NgraphError(
                f"rank {self.place.rank} waits in vain for the other ranks: rank 0 has gone, or "
                f"another one has not come ({last_line(error)})"
            ) from error

    def barrier(self) -> None:
        """Waits until every rank is here."""
        self.exchange("here")


def _reject_used_port(master: str) -> None:
    """Paddle's store aborts the process if another one listens there."""
    _, _, port = master.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except (OSError, OverflowError) as error:
            raise NgraphError(
                f"port {port} of this machine cannot be used ({error}): give another one, with "
                "--port of paddle_ngraph launch, --master of paddle.distributed.launch, or "
                "PADDLE_MASTER"
            ) from error


def share_of(name: str, batch: Any, place: RankPlacement) -> Any:
    """The part of an array that a rank computes; as :func:`part_of`."""
    return part_of(name, batch, place.rank, place.ranks, "ranks")


def part_of(name: str, batch: Any, number: int, parts: int, what: str) -> Any:
    """One of some equal parts of an array.

    Args:
        name: What the array is fed as.
        batch: The array.
        number: That of the part.
        parts: How many there are.
        what: What they are; for the message.

    Raises:
        NgraphError: The batch does not divide.
    """
    batch = batch if hasattr(batch, "shape") else np.asarray(batch)
    size = batch.shape[0] if len(batch.shape) > 0 else 0
    check_divisible(name, size, parts, what)
    size //= parts
    return batch[number * size : (number + 1) * size]


# -- cores ---------------------------------------------------------------------------------------


def cores_of(usable: Sequence[int], local_rank: int, local_ranks: int) -> list[int]:
    """The cores of a rank: ranks of one machine share them out evenly.

    Args:
        usable: Those that the job may use.
        local_rank: The number of the rank on its machine.
        local_ranks: How many ranks there are; if there are more than cores, several use one.
    """
    cores = sorted(usable)
    if local_ranks >= len(cores):
        return [cores[local_rank % len(cores)]]
    first, last = (len(cores) * number // local_ranks for number in (local_rank, local_rank + 1))
    return cores[first:last]


def pin(place: RankPlacement) -> list[int]:
    """Keeps all threads of this process on its cores; returns them."""
    cores = cores_of(list(os.sched_getaffinity(0)), place.local_rank, place.local_ranks)
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:  # it has ended since
            continue
    if flags.get("ngraph_num_threads") == 0:
        flags.set("ngraph_num_threads", len(cores))
    return cores


# -- this process --------------------------------------------------------------------------------

_lock = new_lock()
_jobs: list[Job] = []


def start(seed: int | None, pins_cores: bool) -> Job:
    """Joins the job; a second call returns the same."""
    with _lock:
        if not _jobs:
            reports.connect(os.environ)
            place = RankPlacement.of_environment(os.environ)
            job = Job(place)
            job.connect()
            # All ranks compile before the first step, and compute the same bits.
            background_compile.disable()
            if pins_cores and place.local_ranks > 1:
                pin(place)
            _jobs.append(job)
        if seed is not None:
            paddle.seed(seed + _jobs[0].place.rank)
        return _jobs[0]


def current() -> Job:
    """The job that this process has joined.

    Raises:
        NgraphError: It has not.
    """
    if not _jobs:
        raise NgraphError("this process is in no job yet: call paddle_ngraph.distributed.init()")
    return _jobs[0]
