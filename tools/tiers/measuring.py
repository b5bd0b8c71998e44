"""Coverage by test: the tests that run a line, their number of other lines, and their time.

One run of the suite measures Python and C++: coverage.py records the tests of each Python line,
gcov the test files of each C++ line, with a separate build of the core (``SANITIZE=coverage``).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from tools.tiers.checkouts import FOLDER, Checkout, read_records

MOST_TESTS = 100
MOST_SECONDS = 180.0
TIMEOUT = 4 * 3600

CONFIGURATION = """\
[run]
source = {package}
data_file = {data}
parallel = True
disable_warnings = no-data-collected, module-not-measured
context = ${{TIERS_CONTEXT-}}
[report]
exclude_also =
    if TYPE_CHECKING:
    ^\\s*\\.\\.\\.$
"""


class Line(NamedTuple):
    """A line of a source: path in the tree, and line number."""

    file: str
    number: int


class Unit(NamedTuple):
    """Tests that run together: a test, or the merged tests of a file."""

    name: str
    tests: tuple[str, ...]
    seconds: float


def measure(commit: str, tier: str, tests: Sequence[str], jobs: int) -> Path:
    """Runs the tests of a tier once; returns the folder of the results."""
    folder = FOLDER / commit[:12] / tier
    if (folder / "compiled.json").is_file():
        return folder
    checkout = Checkout("coverage", commit, sanitize="coverage")
    if not checkout.build():
        raise SystemExit(checkout.build_failed)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tests.jsonl").is_file():
        _run_tests(checkout, folder, tier, tests, jobs)
    compiled = _compiled_lines(folder / "records" / "gcov")
    (folder / "compiled.json").write_text(json.dumps(compiled))
    shutil.rmtree(folder / "records")
    return folder


def _run_tests(
    checkout: Checkout, folder: Path, tier: str, tests: Sequence[str], jobs: int
) -> None:
    # Code that runs once per process is covered by the first test that needs it. So tests of the
    # quick tier run first: its coverage is then that of a run of this tier alone.
    quick = names_of_tier(checkout, "test", tests)
    (folder / "quick.json").write_text(json.dumps(quick))
    configuration = folder / "coveragerc"
    settings = {"package": checkout.path / "paddle_ngraph", "data": folder / "coverage"}
    configuration.write_text(CONFIGURATION.format(**settings))
    done = checkout.pytest(
        *("--tier", tier, *parallel(jobs), *tests),
        timeout=TIMEOUT,
        records=folder / "records",
        environment={
            "COVERAGE_PROCESS_START": str(configuration),
            "TIERS_FIRST": str(folder / "quick.json"),
        },
    )
    if not any("test" in record for record in done.records):
        raise SystemExit(f"No test ran:\n{done.output[-3000:]}")
    _combine(configuration)
    records = read_records(folder / "records")
    lines = [json.dumps(record) for record in records if "test" in record]
    (folder / "tests.jsonl").write_text("\n".join(lines))


def parallel(jobs: int) -> list[str]:
    return ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []


def names_of_tier(checkout: Checkout, tier: str, tests: Sequence[str]) -> list[str]:
    done = checkout.pytest("--collect-only", "--tier", tier, *tests, timeout=TIMEOUT)
    if not done.passed:
        raise SystemExit(f"The tests of the tier {tier} are not found:\n{done.output[-3000:]}")
    return [record["collected"] for record in done.records if "collected" in record]


def _combine(configuration: Path) -> None:
    from coverage import Coverage

    coverage = Coverage(config_file=str(configuration))
    coverage.combine()
    coverage.save()


# -- C++ -----------------------------------------------------------------------------------------


def _compiled_lines(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Returns the test files that run each line, by source and line; none: executable only."""
    lines: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    counts = [
        (part.name.replace("+", "/"), file)
        for part in sorted(folder.glob("*"))
        for file in sorted(part.rglob("*.gcda"))
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda pair: _gcov(folder, pair[1]), counts)
        for (tests, _), files in zip(counts, found):
            for file, number, count in itertools.chain.from_iterable(files):
                runs = lines[file][str(number)]
                if count:
                    runs.add(tests)
    return {file: {n: sorted(runs) for n, runs in found.items()} for file, found in lines.items()}


