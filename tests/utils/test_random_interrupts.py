"""Some of the random interrupts of tests/random_interrupts.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow("starts processes")
def test_random_interrupts_are_raised_once(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    options = ["--count", "12", "--seed", "7", "--jobs", "1", "--state", state]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.random_interrupts", *map(str, options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert done.stdout.startswith("12 passed")
