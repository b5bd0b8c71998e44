"""The soak: two minutes of it, and its verdicts."""

from __future__ import annotations

import pytest

from tests import soak
from tests.soak import Sample


def samples(resident, live=lambda _: 0, engine_runs=1) -> list[Sample]:
    """A sample each second of a process of 100 s, with memory as functions of the time."""
    return [
        Sample(second, int(resident(second)), int(live(second)), second, engine_runs)
        for second in range(101)
    ]


def test_memory_that_only_grows_at_the_start_is_right():
    assert soak.problems(samples(lambda second: 5e8 + 1e8 * min(second, 9))) == []


@pytest.mark.parametrize("kind", ["resident", "live"])
def test_memory_that_grows_is_a_problem(kind):
    memory = {"resident": lambda _: 4e8, kind: lambda second: 4e8 + 2e6 * second}
    (sentence,) = soak.problems(samples(**memory))
    assert "grew" in sentence


def test_a_peak_between_two_samples_is_no_growth():
    peaks = samples(lambda second: 9e8 if second == 95 else 5e8)
    assert soak.problems(peaks) == []


def test_without_the_engine_the_soak_fails():
    assert soak.problems(samples(lambda _: 5e8, engine_runs=0)) == ["the engine did not run"]


@pytest.mark.slow("two minutes of two processes")
def test_two_minutes():
    for process in soak.run(minutes=2, processes=2):
        assert soak.problems(process) == []