def _gcov(folder: Path, counts: Path) -> list[list[tuple[str, int, int]]]:
    """Returns file, line and count of the package's sources, from gcov."""
    notes = counts.with_suffix(".gcno")
    original = Path("/", *notes.relative_to(folder).parts[1:])
    if not original.is_file():  # of another build
        return []
    if not notes.exists():
        notes.symlink_to(original)
    command = ["gcov", "--json-format", "--stdout", "--relative-only", str(counts)]
    output = subprocess.run(command, capture_output=True, text=True, cwd=counts.parent).stdout
    return [
        [(file["file"], line["line_number"], line["count"]) for line in file["lines"]]
        for text in output.splitlines()
        if text.startswith("{")
        for file in json.loads(text)["files"]
        if file["file"].startswith("paddle_ngraph/")
    ]


# -- the tests of a line -------------------------------------------------------------------------


class Measured:
    """Results of a run of all tests."""

    def __init__(self, folder: Path) -> None:
        from coverage.numbits import register_sqlite_functions

        self.folder = folder
        self.compiled = json.loads((folder / "compiled.json").read_text())
        self.quick = set(json.loads((folder / "quick.json").read_text()))
        tests = [json.loads(line) for line in (folder / "tests.jsonl").read_text().splitlines()]
        self.tests: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for test in tests:
            if test["outcome"] == "passed":  # a test that fails or is skipped cannot kill a mutant
                self.tests[test["unit"]].append(test)
        self._lock = Lock()  # a connection serves one thread at a time
        self.data = sqlite3.connect(folder / "coverage", check_same_thread=False)
        register_sqlite_functions(self.data)
        self.package = _package(self.data)
        self.sizes = self._sizes()

    def _sizes(self) -> dict[str, int]:
        """Returns the number of lines that a unit runs; of a test file, of lines of C++."""
        sizes: Counter[str] = Counter()
        rows = "select context, numbits from line_bits join context on context.id = context_id"
        for context, bits in self.data.execute(rows):
            sizes[context] += bin(int.from_bytes(bits, "big")).count("1")
        for lines in self.compiled.values():
            sizes.update(itertools.chain.from_iterable(lines.values()))
        return sizes

    def is_quick(self, tests: Iterable[Mapping[str, Any]]) -> bool:
        return any(test["test"] in self.quick for test in tests)

    def lines(self, file: str) -> set[int]:
        """Returns the lines of a file that tests run."""
        if not file.endswith(".py"):
            return {int(number) for number, runs in self.compiled.get(file, {}).items() if runs}
        from coverage.numbits import numbits_to_nums

        rows = (
            "select numbits from line_bits join file on file.id = file_id "
            "join context on context.id = context_id where path = ? and context != ''"
        )
        found = self.data.execute(rows, (self.package + file,))
        return {number for (bits,) in found for number in numbits_to_nums(bits)}

    def names(self, line: Line) -> list[str]:
        """Returns the names of the units that run a line, the most specific first.

        Units of the test file that is named after the source precede others; then fewer lines do.
        """
        if line.file.endswith(".py"):
            rows = (
                "select context from line_bits join file on file.id = file_id "
                "join context on context.id = context_id "
                "where path = ? and num_in_numbits(?, numbits)"
            )
            with self._lock:
                found = self.data.execute(rows, (self.package + line.file, line.number)).fetchall()
            names = [name for (name,) in found if name in self.tests]
            return sorted(names, key=lambda name: (*self._rank(line.file, name), name))
        files = self.compiled.get(line.file, {}).get(str(line.number), [])
        return list(
            itertools.chain.from_iterable(
                each_function_first([u for u in self.tests if u.partition("::")[0] == file])
                for file in sorted(files, key=lambda file: (*self._rank(line.file, file), file))
            )
        )

    def _rank(self, source: str, name: str) -> tuple[bool, int]:
        return not is_namesake(source, name.partition("::")[0]), self.sizes[name]

    def units(self, lines: Iterable[Line], quick: bool) -> list[Unit]:
        """Returns the tests to run for changed lines: of the quick tier, or the others."""
        places: dict[str, int] = {}
        for line in lines:
            for place, name in enumerate(self.names(line)):
                places[name] = min(place, places.get(name, place))
        chosen = [self._unit(name, quick) for name in sorted(places, key=lambda n: places[n])]
        return first_of([unit for unit in chosen if unit.tests])

    def _unit(self, name: str, quick: bool) -> Unit:
        tests = [test for test in self.tests[name] if (test["test"] in self.quick) == quick]
        names = tuple(test["test"] for test in tests)
        return Unit(name, names, sum(test["seconds"] for test in tests))


