"""Obstacles: why runs of a predictor fall back to Paddle."""

from __future__ import annotations

from typing import NamedTuple

from paddle_ngraph import _core
from paddle_ngraph.ir.graph import is_random
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.aliases import OVERWRITES_SHARED
from paddle_ngraph.partitioning.report import Report

_NOT_CONVERTIBLE, _COST_RULE = int(_core.Reason.NOT_CONVERTIBLE), int(_core.Reason.COST_RULE)
_WRITES_PARAMETERS, _SAMPLES = int(_core.Reason.WRITES_PARAMETERS), int(_core.Reason.SAMPLES)
_SHARED_MEMORY, ONEDNN = int(_core.Reason.SHARED_MEMORY), int(_core.Reason.ONEDNN)


class Obstacle(NamedTuple):
    """Why runs of a model fall back to Paddle.

    Attributes:
        reason: Number of the reason in events.
        sentence: The details, for reports and warnings.
    """

    reason: int
    sentence: str


def reason_against_engine(
    report: Report, changes_parameters: bool, has_onednn: bool
) -> Obstacle | None:
    """The reason why a predictor should fall back to Paddle, or ``None`` if the engine pays off.

    Args:
        report: The report of the pass on the program.
        changes_parameters: Whether the program changes parameters, of which each of the two
            predictors has a copy.
        has_onednn: Whether plain Paddle would run on oneDNN: operators that fall back next to
            engine operators do not, and entering or leaving a subgraph costs a change of layout.
    """
    if changes_parameters:
        return Obstacle(_WRITES_PARAMETERS, "it changes its parameters")
    if _samples_in_any_order(report):
        return Obstacle(_SAMPLES, "several of its operators sample random numbers")
    if any(op.reason == OVERWRITES_SHARED for op in report.native):
        # Paddle's predictors run operators in several threads, which know one name of a memory.
        return Obstacle(_SHARED_MEMORY, "it overwrites memory that several variables share")
    if not report.changes:
        if report.has_small_interval:
            return Obstacle(_COST_RULE, "none of its intervals pays off")
        return Obstacle(_NOT_CONVERTIBLE, "nothing is converted")
    count = len(report.intervals)
    if has_onednn and not cost_model.is_faster_than_onednn(
        report.ops_converted, count, report.onednn_kernels
    ):
        return Obstacle(
            ONEDNN,
            f"{report.ops_converted} of its {report.ops_converted + report.ops_native} operators "
            f"are converted, in {count} interval{'s' * (count != 1)}: Paddle's oneDNN is faster",
        )
    return None


def _samples_in_any_order(report: Report) -> bool:
    """Whether operators sample that Paddle's predictors may run in another order.

    They know the order of Paddle's own stochastic operators only.
    """
    native = sum(is_random(op.type) for op in report.native)
    return report.drawing > 0 and report.drawing + native > 1
