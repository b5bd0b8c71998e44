"""Scripts of ``python -m paddle_ngraph launch`` on a cluster of Ray.

Ray Train places a worker for each rank, and starts all again if a machine is lost. On each machine
one of the workers starts the launcher for the ranks of all workers there: this launcher monitors
its ranks as on a static cluster, and restarts them.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_ngraph import flags
from paddle_ngraph.distributed import bound_to_launcher
from paddle_ngraph.distributed.launcher import MACHINE_LOST, End, LauncherOptions
from paddle_ngraph.distributed.machines import Place
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ray import machine_launcher, trainer
from paddle_ngraph.ray.backend import PaddleConfig
from paddle_ngraph.ray.failures import LostError
from paddle_ngraph.ray.installed import ray_module
from paddle_ngraph.utils import signals

_PROBE_SECONDS = 10.0
# The variables of the driver that the ranks get: settings of Paddle and of this package.
_FORWARDED = ("FLAGS_", "GLOG_")


def launch(address: str, options: LauncherOptions) -> End:
    """Runs a script on a cluster.

    Args:
        address: ``host:port`` of the head of the cluster, or ``auto``.
        options: Those of the launcher, without a place. ``max_restarts`` limits the restarts after
            failures of ranks, and those after losses of machines.

    Raises:
        NgraphError: The options are invalid; no cluster answers; the machines cannot form a job.
    """
    options.check()
    _connect(address)
    train = ray_module("ray.train")
    folder = options.checkpoint and str(Path(options.checkpoint).absolute())
    script = str(Path(options.script).absolute())
    options = dataclasses.replace(options, script=script, checkpoint=folder)
    ranks = trainer.created(
        PaddleConfig(joins=False, folder=folder),
        launch_on_machine,
        train_loop_config={"options": machine_launcher.packed(options), "folder": os.getcwd()},
        scaling_config=train.ScalingConfig(num_workers=options.ranks),
        run_config=train.RunConfig(
            failure_config=train.FailureConfig(max_failures=options.max_restarts)
        ),
    )
    try:
        return End(*trainer.fitted(ranks).return_value)
    except LostError as error:
        return End(MACHINE_LOST, str(error))


def _connect(address: str) -> None:
    """Connects this process to a cluster.

    Raises:
        NgraphError: None answers, or it has another version of Ray.
    """
    # Otherwise Ray would print one of several similar lines.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    ray = ray_module("ray")
    host, _, port = address.rpartition("//")[2].rpartition(":")
    with signals.recognized_signals():
        try:
            # Ray itself would try for a minute.
            if port.isdecimal():
                socket.create_connection((host, int(port)), _PROBE_SECONDS).close()
            variables = {n: v for n, v in os.environ.items() if n.startswith(_FORWARDED)}
            ray.init(address=address, runtime_env={"env_vars": variables})
        except Exception as error:  # Ray raises errors of many types
            signals.raise_if_from_outside(error)
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise NgraphError(
                f"no cluster of Ray can be used at --ray {address} ({reason}): ray start --head "
                "starts one"
            ) from error


def launch_on_machine(config: Mapping[str, Any]) -> End | None:
    """The training loop of a worker: the first one of each machine launches the ranks there.

    Raises:
        NgraphError: This machine cannot run the script, or another machine is lost.
    """
    context = ray_module("ray.train").get_context()
    if context.get_local_rank() != 0:
        return None
    nodes = int(os.environ["PADDLE_NNODES"])
    place = Place(nodes, context.get_node_rank(), os.environ["PADDLE_MASTER"])
    options = dataclasses.replace(
        machine_launcher.unpacked(config["options"]),
        ranks=context.get_local_world_size(),
        place=place,
    )
    host = ray_module("ray.util").get_node_ip_address()
    if not Path(options.script).is_file():
        raise NgraphError(
            f"{host} has no {options.script}: all machines need the script at this path, for "
            "example by ray job submit --working-dir"
        )
    end = _ended(options, config["folder"])
    if end.status == MACHINE_LOST:
        raise LostError(end.sentence)
    return end


def _ended(options: LauncherOptions, folder: str) -> End:
    """The end of a launcher in a process of its own, which the kernel kills with this worker."""
    pipe, its_end = os.pipe()
    with open(pipe, "rb") as answer:
        command = machine_launcher.command(options, folder, its_end)
        process = subprocess.Popen(
            bound_to_launcher.bound(command),
            env={"FLAGS_ngraph_num_threads": str(flags.get("ngraph_num_threads")), **os.environ},
            stdin=subprocess.DEVNULL,
            pass_fds=[its_end],
        )
        os.close(its_end)
        text = answer.read()
    status = process.wait()
    if not text:
        host = ray_module("ray.util").get_node_ip_address()
        raise NgraphError(f"the launcher on {host} has ended with exit status {status}")
    return machine_launcher.end_of(text)
