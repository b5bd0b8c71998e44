"""``make canary``: the copy of the sources, the output of its steps, the page."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import canary
from tools.canary import Releases, Step

pytestmark = pytest.mark.pure

RELEASES = Releases("9.8.7", "2030.1.0")


def test_both_files_get_the_pins_and_nothing_else_changes() -> None:
    for name in canary.PINNED:
        before = (canary.ROOT / name).read_text()
        after = canary.pinned(before, RELEASES)
        changed = [b for a, b in zip(before.splitlines(), after.splitlines()) if a != b]
        assert len(changed) == 3  # OpenVINO has a line for old versions of Python
        assert all("==9.8.7" in line or "==2030.1.0" in line for line in changed)


def test_a_copy_is_updated_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = ["requirements/build.txt", "tests/sanitize/run", ".ci/run"]
    monkeypatch.setattr(canary, "sources", lambda: sources)
    tree = tmp_path / "tree"
    canary.copy_sources(tree, RELEASES)
    run, times = tree / sources[1], {name: (tree / name).stat().st_mtime_ns for name in sources}
    assert run.stat().st_mode & 0o100
    run.write_text("changed")
    del sources[2]
    canary.copy_sources(tree, RELEASES)
    assert run.read_bytes() == (canary.ROOT / sources[1]).read_bytes()
    assert (tree / sources[0]).stat().st_mtime_ns == times[sources[0]]
    assert not (tree / ".ci/run").exists()
    listed = ["git", "ls-files", "--others"]
    output = subprocess.run(listed, cwd=tree, capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == sorted(sources)


NAMES = """\
/venv/paddle/extension_utils.py:718: UserWarning: No ccache found.
there is no paddle.base.core.X
paddle.base.libpaddle.Y._z is called (self) -> capsule, not (self, copy=...) -> capsule
"""
BUILD = """\
      paddle_ngraph/core/a.cc:3:1: error: 'x' was not declared
      paddle_ngraph/core/b.cc:40:17: error: 'x' was not declared
      paddle_ngraph/core/b.cc:1:10: fatal error: paddle/y.h: No such file or directory
      a.o: undefined reference to `phi::z()'
paddle_ngraph/frontends/a.py:7: error: Module has no attribute "q"  [attr-defined]
make: *** [Makefile:1: .built] Error 1
"""
TESTS = """\
.F.FE
______ ERROR collecting tests/b.py ______
ImportError while importing test module
E   ImportError: no y
______ A.test_far[x::y] ______
>       work()
E       ValueError: earlier

>       compare()
E       AssertionError:
E         Expected regex: 'x'
E         Actual message: 3e-5
E
E       More
FAILED tests/a.py::test_one[x] - AssertionError: 0.5 is not 1e-07
FAILED tests/a.py::test_two - AssertionError: 0.25 is not 3
FAILED tests/a.py::A::test_far[x::y] - AssertionError:
ERROR tests/b.py - ImportError while importing test module
FAILED tests/test_c.py::test_silent
=== 4 failed, 12 passed, 1 error in 5.01s ===
"""


def test_private_names() -> None:
    assert canary.private_names(NAMES) == NAMES.splitlines()[1:]


def test_of_each_error_the_first() -> None:
    lines = [line.strip() for line in BUILD.splitlines()]
    assert canary.errors(BUILD) == [lines[0], *lines[2:5]]


def test_failures_are_grouped_by_reason() -> None:
    assert canary.failures(TESTS) == {
        "AssertionError: 0.5 is not 1e-07": ["tests/a.py::test_one[x]", "tests/a.py::test_two"],
        "AssertionError: Actual message: 3e-5": ["tests/a.py::A::test_far[x::y]"],
        "ImportError: no y": ["tests/b.py"],
        "no reason given": ["tests/test_c.py::test_silent"],
    }  # fmt: skip


NAMESAKES = """\
______ ERROR at setup of test_two ______
E   OSError: of a
______ test_one[a - b] ______
E   ValueError: of a
______ test_one[a - b] ______
E   KeyError: of b
______ test_two ______
E   TypeError: of b
FAILED tests/a.py::test_one[a - b] - ValueError: ...
FAILED tests/b.py::test_one[a - b] - KeyError: x[1] - y
FAILED tests/b.py::test_two - TypeError: [x] - y
FAILED tests/c.py::test_three[x[a] - worker 'gw0' crashed
ERROR tests/a.py::test_two - OSError: ...
"""


def test_namesakes_have_their_own_reasons() -> None:
    assert canary.failures(NAMESAKES) == {
        "ValueError: of a": ["tests/a.py::test_one[a - b]"],
        "KeyError: of b": ["tests/b.py::test_one[a - b]"],
        "TypeError: of b": ["tests/b.py::test_two"],
        "worker 'gw0' crashed": ["tests/c.py::test_three[x[a]"],
        "OSError: of a": ["tests/a.py::test_two"],
    }
    # A traceback is missing, and which one is unknown.
    some = NAMESAKES.replace("______ test_one[a - b] ______\nE   ValueError: of a\n", "")
    assert canary.failures(some)["ValueError: ..."] == ["tests/a.py::test_one[a - b]"]
    assert canary.failures(some)["KeyError: x[1] - y"] == ["tests/b.py::test_one[a - b]"]


def test_targets_of_an_inner_make_are_in_the_summary() -> None:
    lines = ["make[1]: *** [Makefile:7: test] Error 1", "make: *** [Makefile:9: check] Error 2"]
    assert canary.summaries("\n".join(lines)) == lines


@pytest.mark.parametrize("repository", ["none", "around", "no git"])
def test_sources_without_git(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if repository == "around":
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    if repository == "no git":
        monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="clone the repository"):
        canary.sources()


def test_the_page_has_every_difference_once() -> None:
    done = [
        Step("environment", 0, 1.0, ""),
        Step("private names", 1, 2.0, NAMES),
        Step("build", 2, 3.0, BUILD),
        Step("tests", 1, 4.0, TESTS),
    ]
    page = canary.page(RELEASES, Releases("3.3.1", "2026.4.1"), done)
    assert page.startswith("# Paddle 9.8.7 and OpenVINO 2030.1.0\n")
    assert "| build | failed | 3 s |" in page and "| environment | passed | 1 s |" in page
    for once in (
        "## Environment\n\nNothing differs.",
        "- `there is no paddle.base.core.X`",
        "- `make: *** [Makefile:1: .built] Error 1`",
        "- `` a.o: undefined reference to `phi::z()' ``",
        "- `4 failed, 12 passed, 1 error in 5.01s`",
        "2 x `AssertionError: 0.5 is not 1e-07`",
        "- `tests/b.py`",
    ):
        assert page.count(once) == 1


