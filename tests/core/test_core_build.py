"""The build: steps of the Makefile name a remedy, and headers stay light."""

from __future__ import annotations

import fcntl
import importlib.util
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import setuptools

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
        (
            "WARNING: Retrying (Retry(total=4, ...))\nERROR: No matching distribution found for x",
            "cannot be reached",
        ),
        ("WARNING: Retrying (Retry(total=4)) after connection broken by 'x'", "cannot be reached"),
        ("ERROR: Could not find a version (from versions: none)", "cannot be reached"),
        ("ERROR: Could not find a version (from versions: none)", "this platform or this Python"),
        ("a.cc:1: error: no\nERROR: HTTPS: Max retries exceeded", "cannot be reached"),
        (
            "ERROR: [Errno 28] No space left on device\nerror: subprocess-exited-with-error",
            "The disk is full",
        ),
        ("Error: ensurepip is not available", "cannot make environments"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "lack of memory"),
    ],
)
def test_a_failed_step_names_a_remedy(tmp_path, output, remedy):
    run = step(tmp_path, f"import sys; print({output!r}); sys.exit(3)")
    assert run.returncode == 3 and run.stderr == ""
    first, sentence = run.stdout.splitlines()
    assert first == "Working ..." and remedy in sentence and "run make again" in sentence
    assert (tmp_path / "build" / "step.log").read_text() == output + "\n"


@pytest.mark.parametrize(
    "output",
    [
        "a.cc:3: error: no such thing",
        "a.cc:3:1: error: kTimeout was not declared",
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'x'\n"
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io",
        "  NewConnectionError in a test",
    ],
)
def test_other_failures_are_shown(tmp_path, output):
    run = step(tmp_path, f"import sys; print({output!r}); sys.exit(1)")
    whole = "The whole output is in build/step.log."
    assert (run.returncode, run.stdout) == (1, f"Working ...\n{output}\n{whole}\n")


def test_undecodable_output_is_shown(tmp_path):
    code = r"import os, sys; os.write(1, b'a\xffb\n'); sys.exit(1)"
    run = step(tmp_path, code)
    assert (
        run.returncode == 1 and run.stderr == "" and "\na\N{REPLACEMENT CHARACTER}b\n" in run.stdout
    )


