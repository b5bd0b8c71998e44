"""``_core.pyi`` names what the compiled core has."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy needs Python 3.10")

# Properties of every class and enumeration of pybind11, and a module that the stub has as a class.
ALLOWED = r"""
paddle_ngraph\._core\.[A-Z]\w+
paddle_ngraph\._core\.[A-Z]\w+\.(__init__|__index__|__int__|__members__|name|value)
paddle_ngraph\._core\.mkl_packed
"""


@pytest.mark.slow("runs mypy")
def test_the_stub_of_the_core_is_complete(tmp_path):
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(ALLOWED)
    options = ["--concise", "--ignore-unused-allowlist", "--allowlist", str(allowed)]
    command = [sys.executable, "-W", "ignore", "-m", "mypy.stubtest", "paddle_ngraph._core"]
    found = subprocess.run([*command, *options], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
