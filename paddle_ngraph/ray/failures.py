"""Failures of trainings by Ray Train, as one sentence that names the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paddle_ngraph.distributed.agreement import RejectedJobError
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ray.installed import ray_module

try:
    from ray.train import UserCallback
except ImportError:  # the module can be read, but PaddleTrainer names the extra
    UserCallback = object


class LostError(NgraphError):
    """Raised if a machine or a worker is lost."""


class RejectionCallback(UserCallback):  # type: ignore[misc]
    """Ends a training whose workers reject it, which Ray would start again.

    What the callback raises in the controller of the training counts as no failure of a worker.
    """

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Any]) -> None:
        """Raises RejectedJobError if a worker has raised it."""
        for error in worker_exceptions.values():
            if isinstance(cause := cause_of(error), RejectedJobError):
                raise cause


def machines() -> set[str]:
    """The addresses of the machines of the cluster; none before Ray is started."""
    ray = ray_module("ray")
    nodes = ray.nodes() if ray.is_initialized() else []
    return {str(node["NodeManagerAddress"]) for node in nodes if node["Alive"]}


def failure_of(error: Any, before: set[str]) -> NgraphError | None:
    """The error for the user: that of a worker or machine, or the reason that all workers give.

    Args:
        error: The ``ray.train.TrainingFailedError``; or the ``RayActorError`` of the controller,
            which ends if the machine of the driver is lost.
        before: The machines before the training.

    Returns:
        ``None``: the loop has raised another error, which the user knows best.
    """
    causes = [cause_of(each) for _, each in sorted(getattr(error, "worker_failures", {}).items())]
    if (failure := getattr(error, "controller_failure", None)) is not None:
        causes.append(cause_of(failure))
    causes = causes or [error]
    reasons = [each for each in causes if isinstance(each, NgraphError)]
    own = [each for each in reasons if not isinstance(each, LostError)]
    if own and len(reasons) == len(causes) and len({str(each) for each in own}) == 1:
        return own[0]
    if lost := sorted(before - machines()):
        return LostError(f"the machine {' and '.join(lost)} is lost, and {_ALLOWED}")
    for cause in causes:
        if isinstance(cause, LostError):
            return LostError(f"{cause}, and {_ALLOWED}")
        if isinstance(cause, ray_module("ray.exceptions").RayActorError):
            address = re.search(r"^\s*ip: (\S+)", str(cause), re.MULTILINE)
            where = f" on {address[1]}" if address else ""
            return LostError(f"a worker{where} was killed, and {_ALLOWED}")
    return None


_ALLOWED = "no further restart is allowed"


def cause_of(failure: BaseException) -> BaseException:
    """The error that a failure of Ray wraps: an argument with which pickle makes the failure."""
    wrapped = (NgraphError, ray_module("ray.exceptions").RayActorError)
    while not isinstance(failure, wrapped):
        arguments = failure.__reduce__()[1]
        inner = next((each for each in arguments if isinstance(each, Exception)), None)
        if inner is None or inner is failure:
            break
        failure = inner
    return failure
