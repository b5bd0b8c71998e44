"""Number of threads of the engine: the flag, affinity, quotas of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddle_ngraph import _core, flags
from tests.programs import Program


def _group(root: Path, path: str, **files: str) -> None:
    folder = root / path.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(text + "\n")


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    assert _core.cores_by_quota(str(tmp_path), "/") == 0
    _group(tmp_path, "/", max="max 100000")
    _group(tmp_path, "/a", cfs_quota_us="-1", cfs_period_us="100000")
    assert _core.cores_by_quota(str(tmp_path), "/a") == 0


@pytest.mark.parametrize("quota, cores", [(300_000, 3), (150_000, 2), (140_000, 1), (1_000, 1)])
def test_a_quota_is_rounded_to_cores(tmp_path: Path, quota: int, cores: int) -> None:
    _group(tmp_path, "/", max=f"{quota} 100000")
    assert _core.cores_by_quota(str(tmp_path), "/") == cores


def test_cgroup_v1_files_are_read(tmp_path: Path) -> None:
    _group(tmp_path, "/docker/x", cfs_quota_us="200000", cfs_period_us="100000")
    assert _core.cores_by_quota(str(tmp_path), "/docker/x") == 2


def test_enclosing_groups_count(tmp_path: Path) -> None:
    _group(tmp_path, "/slice", max="200000 100000")
    _group(tmp_path, "/slice/job", max="800000 100000")
    assert _core.cores_by_quota(str(tmp_path), "/slice/job") == 2


def test_threads_are_limited_to_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    before = flags.get("ngraph_num_threads")
    _core.allow_more_threads_than_cores(False)
    try:
        flags.set("ngraph_num_threads", cores + 7)
        assert 1 <= _core.num_threads() <= cores
        flags.set("ngraph_num_threads", 1)
        assert _core.num_threads() == 1
        flags.set("ngraph_num_threads", 0)
        assert 1 <= _core.num_threads() <= cores
        _core.allow_more_threads_than_cores(True)
        flags.set("ngraph_num_threads", cores + 7)
        assert _core.num_threads() == cores + 7
    finally:
        _core.allow_more_threads_than_cores(True)  # set by conftest.py
        flags.set("ngraph_num_threads", before)


@pytest.mark.slow("starts a process")
def test_the_affinity_is_honoured() -> None:
    script = "import paddle_ngraph, paddle; from paddle_ngraph import library; library.load()\n"
    script += "from paddle_ngraph import _core; print('threads', _core.num_threads())"
    core = min(os.sched_getaffinity(0))
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        env={**os.environ, "FLAGS_ngraph_num_threads": "0"},
    )
    assert "threads 1" in found.stdout, found.stderr


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = flags.get("ngraph_num_threads")
    flags.set("ngraph_num_threads", 1)
    yield
    flags.set("ngraph_num_threads", before)


def test_a_single_thread_reports_errors(one_thread: None) -> None:
    def build():
        x = paddle.static.data("x", [-1], "int32")
        return paddle.floor_divide(x, paddle.static.data("y", [-1], "int32"))

    program = Program(build)
    ones = np.ones(3, "int32")
    for _ in range(2):
        with pytest.raises(Exception, match=r"(?i)zero"):
            program.run(True, x=ones, y=np.array([1, 0, 2], "int32"))
        program.both(x=ones * 6, y=ones * 3)


# On one core. The plugin would have one thread there, whatever number is requested, and lose
# exceptions of its operators. The first program detects that, the second one finds the result
# cached.
ON_ONE_CORE = """
import sys
import numpy as np, paddle
import paddle_ngraph
from paddle_ngraph import _core, flags
from tests.programs import Program, parameter

def looked_up(width):
    ids = paddle.static.data("ids", [2, 50], "int64")
    words = paddle.nn.functional.embedding(ids, parameter(10, width))
    return paddle.matmul(words * 0.01, parameter(width, 1000))

_core.allow_more_threads_than_cores(True)
flags.set("ngraph_num_threads", int(sys.argv[1]))
paddle.enable_static()
for width in (300, 301):
    program, ids = Program(lambda: looked_up(width)), np.arange(100).reshape(2, 50) % 10
    program.both(ids=ids)
    ids[1, 7] = 10
    for _ in range(2):
        try:
            program.run(ids=ids)
        except Exception as error:
            print("raised", type(error).__name__)
    program.both(ids=ids % 10)
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("threads", [0, 1, 2, 8])
def test_errors_of_operators_are_raised_on_one_core(threads: int) -> None:
    core = min(os.sched_getaffinity(0))
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_ONE_CORE, str(threads)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.count("raised") == 4, found.stdout
