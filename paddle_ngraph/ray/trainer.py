"""The trainer of a cluster of Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ray import failures
from paddle_ngraph.ray.backend import PaddleConfig
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
        self._trainer = created(
            PaddleConfig(seed),
            train_loop,
            train_loop_config=train_loop_config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=None if datasets is None else dict(datasets),
        )

    def fit(self) -> Any:
        """Runs the training to its end.

        Returns:
            A ``ray.train.Result``.

        Raises:
            NgraphError: The workers cannot form a job, or reject it (programs that differ, a
                checkpoint of another program), at once; or a worker or machine, which the sentence
                names, is lost more often than ``FailureConfig(max_failures=...)`` allows.
            ray.train.TrainingFailedError: The loop raises another error.
        """
        return fitted(self._trainer)


def created(config: PaddleConfig, train_loop: Callable[..., Any], **options: Any) -> Any:
    """A ``DataParallelTrainer`` of Ray Train, of which the workers are ranks.

    Raises:
        NgraphError: See :class:`PaddleTrainer`.
    """
    train = ray_module("ray.train")
    # Without pydantic this module cannot be imported.
    api = ray_module("ray.train.v2.api.data_parallel_trainer")
    given = options.pop("run_config", None) or train.RunConfig()
    run_config = dataclasses.replace(
        given, callbacks=[*(given.callbacks or ()), failures.RejectionCallback()]
    )
    try:
        return api.DataParallelTrainer(
            train_loop, backend_config=config, run_config=run_config, **options
        )
    except ValueError as error:
        raise NgraphError(str(error)) from error


def fitted(trainer: Any) -> Any:
    """The result of a trainer, see :meth:`PaddleTrainer.fit`."""
    exceptions = ray_module("ray.train.v2.api.exceptions")
    machines = failures.machines()
    try:
        return trainer.fit()
    except (exceptions.TrainingFailedError, ray_module("ray.exceptions").RayActorError) as error:
        failure = failures.failure_of(error, machines)
        if failure is not None:
            raise failure from error
        raise
