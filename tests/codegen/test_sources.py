"""Sources of projects compile with the headers of the core that projects copy.

Only `make test-all` builds whole projects.
"""

from __future__ import annotations

import os
import shlex
import subprocess

from paddle_ngraph.codegen import project, toolchain

# Those that include most headers of the core and of the runtime.
FILES = ("function.cc", "run.cc", "tensor.cc")


def test_the_runtime_compiles_with_the_headers_of_the_core():
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    headers = ["-I", str(project._TEMPLATE), "-I", str(project._TEMPLATE.parents[1])]
    headers += ["-isystem", str(toolchain.folder_of("openvino") / "include")]
    files = [str(project._TEMPLATE / "runtime" / name) for name in FILES]
    command = [*compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    found = subprocess.run([*command, *headers, *files], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
