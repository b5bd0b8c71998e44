"""Merged cases and tiers: what fails alone, and which tests a tier runs."""

from __future__ import annotations

import paddle
import pytest

from tests import tiers
from tests.ops import merging
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
    # The other case of the last pair runs alone, too, in its own test.
    assert {name for name, _ in cases.outcomes} == {"abs", "sin"}


def test_a_case_that_cannot_be_built_leaves_the_others_merged():
    cases = merged_cases(exp=paddle.exp, abs=lambda y: y, sin=paddle.sin, cos=paddle.cos)
    cases.run()
    assert {name for name, _ in cases.outcomes} == {"sin", "cos"}


def test_each_case_has_results_of_its_own():
    cases = merged_cases(exp=paddle.exp, abs=paddle.abs, sin=paddle.sin)
    cases.run()
    for (name, _), outcome in cases.outcomes.items():
        alone = check(getattr(paddle, name), {"x": normal((2, 3))}, [name], gradients=False)
        assert outcome.outputs == len(outcome.engine) == len(outcome.fallback) == 1
        assert abs(outcome.engine[0] - alone[0]).max() < 1e-6


def test_a_recorded_case_keeps_what_its_function_captured():
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