def test_a_missing_command_is_in_the_log(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "step.py"), "Working", "no-such-command"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr == "" and "build/step.log" in run.stdout
    assert "no-such-command" in (tmp_path / "build" / "step.log").read_text()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def started(tmp_path: Path, *prefix: str) -> subprocess.Popen[str]:
    """Starts a step whose command starts a child process, as setup.py starts Ninja."""
    code = "sleep 60 & echo $! > pid; touch begun; wait"
    command = [sys.executable, str(ROOT / "tools" / "step.py"), "Working", "sh", "-c", code]
    process = subprocess.Popen(
        [*prefix, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=stop_ignoring_signals,
    )
    wait_until((tmp_path / "begun").exists)
    return process


def stop_ignoring_signals() -> None:
    """Restores the default actions, also where a shell started the tests in the background."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def wait_for_its_end(tmp_path: Path) -> None:
    status = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    wait_until(lambda: not status.exists() or ") Z " in status.read_text())


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_ends_a_step_ends_its_processes(tmp_path, number):
    process = started(tmp_path)
    process.send_signal(number)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert shown == "Working ...\nInterrupted: the next make goes on from here.\n"
    wait_for_its_end(tmp_path)


def test_nohup_keeps_a_step_alive(tmp_path):
    process = started(tmp_path, "nohup")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM


def test_make_passes_a_signal_on_to_a_step(tmp_path):
    line = next(x for x in (ROOT / "Makefile").read_text().splitlines() if x.startswith("STEP"))
    code = "echo $$$$ > pid; touch begun; sleep 60"
    text = f"PYTHON := {sys.executable}\n{line}\nall:\n\t@$(STEP) \"Working\" sh -c '{code}'\n"
    (tmp_path / "Makefile").write_text(text.replace("tools/step.py", str(ROOT / "tools/step.py")))
    with subprocess.Popen(["make"], cwd=tmp_path, start_new_session=True) as process:
        wait_until((tmp_path / "begun").exists)
        process.terminate()
        assert process.wait(30) != 0
    wait_for_its_end(tmp_path)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_warnings_of_tools_are_not_on_the_screen(tmp_path):
    run = step(tmp_path, "import sys; print('WARNING: old'); print('WARNING', file=sys.stderr)")
    assert (run.returncode, run.stdout, run.stderr) == (0, "Working ...\n", "")


def loaded_setup(monkeypatch):
    """Loads the module setup.py."""
    monkeypatch.setattr(setuptools, "setup", lambda **options: None)
    specification = importlib.util.spec_from_file_location("setup_of_core", ROOT / "setup.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """Loads the module setup.py, in an empty folder."""
    module = loaded_setup(monkeypatch)
    monkeypatch.setattr(module, "_onednn_headers", lambda folder: folder)
    monkeypatch.chdir(tmp_path)
    return module


def compiler(path: Path, version: str) -> str:
    path.write_text(f'#!/bin/sh\necho "$LC_ALL {version}"\n')
    path.chmod(0o755)
    return str(path)


def test_another_language_compiles_nothing_again(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", compiler(tmp_path / "g++", "1.0"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert setup._versions().endswith("C 1.0\n")


@pytest.mark.parametrize("name, is_gcc", [("Free Software Foundation", True), ("clang", False)])
def test_options_of_gcc_are_for_gcc(setup, tmp_path, monkeypatch, name, is_gcc):
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", name))
    sources = [f"paddle_ngraph/core/common/{name}.cc" for name in "ab"]
    for source in sources:
        Path(source).parent.mkdir(parents=True, exist_ok=True)
        Path(source).write_text("")
    ninja = setup.NinjaFile(Path("build", "core"))
    ninja.link("x.so", sources, [])
    text = "\n".join(ninja.lines)
    assert "-c build/core/unity" in text
    assert is_gcc == ("-Wno-subobject-linkage" in text) == ("ggc-min-heapsize" in text)


@pytest.mark.parametrize("variable", ["CXX", "CXXFLAGS", "LDFLAGS"])
def test_a_quote_without_its_end_is_named(setup, monkeypatch, variable):
    monkeypatch.setenv(variable, "'x")
    with pytest.raises(SystemExit, match=f"^{variable} cannot be split .*No closing quotation"):
        setup.NinjaFile(Path("core")).link("x.so", [], [])
        setup._flags_of("common", Path(), "-O3")


def test_missing_headers_of_python_are_named(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(SystemExit, match="apt install python3-dev"):
        setup._flags_of("common", Path(), "-O3")


def test_a_file_in_the_way_of_the_build_is_named(setup):
    Path("build").touch()
    with pytest.raises(SystemExit, match="in the way of the folder build/core"):
        setup.NinjaFile(Path("build", "core"))


@pytest.mark.parametrize(
    "machine",
    [
        ("darwin", "arm64", ""),
        ("win32", "AMD64", ""),
        ("linux", "aarch64", "glibc"),
        ("linux", "x86_64", ""),  # musl
    ],
)
def test_a_build_on_another_machine_is_one_sentence(setup, monkeypatch, machine):
    system, processor, libc = machine
    setup._check_machine()
    monkeypatch.setattr(setup.sys, "platform", system)
    monkeypatch.setattr(setup.platform, "machine", lambda: processor)
    monkeypatch.setattr(setup.platform, "libc_ver", lambda: (libc, ""))
    with pytest.raises(SystemExit, match=r"without it, `PURE=ON pip install \.`; .*natively\.$"):
        setup._check_machine()


@pytest.mark.parametrize(
    "others, requirement",
    [
        ([], "paddlepaddle>=3.3.1,<3.4"),
        (["3.2.2"], "paddlepaddle>=3.2.2,<3.4"),
        (["3.2.2", "3.10.0.dev1"], "paddlepaddle>=3.2.2,<3.11"),
    ],
)
def test_a_wheel_requires_the_lines_of_its_cores(setup, monkeypatch, others, requirement):
    Path("cores").mkdir()
    for name in others:
        Path("cores", f"_core.{name}.so").touch()
    monkeypatch.setattr(setup, "CORES", "cores")
    monkeypatch.setattr(setup, "_paddle_release", lambda: "3.3.1")
    assert setup._requirements()[0] == requirement


@pytest.mark.parametrize("stays", [False, True])
def test_a_wheel_gets_the_other_cores_and_none_of_an_earlier_build(setup, monkeypatch, stays):
    package = Path("lib", "paddle_ngraph")
    for file in (Path("cores", "_core.3.2.2.so"), package / "_core.3.1.0.so", package / "api.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr(setup, "CORES", "cores")
    build = setup.BuildCore(setuptools.Distribution())
    build.build_lib, build.stays_in_tree = "lib", stays
    build._add_other_cores()
    core = "_core.3.1.0.so" if stays else "_core.3.2.2.so"
    assert {file.name for file in package.iterdir()} == {core, "api.py"}


def test_two_builds_of_a_tree_run_one_after_the_other(setup):
    folder = Path("build", "core")

    def is_free() -> bool:
        with (folder / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with setup._exclusively(folder):
        assert not is_free()
    assert is_free()


def test_an_interrupted_download_of_headers_is_repeated(tmp_path, monkeypatch):
    module = loaded_setup(monkeypatch)
    monkeypatch.setattr(module, "_file_of", lambda package, name: None)
    header = "onednn_devel.data/data/include/oneapi/dnnl/dnnl.hpp"

    def download(command, status):
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "onednn_devel.whl", "w") as wheel:
            wheel.writestr(header, "")
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(module.subprocess, "run", lambda command: download(command, 1))
    with pytest.raises(SystemExit, match="check the network, or run `pip install"):
        module._onednn_headers(tmp_path)
    monkeypatch.setattr(module.subprocess, "run", lambda command: download(command, 0))
    for _ in range(2):
        assert (module._onednn_headers(tmp_path) / "oneapi/dnnl/dnnl.hpp").is_file()


def test_a_copy_that_was_interrupted_is_repeated(setup, monkeypatch):
    """The damaged copy is newer than the library."""
    built, target = Path("built.so"), Path("_core.so")
    built.write_text("whole")
    target.write_text("wh")
    setup._replace(built, target)
    assert target.read_text() == "whole"

    def full(source, unfinished):
        unfinished.write_text("wh")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(setup.shutil, "copy2", full)
    with pytest.raises(OSError, match="No space"):
        setup._replace(built, target)
    assert target.read_text() == "whole"


def test_headers_include_no_large_headers():
    """Each large header would cost every source that includes it seconds."""
    large = re.compile(r"#include .(paddle/extension|paddle/utils/pybind|pybind11/(?!pytypes))")
    headers = [path for path in CORE.rglob("*.h") if "project" not in path.parts]
    assert len(headers) > 90
    found = {path.name: large.findall(path.read_text()) for path in headers}
    assert {name: names for name, names in found.items() if names} == {
        "python_casts.h": ["pybind11/"]
    }


def test_tests_that_a_sanitizer_leaves_out_exist():
    """The script names them by parts of their names, which would match nothing after a renaming."""
    script = (ROOT / "tests" / "sanitize" / "run").read_text()
    (measures,) = re.findall(r'^measures="(.*)"$', script, re.MULTILINE)
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    for name in measures.split(" or "):
        assert any(re.search(rf"^ *def test_\w*{name}", text, re.MULTILINE) for text in texts), name
