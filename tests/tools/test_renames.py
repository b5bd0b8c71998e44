"""The comparison of commits: which differences are names and prose, and which are none."""

from __future__ import annotations

import json
import subprocess
from textwrap import dedent

import pytest

from tools.renames.__main__ import main
from tools.renames.names import Moves, compared, is_renamed_string, read

pytestmark = pytest.mark.pure


def difference(old, new, path="a.py", moves=(), given=None, **options):
    """The map between two versions of a file; lines and reasons of the other differences."""
    sides = (read(path, dedent(text)) for text in (old, new))
    moved = Moves(dict(moves))
    file = compared(path, *sides, moved, given, **options)
    names = {}
    for a, b in file.changed():
        names.setdefault(a, []).append(b)
    strings = [
        (a.text, b.text)
        for a, b in file.strings
        if not is_renamed_string(a, b, moved, names if given is None else given)
    ]
    return names, [d[1:3] for d in file.differences], strings


RENAMED = [
    ("def f(turn): return turn", "def f(step): return step", {"turn": ["step"]}),
    ("x.turn(turn=1)", "x.step(turn=1)", {"turn": ["step"]}),
    ("x = 'turn'; turn = 1", "x = 'step'; step = 1", {"turn": ["step"]}),
    ("def f(x: 'list[Old]'): Old()", "def f(x: 'list[New]'): New()", {"Old": ["New"]}),
    ("class A:\n  old = 1\n  b = old", "class A:\n  new = 1\n  b = new", {"old": ["new"]}),
    ("try: f()\nexcept E as a: a", "try: f()\nexcept E as b: b", {"a": ["b"]}),
    ("def f():\n  global a\n  a = 1", "def f():\n  global b\n  b = 1", {"a": ["b"]}),
    ("'''Doc.'''\ndef f():\n  '''Doc.'''\n  # why\n  g(1)", "def f(): g(1)", {}),
    # Local names are those of their scopes.
    (
        "def f(n): return n\ndef g(n): return n",
        "def f(a): return a\ndef g(b): return b",
        {"n": ["a", "b"]},
    ),
    ("[n for n in n]", "[m for m in n]", {"n": ["m"]}),
    ("n = [n for n in n]", "m = [n for n in m]", {"n": ["m"]}),
    ("def f(n): return lambda n: n", "def f(n): return lambda m: m", {"n": ["m"]}),
    # New names are sorted in another way.
    ("from m import a, b\na.x, b.y", "from m import b, c\nc.x, b.y", {"a": ["c"]}),
    ("import a\nimport b as c\nc", "import b as z\nimport a\nz", {"c": ["z"]}),
]

DIFFERENT = [
    ("a + b", "a - b", [(1, 1)]),
    ("a.turn, b.turn", "a.step, b.turn", [(1, 1)]),
    ("a.turn, b.step", "a.step, b.step", [(1, 1)]),
    ("def f(a): return a, b", "def f(b): return b, b", [(1, 1)]),  # captured
    ("def f(a, b): return a", "def f(b, a): return a", [(1, 1), (1, 1)]),
    ("if a: b()", "if a: b()\nelse: c()", [(0, 2)]),
    ("a(1)\nb()", "b()", [(1, 0)]),
    ("from m import a\na()", "from n import a\na()", [(1, 1)]),
    ("a: int = 1", "a: int = 2", [(1, 1)]),
    ("f(b'1')", "f('1')", [(1, 1)]),
    ("async def f(): pass", "def f(): pass", [(1, 1)]),
    ("def f(a, *, b=1, c): pass", "def f(a, *, b, c=1): pass", [(1, 1)]),
]


@pytest.mark.parametrize(("old", "new", "names"), RENAMED)
def test_renamed_python(old, new, names):
    found = difference(old, new)
    assert ({key: sorted(value) for key, value in found[0].items()}, *found[1:]) == (names, [], [])


@pytest.mark.parametrize(("old", "new", "lines"), DIFFERENT)
def test_python_that_differs(old, new, lines):
    found = difference(old, new)[1]
    assert set(lines) <= set(found)


def test_strings_follow_the_map_unless_they_are_prose():
    assert not difference("a = 'a', 'm.a-1'", "b = 'b', 'm.b-1'")[2]
    assert difference("a = 'an a'", "b = 'an b'")[2] == [("an a", "an b")]
    assert difference("a = 'c'", "b = 'd'")[2] == [("c", "d")]
    text = "a = '''\nimport m\nm.{}(1)\n'''"
    assert not difference(text.format("x") + "; x()", text.format("y") + "; y()")[2]
    assert difference(text.format("x"), text.format("y"))[2]


CPP = """
#include "core/old.h"
#include <vector>

// Says something.
int old_name(int n) {{ /* more */ return {body}; }}
#define SIZE 1 \\
  + 2
"""


