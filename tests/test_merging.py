"""Merged cases and tiers: cases that fail alone, and selection of tests by a tier."""

from __future__ import annotations

from dataclasses import replace

import paddle
import pytest

from paddle_ngraph.conversion import registry
from paddle_ngraph.conversion.registry import find_converter
from tests import tiers
from tests.ops import harness, merging
from tests.ops.harness import Case, check, normal


def merged_cases(**builds):
    cases = merging.MergedCases()
    for name, build in builds.items():
        cases.cases[name, 1] = Case(build, {"x": normal((2, 3))}, [name], gradients=False)
    return cases


def test_a_case_that_is_not_converted_leaves_the_others_merged(leave_native):
    leave_native("pd_op.tanh")
    cases = merged_cases(exp=paddle.exp, tanh=paddle.tanh, abs=paddle.abs, sin=paddle.sin)
    cases.run()
    assert {name for name, _ in cases.outcomes} == {"exp", "abs", "sin"}


def test_a_case_that_cannot_be_built_leaves_the_others_merged():
    cases = merged_cases(exp=paddle.exp, abs=lambda y: y, sin=paddle.sin, cos=paddle.cos)
    cases.run()
    assert {name for name, _ in cases.outcomes} == {"exp", "sin", "cos"}


def test_cases_that_fail_only_together_fail(monkeypatch):
    run_together = harness.run_together

    def fails_for_three(cases):
        if len(cases) == 3:
            raise RuntimeError("too many")
        return run_together(cases)

    monkeypatch.setattr(harness, "run_together", fails_for_three)
    cases = merged_cases(exp=paddle.exp, abs=paddle.abs, sin=paddle.sin)
    cases.run()
    assert [str(error) for error in cases.outcomes.values()] == ["too many"] * 3


class Item:
    """A merged test, as pytest has it."""

    def __init__(self, test, *marks):
        self.obj, self.nodeid, self._marks = test, test.__name__, marks

    def get_closest_marker(self, name):
        return name if name in self._marks else None


def test_a_test_that_raises_while_it_is_recorded_runs_alone():
    def skipped():
        pytest.skip("not here")

    def wrong():
        raise ValueError

    def marked():
        check(paddle.exp, {"x": normal((2, 3))}, ["exp"])

    def right():
        check(paddle.sin, {"x": normal((2, 3))}, ["sin"])

    cases = merging.MergedCases()
    cases.record([Item(skipped), Item(wrong), Item(marked, "skipif"), Item(right)])
    assert list(cases.cases) == [("right", 1)]


def test_an_operator_that_fails_a_trial_conversion_falls_back(monkeypatch, small_intervals_pay):
    """The engine runs the other operators of the interval, and the results are right."""

    def fails(bridge, op):
        raise ValueError("always")

    entry = find_converter("pd_op.tanh")
    monkeypatch.setitem(registry._converters, "pd_op.tanh", replace(entry, function=fails))
    x = {"x": normal((2, 3))}
    with pytest.raises(AssertionError, match="tanh stayed native"):
        check(lambda x: paddle.exp(paddle.tanh(paddle.sin(x))), x, ["tanh"], gradients=False)


def test_each_case_has_results_of_its_own():
    cases = merged_cases(exp=paddle.exp, abs=paddle.abs, sin=paddle.sin)
    cases.run()
    for (name, _), outcome in cases.outcomes.items():
        alone = check(getattr(paddle, name), {"x": normal((2, 3))}, [name], gradients=False)
        assert outcome.outputs == len(outcome.engine) == len(outcome.fallback) == 1
        assert abs(outcome.engine[0] - alone[0]).max() < 1e-6


def test_a_recorded_case_keeps_captured_values():
    factor = 2.0
    build = merging._with_cells_of_now(lambda x: x * factor)
    factor = 3.0
    assert build(1.0) == 2.0 and factor == 3.0


@pytest.mark.parametrize(
    ("variants", "chosen"),
    [
        ([{"a0", "b0"}, {"a0", "b1"}, {"a1", "b0"}, {"a1", "b1"}], [0, 3]),
        ([{"a0"}, {"a1"}, {"a2"}], [0, 1, 2]),
        ([{"a0", "b0"}, {"a0", "b1"}, {"a0", "b2"}], [0, 1, 2]),
        ([set()], []),
    ],
)
def test_every_value_of_every_parameter_is_chosen_once(variants, chosen):
    assert tiers.each_value_once([frozenset(each) for each in variants]) == chosen
