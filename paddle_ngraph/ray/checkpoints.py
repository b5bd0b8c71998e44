"""Checkpoints of the package in the storage of Ray Train.

Each worker writes its files to a temporary folder, and Ray copies the files of all workers to one
folder of the storage: whatever file system of pyarrow that is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paddle_ngraph.ray.installed import ray_module


@contextmanager
def checkpoint(state: Any, step: int, scope: Any = None) -> Iterator[Any]:
    """The part of this worker of a checkpoint, for ``ray.train.report``; called by all workers.

    ::

        with paddle_ngraph.ray.checkpoint(program, step + 1) as checkpoint:
            ray.train.report({"loss": loss}, checkpoint=checkpoint)

    Args:
        state: The static PIR training program, or a dict of dynamic layers and optimizers.
        step: The number of completed steps.
        scope: The scope of the variables of a program; ``None``: the scope of ``scope_guard``.

    Returns:
        A context manager for a ``ray.train.Checkpoint``, whose files are deleted at its end.

    Raises:
        NgraphError: On every worker, with one message: the files cannot be written, or the workers
            are at different steps. Ray is missing.
    """
    train = ray_module("ray.train")
    from paddle_ngraph.distributed import checkpoints, job, training_state

    saved = training_state.of(state, scope)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save_part(job.current(), saved, step, Path(folder))
        yield train.Checkpoint.from_directory(folder)


def resume(state: Any, scope: Any = None) -> int:
    """Continues from the checkpoint of the run that was reported last; called by all workers.

    To be called right before the first step. The run may have had more or fewer workers.

    Args:
        state: As for :func:`checkpoint`.
        scope: As for :func:`checkpoint`.

    Returns:
        The number of completed steps: 0 if no checkpoint was reported.

    Raises:
        NgraphError: On every worker, with one message and without side effects: the checkpoint is
            damaged, or of another program; the workers train different ones. Ray is missing.
    """
    latest = ray_module("ray.train").get_checkpoint()
    from paddle_ngraph.distributed import checkpoints, job, training_state

    restored = training_state.of(state, scope)
    if latest is None:
        checkpoints.agree(job.current(), restored)
        return 0
    with latest.as_directory() as folder:
        return checkpoints.restore_parts(job.current(), restored, Path(folder))
