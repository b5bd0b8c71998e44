"""The trainer of a cluster of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ray.installed import ray_module


class PaddleTrainer:
    """Trains a program or dynamic layers on the workers of a cluster, by Ray Train.

    Each worker is a rank of :mod:`paddle_ngraph.distributed`, which it has joined before the loop
    begins: the loop calls neither ``distributed.init`` nor ``init_parallel_env``. A worker uses as
    many threads as Ray has reserved cores for it, one by default. If a worker or a machine is lost,
    Ray starts all workers again, up to ``FailureConfig(max_failures=...)`` times, and
    :func:`resume` takes them to the checkpoint that was reported last.

    Args:
        train_loop: The loop of one rank, without arguments or with ``train_loop_config``.
        train_loop_config: The argument of the loop.
        scaling_config: A ``ray.train.ScalingConfig``. A range ``num_workers=(2, 8)`` continues with
            fewer workers, and grows again.
        run_config: A ``ray.train.RunConfig``. If there are several machines, ``storage_path`` must
            be one that all of them see.
        datasets: Datasets of ``ray.data`` by name, see ``ray.train.get_dataset_shard``.
        seed: See :func:`paddle_ngraph.distributed.init`.

    Raises:
        NgraphError: Ray is missing, or its first version of Ray Train is selected.
    """

    def __init__(
        self,
        train_loop: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        datasets: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        ray_module("ray.train")
        # Without pydantic this module cannot be imported.
        api = ray_module("ray.train.v2.api.data_parallel_trainer")
        from paddle_ngraph.ray.backend import PaddleConfig

        try:
            self._trainer = api.DataParallelTrainer(
                train_loop,
                train_loop_config=train_loop_config,
                backend_config=PaddleConfig(seed),
                scaling_config=scaling_config,
                run_config=run_config,
                datasets=None if datasets is None else dict(datasets),
            )
        except ValueError as error:
            raise NgraphError(str(error)) from error

    def fit(self) -> Any:
        """Runs the training to its end.

        Returns:
            A ``ray.train.Result``.

        Raises:
            NgraphError: The workers cannot form a job, or all of them reject it, for one reason.
            ray.train.TrainingFailedError: A worker or machine is lost more often than
                ``FailureConfig(max_failures=...)`` allows, or the loop raises an error.
        """
        exceptions = ray_module("ray.train.v2.api.exceptions")
        try:
            return self._trainer.fit()
        except exceptions.TrainingFailedError as error:
            reasons = _reasons_of(error)
            if len(reasons) == 1:
                raise NgraphError(reasons.pop()) from error
            raise


def _reasons_of(error: Any) -> set[str]:
    """The messages of a failure that consists of nothing but NgraphErrors; else none."""
    failures = [*getattr(error, "worker_failures", {}).values()]
    failures.append(getattr(error, "controller_failure", None))
    causes = [_cause_of(each) for each in failures if each is not None]
    if all(isinstance(cause, NgraphError) for cause in causes):
        return {str(cause) for cause in causes}
    return set()


def _cause_of(failure: BaseException) -> BaseException:
    """The error that a failure of Ray wraps: the argument with which pickle makes the failure."""
    if isinstance(failure, NgraphError):
        return failure
    arguments = failure.__reduce__()[1]
    return next((each for each in arguments if isinstance(each, NgraphError)), failure)
