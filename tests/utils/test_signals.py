"""Ctrl-C and other signals that arrive while a function is built, or a program rewritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import signal_cases


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("case", signal_cases.CASES)
def test_interrupted_work_ends_or_continues(case: str) -> None:
    """Runs each case in a separate process, whose main thread it has exclusively."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.signal_cases", case],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "GLOG_minloglevel": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert done.stdout.endswith("done\n")
