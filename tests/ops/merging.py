"""Runs the cases of one test file as one program, with one compile for many of them.

Alone, a case of three operators costs some 60 ms, of which nine tenths are the fixed costs of the
program, the executor and the compiler. So tests that only call ``check`` are marked :func:`merged`.
Before the first of them runs, all of a file are called once to record their cases, and the cases
run in programs of up to ``GROUP`` each. Then each test compares its own results. A program that
fails is halved until the failing case is alone, and fails in its own test. Where every half passes,
cases fail only together, and all their tests fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.ops.harness import Case, Outcome

GROUP = 40
# A test with one of these marks runs alone, or not at all.
ALONE = ("skip", "skipif", "xfail")
Test = TypeVar("Test", bound=Callable[..., None])


def merged(test: Test) -> Test:
    """Marks a test that has no fixtures and only calls ``check``."""
    return pytest.mark.merged(test)


class CannotMerge(Exception):
    """Cases that pass as separate programs cannot be merged into one."""


class MergedCases:
    """The outcomes of the merged tests of one file, by test and number of the call in it."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, int], Outcome | Exception] = {}
        self.cases: dict[tuple[str, int], Case] = {}

    def record(self, items: Sequence[pytest.Function]) -> None:
        """Calls tests without running their cases. A test that raises here runs alone."""
        for item in items:
            if any(item.get_closest_marker(mark) for mark in ALONE):
                continue
            arguments = item.callspec.params if hasattr(item, "callspec") else {}
            recorded: dict[tuple[str, int], Case] = {}
            try:
                with _current(item.nodeid, recorded=recorded):
                    item.obj(**arguments)
            except (Exception, pytest.skip.Exception, pytest.fail.Exception):  # xfail is a failure
                continue
            self.cases.update(recorded)

    def run(self) -> None:
        """Runs the recorded cases; a case that fails alone has no outcome."""
        groups: dict[Any, list[tuple[str, int]]] = {}
        for key, case in self.cases.items():
            groups.setdefault(_kind(case), []).append(key)
        for keys in groups.values():
            for first in range(0, len(keys), GROUP):
                self._run(keys[first : first + GROUP])

    def _run(self, keys: Sequence[tuple[str, int]]) -> bool:
        """Whether all these cases pass, together or in smaller programs."""
        from tests.ops.harness import run_together

        try:
            outcomes = run_together([self.cases[key] for key in keys])
        except Exception as error:
            if len(keys) == 1:  # the test itself runs this case again, and shows its error
                return False
            middle = len(keys) // 2
            passed = [self._run(half) for half in (keys[:middle], keys[middle:])]
            if all(passed) and not isinstance(error, CannotMerge):
                self.outcomes.update(dict.fromkeys(keys, error))
            return all(passed)
        self.outcomes.update(zip(keys, outcomes))
        return True


def _kind(case: Case) -> Any:
    """Returns the properties that cases of one program share."""
    has_empty = any(value.size == 0 for value in case.inputs.values())
    return case.runs, bool(case.dynamic), bool(case.native), bool(case.converted), has_empty


class _Test:
    """The running test: its name, the number of its calls of ``check``, and the use of the
    outcomes.
    """

    def __init__(self, name: str, recorded: dict[Any, Case] | None, merged: MergedCases | None):
        self.name, self.recorded, self.merged = name, recorded, merged
        self.calls = 0

    def key(self) -> tuple[str, int]:
        self.calls += 1
        return self.name, self.calls


_tests: list[_Test] = []


@contextmanager
def _current(
    name: str, recorded: dict[Any, Case] | None = None, merged: MergedCases | None = None
) -> Iterator[None]:
    _tests.append(_Test(name, recorded, merged))
    try:
        yield
    finally:
        _tests.pop()


def comparing(item: pytest.Function, merged: MergedCases) -> Any:
    """Runs a block in which ``check`` finds the outcomes of the test's cases."""
    return _current(item.nodeid, merged=merged)


def records(case: Case) -> bool:
    """Records the case while tests are being recorded; returns whether it did."""
    if not _tests or _tests[-1].recorded is None:
        return False
    inputs = {name: np.array(value) for name, value in case.inputs.items()}
    _tests[-1].recorded[_tests[-1].key()] = replace(
        case, build=_with_cells_of_now(case.build), inputs=inputs
    )
    return True


def _with_cells_of_now(build: Callable[..., Any]) -> Callable[..., Any]:
    """Copies a function with the present values of its captured variables, which the test may
    rebind.
    """
    if not isinstance(build, FunctionType) or build.__closure__ is None:
        return build
    cells = tuple(CellType(cell.cell_contents) for cell in build.__closure__)
    copy = FunctionType(build.__code__, build.__globals__, build.__name__, None, cells)
    copy.__defaults__, copy.__kwdefaults__ = build.__defaults__, build.__kwdefaults__
    return copy


def outcome_of(case: Case) -> Outcome | None:
    """Returns the outcome of a case that ran together with others.

    Raises:
        AssertionError: The case passes alone, but not together with others.
    """
    if not _tests or _tests[-1].merged is None:
        return None
    outcome = _tests[-1].merged.outcomes.get(_tests[-1].key())
    if isinstance(outcome, Exception):
        raise AssertionError(f"passes alone, but not in one program with others: {outcome}")
    return outcome
