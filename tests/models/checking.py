"""Expectations of every model."""

from __future__ import annotations

from paddle_ngraph.partitioning.report import Report
from tests.models.comparing import Outcome, agreeing
from tests.models.zoo import Model


def check(model: Model) -> Outcome:
    """Asserts that a model runs through the engine, all of it, and like native Paddle."""
    outcome = agreeing(model)
    assert not shortcomings(model, outcome), outcome.report
    return outcome


def shortcomings(model: Model, outcome: Outcome) -> list[str]:
    """The failed expectations; empty if the engine runs the whole model, with Paddle's results."""
    runs = len(outcome.report.intervals) * len(model.feeds)
    lacking = left_native(outcome.report)
    if outcome.engine_runs != runs:  # a function that could not be built is Paddle's to run
        lacking.append(f"the engine ran {outcome.engine_runs} times, not {runs}")
    wrong = outcome.wrong(model.tolerance)
    return lacking + [f"{tensor}: {reason}" for tensor, reason in wrong.items()]


def left_native(report: Report) -> list[str]:
    """The operators that no interval holds, and whether there are more intervals than need be."""
    lacking = [f"{op.type} is left native: {op.reason}" for op in report.native]
    # A recurrent layer with packed weights lies between two intervals, and so does its gradient.
    most = 1 + 2 * report.packed
    if not 0 < len(report.intervals) <= most:
        lacking.append(f"{len(report.intervals)} intervals, not 1 to {most}")
    return lacking