def _package(data: sqlite3.Connection) -> str:
    """Returns the prefix of paths in the data, before the path in the tree."""
    (path,) = data.execute("select path from file where path like '%/paddle_ngraph/%'").fetchone()
    return path[: path.rindex("/paddle_ngraph/") + 1]


def is_namesake(source: str, tests: str) -> bool:
    """Returns whether a test file is named after a source: ``test_conv.py`` of ``conv_ops.cc``."""
    subject = re.sub(r"_ops?$", "", Path(source).stem)
    return Path(tests).stem.removeprefix("test_") == subject


def each_function_first(names: Sequence[str]) -> list[str]:
    """Sorts variants of parametrized tests: the first one of each function, then second ones."""
    seen: Counter[str] = Counter()
    order = []
    for name in names:
        function = name.partition("[")[0]
        order.append((seen[function], name))
        seen[function] += 1
    return [name for _, name in sorted(order, key=lambda pair: pair[0])]


def first_of(
    units: Sequence[Unit], most: int = MOST_TESTS, seconds: float = MOST_SECONDS
) -> list[Unit]:
    """Returns the first units within the limits, at least one."""
    chosen: list[Unit] = []
    for unit in units:
        total = sum(u.seconds for u in chosen) + unit.seconds
        if chosen and (len(chosen) == most or total > seconds):
            break
        chosen.append(unit)
    return chosen


# -- how much is covered -------------------------------------------------------------------------


class Covered(NamedTuple):
    lines: int
    run: int

    @property
    def percent(self) -> float:
        return 100 * self.run / self.lines if self.lines else 100.0


def covered(folder: Path, quick: bool = False) -> dict[str, Covered]:
    """Returns coverage by language and folder; with ``quick``, Python by the quick tier only."""
    totals: dict[str, Covered] = {}
    data = _quick_lines(folder) if quick else folder / "coverage"
    for language, file, lines, run in itertools.chain(_python(folder, data), _cpp(folder)):
        for key in (language, f"{language} {part_of(file)}"):
            before = totals.get(key, Covered(0, 0))
            totals[key] = Covered(before.lines + lines, before.run + run)
    return totals


def _quick_lines(folder: Path) -> Path:
    """Writes coverage data without contexts: of imports, and of the tests of the quick tier."""
    from coverage import CoverageData
    from coverage.numbits import numbits_to_nums

    measured = Measured(folder)
    units = {name for name, tests in measured.tests.items() if measured.is_quick(tests)}
    rows = (
        "select path, context, numbits from line_bits join file on file.id = file_id "
        "join context on context.id = context_id"
    )
    lines: defaultdict[str, set[int]] = defaultdict(set)
    for path, context, bits in measured.data.execute(rows):
        if not context or context in units:
            lines[path].update(numbits_to_nums(bits))
    target = folder / "coverage-quick"
    target.unlink(missing_ok=True)
    data = CoverageData(str(target))
    data.add_lines(lines)
    data.touch_files([path for (path,) in measured.data.execute("select path from file")])
    data.write()
    return target


def part_of(file: str) -> str:
    """Returns the folder of a file in the package; for the core, with its subfolder."""
    folders = Path(file).parts[1:-1]
    return "/".join(folders[: 2 if folders[:1] == ("core",) else 1]) or "."


def _python(folder: Path, data: Path) -> Iterable[tuple[str, str, int, int]]:
    from coverage import Coverage

    coverage = Coverage(data_file=str(data), config_file=str(folder / "coveragerc"))
    coverage.load()
    package = _package(sqlite3.connect(folder / "coverage"))
    for path in coverage.get_data().measured_files():
        _, statements, _, missing, _ = coverage.analysis2(path)
        yield "Python", path[len(package) :], len(statements), len(statements) - len(missing)


def _cpp(folder: Path) -> Iterable[tuple[str, str, int, int]]:
    compiled: Mapping[str, Any] = json.loads((folder / "compiled.json").read_text())
    for file, lines in compiled.items():
        yield "C++", file, len(lines), sum(bool(runs) for runs in lines.values())
