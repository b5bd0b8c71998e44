"""The compiled core: if it is missing or does not match, a sentence says so, without a crash."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

import paddle_ngraph
from paddle_ngraph import installation, library
from paddle_ngraph.paddle_private import releases


@pytest.fixture
def build_info(monkeypatch):
    info = types.SimpleNamespace(
        WITH_NGRAPH=True,
        OPENVINO_VERSION=installation._installed_version("openvino"),
    )
    monkeypatch.setattr(installation, "_build_info", info)
    installation.unavailability.cache_clear()
    library.load.cache_clear()
    yield info
    monkeypatch.undo()
    installation.unavailability.cache_clear()
    library.load.cache_clear()


def test_the_right_releases_are_fine(build_info):
    assert installation.why_unavailable() is None


def test_another_openvino_is_reported_in_one_sentence(build_info):
    build_info.OPENVINO_VERSION = "1.2.3"
    with pytest.raises(paddle_ngraph.NgraphError, match=r"compiled against openvino 1\.2\.3"):
        paddle_ngraph.enable()
    paddle_ngraph.disable()  # prints nothing


@pytest.mark.parametrize(
    "release, built",
    [
        ("3.2.2", "3.2.2"),
        ("3.3.1", "3.3.1"),
        ("3.3.9", "3.3.10"),  # no exact match: the newest of the line
        ("3.2.9", "3.2.2"),
        ("3.4.0", None),
        ("3.20.2", None),
        (None, None),
    ],
)
def test_the_core_is_chosen_by_the_release_of_paddle(monkeypatch, tmp_path, release, built):
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "installation.py"))
    for name in ("3.2.2", "3.3.1", "3.3.10", "3.4.0.part"):
        (tmp_path / f"_core.{name}.so").touch()
    assert list(installation._cores()) == ["3.2.2", "3.3.1", "3.3.10"]
    assert installation._built_release(release) == built


def test_another_patch_release_runs_with_one_warning(monkeypatch, build_info):
    line = releases.LINES[0].number
    monkeypatch.setattr(installation.releases, "installed", lambda: f"{line}.99")
    with pytest.warns(paddle_ngraph.NgraphWarning, match=rf"not tested with {line}.99 \[NG106\]"):
        assert installation.why_unavailable() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paddle_ngraph.enable()
    assert paddle_ngraph.is_enabled()


def test_a_build_without_the_engine_names_the_remedy(build_info):
    build_info.WITH_NGRAPH = False
    with pytest.raises(paddle_ngraph.NgraphError, match="WITH_NGRAPH=ON pip install"):
        paddle_ngraph.enable()
    assert not paddle_ngraph.is_enabled()
    with paddle_ngraph.use_ngraph(False):
        pass


def test_a_source_tree_that_was_never_built(monkeypatch, build_info):
    monkeypatch.setattr(installation, "_build_info", None)
    installation.unavailability.cache_clear()
    with pytest.raises(paddle_ngraph.NgraphError, match="pip install"):
        paddle_ngraph.stats()


def test_a_core_that_was_removed(monkeypatch, build_info):
    monkeypatch.setattr(installation, "_cores", dict)
    with pytest.raises(paddle_ngraph.NgraphError, match="was not built: run `pip install"):
        paddle_ngraph.stats()


PURE = """
import sys, types
info = types.ModuleType("paddle_ngraph._build_info")
info.WITH_NGRAPH, info.PURE = False, True
sys.modules[info.__name__] = info
"""
OTHER_PADDLE = """
import sys
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "9.9.0" if name == "paddlepaddle" else version(name)
"""
WITHOUT_CORE = """
sys.modules["paddle_ngraph._core"] = sys.modules["openvino"] = None
import numpy as np
import paddle
import paddle_ngraph

