"""Weights in place, tested in a process of its own.

Anything that may write weights, such as a handle or a trainer that another test has left, forbids
functions to read them in place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
