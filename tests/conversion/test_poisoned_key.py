"""Weights written during a build: the function is cached under the weights it was built from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, zlib
import numpy as np, paddle, paddle_ngraph
from paddle_ngraph.conversion import build

phase, folder = sys.argv[1:]
paddle.enable_static()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": folder,
                  "FLAGS_ngraph_cache_min_ms": 0})
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
    x = paddle.static.data("x", [2, 64], "float32")
    y = paddle.tanh(paddle.matmul(x, paddle.static.create_parameter([64, 64], "float32", name="w")))
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(startup)
first, second = np.full((64, 64), 0.001, "float32"), np.full((64, 64), 0.01, "float32")
ones = np.ones((2, 64), "float32")

def write(numbers):
    tensor = paddle.static.global_scope().find_var("w").get_tensor()
    tensor.set(numbers, paddle.CPUPlace())

def run():
    before = paddle_ngraph.stats()["engine_runs"]
    (result,) = executor.run(main, feed={"x": ones}, fetch_list=[y])
    assert paddle_ngraph.stats()["engine_runs"] == before + 1, "the engine did not run"
    return result

build_model = build.build_model
def written_meanwhile(*arguments):
    write(second)
    build.build_model = build_model
    return build_model(*arguments)

write(first)
if phase == "build":
    build.build_model = written_meanwhile
paddle_ngraph.enable()
run()
for numbers in (first, second, first):
    write(numbers)
    for _ in range(3):
        np.testing.assert_allclose(run(), np.tanh(ones @ numbers), rtol=1e-5)
print("loaded", paddle_ngraph.stats()["functions_loaded"])
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("folder_is_shared", [True, False], ids=["on disk", "in memory"])
def test_the_first_weights_again(tmp_path: Path, folder_is_shared: bool) -> None:
    folder = str(tmp_path / "cache") if folder_is_shared else ""
    for phase, loaded in (("build", 0), ("load", 1)) if folder_is_shared else (("build", 0),):
        found = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, phase, folder],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert found.returncode == 0, found.stderr[-2000:]
        assert int(found.stdout.split("loaded")[-1]) >= loaded
