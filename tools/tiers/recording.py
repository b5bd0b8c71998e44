"""A pytest plugin that records each test: its outcome, its time, and the lines that it covers.

Loaded through PYTEST_PLUGINS, so that coverage starts before the package is imported, in the
workers of pytest-xdist, too. Environment variables configure it:

- ``TIERS_RECORDS``: the folder to write to, a file for each process;
- ``TIERS_TESTS``: a JSON list of tests. Only these run, in this order, or
- ``TIERS_FIRST``: these run before the other tests of their file;
- ``COVERAGE_PROCESS_START``: a configuration of coverage.py. Each test is a separate context.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

CONTEXT = "TIERS_CONTEXT"


def _start_coverage() -> Any:
    """Returns the coverage of this process, started here unless coverage.py did so before."""
    if not os.environ.get("COVERAGE_PROCESS_START"):
        return None
    from coverage import Coverage

    running = Coverage.current()
    if running is None:
        running = Coverage(config_file=os.environ["COVERAGE_PROCESS_START"], data_suffix=True)
        running.start()
    return running


# pytest in a process that a test starts is part of that test, and not recorded.
ACTIVE = "TIERS_RECORDS" in os.environ and CONTEXT not in os.environ
_coverage = _start_coverage() if ACTIVE else None


def pytest_configure(config: pytest.Config) -> None:
    if ACTIVE:
        config.pluginmanager.register(Recorder(Path(os.environ["TIERS_RECORDS"])))


def unit_of(item: pytest.Item) -> str:
    """Returns the unit of a test: merged tests of a file run their cases together, as one unit."""
    file = item.nodeid.partition("::")[0]
    return f"{file}::merged" if item.get_closest_marker("merged") else item.nodeid


def ordered(
    items: Sequence[pytest.Item], only: Sequence[str] | None, first: Sequence[str]
) -> list[pytest.Item]:
    """Returns the items to run, grouped by file, files in the order of their earliest test."""
    if only is not None:
        place = {name: index for index, name in enumerate(only)}
        chosen = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])
    else:
        before = set(first)
        chosen = sorted(items, key=lambda item: item.nodeid not in before)
    files = list(dict.fromkeys(item.path for item in (chosen if only is not None else items)))
    rank = {file: index for index, file in enumerate(files)}
    return sorted(chosen, key=lambda item: rank[item.path])


def _names(variable: str) -> list[str] | None:
    file = os.environ.get(variable)
    return json.loads(Path(file).read_text()) if file else None


class CompiledLines:
    """Coverage of the core by test file, if it is built with ``SANITIZE=coverage``.

    libgcov reads the output folder from the environment at each dump.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            from paddle_ngraph import _core

            library = ctypes.CDLL(_core.__file__)
            self.dump, self.reset = (getattr(library, f"__gcov_{n}") for n in ("dump", "reset"))
        except (ImportError, OSError, AttributeError):
            self.dump = self.reset = None

    def begin(self, name: str) -> None:
        os.environ["GCOV_PREFIX"] = str(self.folder / name.replace("/", "+"))

    def end(self) -> None:
        if self.dump is not None and self.reset is not None:
            self.dump()
            self.reset()


class Recorder:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self.compiled = CompiledLines(folder / "gcov")
        self.outcome = "passed"

    def _write(self, **values: Any) -> None:
        self.log.write(json.dumps(values) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept = ordered(items, _names("TIERS_TESTS"), _names("TIERS_FIRST") or [])
        names = {item.nodeid for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept
        for item in kept:
            self._write(collected=item.nodeid, unit=unit_of(item))
        if self.compiled.dump is not None:
            self.compiled.begin("import")
            self.compiled.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        unit = unit_of(item)
        os.environ[CONTEXT] = unit  # for the processes that the test starts
        self.compiled.begin(item.nodeid.partition("::")[0])
        if _coverage is not None:
            _coverage.switch_context(unit)
        self.outcome = "passed"
        self._write(started=item.nodeid)
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            seconds = round(time.perf_counter() - start, 4)
            self._write(test=item.nodeid, unit=unit, outcome=self.outcome, seconds=seconds)
            if nextitem is None or nextitem.path != item.path:
                self.compiled.end()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome = "failed"
        elif report.skipped and self.outcome == "passed":
            self.outcome = "skipped"

    def pytest_sessionfinish(self) -> None:
        """Saves the coverage here, since workers of pytest-xdist exit without running atexit."""
        if _coverage is not None:
            _coverage.stop()
            _coverage.save()