paddle_ngraph.enable(dynamic="training")
layer = paddle_ngraph.compile(paddle.nn.Linear(4, 3))
assert layer(paddle.ones([2, 4])).shape == [2, 3]
paddle.enable_static()
x = paddle.static.data("x", [2, 4])
y = paddle.static.nn.fc(x, 3)
executor = paddle.static.Executor()
executor.run(paddle.static.default_startup_program())
with paddle_ngraph.use_ngraph():
    (found,) = executor.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[y])
assert found.shape == (2, 3)
assert paddle_ngraph.wait_for_compiles() and paddle_ngraph.stats()["engine_runs"] == 0
paddle_ngraph.clear_cache()
paddle_ngraph.disable()
try:
    paddle_ngraph.transpile(paddle.static.default_main_program())
except paddle_ngraph.NgraphError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "reason, code, sentence",
    [
        (PURE, "NG104", "paddle-ngraph has a core for Linux"),
        (OTHER_PADDLE, "NG105", "paddle-ngraph has .* not for 9.9.0, .* install paddlepaddle=="),
    ],
)
def test_programs_run_natively_with_one_warning_where_there_is_no_core(reason, code, sentence):
    command = [sys.executable, "-c", reason + WITHOUT_CORE]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr.count(f"[{code}]") == 1
    line = (reason + WITHOUT_CORE).splitlines().index('paddle_ngraph.enable(dynamic="training")')
    assert f"<string>:{line + 1}: NgraphWarning: Paddle runs all programs" in found.stderr
    assert re.match(sentence, found.stdout)
    assert found.stdout.count("\n") == 1


@pytest.mark.parametrize("missing", ["libs/libopenvino_intel_cpu_plugin.so", "_pyopenvino*"])
def test_an_openvino_that_is_installed_in_part(monkeypatch, build_info, tmp_path, missing):
    complete = Path(installation.find_spec("openvino").origin).parent
    for pattern in installation._OPENVINO_FILES:
        if pattern != missing:
            for file in complete.glob(pattern):
                link = tmp_path / file.relative_to(complete)
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(file)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(installation, "find_spec", lambda name: spec)
    sentence = f"installed in part, without openvino/{missing}: `pip install --force-reinstall"
    with pytest.raises(paddle_ngraph.NgraphError, match=re.escape(sentence)):
        paddle_ngraph.enable()


def test_a_core_that_cannot_be_loaded_is_one_sentence(monkeypatch, build_info):
    def failing(file: Path) -> None:
        raise ImportError("libtbb.so.12: cannot open shared object file")

    monkeypatch.setattr(installation, "_load", failing)
    with pytest.raises(paddle_ngraph.NgraphError, match=r"libtbb.so.12: .* file: `pip install"):
        paddle_ngraph.enable()


def test_the_package_imports_without_a_core(tmp_path):
    script = tmp_path / "without_core.py"
    script.write_text(
        "import sys, types\n"
        "info = types.ModuleType('paddle_ngraph._build_info')\n"
        "info.WITH_NGRAPH = False\n"
        "info.OPENVINO_VERSION = 'none'\n"
        "sys.modules['paddle_ngraph._build_info'] = info\n"
        "sys.modules['paddle_ngraph._core'] = None\n"
        "import paddle_ngraph\n"
        "try:\n"
        "    paddle_ngraph.enable()\n"
        "except paddle_ngraph.NgraphError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "WITH_NGRAPH=OFF" in found.stdout


def test_the_import_is_silent_and_defers_the_converters_and_openvino():
    """Their import takes longer than the rest of the package, so the first use imports them."""
    code = (
        "import sys, paddle; before = set(sys.modules); import paddle_ngraph\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
        "assert paddle_ngraph.converter and paddle_ngraph.Op and paddle_ngraph.NgraphBridge\n"
        "assert paddle_ngraph.conversion.registry.load_converters\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not found.stdout
    modules = found.stderr.split()
    assert "paddle_ngraph._core" in modules
    deferred = ("openvino", "paddle_ngraph.conversion", "paddle_ngraph.partitioning", "setuptools")
    assert not [name for name in modules if name.startswith(deferred)]
