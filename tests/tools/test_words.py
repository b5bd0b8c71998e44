"""The lint of the glossary: the names and docstrings that it reports, and its counts."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tools import words
from tools.words import Retired, allowed, counted, findings, main

pytestmark = pytest.mark.pure

GLOSSARY = """
| term | meaning | source | retired |
| --- | --- | --- | --- |
| iteration | One of a loop. | LLVM | turn, `*turn*`, `number_of` → `index_of` |
| LRU cache | A table. | Python | `Latest` → `LRUCache`, `latest.py` → `lru_cache.py` |

## Contracts

| name | seen in |
| --- | --- |
| `turn_it` | public API |
"""


def found(path, text):
    return [(f.line, f.word, f.instead) for f in findings(path, dedent(text), Retired(GLOSSARY))]


@pytest.mark.parametrize(
    "text",
    [
        "first_turn = 1",
        "def first_turn(): pass",
        "class FirstTurn: pass",
        "def f(*, first_turn): pass",
        "import a as first_turn",
        "self.first_turn = 1",
        "for first_turn in (): pass",
    ],
)
def test_python_defines_no_retired_name(text):
    ((line, word, instead),) = found("a.py", text)
    assert (line, word.lower().replace("_", ""), instead) == (1, "firstturn", "iteration")


def test_names_of_others_and_contracts_are_free():
    assert not found("a.py", "def turn_it(): return other.turn(Latest, turn='turn')")
    assert not found("a.py", "returned = turnover = 1  # turn")


def test_pages_show_no_retired_name_as_code():
    page = "A turn.\n`Guards.turn`, `a/latest.py`\n`turn_it`, `returned`\n"
    assert found("a.md", page) == [
        (2, "Guards.turn", "iteration"),
        (2, "turn", "iteration"),
        (2, "latest.py", "lru_cache.py"),
    ]
    results = "<!-- tiers:begin -->\n`turn`\n<!-- tiers:end -->\n`turn`\n"
    assert found("a.md", results) == [(4, "turn", "iteration")]


def test_exact_names_and_files():
    assert found("p/latest.py", "class Latest: pass") == [
        (1, "latest.py", "lru_cache.py"),
        (1, "Latest", "LRUCache"),
    ]
    assert found("p/my_latest.py", "class Latests: number_of = 1") == [(1, "number_of", "index_of")]


def test_cpp():
    text = '// Turn.\n#include "turn.h"\nint kTurn;\nint f() { return kTurn + at("turn"); }\n'
    assert found("a.cc", text) == [(3, "kTurn", "iteration")]


def test_openings_of_docstrings():
    text = '''
        """What a file is for."""
        class A:  # It is one
            """The values. They are many."""
        def f():
            """Whether it is on."""
        def g():
            """Whether the switch is on. It may be."""
    '''
    assert [(line, word) for line, word, _ in found("a.py", text)] == [
        (2, '"What ..."'),
        (6, '"Whether it ..."'),
    ]
    cpp = (
        "// What it is\n\n// Values.\n// They are many.\nint a;  // it is one\n// Those.\nint b;\n"
    )
    assert [line for line, *_ in found("a.h", cpp)] == [1]


def test_an_earlier_output_is_an_allow_list(tmp_path, monkeypatch):
    (tmp_path / "glossary.md").write_text(GLOSSARY)
    monkeypatch.setattr(words, "GLOSSARY", tmp_path / "glossary.md")
    monkeypatch.setattr(words, "sources", lambda root, paths, suffixes: [("a.py", "turn = 1\n")])
    lines = []
    assert main([], lines.append) == 1
    assert lines == ["a.py:1: turn → iteration"]
    (tmp_path / "allow").write_text("a.py:7: turn → something else\n")
    assert allowed(["a.py:7: turn → something else"]) == {("a.py", "turn")}
    assert main(["--allow", str(tmp_path / "allow")]) == 0
    monkeypatch.setattr(words, "sources", lambda root, paths, suffixes: [("b.py", "turn = 1\n")])
    assert main(["--allow", str(tmp_path / "allow")]) == 1


def test_counts_by_folder():
    texts = [
        ("p/q/r/a.py", '"""What is it?"""\nx = "what"  # what for\n'),
        ("p/a.cc", "// Somewhat more\nint what; /* and what\n more */\n"),
    ]
    rows = [line.split() for line in counted(texts).splitlines()[1:]]
    assert rows == [
        ["300.0", "3", "10", "all"],
        ["200.0", "1", "5", "p"],
        ["400.0", "2", "5", "p/q"],
    ]
    assert main(["--count", "tools"], lambda text: rows.append(text)) == 0
    assert "tools" in rows[-1]


def test_the_glossary_is_a_table_that_the_lint_reads():
    retired = Retired(words.GLOSSARY.read_text())
    assert retired.files["latest.py"] == "lru_cache.py"
    assert retired.names["Latest"] == "LRUCache"
    assert retired.parts["turn"] == "iteration"
    assert "what" in retired.free
    for row in words._rows(words.GLOSSARY.read_text().partition(words.CONTRACTS)[0]):
        assert len(row) == 4


def test_no_retired_name_is_its_own_replacement():
    retired = Retired(words.GLOSSARY.read_text())
    for names in (retired.names, retired.files, retired.parts):
        assert [name for name, instead in names.items() if name == instead] == []
    # Cells without a replacement: no retired name is the replacement of another one.
    replacements = {instead for instead in retired.names.values() if "," not in instead}
    assert not replacements & set(retired.names)
