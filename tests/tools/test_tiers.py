"""The measurement of tiers: the sampled faults, and the tests that should notice them."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import pytest

from tools.tiers import reverts, tables
from tools.tiers.checkouts import ROOT, TestRun
from tools.tiers.measuring import (
    Covered,
    Line,
    Measured,
    Unit,
    each_function_first,
    first_of,
    is_namesake,
    part_of,
)
from tools.tiers.mutants import AREAS, candidates, sampled
from tools.tiers.mutations import KINDS, mutations_of
from tools.tiers.recording import ordered
from tools.tiers.state import State
from tools.tiers.trials import Trial, outcome_of, tried_until

pytestmark = pytest.mark.pure


def changed(file, body, kind):
    """The statements of a body, with one fault each."""
    text = (
        f"def f(a, b, c):\n    {body}\n" if file.endswith(".py") else f"void f() {{\n  {body}\n}}\n"
    )
    found = [m for m in mutations_of(file, text) if m.kind == kind]
    assert all(mutation.line == 2 for mutation in found)
    return {mutation.applied(text).splitlines()[1].strip() for mutation in found}


PYTHON = [
    ("sign", "return a + b", {"return (a - b)"}),
    ("sign", "return (a - b) * c", {"return ((a + b)) * c"}),
    ("sign", "a -= 2", {"a += 2"}),
    ("sign", "return a * -b", {"return a * (b)"}),
    ("sign", "return 'é' * -1", {"return 'é' * 1"}),
    ("sign", "return a + 'text'", set()),
    ("sign", "return f'{a + b}'", set()),
    ("boundary", "return a < b", {"return (a <= b)"}),
    ("boundary", "return a <= b > c", {"return (a < b > c)", "return (a <= b >= c)"}),
    ("boundary", "return a == 0", {"return (a == 1)"}),
    ("boundary", "return a[1:]", {"return (a[2:])", "return (a[0:])"}),
    ("boundary", "return a == 1000, b is True", set()),
    ("guard", "if a: return b", {"if True: return b", "if False: return b"}),
    ("guard", "return a and b", {"return (a)", "return (b)"}),
    ("guard", "assert a", {"pass"}),
    ("guard", "raise ValueError(a)", {"pass"}),
    ("swap", "return a - b", {"return (b - a)"}),
    ("swap", "return a + b - c", {"return (c - (a + b))"}),
    ("swap", "return a / b, a / a, 'text' % a", {"return (b / a), a / a, 'text' % a"}),
    ("swap", "return f(a, b)", {"return f(b, a)"}),
    ("swap", "return max(a, b), f(a), f(*a, b), f(a, 'b')", set()),
]


@pytest.mark.parametrize(("kind", "body", "expected"), PYTHON)
def test_faults_of_python(kind, body, expected):
    assert changed("x.py", body, kind) == expected


CPP = [
    ("sign", "a = b + 1;", {"a = b - 1;"}),
    ("sign", "a += b;", {"a -= b;"}),
    ("sign", "f(-b);", {"f(b);"}),
    ("sign", 'a = b + "c";', set()),
    ("boundary", "return a < b;", {"return a <= b;"}),
    ("boundary", "return a >= 2;", {"return a > 2;", "return a >= 3;"}),
    ("boundary", "std::vector<int> a;  // a < b", set()),
    ("guard", "if (a) {", {"if (false && (a)) {", "if (true || (a)) {"}),
    (
        "guard",
        "if (f(a && b) && c) return;",
        {
            "if (false && (f(a && b) && c)) return;",
            "if (true || (f(a && b) && c)) return;",
            "if (f(a && b)) return;",
            "if (c) return;",
        },
    ),
    ("guard", "if (auto a = f(); a) {", set()),
    ("guard", 'if (a == "text") {', set()),
    ("swap", "a = b - c.size();", {"a = c.size() - b;"}),
    ("swap", "a = b * c - d;", set()),
    ("swap", "f(a, b.c);", {"f(b.c, a);"}),
    ("swap", "std::max(a, b);", set()),
]


@pytest.mark.parametrize(("kind", "body", "expected"), CPP)
def test_faults_of_cpp(kind, body, expected):
    assert changed("x.cc", body, kind) == expected


def test_code_run_by_an_import_has_no_mutants():
    text = "A = 1 - 2\ndef f(x: int = 3 - 1, y: 'a < b' = 0):\n    return x\n"
    assert mutations_of("x.py", text) == []


@pytest.fixture
def tree(tmp_path):
    """Sources with faults of each kind in each line."""
    (tmp_path / "paddle_ngraph" / "ops").mkdir(parents=True)
    body = "".join(f"    if a < {n} and b - c: return -b\n" for n in range(8))
    for name in ("one", "two"):
        file = tmp_path / "paddle_ngraph" / "ops" / f"{name}.py"
        file.write_text(f"def f(a, b, c):\n{body}")
    return tmp_path


def test_samples_depend_on_the_commit(tree):
    found = candidates(tree, "ops")

    def names(seed):
        return [mutant.name for mutant in sampled(found, seed, lambda file, line: True)]

    assert names("one commit") == names("one commit") != names("another")


def test_sampled_mutants_are_on_distinct_lines_and_alternate_kinds(tree):
    found = sampled(candidates(tree, "ops"), "seed", lambda file, line: line % 2 == 0)
    mutants = list(found)
    lines = [(mutant.file, mutant.mutation.line) for mutant in mutants]
    assert sorted(set(lines)) == sorted(lines)
    assert {line % 2 for _, line in lines} == {0} and len(lines) == 8
    assert [mutant.mutation.kind for mutant in mutants[:4]] == list(KINDS)


def test_a_line_that_no_longer_runs_moves_no_other(tree):
    found = candidates(tree, "ops")
    before = list(sampled(found, "seed", lambda file, line: True))
    file, mutation = before[-1].file, before[-1].mutation
    after = list(sampled(found, "seed", lambda f, line: (f, line) != (file, mutation.line)))
    assert after[:4] == before[:4] and len(after) < len(before)


def test_areas_are_there():
    assert all(any(ROOT.glob(pattern)) for patterns in AREAS.values() for pattern in patterns)


def test_at_most_so_many_tests_or_minutes():
    units = [Unit(str(n), (str(n),), 50.0) for n in range(5)]
    assert [unit.name for unit in first_of(units, most=2)] == ["0", "1"]
    assert [unit.name for unit in first_of(units, seconds=160.0)] == ["0", "1", "2"]
    assert [unit.name for unit in first_of(units, seconds=1.0)] == ["0"]


def test_a_variant_of_each_function_comes_first():
    names = ["f::a[1]", "f::a[2]", "f::b[1]", "f::c", "f::b[2]"]
    assert each_function_first(names) == ["f::a[1]", "f::b[1]", "f::c", "f::a[2]", "f::b[2]"]


@pytest.mark.parametrize(
    ("source", "tests", "expected"),
    [
        ("paddle_ngraph/ops/conv.py", "tests/ops/test_conv.py", True),
        ("paddle_ngraph/core/ov/conv_ops.cc", "tests/ops/test_conv.py", True),
        ("paddle_ngraph/ops/conv.py", "tests/conversion/passes/test_blocked_layout.py", False),
    ],
)
def test_a_test_file_is_named_after_a_source(source, tests, expected):
    assert is_namesake(source, tests) == expected


@pytest.fixture
def measured(tmp_path):
    """A line of Python that a test, a merged file and a slow test run; a line of C++."""
    coverage = pytest.importorskip("coverage")
    data = coverage.CoverageData(str(tmp_path / "coverage"))
    package = "/tree/paddle_ngraph"
    lines = {
        "tests/a.py::test[1]": [3, 4],
        "tests/ops/test_x.py::merged": [3, 4, 5, 6],
        "tests/a.py::slow": [3],
        "tests/a.py::broken": [3],
        "": [1, 2],
    }
    for context, numbers in lines.items():
        data.set_context(context)
        data.add_lines({f"{package}/ops/y.py": numbers})
    data.write()
    tests = [
        ("tests/a.py::test[1]",) * 2,
        ("tests/ops/test_x.py::one", "tests/ops/test_x.py::merged"),
        ("tests/ops/test_x.py::two", "tests/ops/test_x.py::merged"),
        ("tests/a.py::slow",) * 2,
        ("tests/a.py::broken",) * 2,
    ]
    records = [
        {"test": t, "unit": u, "seconds": 1.0, "outcome": "failed" if "broken" in t else "passed"}
        for t, u in tests
    ]
    (tmp_path / "tests.jsonl").write_text("\n".join(map(json.dumps, records)))
    quick = ["tests/a.py::test[1]", "tests/ops/test_x.py::one"]
    (tmp_path / "quick.json").write_text(json.dumps(quick))
    compiled = {"paddle_ngraph/core/a.cc": {"7": ["tests/a.py"], "8": []}}
    (tmp_path / "compiled.json").write_text(json.dumps(compiled))
    return Measured(tmp_path)


def test_the_tests_of_a_line(measured):
    def tests(file, number, quick):
        return [u.tests for u in measured.units([Line(f"paddle_ngraph/{file}", number)], quick)]

    merged = "tests/ops/test_x.py::{}".format
    assert measured.lines("paddle_ngraph/ops/y.py") == {3, 4, 5, 6}
    assert tests("ops/y.py", 3, True) == [("tests/a.py::test[1]",), (merged("one"),)]
    assert tests("ops/y.py", 3, False) == [("tests/a.py::slow",), (merged("two"),)]
    assert tests("ops/y.py", 2, True) == []
    assert measured.lines("paddle_ngraph/core/a.cc") == {7}
    assert tests("core/a.cc", 7, True) == [("tests/a.py::test[1]",)]
    assert tests("core/a.cc", 8, True) == []


def items(*names):
    return [SimpleNamespace(nodeid=name, path=name.partition("::")[0]) for name in names]


def test_the_order_of_tests():
    found = items("a::1", "a::2", "b::1", "b::2")
    assert [i.nodeid for i in ordered(found, ["b::2", "a::1", "b::1"], [])] == [
        *("b::2", "b::1", "a::1")
    ]
    assert [i.nodeid for i in ordered(found, None, ["b::2"])] == ["a::1", "a::2", "b::2", "b::1"]


def test_a_result_survives_a_kill(tmp_path):
    file = tmp_path / "results.jsonl"
    State(file).add("mutant", "a", outcome="test")
    with file.open("a") as open_file:
        open_file.write('{"step": "mutant", "na')
    State(file).add("mutant", "b", outcome="all")
    assert [result["name"] for result in State(file).of("mutant")] == ["a", "b"]


def test_culprits_failed_or_did_not_end():
    ended = {"test": "a", "outcome": "passed"}
    hung = TestRun(None, [{"started": "a"}, ended, {"started": "b"}], "")
    failed = TestRun(1, [*hung.records, {"test": "b", "outcome": "failed"}], "")
    assert hung.culprits == failed.culprits == ["b"]


class FakeCheckout:
    """Fails one test while the sources are changed, and another one always."""

    def __init__(self):
        self.changed = False

    def change(self):
        self.changed = True
        return True

    def restore(self):
        self.changed = False

    def pytest_of(self, names, timeout):
        fails = [n for n in names if n == "flaky" or (n == "guard" and self.changed)][:1]
        return TestRun(int(bool(fails)), [{"test": n, "outcome": "failed"} for n in fails], "")


@pytest.mark.parametrize(
    ("quick", "others", "expected"),
    [
        (["flaky", "guard"], [], ("test", "guard")),
        (["flaky", "other"], ["other", "guard"], ("all", "guard")),
        (["other"], ["flaky"], ("survived", None)),
    ],
)
def test_only_a_test_that_passes_otherwise_notices(tmp_path, quick, others, expected):
    checkout = FakeCheckout()
    trial = Trial(checkout, State(tmp_path / "results"), checkout.change, compiled=False)
    assert trial.begin()
    units, rest = ([Unit(n, (n,), 1.0) for n in names] for names in (quick, others))
    assert outcome_of(trial, units, lambda: rest) == expected


class NoTestCheckout(FakeCheckout):
    """Runs no test: while the sources are changed, or as often as ``failures`` without a change."""

    def __init__(self, changed, failures):
        super().__init__()
        self.fails_if_changed, self.failures = changed, failures

    def pytest_of(self, names, timeout):
        if self.changed:
            fails = self.fails_if_changed or self.failures > 0
        else:
            fails, self.failures = self.failures > 0, self.failures - 1
        return TestRun(None if fails else 0, [], "out of memory")


def test_a_run_without_a_culprit_has_to_pass_without_the_change(tmp_path):
    def outcome(checkout):
        trial = Trial(checkout, State(tmp_path / "results"), checkout.change, compiled=False)
        assert trial.begin()
        return outcome_of(trial, [Unit("a", ("a",), 1.0)], lambda: [])

    for failures in (0, 2):
        found = outcome(NoTestCheckout(True, failures))
        assert found == ("test", "(tests cannot be collected)")
    with pytest.raises(RuntimeError, match=r"(?s)without a change either:.*out of memory"):
        outcome(NoTestCheckout(True, 99))


def test_a_run_that_names_a_test_only_without_the_change_is_repeated(tmp_path):
    checkout = FakeCheckout()
    usual = checkout.pytest_of

    def pytest_of(names, timeout):
        is_first = checkout.changed and "flaky" in names
        return TestRun(None, [], "") if is_first else usual(names, timeout)

    checkout.pytest_of = pytest_of
    state = State(tmp_path / "results")
    trial = Trial(checkout, state, checkout.change, compiled=False)
    assert trial.begin()
    units = [Unit(name, (name,), 1.0) for name in ("flaky", "other")]
    assert outcome_of(trial, units, lambda: []) == ("survived", None)
    assert [result["name"] for result in state.of("unreliable")] == ["flaky"]


def test_unfit_candidates_are_replaced_by_the_next():
    tried = []

    def attempt(checkout, number):
        tried.append(number)
        return number % 2 == 0

    tried_until(3, range(10), attempt, [None, None], "numbers")
    assert sorted(tried) == [0, 1, 2, 3, 4]


def test_commits_that_mended_something():
    log = (
        "\0a\1A crash of f is mended\1\2\n\npaddle_ngraph/a.py\ntests/test_a.py\n"
        "\0b\1A crash of g is mended\1\2\n\npaddle_ngraph/a.py\n"
        "\0c\1New operator\1It is fast.\2\n\npaddle_ngraph/a.py\ntests/test_a.py\n"
        "\0d\1New operator\1Wrong before.\2\n\npaddle_ngraph/core/a.cc\ntests/test_a.py\n"
    )
    assert [mend.commit for mend in reverts.candidates(log)] == ["a", "d"]


def test_lines_that_a_diff_changes():
    diff = "--- a/x.py\n+++ b/x.py\n@@ -3,2 +3 @@ def f\n-a\n-b\n+c\n@@ -9,0 +9,2 @@\n+d\n+e\n"
    assert list(reverts.changed_lines(diff)) == [Line("x.py", n) for n in (3, 4, 9, 10)]


def test_only_the_package_is_reverted(tmp_path):
    """Tests stay; later changes of the same lines conflict; a change already gone is no revert."""

    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(source, test):
        for folder, text in (("paddle_ngraph", source), ("tests", test)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / "a.py").write_text(text)
        git("add", ".")
        git("commit", "-qm", "Change")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    rest = "".join(f"{n}\n" for n in range(9))
    commit(f"old\n{rest}", "old test\n")
    mended = commit(f"new\n{rest}", "new test\n")
    checkout = SimpleNamespace(path=tmp_path)
    assert reverts.revert(checkout, mended)
    assert (tmp_path / "paddle_ngraph" / "a.py").read_text() == f"old\n{rest}"
    assert (tmp_path / "tests" / "a.py").read_text() == "new test\n"
    git("reset", "-q", "--hard")
    commit(f"other\n{rest}", "new test\n")
    assert not reverts.revert(checkout, mended)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("a.py", '"""New."""\n\ndef f():\n    """New."""\n    return 1  # new\n', False),
        ("a.py", 'def f():\n    """Old."""\n    return 2  # old\n', True),
        ("a.cc", "// New\nint f() { return 1; }\n", False),
        ("a.cc", "/* old */ int f() { return 2; }\n", True),
        ("a.cmake", "new", True),
        ("a.md", "new", False),
    ],
)
def test_a_revert_of_prose_is_no_fault(tmp_path, file, text, expected):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    folder = tmp_path / "paddle_ngraph"
    folder.mkdir()
    (folder / "a.py").write_text('"""Old."""\ndef f():\n    """Old."""\n    return 1  # old\n')
    (folder / "a.cc").write_text("/* old */ int f() { return 1; }\n")
    (folder / "a.cmake").write_text("old")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "Old")
    (folder / file).write_text(text)
    assert reverts.changes_code(tmp_path) == expected


def test_a_revert_of_prose_is_replaced(tmp_path, monkeypatch):
    restored = []
    checkout = SimpleNamespace(path=tmp_path, restore=lambda: restored.append(1))
    monkeypatch.setattr(reverts, "revert", lambda checkout, commit: True)
    monkeypatch.setattr(reverts, "changes_code", lambda repository: False)
    fix = reverts.BugFix("a", "Fix", True)
    outcome = reverts._of_changed_lines(checkout, None, None, fix)
    assert outcome == (reverts.CONFLICT, None) and restored == [1]


def test_tables(tmp_path):
    state = State(tmp_path / "results.jsonl")
    for number, outcome in enumerate(("test", "test", "all", "survived", "does not compile")):
        about = {"area": "ops", "kind": "sign", "line": "x.py:1", "change": "a | b → c"}
        state.add("mutant", str(number), outcome=outcome, test="t", **about)
    for number, outcome in enumerate(("test", "all", "conflict")):
        state.add("revert", str(number), subject="Mend", outcome=outcome, test=None)
    text = tables.results("0123456789abcdef", state, {"Python": Covered(200, 190)})
    assert "| ops | 4 | 2 | 1 | 1 | 67 |" in text
    assert "Python: `make test`, C++: `make test-all`" in text
    assert "| Python | 190 | 200 | 95.0 |" in text
    assert "Of 2 reverted commits 1 make `make test` fail, and 1 only" in text
    assert "a \\| b" in text
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"
    assert tables.replaced(page, text) == f"before\n{tables.BEGIN}\n{text}\n{tables.END}\nafter\n"


def test_parts_of_the_package():
    files = (
        "paddle_ngraph/core/ov/kernels/pool.cc",
        "paddle_ngraph/ops/a.py",
        "paddle_ngraph/a.py",
    )
    assert [part_of(file) for file in files] == ["core/ov", "ops", "."]
