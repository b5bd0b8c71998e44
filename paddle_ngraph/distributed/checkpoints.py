"""Checkpoints of a job: the complete state for an exact continuation of a training.

Rank 0 writes the values, and every rank writes those that differ from rank 0's (accumulated
gradients, running statistics between updates) and its random states. Each stage succeeds on all
ranks or fails on all of them, with one message.

A checkpoint is written to a folder that all ranks see, or in parts: each rank writes its files to
a folder of its own, and somebody else, such as Ray, brings them together.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle

from paddle_ngraph.distributed import checkpoint_files
from paddle_ngraph.distributed.agreement import RejectedJobError
from paddle_ngraph.distributed.checkpoint_files import Checkpoint, Files, Folder
from paddle_ngraph.distributed.job import DistributedJob
from paddle_ngraph.distributed.training_state import TrainingState
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.saved_model import last_line
from paddle_ngraph.paddle_private.names import (
    set_random_states,
    stream_from_plain,
    stream_to_plain,
)
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
        NgraphError: The folder cannot be used, or is another one on another machine.
    """

    def __init__(self, job: DistributedJob, path: Path) -> None:
        self._job = job
        self._path = path
        # The folder of checkpoints, which only rank 0 opens; ``None`` on all other ranks.
        self._folder: Folder | None = None
        # The step of the checkpoint that was written or read last; ``None`` before the first one.
        self._step: int | None = None
        what = f"{path} cannot be used"
        first, *_ = _stage(job, what, of_first=self._open)
        _stage(job, what, of_others=lambda: self._check_is_shared(first))
        _stage(job, what, of_first=lambda: Path(path, first).unlink())

    def save(self, state: TrainingState, step: int) -> None:
        """Writes a checkpoint of the job; see :func:`paddle_ngraph.distributed.checkpoint`."""
        what = _failure_of(step)
        snapshot = _snapshot(self._job, what, state, step)
        if step == self._step:
            return
        first, *_ = _stage(self._job, what, of_first=lambda: self._begin(step))
        unfinished = Path(first)
        try:
            _write(self._job, what, snapshot, unfinished)
            _stage(self._job, what, of_first=lambda: self._finish(unfinished, step))
        except BaseException:
            if self._folder is not None:
                self._folder.abandon(unfinished)
            raise
        self._step = step

    def restore(self, state: TrainingState) -> int:
        """Continues from the newest checkpoint; see :func:`paddle_ngraph.distributed.resume`."""
        what = f"the checkpoints in {self._path} cannot be used"
        found, *_ = _stage(self._job, what, of_first=self._newest)
        if not found:
            agree(self._job, state)
            return 0
        path, *others = json.loads(found)
        self._step = _restore(self._job, what, state, lambda: Checkpoint(Path(path), *others))
        return self._step

    # -- of rank 0 -------------------------------------------------------------------------------

    def _open(self) -> str:
        self._folder = Folder(self._path)
        return self._folder.mark()

    def _check_is_shared(self, mark: str) -> None:
        if not Path(self._path, mark).is_file():
            raise NgraphError(
                f"rank {self._job.placement.rank} on {self._job.placement.host} does not see the "
                f"folder {self._path} of rank 0: give a folder that all machines share"
            )

    def _begin(self, step: int) -> str:
        assert self._folder is not None
        return str(self._folder.begin(step))

    def _finish(self, unfinished: Path, step: int) -> None:
        assert self._folder is not None
        self._folder.finish(unfinished, step)

    def _newest(self) -> str:
        assert self._folder is not None
        found = self._folder.newest()
        if found is None:
            return ""
        return json.dumps([str(found.path), found.step, found.ranks, found.common])


def save_part(job: DistributedJob, state: TrainingState, step: int, folder: Path) -> None:
    """Writes the files of this rank of a checkpoint; called by all ranks.

    Args:
        job: The job.
        state: The state of the training.
        step: The number of completed steps.
        folder: An empty folder. The files of all ranks together, which have different names, are
            the checkpoint.

    Raises:
        NgraphError: As :func:`paddle_ngraph.distributed.checkpoint`.
    """
    what = _failure_of(step)
    _write(job, what, _snapshot(job, what, state, step), folder)


def restore_parts(job: DistributedJob, state: TrainingState, path: Path) -> int:
    """Continues from one checkpoint; called by all ranks.

    Args:
        job: The job. The number of ranks may be another one than when the checkpoint was written.
        state: The state of the training.
        path: The folder with the files of all ranks.

    Returns:
        The number of completed steps.

    Raises:
        NgraphError: As :func:`paddle_ngraph.distributed.resume`.
    """
    what = f"the checkpoint {path} cannot be used"
    return _restore(job, what, state, lambda: checkpoint_files.opened(path), any_ranks=True)


