"""Each block of code in the documentation runs, or has a mark with the reason why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import flags
from tests.docs import blocks, commands, given

BLOCKS = blocks.all_blocks()
RUN = [block for block in BLOCKS if block.language in ("python", "bash") and block.kind is None]
PAGES = sorted({block.page for block in RUN})
SLOW = [block for block in BLOCKS if block.kind == "slow"]
# Words with which commands begin, and which no text of other blocks begins with.
COMMANDS = ("python ", ".venv/", "make ", "pip ", "FLAGS_", "cmake ", "git ", "$ ")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands name."""
    folder = tmp_path_factory.mktemp("docs")
    given.write_files(folder)
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a page, which is the current one, without functions on disk."""
    for file in files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(blocks.ROOT))
    flags.set("ngraph_cache_dir", str(tmp_path / "cache"))
    return tmp_path


def run_python(block: blocks.Block, namespace: dict[str, Any]) -> None:
    names = {key: value for name in block.given for key, value in given.GIVEN[name]().items()}
    namespace |= names
    code = compile("\n" * block.line + block.code, block.page, "exec")
    if "main_program" not in names:
        exec(code, namespace)
        return
    with paddle.static.program_guard(names["main_program"], names["startup_program"]):
        exec(code, namespace)


def run_page(page: list[blocks.Block]) -> None:
    """Runs the blocks of a page, as a reader would who copies them one after another."""
    paddle.disable_static()
    namespace: dict[str, Any] = {"__name__": "page", "paddle": paddle}
    namespace["paddle_ngraph"] = paddle_ngraph
    for block in page:
        if block.file:
            Path(block.file).unlink(missing_ok=True)  # a link to the file of other pages
            Path(block.file).write_text(block.code)
            compile(block.code, block.page, "exec")
        elif block.language == "python":
            run_python(block, namespace)
        else:
            for command in commands.commands(block):
                commands.run(command)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, folder: Path) -> None:
    run_page([block for block in RUN if block.page == page])
    has_scripts = [block for block in RUN if block.page == page and block.language == "python"]
    is_start = page.startswith("docs/start/") and any(not block.file for block in has_scripts)
    if is_start and "engine_runs" in "".join(block.code for block in has_scripts):
        assert paddle_ngraph.stats()["engine_runs"] > 0


@pytest.mark.slow("starts processes, measures")
@pytest.mark.parametrize("block", SLOW, ids=str)
def test_a_slow_block_runs(block: blocks.Block, folder: Path) -> None:
    if block.language == "python":
        run_page([block])
        return
    run_page([other for other in RUN if other.page == block.page and other.file])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", block.code],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_a_block_without_a_mark_is_run(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("```python\nassert paddle.in_dynamic_mode()\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        run_page(list(blocks.blocks(page)))
    page.write_text("```bash\nFLAGS_ngraph_strict=1 python -m paddle_ngraph explain nothing\n```\n")
    with pytest.raises(AssertionError):
        run_page(list(blocks.blocks(page)))
    page.write_text("```bash\nmake no-such-target\n```\n")
    with pytest.raises(AssertionError):
        run_page(list(blocks.blocks(page)))


@pytest.mark.parametrize("mark", ["slow", "not run: ", "given", "later: it takes long"])
def test_a_mark_needs_a_reason(mark: str) -> None:
    with pytest.raises(AssertionError, match="unknown mark"):
        blocks.Block("page", 1, "python", mark, "").kind  # noqa: B018


def test_each_block_has_a_language() -> None:
    unknown = [f"{block}: {block.language}" for block in BLOCKS]
    assert not [each for each in unknown if each.rpartition(": ")[2] not in blocks.LANGUAGES]
    names = {name for block in BLOCKS for name in block.given}
    assert names <= given.GIVEN.keys()


def test_text_has_no_commands() -> None:
    usage = "docs/guides/distributed.md"  # a synopsis, with brackets
    texts = [block for block in BLOCKS if block.language == "text" and block.page != usage]
    lines = [f"{block}: {line}" for block in texts for line in block.code.split("\n")]
    assert not [line for line in lines if line.partition(": ")[2].startswith(COMMANDS)]


def test_commands_name_existing_files_and_options() -> None:
    for block in BLOCKS:
        if block.language == "bash":
            on_page = {other.file for other in BLOCKS if other.page == block.page}
            known = {name for name in on_page if name} | {"script.py", "train.py"}
            for command in commands.commands(block):
                commands.check_names(command, known)
