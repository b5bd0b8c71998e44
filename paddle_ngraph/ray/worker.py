"""Functions that run in the workers of a cluster: a worker becomes a rank.

The controller of Ray Train calls these functions by Ray's own means, before the training loop.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import paddle

from paddle_ngraph import flags, installation, library
from paddle_ngraph.distributed import job
from paddle_ngraph.distributed.machines import NO_AVX2
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import in_static_mode
from paddle_ngraph.utils.cpu_info import lacks_avx2
from paddle_ngraph.version import __version__

# Sockets that reserve ports until the process ends: bound, but without a listener.
_reserved: list[socket.socket] = []


def describe() -> dict[str, str]:
    """Versions, to be equal on all workers, and ``problem``: why this one cannot run, if so."""
    problem = NO_AVX2 if lacks_avx2() else ""
    try:
        library.load()
    except NgraphError as error:
        problem = str(error)
    versions = ", ".join([__version__, *installation.versions()])
    return {"versions": versions, "problem": problem}


def reserve_port(host: str) -> int:
    """A port of this machine, for the store of the job."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    _reserved.append(reserved)
    return int(reserved.getsockname()[1])


def place(variables: Mapping[str, str], cores: int) -> None:
    """Makes this process a rank.

    Args:
        variables: The environment of the rank.
        cores: The number of cores that Ray has reserved for this worker.
    """
    # Ray ends workers by SIGTERM, at which Paddle would print a stack.
    paddle.disable_signal_handler()
    os.environ.update(variables)
    if flags.get("ngraph_num_threads") == 0:
        flags.set("ngraph_num_threads", max(1, cores))


@contextmanager
def joined(seed: int | None) -> Iterator[None]:
    """Joins the job in the thread of the training loop."""
    # Paddle leaves its dynamic mode only in the thread that has entered it, and a new thread
    # inherits the mode of another one. So this thread enters it, in static mode.
    in_static_mode(paddle.disable_static)()
    placement = job.RankPlacement.of_environment(os.environ)
    threads = flags.get("ngraph_num_threads")
    # Pinned ranks have cores of their own only if they use the whole machine: other jobs of the
    # cluster may run on the rest.
    fills = placement.local_ranks * threads >= len(os.sched_getaffinity(0))
    job.start(seed, fills, initializes_paddle=True)
    yield


def write_mark(name: str, folder: str | None) -> None:
    """Creates a file in a folder, or else in the storage of the run, for other machines."""
    files, path = _storage(folder)
    files.create_dir(path, recursive=True)
    with files.open_output_stream(f"{path}/{name}"):
        pass


def sees_mark(name: str, folder: str | None) -> bool:
    """Whether the folder, or the storage, has the file."""
    from pyarrow import fs

    files, path = _storage(folder)
    return bool(files.get_file_info(f"{path}/{name}").type == fs.FileType.File)


def remove_mark(name: str, folder: str | None) -> None:
    """Deletes the file."""
    files, path = _storage(folder)
    files.delete_file(f"{path}/{name}")


def _storage(folder: str | None) -> tuple[Any, str]:
    """The file system of pyarrow and the path of a folder, or of the storage of the run."""
    if folder is not None:
        from pyarrow import fs

        return fs.LocalFileSystem(), folder
    from ray import train

    storage = train.get_context().get_storage()
    return storage.storage_filesystem, storage.experiment_fs_path
