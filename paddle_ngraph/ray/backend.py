"""The backend of Ray Train that makes its workers the ranks of a job.

Runs in the controller of a training, once for each start of its workers.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from paddle_ngraph.distributed import environment
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ray import worker
from paddle_ngraph.ray.installed import ray_module

try:
    from ray.train.backend import Backend, BackendConfig
except ImportError:  # the module can be read, but PaddleTrainer names the extra
    Backend = BackendConfig = object


@dataclass
class PaddleConfig(BackendConfig):  # type: ignore[misc]
    """The configuration of :class:`PaddleBackend`.

    Attributes:
        seed: See :func:`paddle_ngraph.distributed.init`.
        joins: Whether the workers themselves are the ranks. Otherwise processes that they start
            are, to which they pass the variables of the job.
        folder: The folder that all machines have to see; ``None``: the storage of the run, or
            nothing if the workers do not join.
    """

    seed: int | None = None
    joins: bool = True
    folder: str | None = None

    @property
    def backend_cls(self) -> type[Backend]:
        return PaddleBackend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        return functools.partial(worker.joined, self.seed) if self.joins else nullcontext


class PaddleBackend(Backend):  # type: ignore[misc]
    """Connects the workers: the port of the store, the secret of the job, and places."""

    def on_start(self, worker_group: Any, backend_config: PaddleConfig) -> None:
        """Makes each worker a rank.

        Raises:
            NgraphError: The workers cannot form a job: on each machine something else is
                installed, or the storage is not shared.
        """
        workers = worker_group.get_workers()
        hosts = [each.metadata.node_ip for each in workers]
        _check_versions(hosts, worker_group.execute(worker.describe))
        if len(set(hosts)) > 1 and (backend_config.joins or backend_config.folder):
            _check_storage(worker_group, hosts, backend_config.folder)
        addresses = [_LOOPBACK] * len(hosts) if len(set(hosts)) == 1 else hosts
        ports = _on_each(worker_group, worker.reserve_port, [(a,) for a in addresses])
        endpoints = [f"{address}:{port}" for address, port in zip(addresses, ports)]
        shared = environment.new_job()
        places = [each.distributed_context for each in workers]
        cores = int(worker_group.get_resources_per_worker().get("CPU", 1))
        variables = [
            {
                **environment.of_rank(
                    rank,
                    endpoints,
                    local_rank=place.local_rank,
                    local_ranks=place.local_world_size,
                    node=place.node_rank,
                    nodes=len(set(hosts)),
                ),
                **shared,
            }
            for rank, place in enumerate(places)
        ]
        _on_each(worker_group, worker.place, [(each, cores) for each in variables])


_LOOPBACK = "127.0.0.1"


def _on_each(group: Any, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Any:
    """Calls a function on each worker with arguments of its own; returns the results."""
    return ray_module("ray").get(
        [group.execute_single_async(rank, function, *each) for rank, each in enumerate(arguments)]
    )


def _check_versions(hosts: Sequence[str], found: Sequence[dict[str, str]]) -> None:
    for host, each in zip(hosts, found):
        if each["problem"]:
            raise NgraphError(f"the worker on {host} cannot run: {each['problem']}")
        if each["versions"] != found[0]["versions"]:
            raise NgraphError(
                f"{hosts[0]} has {found[0]['versions']} installed, and {host} has "
                f"{each['versions']}: install equal versions on all machines of the cluster"
            )


def _check_storage(group: Any, hosts: Sequence[str], folder: str | None) -> None:
    name = f".mark-{secrets.token_hex(8)}"
    group.execute_single(0, worker.write_mark, name, folder)
    seen = group.execute(worker.sees_mark, name, folder)
    group.execute_single(0, worker.remove_mark, name, folder)
    for host, sees in zip(hosts, seen):
        if not sees:
            what, option = (
                ("storage_path", "RunConfig(storage_path=...)")
                if folder is None
                else (f"folder {folder}", "--checkpoint")
            )
            raise NgraphError(
                f"{host} does not see the {what} of {hosts[0]}: give {option} a folder or an "
                "address that all machines share"
            )
