"""What the tests of models assert."""

from __future__ import annotations

from tests.models.comparing import Outcome, agreeing
from tests.models.zoo import Model


def check(model: Model) -> Outcome:
    """Asserts that a model runs through the engine, as expected of it, and like native Paddle."""
    outcome = agreeing(model)
    report = outcome.report
    assert {op.type for op in report.native} <= model.native, report
    # A recurrent layer with packed weights lies between two intervals, and so does its gradient.
    assert 0 < len(report.intervals) <= model.intervals + 2 * report.packed, report
    # A function that could not be built would have been Paddle's to run.
    assert outcome.engine_runs == len(report.intervals) * len(model.feeds)
    assert not outcome.wrong(model.tolerance)
    return outcome
