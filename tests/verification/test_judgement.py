"""The judgement of differences: what noise explains, what is remembered, and what has to wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.utils import clock
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.comparison import (
    MAX_SPARED,
    Difference,
    Pair,
    Reference,
    Remembered,
    compare_pairs,
)
from paddle_ngraph.verification.evaluation import Noise, Steps, finished, tensor_of
from paddle_ngraph.verification.judgement import FLOAT32, Spread
from tests.clocks import Clock
from tests.programs import Program, floats
from tests.verification.test_checks import verified

Known = dict[int, Remembered]
INF, NAN = np.inf, np.nan


def _compared(
    pairs: list[Pair],
    evaluate: Callable[[Noise | None], Mapping[int, np.ndarray]],
    known: Known | None,
) -> list[Difference]:
    def steps(noise: Noise | None) -> Steps[Mapping[int, np.ndarray]]:
        yield from ()
        return evaluate(noise)

    return finished(compare_pairs(pairs, Reference(steps, FLOAT32), known))


def _wrong(
    exact: np.ndarray,
    engine: np.ndarray,
    native: np.ndarray,
    known: Known | None = None,
    noisy: Callable[[Noise], np.ndarray] | None = None,
) -> bool:
    def evaluate(noise: Noise | None) -> Mapping[int, np.ndarray]:
        return {0: exact if noise is None or noisy is None else noisy(noise)}

    pair = Pair("output 0", 0, *(tensor_of(each, "float32") for each in (engine, native)))
    return bool(_compared([pair], evaluate, known))


def _rounded(exact: np.ndarray, error: float, seed: int) -> np.ndarray:
    errors = np.random.default_rng(seed).normal(size=exact.shape)
    return np.asarray(exact * (1 + error * errors), "float32")


def test_a_right_difference_hides_no_larger_one_later() -> None:
    """A run in which noise explains a hundredth does not allow two in the next."""
    exact = floats(500).astype("float64")
    known: Known = {}

    def chaotic(noise: Noise) -> np.ndarray:
        return exact * (1 + 0.003 * np.random.default_rng(noise.number).normal(size=exact.shape))

    native = exact.astype("float32")
    assert not _wrong(exact, 1.01 * native, native, known, chaotic)
    assert _wrong(exact, 1.02 * native, native, known)
    assert any(_wrong(exact, 1.001 * native, native, known) for _ in range(MAX_SPARED))
    # Nor do errors of Paddle's elsewhere that are larger than some roundings.
    native, engine = _rounded(exact, 0.01, 0), exact.copy()
    native[:9] = exact[:9]
    engine[:9] += 0.05
    assert _wrong(exact, engine, native)


def test_measured_differences_spare_judgements_at_their_elements_alone() -> None:
    exact = floats(500).astype("float64")
    native = exact.astype("float32")
    engine, elsewhere = native.copy(), native.copy()
    engine[7] += 0.01
    elsewhere[8] += 0.01
    known: Known = {}

    def chaotic(noise: Noise) -> np.ndarray:
        noisy = exact.copy()
        noisy[7] += 0.02 * np.random.default_rng(noise.number).normal()
        return noisy

    def unsteady(noise: Noise | None) -> Mapping[int, np.ndarray]:
        raise AssertionError("judged in float64")

    assert not _wrong(exact, engine, native, known, chaotic)
    pair = [tensor_of(2 * each, "float32") for each in (engine, native)]
    assert not _compared([Pair("", 0, *pair)], unsteady, known)
    assert _wrong(exact, elsewhere, native, known, chaotic)
    engine[7] += 0.5
    assert _wrong(exact, engine, native, known, chaotic)


def test_errors_of_large_elements_hide_no_fault_of_small_ones() -> None:
    size = np.where(np.arange(2000) % 2, 1.0, 1e-3)
    exact = size * (1.0 + np.random.default_rng(3).random(2000))
    native, engine = (_rounded(exact, 2e-5, seed) for seed in (1, 2))
    known: Known = {}
    assert not _wrong(exact, engine, native, known)
    fault = np.where(size < 0.1, engine * 1.01, engine)
    assert np.abs(fault - engine).max() < 2e-5 * exact.max()
    assert _wrong(exact, fault, native)
    assert _wrong(exact, fault, native, known)


def test_usual_differences_spare_judgements_and_not_for_ever() -> None:
    exact = floats(3000).astype("float64")
    judged = []

    def evaluate(noise: Noise | None) -> Mapping[int, np.ndarray]:
        judged.append(noise)
        return {0: exact}

    known: Known = {}
    for run in range(2 * MAX_SPARED + 1):
        pair = [tensor_of(_rounded(exact, 2e-5, 2 * run + n), "float32") for n in range(2)]
        assert not _compared([Pair("", 0, *pair)], evaluate, known)
    assert judged == [None] * 3


@pytest.mark.parametrize(
    ("exact", "samples", "explained", "wrong"),
    [
        # A tie of two integers; a spread of several.
        (np.array(3), [4, 3, 4], [3, 4], [5, 2]),
        (np.array(100), [103, 98, 101], [97, 110, 118], [119, 80]),
        (np.array(True), [True], [True], [False]),
        # Poles: of 1 / x, of log, and an indefinite form.
        (np.array(INF), [1e7, -3e7, 2e6], [INF, -INF, 1e9, -2e8], [NAN]),
        (np.array(-16.0), [-16.5, -INF, -15.8], [-INF, -17.0, -40.0], [INF, NAN, -3.0, 16.0]),
        (np.array(1.0), [NAN, 1.0], [NAN, 1.0], [INF, 1.1, -1.0]),
        # A value that float32 cannot represent.
        (np.array(1e39), [1.1e39], [INF], [-INF, 1e38, NAN]),
    ],
)
def test_values_near_poles_and_ties(
    exact: np.ndarray, samples: list[float], explained: list[float], wrong: list[float]
) -> None:
    spread = Spread(exact[None])
    for each in samples:
        spread.add(np.array([each], exact.dtype))
    for values, expected in ((explained, True), (wrong, False)):
        for value in values:
            (found,) = spread.explains(np.array([value]))
            assert found == expected, value


def _cancelled_sums() -> list[Any]:
    x = paddle.nn.functional.dropout(paddle.static.data("x", [40]), 0.1)
    z = paddle.sin(x) ** 2 + paddle.cos(x) ** 2 - 1.0
    return [z, 1.0 / z]


def test_judgements_that_take_too_long_go_on_in_later_runs() -> None:
    """By the clock, Paddle takes a second for each run, and an operator of a judgement as well."""
    program = Program(_cancelled_sums)
    with verified(time_ratio=2.5), clock.overridden(Clock(tick=1.0)):
        for run in range(40):
            program.run(x=floats(40, seed=run))
        log = checks.log
        postponed = sum(n for reason, n in log.unchecked.items() if "is still judged" in reason)
        assert log.checked >= 2
        assert postponed
        assert paddle_ngraph.verified_runs().checked == 40 - postponed
    assert (log.wrong, list(log.unchecked.values())) == (0, [postponed])


@pytest.mark.parametrize("later_runs", [0, 30])
def test_a_fault_is_found_although_its_judgement_pauses(
    later_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By later runs; if there are none, when the report is read."""
    program, check_run = Program(_cancelled_sums), checks.check_run
    checks.subjects.clear()

    def faulty(text: str, given: list[Any], found: list[Any], *others: Any) -> None:
        engine = np.array(found[0])
        engine[7] += 0.01
        check_run(text, given, [tensor_of(engine, "float32"), *found[1:]], *others)

    with verified(time_ratio=40.0), clock.overridden(Clock(tick=1.0)):
        program.run(x=floats(40))  # the first judgement does not pause
        assert not checks.log.wrong
        with monkeypatch.context() as patch, pytest.warns(UserWarning, match="wrong at"):
            patch.setattr(checks, "check_run", faulty)
            program.run(x=floats(40, seed=1))
            assert checks.log.unchecked
            for _ in range(later_runs):
                program.run(x=floats(40, seed=1))
            assert bool(checks.log.wrong) == bool(later_runs)
            paddle_ngraph.clear_cache()  # empties the one of graphs whose judgement pauses
            assert paddle_ngraph.verified_runs().wrong


def test_judgements_of_several_threads_that_pause_are_all_finished() -> None:
    def steps() -> Steps[list[Difference]]:
        yield
        return []

    checks.reset()
    subject, judged = checks.Subject(), []
    for _ in range(3):
        judgement = checks.Judgement(steps(), judged.append, None)
        assert not judgement.go_on()
        subject._paused.append(judgement)
    assert list(checks.log.unchecked.values()) == [3]
    subject.judge()
    assert judged == [[], [], []]
    assert not checks.log.unchecked