def test_a_step_that_fails_without_a_known_reason_shows_the_end_of_its_output() -> None:
    page = canary.page(
        RELEASES, RELEASES, [Step("tests", -11, 1.0, "a\n" * 30 + "Segmentation fault")]
    )
    assert page.endswith("a\nSegmentation fault\n```\n") and page.count("a\n") < 30


def test_a_step_that_cannot_start_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    step = canary._run("private names", [".venv/bin/python"], tmp_path / "tree")
    assert step.status == 127 and ".venv/bin/python" in step.output


def test_a_step_names_files_by_their_path_in_the_copy(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    step = canary._run("build", ["echo", f"{tmp_path}/tree/a.cc:3: error"], tmp_path / "tree")
    assert step.output == "a.cc:3: error\n"


def test_the_newest_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(stdout: str, stderr: str) -> None:
        found = subprocess.CompletedProcess[str]([], bool(stderr), stdout, stderr)
        monkeypatch.setattr(subprocess, "run", lambda command, **options: found)

    answer("paddlepaddle (9.8.7)\nAvailable versions: 9.8.7, 9.8.6\n", "")
    assert canary.newest("paddlepaddle") == "9.8.7"
    answer("", "ERROR: no route\n")
    with pytest.raises(SystemExit, match=r"ERROR: no route\npip .*check the network, or name both"):
        canary.newest("paddlepaddle")


def test_a_step_does_not_inherit_make_and_reports_why_tests_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", "k")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    (tmp_path / "tree").mkdir()
    step = canary._run("tests", ["env"], tmp_path / "tree", {canary.UNCHECKED: "1"})
    lines = step.output.splitlines()
    assert step.status == 0 and f"{canary.UNCHECKED}=1" in lines
    assert f"PYTHONPATH={tmp_path / 'tree'}" in lines and "MAKEFLAGS=k" not in lines
