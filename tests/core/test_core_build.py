"""The build: steps of the Makefile say what to do, and headers stay light."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "paddle_ngraph"


def step(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "step.py"), "Working", sys.executable, "-c"]
    return subprocess.run([*command, code], cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize(
    "output, remedy",
    [
        ("OSError: [Errno 28] No space left on device: 'x'", "The disk is full: make room"),
        ("fatal error: error writing to -: No space left on device", "The disk is full: make room"),
        ("WARNING: Retrying (Retry(total=4, ...))\nERROR: No match", "cannot be reached"),
        ("ERROR: Could not find a version (from versions: none)", "cannot be reached"),
        ("Error: ensurepip is not available", "cannot make environments"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "lack of memory"),
    ],
)
def test_a_step_that_fails_says_what_to_do(tmp_path, output, remedy):
    run = step(tmp_path, f"import sys; print({output!r}); sys.exit(3)")
    assert run.returncode == 3 and run.stderr == ""
    first, sentence = run.stdout.splitlines()
    assert first == "Working ..." and remedy in sentence and "run make again" in sentence
    assert (tmp_path / "build" / "step.log").read_text() == output + "\n"


def test_other_failures_are_shown(tmp_path):
    run = step(tmp_path, "import sys; print('a.cc:3: error: no such thing'); sys.exit(1)")
    assert run.returncode == 1 and "a.cc:3: error: no such thing" in run.stdout


def test_warnings_of_tools_are_not_on_the_screen(tmp_path):
    run = step(tmp_path, "import sys; print('WARNING: old'); print('WARNING', file=sys.stderr)")
    assert (run.returncode, run.stdout, run.stderr) == (0, "Working ...\n", "")


def test_headers_bring_no_large_ones_of_others():
    """Each would cost every source that includes the header seconds."""
    large = re.compile(r"#include .(paddle/extension|paddle/utils/pybind|pybind11/(?!pytypes))")
    headers = [path for path in CORE.rglob("*.h") if "project" not in path.parts]
    assert len(headers) > 90
    found = {path.name: large.findall(path.read_text()) for path in headers}
    assert {name: names for name, names in found.items() if names} == {
        "python_casts.h": ["pybind11/"]
    }