def test_cpp():
    old = CPP.format(body='n + old_name(1) + R"(// text)"[0] + \'"\'')
    new = old.replace("// Says something.\n", "").replace("/* more */", "").replace("old_name", "f")
    assert difference(old, new, "a.cc") == ({"old_name": ["f"]}, [], [])
    assert difference(old, new.replace("// text", "text"), "a.cc")[2]
    assert difference(old, new.replace("+ 2", "+ 3"), "a.cc")[1] == [(8, 7)]
    assert difference(old, new.replace("n + f", "n - f"), "a.cc")[1]
    assert difference(old, new.replace("<vector>", "<list>"), "a.cc")[1]
    assert difference('f("a" "b");', 'f("a"\n  "b");', "a.cc") == ({}, [], [])
    moved = new.replace("core/old.h", "core/new.h")
    assert difference(old, moved, "a.cc")[1]
    assert not difference(old, moved, "a.cc", {"p/core/old.h": "p/core/new.h"})[1]


def test_a_given_map_is_held():
    old, new = "def f(turn): x.turn, y.turn", "def f(slot): x.step, y.slot"
    assert difference(old, new)[1]
    assert not difference(old, new, given={"turn": ["step", "slot"]})[1]
    assert difference(old, new, given={"turn": ["slot"]})[1]
    # Two names may become one only where that is said of both.
    assert difference("x.a, x.b", "x.b, x.b", given={"a": ["b"]})[1]
    assert not difference("x.a, x.b", "x.b, x.b", given={"a": ["b"], "b": ["b"]})[1]


def test_prose_leaves_names_and_imports():
    def found(old, new):
        return difference(old, new, given={}, merges_imports=False)[1:]

    assert found("'''Doc.'''\na = 1  # why", "a = 1") == ([], [])
    assert found("a = 1", "b = 1") == ([(1, 1)], [])
    assert found("f('a')", "f('b')") == ([], [("a", "b")])
    assert found("import a\nimport b", "import b\nimport a")[0]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def commit(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path = path.with_name(path.name + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text) if text is not None else path.unlink()
        git("add", "-A")
        git("commit", "-qm", "A commit")

    def git(*arguments):
        names = [f"user.{key}=a@b.c" for key in ("name", "email")]
        options = [part for name in names for part in ("-c", name)]
        subprocess.run(["git", *options, *arguments], check=True, capture_output=True)

    git("init", "-q")
    commit(
        p__latest="class Latest:\n    def put(self, key):\n        return key\n" * 2,
        p__user="from p import latest\nfrom p.latest import Latest\nlatest.x('p.latest', Latest)\n",
        t__tiny="A = 1\n",
    )
    return commit


def test_files_that_move(repository, capsys):
    text = "class LRUCache:\n    '''A cache.'''\n    def put(self, key):\n        return key\n" * 2
    repository(
        p__latest=None,
        u__lru_cache=text,
        p__user="from u import lru_cache\nfrom u.lru_cache import LRUCache\n"
        "lru_cache.x('u.lru_cache', LRUCache)\n",
    )
    assert main(["HEAD~", "HEAD", "--save", "map.json"]) == 0
    assert "p/latest.py -> u/lru_cache.py" in capsys.readouterr().out
    with open("map.json") as file:
        assert json.load(file) == {"Latest": ["LRUCache"], "latest": ["lru_cache"]}
    assert main(["HEAD~", "HEAD", "--map", "map.json"]) == 0
    with open("map.json", "w") as file:
        json.dump({"Latest": "Cache"}, file)
    assert main(["HEAD~", "HEAD", "--map", "map.json"]) == 1
    assert "Latest -> LRUCache" in capsys.readouterr().out


def test_the_working_tree_and_paths(repository, capsys, tmp_path):
    assert main(["--prose", "HEAD", "."]) == 0
    (tmp_path / "t/tiny.py").write_text("# One.\nA = 2\n")
    assert main(["--prose", "HEAD", ".", "p"]) == 0
    capsys.readouterr()
    assert main(["--prose", "HEAD", ".", "t"]) == 1
    out = capsys.readouterr().out
    assert "t/tiny.py:1: - A = 1\nt/tiny.py:2: + A = 2\n1 files of code differ, 1 diff" in out
    (tmp_path / "t/tiny.py").write_text("A = 1\n")
    (tmp_path / "t/empty.py").write_text('"""No code."""\n')
    assert main(["HEAD", "WORKTREE"]) == 0
    (tmp_path / "t/empty.py").write_text("B = 1\n")
    assert main(["HEAD", "WORKTREE"]) == 1
    assert "t/empty.py: added" in capsys.readouterr().out
