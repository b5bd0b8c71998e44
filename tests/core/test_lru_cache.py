"""The LRU cache of the core: a program in C++, of headers that need the standard library only."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("lru_cache.cc")


def test_lru_map_and_lru_cache(tmp_path: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip("needs a compiler")
    program = tmp_path / "lru_cache"
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_GLIBCXX_ASSERTIONS"]
    include = ["-I", str(ROOT / "paddle_ngraph")]
    subprocess.run([*compiler, *options, *include, str(SOURCE), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
