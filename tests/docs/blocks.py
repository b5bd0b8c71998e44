"""Fenced blocks of Markdown, and their marks.

The first word after the fence is the language; GitHub and Sphinx ignore the rest, which says how
the block is tested:

``python``: runs in the namespace of its page, in the order of the page; ``python given program``:
runs with the objects of ``given.py``, too; ``python train.py``: a file of that name.

``bash``: each line runs in a folder with the files of ``given.py``.

Then, ``slow: REASON``: only ``make test-all`` runs it; ``not run: REASON``: only its names are
checked.

``text``, ``c``, ``c++``: no commands.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = frozenset({"bash", "c", "c++", "python", "text"})
FENCE = re.compile(r"^(\s*)```(.*)$")
MARK = re.compile(
    r"(?P<file>\w+\.py)"
    r"|(?:given (?P<given>\w+(?:, \w+)*))?(?:(?:^| )(?P<kind>slow|not run): (?P<reason>.+))?"
)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: The path of its page in the repository.
        line: The line of its fence.
        language: The first word after the fence.
        mark: The words after that.
        code: The lines between the fences.
    """

    page: str
    line: int
    language: str
    mark: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def given(self) -> list[str]:
        """The names of the objects that the block presupposes."""
        return (self._marked("given") or "").replace(",", " ").split()

    @property
    def file(self) -> str | None:
        """The name of the file that the block is."""
        return self._marked("file")

    @property
    def kind(self) -> str | None:
        """``slow``, ``not run``, or ``None`` for a block that each run of the tests runs."""
        return self._marked("kind")

    def _marked(self, name: str) -> str | None:
        found = MARK.fullmatch(self.mark)
        assert found, f"{self}: unknown mark {self.mark!r}: see tests/docs/blocks.py"
        return found[name]


def pages() -> list[Path]:
    """The pages whose blocks are tested."""
    return [
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted(ROOT.glob("*.md")),
        *sorted(ROOT.glob("*/README.md")),
        *sorted(ROOT.glob("demos/*/README.md")),
    ]


def blocks(page: Path) -> Iterator[Block]:
    """Yields the blocks of a page, in order."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    info, start, lines = None, 0, []
    for number, line in enumerate(page.read_text().split("\n"), 1):
        fence = FENCE.match(line)
        if info is None and fence:
            info, start, lines = fence[2].strip(), number, []
        elif fence:
            assert "`" not in info, f"{name}:{start}: not a block in Markdown"
            language, _, mark = info.partition(" ")
            yield Block(name, start, language, mark, textwrap.dedent("\n".join(lines)))
            info = None
        elif info is not None:
            lines.append(line)
    assert info is None, f"{name}:{start}: the block does not end"


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]
