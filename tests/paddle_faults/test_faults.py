"""The page about Paddle's own faults is complete, and each fault still exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paddle_faults import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "development" / "paddle_faults.md"


@pytest.mark.pure
def test_the_page_lists_each_script():
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == run.names()


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    """FAULT or OK for each script, run by Paddle alone."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(run.__file__)],
        cwd=ROOT,
        env={**os.environ, "GLOG_minloglevel": "3", "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=1800,
    )
    return dict(re.findall(r"^(\w+): (FAULT|OK)", done.stdout, re.MULTILINE))


@pytest.mark.slow("starts processes that crash")
@pytest.mark.parametrize("name", run.names())
def test_the_fault_exists(reports, name):
    assert reports.get(name) == "FAULT", f"Paddle has changed: correct {PAGE}"
