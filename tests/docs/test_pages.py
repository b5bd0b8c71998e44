"""The pages: each is linked and short enough, names what exists, and its tables are current."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import paddle_ngraph
from paddle_ngraph import __main__, flags
from tests.docs.blocks import ROOT, pages
from tools import site_links
from tools.reference import docstrings
from tools.reference.pages import FLAG_DETAILS, PAGES, TOPICS

pytestmark = pytest.mark.pure

DOCS = ROOT / "docs"
MAX_WORDS = 1500  # of a page about a mechanism
MAX_README_WORDS = 1200
SOURCES = (".py", ".pyi", ".cc", ".h")
CODE = re.compile(r"`([^`\n]+)`")
# Names of Paddle, of the system, or of patterns such as `ngraph_engine_1`, `_2`, `_1024`.
FOREIGN = {"GetValueFirstName", "get_value_name", "KMP_BLOCKTIME", "_1024"}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_generated_page_is_current(name: str) -> None:
    page = DOCS / "reference" / f"{name}.md"
    assert page.read_text() == PAGES[name](), f"{page} is out of date: run `make docs`"


def test_the_api_page_has_each_public_name() -> None:
    names = [name for group in TOPICS.values() for name in group]
    assert sorted([*names, "__version__"]) == sorted(paddle_ngraph.__all__)
    assert FLAG_DETAILS.keys() <= flags.FLAGS.keys()


def test_a_docstring_becomes_markdown() -> None:
    def owner() -> None:
        """Does it; see :func:`enable`, ``x`` and docs/guides/scaling.md::

            run(x)

        Then more.

        Args:
            a, b: Of two lines,
                of ``c``.
            *d: Others.

        Returns:
            A result.

        Raises:
            NgraphError: Never.
        """

    known = {"enable": "enable"}.get
    assert docstrings.markdown(owner, known) == [
        "Does it; see [`enable`](#enable), `x` and [scaling](../guides/scaling.md):",
        "```python given program\nrun(x)\n```",
        "Then more.",
        "- `a, b`: Of two lines, of `c`.\n- `*d`: Others.",
        "**Returns** A result.",
        "**Raises** `NgraphError`: Never.",
    ]


def test_the_index_links_each_page() -> None:
    index = (DOCS / "index.md").read_text()
    linked = re.findall(r"\]\(([\w/]+\.md)\)", index)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(linked) == sorted(pages)


def test_pages_about_mechanisms_are_short() -> None:
    words = {page.name: len(page.read_text().split()) for page in (DOCS / "how_it_works").iterdir()}
    assert not {name: count for name, count in words.items() if count > MAX_WORDS}
    assert len((ROOT / "README.md").read_text().split()) <= MAX_README_WORDS


def test_pages_about_mechanisms_name_existing_code() -> None:
    # Not only those that git tracks: it tracks none in the copy of `make canary`.
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = done.stdout.split()
    paths = [path for path in listed if path.endswith(SOURCES) and (ROOT / path).is_file()]
    sources = "\n".join([*listed, *FOREIGN, *((ROOT / path).read_text() for path in paths)])
    unknown = []
    for page in (DOCS / "how_it_works").glob("*.md"):
        for code in CODE.findall(page.read_text()):
            if re.fullmatch(r"[\w/.]+\.(py|cc|h)", code):
                exists = any(f"/{path}".endswith(f"/{code}") for path in listed)
                unknown += [] if exists else [f"{page.name}: {code}"]
            names = re.findall(r"[A-Za-z_]\w{3,}", code)
            unknown += [f"{page.name}: {name}" for name in names if name not in sources]
    assert not unknown


def test_sentences_of_an_unavailable_engine_are_those_of_the_code() -> None:
    page = (DOCS / "operations" / "troubleshooting.md").read_text()
    section = page.partition("## The engine is not ready")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (\*.+?) \|", section, re.MULTILINE)
    phrases = [phrase for cell in named for phrase in re.findall(r"\*([^*]+)\*", cell)]
    source = (ROOT / "paddle_ngraph" / "installation.py").read_text()
    text = " ".join(re.sub(r'"\s+f?"', "", source).split())
    assert len(phrases) > 5 and not [phrase for phrase in phrases if phrase not in text]


def test_a_broken_link_of_the_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"></p><a href="b.html#there">b</a>')
    (tmp_path / "b.html").write_text(
        '<a name="there"></a><a href="a.html#gone">a</a><a href="c.html">c</a>'
        '<a href="https://example.org/x#y">x</a><img src="a.png">'
    )
    assert site_links.broken_links(tmp_path) == [
        "b.html: a.html#gone",
        "b.html: a.png",
        "b.html: c.html",
    ]


def inline_codes() -> list[tuple[str, str]]:
    """The page and the text of each inline code; lines of one paragraph are joined."""
    found = []
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        codes = re.findall(r"`([^`]+)`", text)
        found += [(page.relative_to(ROOT).as_posix(), " ".join(code.split())) for code in codes]
    return found


def test_inline_commands_name_existing_commands_and_options() -> None:
    (commands,) = __main__._parser()._subparsers._group_actions
    makefile = (ROOT / "Makefile").read_text()
    wrong = []
    for page, code in inline_codes():
        words = code.split()
        if words[:3] == ["python", "-m", "paddle_ngraph"] and words[3:4] not in ([], ["COMMAND"]):
            command = commands.choices.get(words[3])
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            is_known = command and options <= command._option_string_actions.keys()
            wrong += [] if is_known else [f"{page}: {code}"]
        if words[:1] == ["make"] and re.fullmatch(r"[a-z-]+", words[1] if words[1:] else ""):
            is_target = re.search(rf"^(.* )?{words[1]}( .*)?:", makefile, re.MULTILINE)
            wrong += [] if is_target else [f"{page}: {code}"]
    assert not wrong


def test_inline_code_names_existing_flags_and_functions() -> None:
    known = {flag.key for flag in flags.FLAGS.values()}
    wrong = []
    for page, code in inline_codes():
        if page == "docs/reference/glossary.md":
            continue  # retired names
        named = set(re.findall(r"FLAGS_(?:use_ngraph|ngraph_\w*[a-z]|\w*mkl_packed\w*)\b", code))
        wrong += [f"{page}: {name}" for name in named - known]
        for path in re.findall(r"\bpaddle_ngraph((?:\.\w+)+)\(", code):
            owner: object = paddle_ngraph
            for name in path[1:].split("."):
                owner = getattr(owner, name, None)
            wrong += [f"{page}: paddle_ngraph{path}"] if owner is None else []
    assert not wrong
