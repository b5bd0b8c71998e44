"""What is pinned is pinned once: pyproject.toml and requirements/build.txt agree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pins(text: str) -> set[tuple[str, str]]:
    return set(re.findall(r"(paddlepaddle|openvino)==([\d.]+)", text))


def test_the_build_requirements_agree():
    build = pins((ROOT / "requirements" / "build.txt").read_text())
    assert build and build == pins((ROOT / "pyproject.toml").read_text())


def test_mkl_is_pinned_to_the_release_that_setup_asks_for():
    texts = [
        (ROOT / name).read_text()
        for name in ("pyproject.toml", "requirements/build.txt", "setup.py", "docs/mkl_packed.md")
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
