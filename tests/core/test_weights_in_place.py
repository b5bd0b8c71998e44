"""Weights in place, tested in a process of its own.

Anything that may write weights, such as a handle or a trainer that another test has left, forbids
functions to read them in place.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ngraph import _core
from paddle_ngraph.frontends.executor import weight_writes
from tests.conftest import freeze_objects

ROOT = Path(__file__).parents[2]
CASES = "tests/core/weights_in_place_cases.py"


def test_weights_in_place(request: pytest.FixtureRequest) -> None:
    tier = request.config.getoption("tier")
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "--tier", "test" if tier == "check" else tier, CASES],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


class Writer:
    """A writer of weights, as long as it exists."""


def test_a_failed_test_leaves_no_writer() -> None:
    """pytest keeps the exception of a failed test, with its frames, until the next call of a test.

    Objects are frozen before that call; a frozen cycle is never collected.
    """

    def fail() -> None:
        writer = Writer()
        weight_writes.may_write_during_lifetime(writer)
        error = RuntimeError("which the frame refers to, too")
        raise error

    gc.collect()
    before = _core.num_weight_writers()
    with pytest.raises(RuntimeError) as failure:
        fail()
    sys.last_value = failure.value
    del failure
    freeze_objects()
    vars(sys).pop("last_value", None)  # as pytest does then
    gc.collect()
    assert _core.num_weight_writers() == before
