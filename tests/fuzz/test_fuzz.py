"""A few random programs in every run of the tests; ``make fuzz`` checks many."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject

from paddle_ngraph.verification.judgement import is_nearer
from tests.fuzz import worker
from tests.fuzz.check import Built, Mismatch, NativeFailure, Tally, check
from tests.fuzz.programs import Builder, Program
from tests.fuzz.strategy import programs, the_same_examples

PROGRAMS = 80


def test_random_programs_agree() -> None:
    tally = Tally()

    @the_same_examples(PROGRAMS)
    @given(programs(largest=20))
    def fuzz(program: Program) -> None:
        try:
            check(program, tally)
        except NativeFailure:
            reject()
        except Exception as error:
            raise AssertionError(f"{error}\n{program.script()}") from error

    fuzz()
    print(tally)
    assert tally.programs >= PROGRAMS * 0.9
    assert tally.engine_runs >= tally.programs
    assert tally.converted > 4 * sum(tally.native.values())


def _program(write: Callable[[Builder], Any], data: str) -> Program:
    """A program of one input ``x`` [4] and the result of ``write`` for it."""
    b = Builder(lambda strategy: 0)
    b.add_input((4,), "real", data, 2.0)
    b.program.fetches = [write(b).name]
    return b.program


def _falsify(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Makes the engine's results wrong."""
    original = Built.run

    def run(self: Built, engine: bool, seed: int = 1, rows: int | None = None) -> Any:
        results, stats = original(self, engine, seed, rows)
        return ({n: change(v) for n, v in results.items()} if engine else results), stats

    monkeypatch.setattr(Built, "run", run)


NUMBERS = 'np.random.default_rng(0).uniform(-2, 2, 4).astype("float32")'


def _tanh(b: Builder) -> Any:
    return b.emit("paddle.tanh({0})", b.values[-1], shape=(4,))


def _cancelled(b: Builder) -> Any:
    """0, up to rounding."""
    x = _tanh(b)
    return b.emit("paddle.sum({0}) - paddle.sum(paddle.flip({0}, axis=[0]))", x, shape=())


def _compared(b: Builder) -> Any:
    """A comparison of a value that is 0 up to rounding."""
    return b.emit("{0} > 0", _cancelled(b), shape=(), dtype="bool", rounds=False)


def _position(b: Builder) -> Any:
    """The index of the maximum."""
    return b.emit("paddle.argmax({0})", b.values[-1], shape=(), dtype="int64", rounds=False)


@pytest.mark.slow("compiles many or large functions")
def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _falsify(monkeypatch, lambda value: value * np.float32(1.0001))
    with pytest.raises(Mismatch, match="differs in 4 of 4 elements"):
        check(_program(_tanh, NUMBERS))


@pytest.mark.slow("trains through many compiles")
def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(_tanh, NUMBERS)
    b = Builder(lambda strategy: 0)
    b.program = program
    program.targets = [(program.fetches[0], b.cotangent((4,)).name)]
    check(program)
    _falsify(monkeypatch, lambda value: -value)
    with pytest.raises(Mismatch):
        check(program)


def test_a_tie_of_exact_numbers_is_judged_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(_position, 'np.array([0, 2, 1, 2], "float32")')
    check(program)
    _falsify(monkeypatch, lambda value: value + 2)
    with pytest.raises(Mismatch, match=r"engine np.int64\(3\), native np.int64\(1\)"):
        check(program)


@pytest.mark.slow("compiles many or large functions")
def test_differences_that_rounding_explains_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    _falsify(monkeypatch, np.logical_not)
    check(_program(_compared, NUMBERS), tally)
    assert tally.judged_by_noise == 1


@pytest.mark.slow("compiles many or large functions")
def test_rounding_errors_of_cancelled_sums_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(_cancelled, NUMBERS)
    _falsify(monkeypatch, lambda value: value + np.float32(3e-6))
    check(program)
    _falsify(monkeypatch, lambda value: value + np.float32(3e-4))
    with pytest.raises(Mismatch):
        check(program)


def test_the_side_nearer_to_the_exact_result_is_right() -> None:
    exact = np.array([1.0, 1.0, 1.0, np.inf])
    native = np.array([1.1, 1.0, np.nan, np.inf], "float32")
    engine = np.array([1.05, 1.01, 1.2, 1.0], "float32")
    assert is_nearer(exact, engine, native).tolist() == [True, False, False, False]
    assert not is_nearer(np.array([1]), np.array([1]), np.array([2])).any(), "only of floats"


def test_an_engine_that_does_not_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Built.run
    monkeypatch.setattr(Built, "run", lambda self, engine: original(self, engine=False))
    with pytest.raises(Mismatch, match="did not run"):
        check(_program(_tanh, NUMBERS))


def test_the_script_of_a_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = _program(_tanh, NUMBERS)
    exec(compile(program.script(), "program", "exec"), {})
    assert "native" in capsys.readouterr().out


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("steps", [1, 20])
def test_an_unshrunk_failure_is_reported_when_time_runs_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: int
) -> None:
    def fail(program: Program, tally: Tally | None) -> None:
        if len(program.lines) > 2:
            raise Mismatch(f"{len(program.lines)} lines")

    clock = count()
    monkeypatch.setattr(worker, "check", fail)
    monkeypatch.setattr(worker.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(worker, "_SHRINK_SECONDS", steps)
    share = worker._Programs(tmp_path / "program.py")
    message = share.run(50, 1)
    assert message is not None and message.startswith("Mismatch: ")
    assert share.smallest in [script for _, script in share._failures.values()]


def test_a_failure_is_printed_as_it_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = _program(_tanh, NUMBERS)

    def fail(program: Program, tally: Tally | None) -> None:
        program.open_dims = False  # as Paddle rejects a dynamic dimension there
        raise Mismatch("wrong")

    monkeypatch.setattr(worker, "check", fail)
    share = worker._Programs(tmp_path / "program.py")
    for _ in range(2):
        program.open_dims = True
        with pytest.raises(Mismatch):
            share._check(program)
        assert '"x0", [4], "float32"' in share.smallest


def _rows(b: Builder) -> Any:
    return b.emit("{0} * 2.0 + 1.0", b.values[-1], shape=(4,))


@pytest.mark.slow("compiles many or large functions")
def test_a_wrong_number_at_another_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(_rows, NUMBERS)
    program.open_dims, program.batches = True, [9, 1, 30]
    tally = Tally()
    check(program, tally)
    assert tally.batches == 3 and tally.engine_runs == 4
    _falsify(monkeypatch, lambda value: value * np.float32(1.001 if value.size == 9 else 1))
    with pytest.raises(Mismatch, match="with 9 rows"):
        check(program)