def agree(job: DistributedJob, state: TrainingState) -> None:
    """Compares the states of all ranks before the first step; called by all ranks.

    Raises:
        NgraphError: On every rank, with one message: the state of a rank cannot be saved.
        RejectedJobError: Ranks differ.
    """
    first, *others = _stage(job, "the states of the ranks cannot be compared", state.digest)
    for rank, each in enumerate(others, 1):
        if each != first:
            raise RejectedJobError(
                f"ranks 0 and {rank} train different programs or layers ({first} and {each}): all "
                "ranks have to build the same"
            )


# -- stages --------------------------------------------------------------------------------------


def _stage(
    job: DistributedJob,
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
    work = of_all or (of_first if job.placement.rank == 0 else of_others)
    result, why, is_rejected = None, "", False
    with signals.recognized_signals():
        try:
            result = work() if work is not None else None
        except NgraphError as error:
            why, is_rejected = str(error), isinstance(error, RejectedJobError)
        except OSError as error:
            signals.raise_if_from_outside(error)
            why = f"{failure}: {error.strerror or error}"
            if error.filename is not None:
                why += f" ({error.filename})"
        except Exception as error:
            signals.raise_if_from_outside(error)
            # Catches all errors: the other ranks would hang if this one sent no answer.
            why = f"{failure}: {type(error).__name__}: {last_line(error)}"
    texts = job.exchange(json.dumps([result, why, is_rejected]))
    replies = [json.loads(each) for each in texts]
    for _, reason, rejects in replies:
        if reason:
            raise (RejectedJobError if rejects else NgraphError)(reason)
    return [each for each, *_ in replies]


class _Snapshot(NamedTuple):
    """The state that one rank writes to a checkpoint."""

    step: int
    digest: str
    arrays: Mapping[str, np.ndarray]
    record: Mapping[str, Any]


def _failure_of(step: int) -> str:
    return f"the checkpoint of step {step} cannot be written"


def _snapshot(job: DistributedJob, what: str, state: TrainingState, step: int) -> _Snapshot:
    """The state of this rank, after the step at which all ranks are."""
    digest = state.digest()
    arrays: dict[str, np.ndarray] = {}
    record: dict[str, Any] = {}

    def collect() -> str:
        if not 0 <= step <= checkpoint_files.LAST_STEP:
            raise NgraphError(f"step={step}: give the number of completed steps")
        arrays.update(state.arrays())
        record.update(schedule=state.schedule(), random=random_streams())
        return f"step {step} of program {digest}"

    _reject_differences(_stage(job, what, collect))
    return _Snapshot(step, digest, arrays, record)


def _reject_differences(reports: Sequence[str]) -> None:
    for rank, each in enumerate(reports):
        if each != reports[0]:
            raise NgraphError(
                f"rank 0 is about to write a checkpoint of {reports[0]}, and rank {rank} of "
                f"{each}: all ranks have to call checkpoint() after the same steps"
            )


def _write(job: DistributedJob, what: str, snapshot: _Snapshot, folder: Path) -> None:
    """Writes the files of all ranks: values that differ from rank 0's, and the manifest."""
    rank = job.placement.rank
    first, *_ = _stage(job, what, of_first=lambda: _write_files(folder, 0, snapshot, {}))
    known, files = first
    written = [files]
    if job.placement.ranks > 1:
        _, *others = _stage(
            job, what, of_others=lambda: _write_files(folder, rank, snapshot, known)
        )
        written += [of_rank for _, of_rank in others]
    common = {"program": snapshot.digest}
    _stage(
        job,
        what,
        of_first=lambda: checkpoint_files.write_manifest(folder, snapshot.step, written, common),
    )


def _write_files(
    folder: Path, rank: int, snapshot: _Snapshot, known: Mapping[str, str]
) -> tuple[Mapping[str, str], Files]:
    """Writes the values of a rank, except those whose digests are ``known`` from rank 0.

    Returns:
        The digests of the values by name, and the sizes and digests of the files.
    """
    digests = {n: checkpoint_files.digest_of(value) for n, value in snapshot.arrays.items()}
    names = sorted(name for name, digest in digests.items() if known.get(name) != digest)
    own = {name: digests[name] for name in names}
    arrays = [snapshot.arrays[name] for name in names]
    record = {**snapshot.record, "variables": own}
    return own, checkpoint_files.write_data(folder, rank, record, arrays)


# -- reading -------------------------------------------------------------------------------------


def _restore(
    job: DistributedJob,
    what: str,
    state: TrainingState,
    opened: Callable[[], Checkpoint],
    *,
    any_ranks: bool = False,
) -> int:
    """Reads a checkpoint on all ranks, and then restores the state; returns the step."""
    found: list[_Found] = []

    def read() -> int:
        checkpoint = opened()
        found.append(_read(job, state, checkpoint, any_ranks))
        return checkpoint.step

    steps = _stage(job, what, read)
    if len(set(steps)) > 1:
        raise NgraphError(f"{what}: the ranks have read checkpoints of different steps")
    (read_state,) = found
    state.restore(read_state.arrays, read_state.schedule)
    set_random_streams(read_state.random)
    return int(steps[0])


class _Found(NamedTuple):
    """The state that one rank has read from a checkpoint."""

    arrays: Mapping[str, np.ndarray]
    schedule: Any
    random: Mapping[str, Any]


def _read(
    job: DistributedJob, state: TrainingState, checkpoint: Checkpoint, any_ranks: bool
) -> _Found:
    ranks = job.placement.ranks
    if checkpoint.ranks != ranks and not any_ranks:
        raise RejectedJobError(
            f"{checkpoint.path} is that of {checkpoint.ranks} ranks, and this job has "
            f"{ranks}: start it with as many, or give another folder to begin anew"
        )
    # The program of a rank depends on the number of ranks.
    if checkpoint.ranks == ranks and checkpoint.common["program"] != state.digest():
        raise RejectedJobError(
            f"{checkpoint.path} is that of another program: give another folder to begin anew"
        )
    if checkpoint.ranks == ranks:
        arrays, record = _of_rank(checkpoint, job.placement.rank)
    else:
        arrays, record = _of_other_ranks(checkpoint, job.placement.rank)
    for name, shape in state.shapes().items():
        if name not in arrays or list(arrays[name].shape) != shape:
            raise RejectedJobError(f"{checkpoint.path} has no {name!r} of this shape")
    schedule = record["schedule"]
    if _keys(schedule) != _keys(state.schedule()):
        raise RejectedJobError(
            f"{checkpoint.path} is that of another schedule of the learning rate: give another "
            "folder to begin anew"
        )
    return _Found(arrays, schedule, record["random"])


def _of_rank(checkpoint: Checkpoint, rank: int) -> tuple[dict[str, np.ndarray], Any]:
    values: dict[str, np.ndarray] = {}
    record: Any = {}
    for each in dict.fromkeys((0, rank)):
        record, arrays = checkpoint.data_of(each)
        values.update(zip(record["variables"], arrays))
    return values, record


def _of_other_ranks(checkpoint: Checkpoint, rank: int) -> tuple[dict[str, np.ndarray], Any]:
    """The values for a rank of a job that has more or fewer ranks.

    Values that differ between ranks, accumulated gradients and running statistics, are averaged:
    the update averages them over the ranks, too. Every rank gets the random streams of NumPy and
    Python that rank 0 had; a rank that did not exist keeps the stream of Paddle that it has.

    Raises:
        RejectedJobError: Integers differ between ranks.
    """
    values, record = _of_rank(checkpoint, 0)
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for other in range(1, checkpoint.ranks):
        of_other, arrays = checkpoint.data_of(other)
        for name, value in zip(of_other["variables"], arrays):
            sums[name] = sums.get(name, 0) + value.astype("float64")
            counts[name] = counts.get(name, 0) + 1
        if other == rank:
            record = {
                **record,
                "random": {**record["random"], "paddle": of_other["random"]["paddle"]},
            }
    for name, total in sums.items():
        first = values[name]
        if not np.issubdtype(first.dtype, np.floating):
            raise RejectedJobError(
                f"{checkpoint.path} is that of {checkpoint.ranks} ranks, which have different "
                f"integers in {name!r}: continue with as many ranks"
            )
        equal = checkpoint.ranks - counts[name]
        mean = (total + equal * first.astype("float64")) / checkpoint.ranks
        values[name] = mean.astype(first.dtype)
    if rank >= checkpoint.ranks:
        record = {**record, "random": {**record["random"], "paddle": None}}
    return values, record


def _keys(state: Any) -> Any:
    """A nested dict with the same keys, but ``None`` for all values that are no dicts."""
    return {key: _keys(state[key]) for key in state} if isinstance(state, dict) else None


# -- random streams ------------------------------------------------------------------------------


def random_streams() -> dict[str, Any]:
    """The states of the random generators of Paddle, NumPy and Python, as JSON data."""
    of_numpy = np.random.get_state(legacy=False)
    version, numbers, spare = random.getstate()
    return {
        "paddle": [stream_to_plain(stream) for stream in paddle.get_rng_state("cpu")],
        "numpy": json.loads(json.dumps(of_numpy, default=_listed)),
        "python": [version, list(numbers), spare],
    }


def _listed(value: Any) -> Any:
    return value.tolist()  # an array or a scalar of NumPy


def set_random_streams(streams: Mapping[str, Any]) -> None:
    if streams["paddle"] is not None:
        set_random_states([stream_from_plain(plain) for plain in streams["paddle"]])
    np.random.set_state(streams["numpy"])
    version, numbers, spare = streams["python"]
    random.setstate((version, tuple(numbers), spare))
