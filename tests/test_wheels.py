"""Distributions: their files, and a wheel that is used as a stranger would (`make test-wheel`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from paddle_ngraph import installation
from paddle_ngraph.codegen import project
from tools import wheels

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "paddle_ngraph"


def sources(*patterns: str) -> set[str]:
    found = {path for pattern in patterns for path in PACKAGE.rglob(pattern)}
    return {str(path.relative_to(ROOT)) for path in found if path.name != "_build_info.py"}


def run_setup(tmp_path: Path, *arguments: str, switch: str = "PURE=ON") -> None:
    """Runs setup.py without a core, with all its output in a folder."""
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    name, _, value = switch.partition("=")
    environment = {**os.environ, name: value}
    subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=True)


def test_the_source_distribution_has_all_that_a_build_reads(tmp_path):
    run_setup(tmp_path, "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    needed = sources("*.py", "*.pyi", "*.h", "*.cc", "py.typed", "project/**/*.*")
    assert needed <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", "_build_info.py"))]


def test_a_wheel_has_no_sources_but_those_of_generated_projects(tmp_path):
    run_setup(tmp_path, "build_py", "--build-lib", str(tmp_path / "lib"))
    package = tmp_path / "lib" / "paddle_ngraph"
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {name.partition("/")[2] for name in sources("*.py", "*.pyi", "py.typed")} <= files
    cpp = {name for name in files if name.endswith((".cc", ".h"))}
    copied = {name for name in cpp if not name.startswith("codegen/project/")}
    assert copied == set(project.core_files())


@pytest.mark.parametrize(
    ("switch", "target"), [("WITH_NGRAPH=OFF", installation._target()), ("PURE=ON", "any")]
)
def test_a_build_names_the_interpreter_and_machine_that_it_is_for(tmp_path, switch, target):
    run_setup(tmp_path, "build_py", "--build-lib", str(tmp_path / "lib"), switch=switch)
    built = (tmp_path / "lib" / "paddle_ngraph" / "_build_info.py").read_text()
    assert f'TARGET = "{target}"\n' in built


def test_both_ways_to_build_wheels_exclude_the_same_libraries():
    text = (ROOT / "pyproject.toml").read_text()
    assert tuple(re.findall(r"--exclude (\S+)", text)) == wheels.FOREIGN_LIBRARIES
    minors = re.findall(r"cp3(\d+)-\*", text)
    assert tuple(f"3.{minor}" for minor in minors) == wheels.PYTHONS


def test_a_wheel_of_cibuildwheel_has_the_cores_that_its_preparation_builds():
    text = (ROOT / "pyproject.toml").read_text()
    (folder,) = re.findall(r'environment = \{ CORES = "(\S+)"', text)
    (arguments,) = re.findall(r"python -m tools\.wheels ([^\"]+)", text)
    built = wheels.parser().parse_args(arguments.split()).older_cores
    assert str(built) == folder


def test_workflows_and_ci_name_targets_of_the_makefile_and_options_of_the_wheels():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted, options = {"style", "test", "check", "wheel", "test-wheel", "test-wheels"}, []
    found: set[str] = set()
    for file in [ROOT / ".ci" / "run", *(ROOT / ".github" / "workflows").glob("*.yml")]:
        text = file.read_text()
        found |= set(re.findall(r"^(?:\s*- run: |\s*run: )?make ([\w-]+)", text, re.MULTILINE))
        found |= set(re.findall(r"^\s*target: ([\w-]+)$", text, re.MULTILINE))
        options += re.findall(r"make wheel OPTIONS=\"(.+)\"$", text, re.MULTILINE)
    assert wanted <= found <= targets
    for each in options:  # the command of a shell prints the version of this Python
        each = re.sub(r"\$\(.+\)", "{}.{}".format(*sys.version_info), each)
        assert wheels.parser().parse_args(each.split()).python
    assert len(options) == 2


def test_the_workflow_of_a_release_has_the_interpreters_of_all_wheels():
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    (versions,) = re.findall(r"python-version: \|\n((?: +[\d.]+\n)+)", text)
    assert sorted(versions.split()) == sorted(wheels.PYTHONS)


def test_the_packages_of_a_build_are_pinned_with_digests():
    pins = [
        *wheels._pins("locked.txt", wheels.BUILD_PACKAGES),
        *wheels._pins("wheels_locked.txt"),
        *wheels._pins("onednn.txt"),
        *wheels._pins("older_paddle_locked.txt"),
    ]
    assert {pin.partition("==")[0] for pin in pins} >= {*wheels.BUILD_PACKAGES, "ziglang"}
    assert all("--hash=sha256:" in pin for pin in pins)


def test_only_the_cores_of_another_wheel_are_taken(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in ("_core.3.2.2.so", "mkl_packed/_mkl.so", "api.py", "_core.pyi"):
            wheel.writestr(f"paddle_ngraph/{name}", name)
    (tmp_path / "cores").mkdir()
    wheels._extract_cores(tmp_path / "a.whl", tmp_path / "cores")
    (core,) = (tmp_path / "cores").iterdir()
    assert core.name == core.read_text() == "_core.3.2.2.so"


def test_a_source_distribution_does_not_depend_on_the_build(tmp_path):
    contents = []
    for number, mode in ((1, 0o600), (2, 0o664)):
        file, archive = tmp_path / "b.py", tmp_path / f"{number}.tar.gz"
        file.write_text("x = 1\n")
        file.chmod(mode)
        os.utime(file, (number, number))
        with tarfile.open(archive, "w:gz") as target:
            for name in ("b", "a")[:: 2 * number - 3]:
                target.add(file, name)
        wheels._normalize(archive, 1700000000)
        contents.append(archive.read_bytes())
    assert contents[0] == contents[1]
    with tarfile.open(tmp_path / "1.tar.gz") as made:
        assert made.getnames() == ["a", "b"] and made.extractfile("a").read() == b"x = 1\n"


@pytest.mark.parametrize("with_kernels", [True, False])
def test_a_project_can_be_made_of_a_read_only_package(tmp_path, monkeypatch, with_kernels):
    template, made = tmp_path / "template", tmp_path / "made"
    shutil.copytree(project._TEMPLATE, template)
    folders = [path for path in [template, *template.rglob("*")] if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    monkeypatch.setattr(project, "_TEMPLATE", template)
    project._copy_sources(made, with_kernels)
    assert (made / "CMakeLists.txt").is_file() and (made / "phi").is_dir() == with_kernels
    assert (made / "ngraph_ops" / "core" / "ov" / "ov_function.cc").is_file()
    assert all(path.stat().st_mode & 0o200 for path in made.rglob("*"))
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.slow("installs Paddle and OpenVINO in an environment of its own")
def test_a_stranger_can_use_the_wheel():
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    found = sorted((ROOT / "dist").glob(f"paddle_ngraph-*-{tag}-*.whl"))
    if not found:
        pytest.skip("there is no wheel for this Python: run `make wheel`")
    command = [sys.executable, "-m", "tests.stranger", str(found[-1])]
    subprocess.run(command, cwd=ROOT, check=True)
