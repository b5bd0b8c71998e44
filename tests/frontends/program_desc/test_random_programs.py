"""Random ProgramDesc programs: Executor and predictors find what Paddle does."""

from __future__ import annotations

import pytest

from tests import old_programs


def require_equal(seeds: range) -> None:
    verdicts = {seed: old_programs.check(seed) for seed in seeds}
    wrong = {s: v for s, v in verdicts.items() if v.text not in old_programs.HARMLESS}
    assert not wrong
    assert not any(v.whole for v in verdicts.values())
    equal = [v for v in verdicts.values() if v.text == "equal"]
    assert len(equal) > 0.7 * len(seeds)
    assert sum(v.runs > 0 for v in equal) > 0.6 * len(equal), "the engine runs hardly any"


@pytest.mark.usefixtures("small_intervals_pay", "native_in_order")
def test_random_programs():
    require_equal(range(8))


@pytest.mark.slow("several hundred programs")
@pytest.mark.usefixtures("small_intervals_pay", "native_in_order")
@pytest.mark.parametrize("first", range(8, 408, 50))
def test_many_random_programs(first):
    require_equal(range(first, first + 50))
