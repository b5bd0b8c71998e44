"""Weights that another thread writes while the engine reads them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("write_between_reads.c")

SCRIPT = """
import ctypes
import sys

import numpy as np
import paddle
import paddle_ngraph

SIZE = 256
paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
main, start = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, start):
    x = paddle.static.data("x", [2, SIZE])
    w = paddle.create_parameter([SIZE, SIZE], "float32", name="w")
    y = paddle.tanh(paddle.matmul(x, w))
executor = paddle.static.Executor()
X = np.ones((2, SIZE), "float32")
EVEN, ODD = np.zeros((2, SIZE, SIZE), "float32")
EVEN[8:-8], ODD[8:-8] = 1e-3, 2e-3
paddle_ngraph.enable()


def made(values):
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        executor.run(start)
    tensor = scope.find_var("w").get_tensor()
    tensor.set(values, paddle.CPUPlace())
    return scope, tensor._ptr()


def run(scope):
    with paddle.static.scope_guard(scope):
        return executor.run(main, feed={"x": X}, fetch_list=[y])[0]


library = ctypes.CDLL(sys.argv[1])
scope, address = made(EVEN)
pointer = ctypes.c_void_p
library.begin_writes(
    pointer(address), ctypes.c_size_t(EVEN.nbytes), pointer(EVEN.ctypes.data),
    pointer(ODD.ctypes.data),
)
run(scope)
writes = library.end_writes()
assert writes == 2, writes
for each, values in ((scope, EVEN), (made(ODD)[0], ODD), (made(EVEN)[0], EVEN)):
    np.testing.assert_allclose(run(each), np.tanh(X @ values), rtol=1e-4)
assert paddle_ngraph.stats()["engine_runs"] == 4
"""


@pytest.mark.slow("starts a process")
def test_a_weight_that_is_written_between_two_reads(tmp_path: Path) -> None:
    """Hash and digest are of one read: no contents get the digest of others."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        pytest.skip("needs a compiler")
    library = tmp_path / "writes.so"
    options = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, *options, str(SOURCE), "-o", str(library)], check=True)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
