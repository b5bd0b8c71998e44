"""The compiled core: if it is missing or does not match, a sentence says so, without a crash."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

import paddle_ngraph
from paddle_ngraph import api, installation, library
from paddle_ngraph.paddle_private import releases


@pytest.fixture
def build_info(monkeypatch):
    info = types.SimpleNamespace(
        WITH_NGRAPH=True,
        OPENVINO_VERSION=installation._openvino_version(),
    )
    monkeypatch.setattr(installation, "_build_info", info)
    functions = (installation.why_unavailable, library.load, api.warn_unavailable)
    for function in functions:
        function.cache_clear()
    yield info
    monkeypatch.undo()
    for function in functions:
        function.cache_clear()


def unavailable(sentence: str) -> Any:
    """Expects the one warning, with the reason in a sentence."""
    return pytest.warns(paddle_ngraph.NgraphWarning, match=rf"{sentence}.*\. \[NG101\]$")


def test_the_right_releases_are_fine(build_info):
    assert installation.why_unavailable() is None


def test_another_openvino_is_reported_in_one_sentence(build_info):
    build_info.OPENVINO_VERSION = "1.2.3"
    with unavailable(r"compiled against openvino 1\.2\.3"):
        paddle_ngraph.enable()
    assert not paddle_ngraph.is_enabled()
    paddle_ngraph.disable()
    paddle_ngraph.enable()  # prints nothing again


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
    assert set(installation._cores()) == {"3.2.2", "3.3.1", "3.3.10"}
    assert installation._built_release(release) == built


def test_another_patch_release_runs_with_one_warning(monkeypatch, build_info):
    line = releases.CURRENT.number
    monkeypatch.setattr(installation.releases, "installed", lambda: f"{line}.99")
    with pytest.warns(paddle_ngraph.NgraphWarning, match=rf"not tested with {line}.99 \[NG105\]"):
        assert installation.why_unavailable() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paddle_ngraph.enable()
    assert paddle_ngraph.is_enabled()


@pytest.mark.parametrize(
    "release, sentence",
    [
        ("9.9.0", r"not for 9\.9\.0, which is installed: `pip install paddlepaddle==\S+`"),
        (None, "needs PaddlePaddle, and none is installed: `pip install paddlepaddle=="),
    ],
)
def test_a_paddle_without_a_core_is_named(monkeypatch, build_info, release, sentence):
    monkeypatch.setattr(installation.releases, "installed", lambda: release)
    with unavailable(sentence):
        paddle_ngraph.enable()


@pytest.mark.parametrize("target", ["CPython 3.8 on Linux x86_64", "CPython 3.11 on Linux aarch64"])
def test_a_core_for_another_python_or_processor_is_not_loaded(build_info, target):
    build_info.TARGET = target
    with unavailable(f"compiled for {target}, but this is {installation._target()}"):
        paddle_ngraph.enable()


def test_a_build_without_the_engine_names_the_remedy(build_info):
    build_info.WITH_NGRAPH = False
    with unavailable("WITH_NGRAPH=ON pip install"):
        paddle_ngraph.enable()
    assert not paddle_ngraph.is_enabled()
    with paddle_ngraph.use_ngraph(False):
        pass


def test_a_source_tree_that_was_never_built(monkeypatch, build_info):
    monkeypatch.setattr(installation, "_build_info", None)
    installation.why_unavailable.cache_clear()
    with unavailable("pip install"):
        assert paddle_ngraph.stats()["engine_runs"] == 0


def test_a_core_that_was_removed(monkeypatch, build_info):
    monkeypatch.setattr(installation, "_cores", dict)
    with unavailable("was not built: run `pip install"):
        paddle_ngraph.enable()
    with pytest.raises(paddle_ngraph.NgraphError, match="was not built: run `pip install"):
        paddle_ngraph.cache_info()


def test_a_frozen_application_without_a_core_runs_natively(monkeypatch, build_info):
    monkeypatch.setattr(installation, "_cores", dict)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with unavailable(re.escape("in a frozen application without its compiled core: add")):
        paddle_ngraph.enable()


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

paddle.set_flags({"FLAGS_use_ngraph": 1, "FLAGS_ngraph_num_threads": 2, "FLAGS_check_nan_inf": 0})
assert paddle.get_flags("FLAGS_use_ngraph") == {"FLAGS_use_ngraph": 1}
names = ["FLAGS_check_nan_inf", "FLAGS_ngraph_num_threads", "FLAGS_ngraph_precision"]
assert list(paddle.get_flags(names).values()) == [False, 2, "f32"]
for wrong in ({"FLAGS_ngraph_no_such_flag": 1}, {"FLAGS_no_such_flag": 1}):
    try:
        paddle.set_flags(wrong)
        raise SystemExit(f"{wrong} went through")
    except ValueError:
        pass
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
        (OTHER_PADDLE, "NG101", "paddle-ngraph has .* not for 9.9.0, .* install paddlepaddle=="),
    ],
)
def test_programs_run_natively_with_one_warning_where_there_is_no_core(reason, code, sentence):
    script = reason + WITHOUT_CORE
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr.count(f"[{code}]") == 1
    (line,) = (n for n, x in enumerate(script.splitlines(), 1) if '"FLAGS_check_nan_inf": 0' in x)
    assert f"<string>:{line}: NgraphWarning: Paddle runs all programs" in found.stderr
    assert re.match(sentence, found.stdout)
    assert found.stdout.count("\n") == 1


@pytest.mark.parametrize("missing", installation._openvino_files()[1:4])
def test_an_openvino_that_is_installed_in_part(monkeypatch, build_info, tmp_path, missing):
    complete = Path(installation.find_spec("openvino").origin).parent
    for pattern in installation._openvino_files():
        if pattern != missing:
            for file in complete.glob(pattern):
                link = tmp_path / file.relative_to(complete)
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(file)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(installation, "find_spec", lambda name: spec)
    sentence = f"installed in part, without openvino/{missing}: `pip install --force-reinstall"
    with unavailable(re.escape(sentence)):
        paddle_ngraph.enable()


@pytest.mark.parametrize("pattern", ["libs/libopenvino.so.*", "_core.*.so"])
def test_a_library_without_its_end_is_not_loaded(monkeypatch, build_info, tmp_path, pattern):
    """An interrupted installation leaves such files; loading one would end the process."""
    (library,) = _libraries(pattern)
    content = library.read_bytes()[:1_000_000]
    for number, length in enumerate((0, 63, 64, 200, 100_000, 1_000_000)):
        cut = tmp_path / f"{number}.so"
        cut.write_bytes(content[:length])
        assert not installation._is_whole(cut)
    assert installation._is_whole(library)
    is_whole = installation._is_whole
    monkeypatch.setattr(
        installation, "_is_whole", lambda file: is_whole(cut if file == library else file)
    )
    with unavailable(f"{re.escape(library.name)} lacks its end: `pip install"):
        paddle_ngraph.enable()


def _libraries(pattern: str) -> list[Path]:
    folders = (Path(paddle_ngraph.__file__), Path(installation.find_spec("openvino").origin))
    return [file for folder in folders for file in folder.parent.glob(pattern)]


IN_AN_ARCHIVE = """
import sys
sys.path.insert(0, sys.argv[1])
import paddle, paddle_ngraph

assert paddle_ngraph.__file__.startswith(sys.argv[1])
paddle_ngraph.enable()
print(paddle_ngraph.is_enabled(), float(paddle.ones([2]).sum()))
"""


def test_an_application_in_an_archive_runs_natively(tmp_path):
    package, archive = Path(paddle_ngraph.__file__).parent, tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        for path in package.rglob("*.py"):
            file.write(path, path.relative_to(package.parent))
    command = [sys.executable, "-c", IN_AN_ARCHIVE, str(archive)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "2.0"]
    assert f"is inside the archive {archive}, from which" in found.stderr
    assert found.stderr.count("[NG101]") == 1


def test_a_core_that_cannot_be_loaded_is_one_sentence(monkeypatch, build_info):
    def failing(file: Path) -> None:
        raise ImportError("libtbb.so.12: cannot open shared object file")

    monkeypatch.setattr(installation, "_load", failing)
    with unavailable(r"libtbb.so.12: .* file: `pip install"):
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
        "paddle_ngraph.enable()\n"
    )
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "WITH_NGRAPH=OFF" in found.stderr and not found.stdout


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
