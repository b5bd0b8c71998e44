"""The package: each version is pinned once, and names of files and modules are valid."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import disk_cache, registry
from paddle_ngraph.paddle_private import releases

ROOT = Path(__file__).resolve().parents[1]


def pins(text: str) -> set[tuple[str, str]]:
    return set(re.findall(r"(paddlepaddle|openvino)==([\d.]+)", text))


def test_the_build_requirements_agree():
    build = pins((ROOT / "requirements" / "build.txt").read_text())
    assert build and build == pins((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    ("system", "machine"), [("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]
)
def test_a_build_without_a_core_needs_neither_paddle_nor_openvino(system, machine):
    text = (ROOT / "pyproject.toml").read_text().partition("requires = [")[2].partition("]")[0]
    there = {"sys_platform": system, "platform_machine": machine}
    found = [Requirement(each) for each in re.findall(r'"(.+)"', text)]
    needed = [each.name for each in found if each.marker is None or each.marker.evaluate(there)]
    assert needed == ["setuptools", "wheel", "pip"]


def requirements(name: str) -> list[tuple[Requirement, int]]:
    """The requirements of a file, each with the number of its digests."""
    lines = (ROOT / "requirements" / name).read_text().replace("\\\n", "").splitlines()
    found = [line.split(" --hash=sha256:") for line in lines if line.strip() and line[0] != "#"]
    return [(Requirement(requirement), len(digests)) for requirement, *digests in found]


@pytest.mark.parametrize("minor", range(9, 14))
def test_make_installs_exact_releases_with_digests(minor):
    """On each Python: all that build.txt and develop.txt name, in a release that they allow."""
    python = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"}
    python |= {"platform_python_implementation": "CPython", "sys_platform": "linux"}

    def needed(name: str) -> list[tuple[Requirement, int]]:
        every = requirements(name)
        return [pair for pair in every if pair[0].marker is None or pair[0].marker.evaluate(python)]

    locked: dict[str, Requirement] = {}
    for requirement, num_digests in needed("locked.txt"):
        assert num_digests > 0 and requirement.name not in locked
        assert [each.operator for each in requirement.specifier] == ["=="]
        locked[requirement.name] = requirement
    for requirement, _ in [*needed("build.txt"), *needed("develop.txt")]:
        (release,) = locked[requirement.name].specifier
        assert requirement.specifier.contains(release.version), requirement


def test_each_line_of_paddle_is_pinned_to_the_release_that_is_tested():
    newest, *older = [line.tested for line in releases.LINES]
    assert ("paddlepaddle", newest) in pins((ROOT / "pyproject.toml").read_text())
    for name in ("older_paddle.txt", "older_paddle_locked.txt"):
        found = [str(requirement) for requirement, _ in requirements(name)]
        assert found == [f"paddlepaddle=={release}" for release in older]
    assert all(num_digests for _, num_digests in requirements("older_paddle_locked.txt"))


def test_the_headers_of_onednn_are_pinned_once():
    ((requirement, num_digests),) = requirements("onednn.txt")
    assert num_digests > 0
    assert f'ONEDNN_HEADERS = "{requirement}"' in (ROOT / "setup.py").read_text()


def test_mkl_is_pinned_to_the_release_that_setup_asks_for():
    texts = [
        (ROOT / name).read_text()
        for name in (
            "pyproject.toml",
            "requirements/build.txt",
            "setup.py",
            "docs/guides/mkl_packed.md",
        )
    ]
    assert {pin for text in texts for pin in re.findall(r"mkl==([\d.]+)", text)} == {"2023.2.0"}


def test_the_readme_names_the_paddle_release_that_is_pinned():
    (paddle,) = (v for name, v in pins((ROOT / "pyproject.toml").read_text()) if name != "openvino")
    assert f"Paddle {paddle}" in (ROOT / "README.md").read_text()


def test_every_converter_module_has_its_tests():
    modules = {path.stem for path in (ROOT / "paddle_ngraph" / "ops").glob("[a-z]*.py")}
    shared = {"nodes", "spatial"}  # helpers of several families
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "ops").glob("test_*.py")}
    assert modules - shared == tests


def test_functions_called_by_the_core_exist():
    assert _core.python_callbacks
    for module, name in _core.python_callbacks:
        assert callable(getattr(importlib.import_module(module), name))


def test_converters_belong_to_the_package():
    """The disk cache is disabled for programs with converters of users."""
    registry.load_converters()
    assert len(registry.all_converters()) > 500
    assert not registry.foreign_types()


def test_the_disk_cache_knows_the_whole_package(monkeypatch, tmp_path):
    assert Path(paddle_ngraph.__file__).parent == disk_cache._PACKAGE
    sources = disk_cache._sources()
    monkeypatch.setattr(disk_cache, "_PACKAGE", tmp_path)
    for name in ("flags.py", "frontends/x.py", "_core.3.3.1.so"):
        before = disk_cache._sources()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
        assert disk_cache._sources() not in (before, sources)


def test_documented_names_remain():
    """A page named ``paddle_ngraph.function.registry.unregister``."""
    with pytest.warns(DeprecationWarning, match="conversion.registry"):
        from paddle_ngraph.function.registry import unregister
    with pytest.warns(DeprecationWarning, match="conversion.registry"):
        assert paddle_ngraph.function.registry.unregister is unregister
    assert unregister is registry.unregister


def defined_functions(path: Path) -> set[str]:
    """Functions of a module, with those of its classes as ``Class.function``."""
    body = ast.parse(path.read_text()).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = {
        f"{each.name}.{node.name}"
        for each in classes
        for node in each.body
        if isinstance(node, ast.FunctionDef)
    }
    return methods | {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_each_step_of_a_run_names_a_function():
    """docs/how_it_works/how_a_run_works.md names its steps as ``file:function``."""
    page = (ROOT / "docs" / "how_it_works" / "how_a_run_works.md").read_text()
    steps = re.findall(r"`([\w/]+\.(?:py|cc)):([\w.:]+)`", page)
    assert len(steps) > 40
    missing = []
    for name, function in steps:
        path = ROOT / "paddle_ngraph" / name
        if not path.is_file():
            missing.append(name)
        elif path.suffix == ".py":
            missing += {f"{name}:{function}"} - {f"{name}:{f}" for f in defined_functions(path)}
        elif not re.search(rf"^(\S.*(?<!\w))?{function}\(", path.read_text(), re.MULTILINE):
            missing.append(f"{name}:{function}")  # no definition at the start of a line
    assert not missing


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_are_valid():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text()):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.is_relative_to(ROOT):
                continue  # a page of the repository's host, such as its issues
            is_page = target.suffix == ".md" and target.is_file()
            if not target.exists() or (anchor and is_page and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_the_citation_has_the_version_and_the_address_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    address = r"https://github\.com/[\w-]+/paddle-ngraph"
    files = ("CITATION.cff", "pyproject.toml", ".github/ISSUE_TEMPLATE/config.yml")
    assert f"version: {paddle_ngraph.__version__}\n" in citation
    assert all(set(re.findall(address, (ROOT / name).read_text())) for name in files)
    assert (
        len({found for name in files for found in re.findall(address, (ROOT / name).read_text())})
        == 1
    )


def test_every_issue_form_asks_for_the_doctor():
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir() if path.stem != "config"]
    assert len(forms) == 4
    assert all("python -m paddle_ngraph doctor" in form.read_text() for form in forms)


@pytest.mark.pure
def test_a_wheel_has_the_assets_of_pages_and_their_licence():
    text = (ROOT / "pyproject.toml").read_text()
    (licences,) = re.findall(r"^license-files = \[(.*)\]$", text, re.MULTILINE)
    files = [ROOT / name for name in re.findall(r'"([^"]+)"', licences)]
    assert all(file.is_file() for file in files)
    assert '"paddle_ngraph.pages" = ["assets/*"]' in text
    foreign = [file for file in (ROOT / "paddle_ngraph" / "pages" / "assets").glob("*.min.js")]
    assert foreign
    for file in foreign:
        assert file.with_name(f"{file.name.removesuffix('.min.js')}.LICENSE.txt") in files
