"""Checkpoints on disk: reads return complete, unchanged checkpoints, even after damage to files."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.distributed import checkpoint_files
from paddle_ngraph.distributed.checkpoint_files import Folder

pytestmark = pytest.mark.pure

ARRAYS = [np.arange(6, dtype="float32").reshape(2, 3), np.array(7, "int64"), np.zeros((0, 3))]


def write(folder: Folder, step: int, ranks: int = 2) -> None:
    """A checkpoint whose contents depend on step and rank."""
    unfinished = folder.begin(step)
    files = []
    for rank in range(ranks):
        arrays = [array + array.dtype.type(step + rank) for array in ARRAYS]
        record = {"rank": rank, "at": step}
        files.append(checkpoint_files.write_data(unfinished, rank, record, arrays))
    checkpoint_files.write_manifest(unfinished, step, files, {"program": "p"})
    folder.finish(unfinished, step)


def assert_whole(found: checkpoint_files.Checkpoint | None, steps: list[int]) -> None:
    assert found is not None and found.step in steps
    assert (found.ranks, found.common) == (2, {"program": "p"})
    for rank in range(2):
        record, arrays = found.data_of(rank)
        assert record == {"rank": rank, "at": found.step}
        for array, expected in zip(arrays, ARRAYS):
            shifted = expected + expected.dtype.type(found.step + rank)
            np.testing.assert_array_equal(array, shifted)
            assert (array.dtype, array.shape) == (shifted.dtype, shifted.shape)


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.name != ".lock")


@pytest.fixture
def folder(tmp_path):
    """Without a checkpoint yet; no other process manages the folder."""
    made = Folder(tmp_path)
    yield made
    made._lock.close()


def test_the_last_three_are_kept(folder):
    assert folder.newest() is None and checkpoint_files.newest_step(folder.path) is None
    for step in (1, 2, 9, 10, 11):
        write(folder, step)
        assert_whole(folder.newest(), [step])
    assert names(folder.path) == [f"step-{step:08}" for step in (9, 10, 11)]
    assert checkpoint_files.newest_step(folder.path) == 11


def test_steps_go_up(folder):
    write(folder, 5)
    for step in (5, 4):
        with pytest.raises(NgraphError, match=r"has a checkpoint of step 5 already.* resume"):
            folder.begin(step)
    assert names(folder.path) == ["step-00000005"]


def changes(data: bytes) -> list[bytes]:
    """Every truncation, and a flip of a bit of every byte."""
    draw = random.Random(len(data))
    flips = [
        data[:at] + bytes([byte ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        for at, byte in enumerate(data)
    ]
    return [data[:length] for length in range(len(data))] + flips


@pytest.mark.slow("compiles many or large functions")
def test_a_torn_checkpoint_is_not_used(folder):
    write(folder, 1)
    write(folder, 2)
    newest = folder.path / "step-00000002"
    files = sorted(newest.iterdir())
    assert len(files) == 5
    for file in files:
        data = file.read_bytes()
        for changed in [*changes(data), data + b" "]:
            file.write_bytes(changed)
            with pytest.raises(checkpoint_files._Damaged):
                checkpoint_files._verified(newest, 2)
        file.write_bytes(data)
        checkpoint_files._verified(newest, 2)


@pytest.mark.parametrize("damage", ["missing", "torn", "another step", "a folder"])
def test_an_earlier_one_is_used_and_the_damaged_one_is_kept(folder, damage):
    write(folder, 1)
    write(folder, 2)
    path = folder.path / "step-00000002"
    file = path / "rank_1.npz"
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "another step":
        path.rename(folder.path / "step-00000003")
        path = folder.path / "step-00000003"
    else:
        file.unlink()
    if damage == "a folder":
        file.mkdir()
    with pytest.warns(
        UserWarning, match=f"{path.name} is damaged .*continues from an earlier"
    ) as w:
        assert_whole(folder.newest(), [1])
    assert len(w) == 1 and "\n" not in str(w[0].message)
    assert names(folder.path) == [f"damaged-{path.name}", "step-00000001"]
    write(folder, 2)
    assert_whole(folder.newest(), [2])
    assert f"damaged-{path.name}" in names(folder.path)


def test_nothing_but_damaged_ones_is_refused(folder):
    write(folder, 1)
    (folder.path / "step-00000001" / "rank_0.json").write_text("{}")
    with pytest.raises(NgraphError, match=r"rank_0.json is wrong\), and there is no complete") as e:
        folder.newest()
    assert "\n" not in str(e.value)
    assert names(folder.path) == ["step-00000001"], "nothing has changed"


class _Bomb:
    def __reduce__(self):
        return (os.mkdir, ("/tmp/unpickled",))


def test_nothing_is_unpickled(folder):
    """Not even files with the right digests."""
    path = folder.begin(1)
    for content in (
        lambda file: np.savez(file, np.array([_Bomb()], object)),
        lambda file: np.save(file, np.array([_Bomb()], object)),
        lambda file: pickle.dump(_Bomb(), file),
        lambda file: file.write(b"PK\x03\x04 no archive"),
    ):
        files = checkpoint_files.write_data(path, 0, {}, ARRAYS)
        with open(path / "rank_0.npz", "wb") as file:
            content(file)
        files["rank_0.npz"] = checkpoint_files._size_and_digest(path / "rank_0.npz")
        checkpoint_files.write_manifest(path, 1, [files], {})
        folder.finish(path, 1)
        with pytest.raises(NgraphError, match="step-00000001 cannot be read"):
            folder.newest().data_of(0)
        assert not os.path.exists("/tmp/unpickled")
        folder._delete(1)
        path = folder.begin(1)


@pytest.mark.parametrize(
    "content",
    [[], {}, {"format": 1}, {"format": 1, "step": 1, "ranks": "2", "files": {}, "common": {}},
     {"format": 1, "step": 1, "ranks": 2, "files": {}, "common": {}}, None, "[" * 100000],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense(folder, content):
    write(folder, 1)
    manifest = folder.path / "step-00000001" / "manifest.json"
    digest = checkpoint_files._digest(checkpoint_files._encoded(content))
    text = json.dumps({"content": content, "digest": digest}, sort_keys=True, separators=(",", ":"))
    manifest.write_text(text if not isinstance(content, str) else content)
    with pytest.raises(NgraphError, match="step-00000001 is damaged"):
        folder.newest()


def test_another_format_is_refused(folder):
    write(folder, 1)
    write(folder, 2)
    manifest = folder.path / "step-00000002" / "manifest.json"
    content = {**json.loads(manifest.read_text())["content"], "format": 2}
    digest = checkpoint_files._digest(checkpoint_files._encoded(content))
    manifest.write_bytes(checkpoint_files._encoded({"content": content, "digest": digest}))
    with pytest.raises(NgraphError, match="is of another version of paddle_ngraph"):
        folder.newest()
    assert names(folder.path) == ["step-00000001", "step-00000002"]


# -- a process that is killed --------------------------------------------------------------------


def dies_at(operation: int, folder: Folder, step: int) -> bool:
    """Writes a checkpoint in another process, which kills itself before its n-th operation.

    Returns whether it got so far.
    """
    child = os.fork()
    if child == 0:
        left = operation

        def counted(function):
            def call(*arguments, **keywords):
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return function(*arguments, **keywords)

            return call

        try:
            for name in ("fsync", "rename", "mkdir", "unlink", "rmdir", "open"):
                setattr(os, name, counted(getattr(os, name)))
            write(folder, step)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow("starts a process")
def test_a_process_killed_before_any_operation_leaves_complete_checkpoints(folder):
    for step in (1, 2, 3):
        write(folder, step)
    for operation in range(1000):
        step = checkpoint_files.newest_step(folder.path) + 1
        has_died = dies_at(operation, folder, step)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing looks damaged
            assert_whole(folder.newest(), [step - 1, step])
        for each in checkpoint_files._steps(folder.path):
            checkpoint_files.opened(folder.path / checkpoint_files._name(each))
        if not has_died:
            break
    assert 10 < operation < 1000
    assert names(folder.path)[-1] == f"step-{step:08}"


@pytest.mark.slow("starts a process")
def test_leftovers_are_deleted_by_the_next_job(tmp_path):
    script = (
        "import os, sys, pathlib\n"
        "from paddle_ngraph.distributed.checkpoint_files import Folder\n"
        "folder = Folder(pathlib.Path(sys.argv[1]))\n"
        "print(sorted(os.listdir(sys.argv[1])), flush=True)\n"
        "sys.stdin.read()\n"
    )
    (tmp_path / ".unfinished-7").mkdir()
    (tmp_path / ".unfinished-7" / "rank_0.npz").write_bytes(b"half")
    (tmp_path / "mine").mkdir()
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout.readline() == "['.lock', 'mine']\n"
        with pytest.raises(NgraphError, match="another job has its checkpoints in "):
            Folder(tmp_path)
    finally:
        job.kill()
        job.communicate()
    Folder(tmp_path)._lock.close()  # a job that was killed holds nothing


def test_similar_names_are_no_checkpoints(tmp_path):
    """Files, and names that no checkpoint has, in the way of later checkpoints."""
    (tmp_path / "step-000000009").mkdir()
    (tmp_path / "step-\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661").mkdir()
    (tmp_path / ".unfinished-1").write_text("")
    folder = Folder(tmp_path)
    (tmp_path / ".unfinished-2").write_text("")
    (tmp_path / ".unfinished-old-1").mkdir()
    (tmp_path / ".unfinished-old-1" / "rest").write_text("")
    assert folder.newest() is None
    for step in range(1, 6):
        write(folder, step)
    assert checkpoint_files.newest_step(tmp_path) == 5
    found = [name for name in names(tmp_path) if name.isascii()]
    assert set(found) == {*(f"step-{step:08}" for step in (3, 4, 5)), "step-000000009"}
    (tmp_path / "step-00000006").write_text("a file")
    with pytest.warns(UserWarning, match=r"step-00000006 is damaged"):
        assert_whole(folder.newest(), [5])
    folder._lock.close()


@pytest.mark.parametrize("name", ["rank_0.npz", "rank_0.json", "manifest.json"])
def test_no_file_is_written_through_a_link(folder, tmp_path, name):
    (tmp_path / "precious").write_text("precious")
    unfinished = folder.begin(1)
    (unfinished / name).symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        files = checkpoint_files.write_data(unfinished, 0, {}, ARRAYS)
        checkpoint_files.write_manifest(unfinished, 1, [files], {})
    assert (tmp_path / "precious").read_text() == "precious"


def test_the_lock_is_no_link(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        Folder(tmp_path)
    assert names(tmp_path) == []


# -- a disk that is full -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 100, 300, 700])
def test_a_full_disk_leaves_the_earlier_ones(folder, limit):
    write(folder, 1)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.SIG_IGN
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            write(folder, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert_whole(folder.newest(), [1])
    write(folder, 2)
    assert_whole(folder.newest(), [2])
