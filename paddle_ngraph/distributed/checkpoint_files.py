"""Checkpoints on disk, written atomically: every folder with the name of one is complete.

A checkpoint is a folder, ``step-00000042``. The folder contains an npz file with arrays and a JSON
file with all other data for each rank, and one manifest with the digests of these files and of
itself. The folder is written under another name, synced to disk, and only then renamed. Data that
is read is never unpickled or executed, and never used before its digest was verified.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.own_files import open_unlinked
from paddle_ngraph.warning_codes import WarningCode, warn

# Environment variable in which `python -m paddle_ngraph launch --checkpoint` passes the folder.
VARIABLE = "PADDLE_NGRAPH_CHECKPOINT_DIR"
MAX_CHECKPOINTS = 3  # number of checkpoints in a folder; older ones are deleted
_NAME = re.compile(r"step-([0-9]{8,18})")
LAST_STEP = 10**18 - 1
_MANIFEST = "manifest.json"
_FORMAT = 1
_LOCK = ".lock"
# The prefix of folders that are no complete checkpoints: still being written, or being deleted.
_UNFINISHED = ".unfinished-"
_DAMAGED = "damaged-"
_MISSING_ERRNOS = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO})

Record = Mapping[str, Any]
# The size and digest of each file of one rank, by name.
Files = Mapping[str, Sequence[Any]]


class _Damaged(Exception):
    """Raised for a damaged checkpoint; the message is the reason."""


class Checkpoint(NamedTuple):
    """A complete checkpoint with verified digests.

    Attributes:
        path: The folder that contains the files of this checkpoint.
        step: The number of completed steps.
        ranks: The number of ranks.
        common: The record passed to :func:`write_manifest`.
    """

    path: Path
    step: int
    ranks: int
    common: Record

    def data_of(self, rank: int) -> tuple[Record, list[np.ndarray]]:
        """The data that :func:`write_data` has written for a rank.

        Raises:
            NgraphError: The data cannot be read any more.
        """
        arrays, record = _names(rank)
        with signals.recognized_signals():
            try:
                record_data = _decoded((self.path / record).read_bytes())
                with np.load(self.path / arrays, allow_pickle=False) as file:
                    return record_data, [file[f"arr_{number}"] for number in range(len(file.files))]
            except (OSError, _Damaged, *_READ_ERRORS) as error:
                signals.raise_if_from_outside(error)
                raise NgraphError(f"{self.path} cannot be read: {error}") from error


# Types of the errors that NumPy raises for a damaged npz file.
_READ_ERRORS = (
    ValueError,
    KeyError,
    EOFError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


class Folder:
    """A folder of checkpoints, which one process manages.

    Args:
        path: The folder, created if missing.

    Raises:
        NgraphError: Another process manages the folder.
        OSError: The folder cannot be created, or written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.makedirs(path, exist_ok=True)
        # The lock file, which stays locked until this process ends. A lock of this type is not
        # inherited by forked processes, which may live longer.
        self._lock = open(path / _LOCK, "ab", opener=open_unlinked)  # noqa: SIM115
        with signals.own_errors():
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._lock.close()
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise NgraphError(
                    f"another job has its checkpoints in {path}: give each job a folder of its own"
                ) from error
        for rest in path.glob(f"{_UNFINISHED}*"):
            _remove(rest)

    def mark(self) -> str:
        """Creates a file by whose name other machines recognize this folder; returns the name."""
        name = f"{_UNFINISHED}mark-{secrets.token_hex(8)}"
        _write(self.path / name, b"")
        return name

    def begin(self, step: int) -> Path:
        """Creates the folder into which ranks write a checkpoint.

        Raises:
            NgraphError: There is a checkpoint of this step, or of a later one.
            OSError: The folder cannot be created.
        """
        newest = newest_step(self.path)
        if newest is not None and newest >= step:
            raise NgraphError(
                f"{self.path} has a checkpoint of step {newest} already, so there cannot be one of "
                f"step {step}: begin with resume(), or give another folder"
            )
        unfinished = self.path / f"{_UNFINISHED}{step}"
        # Removes the files of an earlier attempt that failed.
        _remove(unfinished)
        unfinished.mkdir()
        return unfinished

    def finish(self, unfinished: Path, step: int) -> None:
        """Completes a checkpoint that has its manifest; then deletes the oldest.

        Raises:
            OSError: The checkpoint cannot be completed.
        """
        _sync_folder(unfinished)
        unfinished.rename(self.path / _name(step))
        _sync_folder(self.path)
        for old in _steps(self.path)[:-MAX_CHECKPOINTS]:
            self._delete(old)

    def abandon(self, unfinished: Path) -> None:
        """Deletes the folder of a checkpoint that was not finished."""
        _remove(unfinished)

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint; ``None`` if there has never been one.

        Newer but damaged checkpoints are renamed, and reported in a warning.

        Raises:
            NgraphError: There are checkpoints, and all of them are damaged.
            OSError: The folder cannot be read.
        """
        damaged: list[tuple[int, str]] = []
        for step in reversed(_steps(self.path)):
            try:
                found = _verified(self.path / _name(step), step)
            except _Damaged as error:
                damaged.append((step, str(error)))
                continue
            for number, why in damaged:
                self._rename_damaged(number, why)
            return found
        for number, why in damaged[:1]:
            raise NgraphError(
                f"{self.path / _name(number)} is damaged ({why}), and there is no complete "
                "checkpoint beside it: give another folder to begin anew"
            )
        return None

    def _delete(self, step: int) -> None:
        # Renames the folder before it is deleted: if this process is killed meanwhile, no partial
        # checkpoint is left under a valid name.
        doomed = self.path / f"{_UNFINISHED}old-{step}"
        _remove(doomed)
        with signals.own_errors():
            try:
                (self.path / _name(step)).rename(doomed)
            except OSError as error:
                # Only warns: a checkpoint that cannot be deleted is no reason to end the training.
                message = f"an old checkpoint cannot be deleted: {error}"
                warn(WarningCode.CHECKPOINT_KEPT, message)
                return
        _remove(doomed)

    def _rename_damaged(self, step: int, why: str) -> None:
        path = self.path / _name(step)
        target = self.path / f"{_DAMAGED}{path.name}"
        for number in range(1, 1000):
            if not target.exists():
                break
            target = self.path / f"{_DAMAGED}{path.name}-{number}"
        path.rename(target)
        warn(
            WarningCode.CHECKPOINT_DAMAGED,
            f"{path} is damaged ({why}): it is renamed to {target.name}, and the job continues "
            "from an earlier checkpoint",
        )


def newest_step(path: Path) -> int | None:
    """The step of the newest checkpoint of a folder, by its name; ``None`` if there is none."""
    return max(_steps(path), default=None)


def opened(path: Path) -> Checkpoint:
    """Opens one checkpoint, whatever the name of its folder.

    Raises:
        NgraphError: The checkpoint is damaged.
        OSError: The folder cannot be read.
    """
    try:
        return _verified(path)
    except _Damaged as error:
        raise NgraphError(f"the checkpoint {path} is damaged ({error})") from error


def write_data(unfinished: Path, rank: int, record: Record, arrays: Sequence[np.ndarray]) -> Files:
    """Writes the record and arrays of one rank, synced to disk.

    Raises:
        OSError: A file cannot be written.
    """
    of_arrays, of_record = _names(rank)
    # Mode x, here and in _write: an existing name may be a link to another file.
    with open(unfinished / of_arrays, "xb") as file:
        np.savez(file, *arrays)
        file.flush()
        os.fsync(file.fileno())
    _write(unfinished / of_record, _encoded(record))
    return {name: _size_and_digest(unfinished / name) for name in (of_arrays, of_record)}


def write_manifest(unfinished: Path, step: int, files: Sequence[Files], common: Record) -> None:
    """Writes the manifest of a checkpoint, synced to disk.

    Args:
        unfinished: The folder.
        step: The number of completed steps.
        files: The results of :func:`write_data` of each rank, by rank.
        common: A record that belongs to all ranks.

    Raises:
        OSError: The file cannot be written.
    """
    content = {
        "format": _FORMAT,
        "step": step,
        "ranks": len(files),
        "files": {name: each[name] for each in files for name in each},
        "common": common,
    }
    digest = _digest(_encoded(content))
    _write(unfinished / _MANIFEST, _encoded({"content": content, "digest": digest}))


def digest_of(array: np.ndarray) -> str:
    """A digest of the dtype, shape and elements of an array."""
    form = f"{array.dtype.str} {array.shape} ".encode()
    return _digest(form, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _remove(path: Path) -> None:
    """Deletes a folder or a file; ignores errors."""
    with signals.own_errors():
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


def _name(step: int) -> str:
    return f"step-{step:08}"


def _names(rank: int) -> tuple[str, str]:
    return f"rank_{rank}.npz", f"rank_{rank}.json"


def _steps(path: Path) -> list[int]:
    """The steps of all checkpoints in a folder, in ascending order."""
    if not path.is_dir():
        return []
    found = ((name, _NAME.fullmatch(name)) for name in os.listdir(path))
    steps = ((name, int(match[1])) for name, match in found if match is not None)
    return sorted(step for name, step in steps if name == _name(step))


def _verified(path: Path, step: int | None = None) -> Checkpoint:
    """Opens a checkpoint, of a step if one is given.

    Raises _Damaged if a file does not match its digest, or the step is another one.
    """
    with signals.recognized_signals():
        try:
            return _read_and_verified(path, step)
        except OSError as error:
            signals.raise_if_from_outside(error)
            if error.errno not in _MISSING_ERRNOS:
                raise
            file = Path(error.filename or path)
            raise _Damaged(f"{file.name}: {error.strerror}") from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            signals.raise_if_from_outside(error)
            raise _Damaged(f"{_MANIFEST} is invalid") from error


def _read_and_verified(path: Path, step: int | None) -> Checkpoint:
    document = _decoded((path / _MANIFEST).read_bytes())
    content: Any = document["content"]
    if document["digest"] != _digest(_encoded(content)):
        raise _Damaged(f"the digest of {_MANIFEST} is wrong")
    if content["format"] != _FORMAT:
        raise NgraphError(f"{path} is of another version of paddle_ngraph: install that")
    if step is not None and content["step"] != step:
        raise _Damaged(f"it is that of step {content['step']}")
    for rank in range(content["ranks"]):
        for name in _names(rank):
            if _size_and_digest(path / name) != content["files"][name]:
                raise _Damaged(f"the digest of {name} is wrong")
    return Checkpoint(path, content["step"], content["ranks"], content["common"])


def _encoded(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Damaged("a file is no JSON") from error
    if not isinstance(content, dict) or _encoded(content) != data:
        raise _Damaged("the digest of a file is wrong")
    return content


def _digest(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _size_and_digest(path: Path) -> list[Any]:
    digest, size = hashlib.blake2b(digest_size=16), 0
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
            size += len(data)
    return [size, digest.hexdigest()]


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Syncs the names in a folder to disk; its files are synced already."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
