"""Values of blocks have an owner each, so that programs can be dropped at any time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import paddle
import pytest


@pytest.mark.parametrize("accessor", ["args", "kwargs"])
def test_a_value_of_a_block_is_a_copy_each_time(accessor: str) -> None:
    """pybind11 returns the same object for a reference to the same memory."""
    main = paddle.static.Program()
    with paddle.static.program_guard(main):
        type = paddle.static.data("x", [2]).type()
    block = main.global_block()
    added = [block.add_arg(type), block.add_kwarg("k", type)]

    def value() -> Any:
        found = getattr(block, accessor)()
        return found["k"] if accessor == "kwargs" else found[0]

    first, second = value(), value()
    assert first is not second
    assert first.is_same(second) and first.is_same(added[accessor == "kwargs"])


@pytest.mark.slow("starts a process")
def test_programs_are_dropped_without_garbage_collection() -> None:
    """By Paddle and by each frontend; without the copies the first one ends the process."""
    frontends = ["native", "to_static", "compile", "dynamic"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.dropped_programs", *frontends],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "MALLOC_PERTURB_": "165", "GLOG_minloglevel": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    runs = dict(line.split() for line in done.stdout.splitlines() if line.split()[0] in frontends)
    assert [int(runs[each]) > 0 for each in frontends] == [False, True, True, True]
