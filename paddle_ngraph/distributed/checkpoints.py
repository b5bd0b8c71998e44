"""Checkpoints of a job: the complete state for an exact continuation of a training.

Rank 0 writes the variables, and every rank writes those that differ from rank 0's (accumulated
gradients, running statistics between updates) and its random states. Each stage succeeds on all
ranks or fails on all of them, with one message.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddle_ngraph.distributed import checkpoint_files, first_run
from paddle_ngraph.distributed.checkpoint_files import Checkpoint, Folder
from paddle_ngraph.distributed.job import DistributedJob
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.saved_model import last_line
from paddle_ngraph.paddle_private.names import (
    set_random_states,
    stream_from_plain,
    stream_to_plain,
)
from paddle_ngraph.paddle_private.protocols import Program, Scope
from paddle_ngraph.transpiler.scope_copies import variables_of
from paddle_ngraph.utils import signals


def of_job(job: DistributedJob, given: str | os.PathLike[str] | None) -> Checkpoints:
    """The checkpoints of a job, in the folder ``given``, or else in the launcher's.

    Raises:
        NgraphError: No folder was given, or the folder cannot be used.
    """
    name = os.environ.get(checkpoint_files.VARIABLE, "") if given is None else os.fspath(given)
    if not name:
        raise NgraphError(
            "there is no folder for checkpoints: give folder=, or start the job with "
            "python -m paddle_ngraph launch --checkpoint DIR"
        )
    path = Path(name).absolute()
    if path not in job.checkpoints:
        job.checkpoints[path] = Checkpoints(job, path)
    return job.checkpoints[path]


class Checkpoints:
    """The checkpoints of a job in one folder. All ranks call equal methods in equal order.

    Args:
        job: The job.
        path: The folder, visible to all ranks.

    Raises:
        NgraphError: The folder cannot be used.
    """

    def __init__(self, job: DistributedJob, path: Path) -> None:
        self._job = job
        self._path = path
        # The folder of checkpoints, which only rank 0 opens; ``None`` on all other ranks.
        self._folder: Folder | None = None
        # The step of the checkpoint that was written or read last; ``None`` before the first one.
        self._step: int | None = None
        self._stage(f"{path} cannot be used", of_first=self._open)

    def save(self, program: Program, step: int, scope: Scope) -> None:
        """Writes a checkpoint of the job; see :func:`paddle_ngraph.distributed.checkpoint`."""
        what = f"the checkpoint of step {step} cannot be written"
        rank, digest = self._job.placement.rank, first_run.digest(program)
        variables: dict[str, np.ndarray] = {}
        record: dict[str, Any] = {}

        def collect() -> str:
            if not 0 <= step <= checkpoint_files.LAST_STEP:
                raise NgraphError(f"step={step}: give the number of completed steps")
            variables.update(_read(program, scope))
            record.update(_record(program))
            return f"step {step} of program {digest}"

        self._reject_differences(self._stage(what, collect))
        if step == self._step:
            return
        first, *_ = self._stage(what, of_first=lambda: self._begin(step))
        unfinished = Path(first)
        try:
            self._stage(what, of_first=lambda: _write(unfinished, 0, record, variables))
            if self._job.placement.ranks > 1:
                self._stage(
                    what, of_others=lambda: _write(unfinished, rank, record, variables, unlike=0)
                )
            self._stage(what, of_first=lambda: self._finish(unfinished, step, digest))
        except BaseException:
            if self._folder is not None:
                self._folder.abandon(unfinished)
            raise
        self._step = step

    def restore(self, program: Program, scope: Scope) -> int:
        """Continues from the newest checkpoint; see :func:`paddle_ngraph.distributed.resume`."""
        what = f"the checkpoints in {self._path} cannot be used"
        found, *_ = self._stage(what, of_first=self._newest)
        if not found:
            return 0
        checkpoint = Checkpoint(self._path, *json.loads(found))
        restorers: list[Callable[[], None]] = []

        def read() -> None:
            restorers.extend(self._restorers(checkpoint, program, scope))

        self._stage(what, read)
        for restore in restorers:
            restore()
        self._step = checkpoint.step
        return checkpoint.step

    # -- stages ----------------------------------------------------------------------------------

    def _stage(
        self,
        failure: str,
        of_all: Callable[[], object] | None = None,
        *,
        of_first: Callable[[], object] | None = None,
        of_others: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Calls a function on each rank; returns the results, by rank.

        Raises:
            NgraphError: The function has failed on a rank: on all ranks, with one message.
        """
        rank = self._job.placement.rank
        work = of_all or (of_first if rank == 0 else of_others)
        result, why = None, ""
        with signals.recognized_signals():
            try:
                result = work() if work is not None else None
            except NgraphError as error:
                why = str(error)
            except OSError as error:
                signals.raise_if_from_outside(error)
                why = f"{failure}: {error.strerror or error}"
                if error.filename is not None:
                    why += f" ({error.filename})"
            except Exception as error:
                signals.raise_if_from_outside(error)
                # Catches all errors: the other ranks would hang if this one sent no answer.
                why = f"{failure}: {type(error).__name__}: {last_line(error)}"
        replies = [json.loads(each) for each in self._job.exchange(json.dumps([result, why]))]
        for _, reason in replies:
            if reason:
                raise NgraphError(reason)
        return [each for each, _ in replies]

    @staticmethod
    def _reject_differences(reports: Sequence[str]) -> None:
        for rank, each in enumerate(reports):
            if each != reports[0]:
                raise NgraphError(
                    f"rank 0 is about to write a checkpoint of {reports[0]}, and rank {rank} of "
                    f"{each}: all ranks have to call checkpoint() after the same steps"
                )

    # -- of rank 0 -------------------------------------------------------------------------------

    def _open(self) -> None:
        self._folder = Folder(self._path)

    def _begin(self, step: int) -> str:
        assert self._folder is not None
        return str(self._folder.begin(step))

    def _finish(self, unfinished: Path, step: int, digest: str) -> None:
        assert self._folder is not None
        self._folder.finish(unfinished, step, self._job.placement.ranks, {"program": digest})

    def _newest(self) -> str:
        assert self._folder is not None
        found = self._folder.newest()
        return "" if found is None else json.dumps([found.step, found.ranks, found.common])

    # -- reading ---------------------------------------------------------------------------------

    def _restorers(
        self, checkpoint: Checkpoint, program: Program, scope: Scope
    ) -> list[Callable[[], None]]:
        """Reads the data of this rank; returns functions that restore the state from the data."""
        placement, digest = self._job.placement, first_run.digest(program)
        if checkpoint.ranks != placement.ranks:
            raise NgraphError(
                f"{checkpoint.path} is that of {checkpoint.ranks} ranks, and this job has "
                f"{placement.ranks}: start it with as many, or give another folder to begin anew"
            )
        if checkpoint.common["program"] != digest:
            raise NgraphError(
                f"{checkpoint.path} is that of another program: give another folder to begin anew"
            )
        values: dict[str, np.ndarray] = {}
        for rank in dict.fromkeys((0, placement.rank)):
            record, arrays = checkpoint.data_of(rank)
            values.update(zip(record["variables"], arrays))
        variables = variables_of(program, scope)
        tensors = {name: variable.get_tensor() for name, variable in variables.items()}
        for name, tensor in tensors.items():
            if name not in values or list(values[name].shape) != list(tensor.shape()):
                raise NgraphError(f"{checkpoint.path} has no {name!r} of this shape")
        scheduler, schedule = _scheduler(program), record["schedule"]
        if _keys(schedule) != _keys(_state(scheduler)):
            raise NgraphError(
                f"{checkpoint.path} is that of another schedule of the learning rate: give another "
                "folder to begin anew"
            )

        def set_variables() -> None:
            for name, tensor in tensors.items():
                tensor.set(values[name], paddle.CPUPlace())

        def set_schedule() -> None:
            if scheduler is not None:
                scheduler.set_state_dict(schedule)

        return [set_variables, set_schedule, lambda: _set_random_streams(record["random"])]


# -- the state of one rank -----------------------------------------------------------------------


def _read(program: Program, scope: Scope) -> dict[str, np.ndarray]:
    variables = variables_of(program, scope)
    return {name: np.array(variable.get_tensor()) for name, variable in variables.items()}


def _record(program: Program) -> dict[str, Any]:
    scheduler = _scheduler(program)
    try:
        schedule = json.loads(json.dumps(_state(scheduler), default=_plain))
    except (TypeError, ValueError) as error:
        raise NgraphError(
            f"the state of {type(scheduler).__name__} cannot be saved: its state_dict() "
            f"has to consist of numbers and text ({error})"
        ) from error
    return {"schedule": schedule, "random": _random_streams()}


def _write(
    unfinished: Path,
    rank: int,
    record: Mapping[str, Any],
    variables: Mapping[str, np.ndarray],
    unlike: int | None = None,
) -> None:
    """Writes the variables of a rank, except variables that are equal on rank ``unlike``."""
    digests = {name: checkpoint_files.digest_of(value) for name, value in variables.items()}
    known = {} if unlike is None else checkpoint_files.read_record(unfinished, unlike)["variables"]
    own = {name: digest for name, digest in digests.items() if known.get(name) != digest}
    names = sorted(own)
    full = {**record, "variables": {name: own[name] for name in names}}
    checkpoint_files.write_data(unfinished, rank, full, [variables[name] for name in names])


def _scheduler(program: Program) -> Any:
    return getattr(program, "lr_scheduler", None)


def _state(scheduler: Any) -> dict[str, Any] | None:
    return None if scheduler is None else scheduler.state_dict()


def _keys(state: Any) -> Any:
    """A nested dict with the same keys, but ``None`` for all values that are no dicts."""
    return {key: _keys(state[key]) for key in state} if isinstance(state, dict) else None


def _plain(number: Any) -> Any:
    if isinstance(number, np.generic):
        return number.item()
    raise TypeError(f"{type(number).__name__} is neither")


def _random_streams() -> dict[str, Any]:
    """The states of the random generators of Paddle, NumPy and Python, as JSON data."""
    of_numpy = np.random.get_state(legacy=False)
    version, numbers, spare = random.getstate()
    return {
        "paddle": [stream_to_plain(stream) for stream in paddle.get_rng_state("cpu")],
        "numpy": json.loads(json.dumps(of_numpy, default=_listed)),
        "python": [version, list(numbers), spare],
    }


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else _plain(value)


def _set_random_streams(streams: Mapping[str, Any]) -> None:
    set_random_states([stream_from_plain(plain) for plain in streams["paddle"]])
    np.random.set_state(streams["numpy"])
    version, numbers, spare = streams["python"]
    random.setstate((version, tuple(numbers), spare))
