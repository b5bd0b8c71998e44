"""Predicts step times from a profile, and prints them as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.simulation.collectives import SimulatedLink
from paddle_ngraph.simulation.profile import Profile
from paddle_ngraph.simulation.reliability import Checkpointing, best_checkpointing
from paddle_ngraph.simulation.training import (
    PRESENT,
    STRATEGIES,
    AveragingStrategy,
    Cluster,
    compute_ms,
    step_ms,
)

ETHERNET = SimulatedLink(50.0, 1.25)  # a network of 10 Gbit/s, with a latency of 50 us
RANKS = tuple(2**power for power in range(3, 13))


@dataclass(frozen=True)
class Scenario:
    """Assumptions about machines that were not measured.

    Attributes:
        ranks: The numbers of ranks to predict.
        per_machine: Ranks of each machine; ``None``: one for each core.
        network: The link between two machines.
        hours_between_failures: Mean time between failures of one rank, in hours.
    """

    ranks: Sequence[int] = RANKS
    per_machine: int | None = None
    network: SimulatedLink = ETHERNET
    hours_between_failures: float = 50_000.0

    def __post_init__(self) -> None:
        if not (self.network.gigabytes_per_s > 0 and self.network.latency_us >= 0):
            raise NgraphError("the network needs a bandwidth above 0 and a latency of 0 or more")
        if not self.hours_between_failures > 0:
            raise NgraphError("the mean time between failures has to be above 0")

    def cluster(self, profile: Profile, ranks: int) -> Cluster:
        """A cluster of ``ranks`` ranks on machines like the one of the profile."""
        return Cluster(ranks, self.per_machine or profile.cores, self.network)


class Checked(NamedTuple):
    """The measured duration of a step and the predicted one, in milliseconds."""

    ranks: int
    measured_ms: float
    predicted_ms: float

    @property
    def ratio(self) -> float:
        """Predicted duration divided by measured duration."""
        return self.predicted_ms / self.measured_ms


class Predicted(NamedTuple):
    """Prediction for a number of ranks.

    Attributes:
        ranks: The number of ranks.
        ms: The expected time of a step in milliseconds, for each strategy in :data:`STRATEGIES`.
        waiting_ms: The share of the shortest step time that is due to slow ranks, in milliseconds.
        efficiency: The compute time of a rank as a fraction of the shortest step time.
        checkpointing: The best checkpoint interval.
    """

    ranks: int
    ms: dict[AveragingStrategy, float]
    waiting_ms: float
    efficiency: float
    checkpointing: Checkpointing


def checked(profile: Profile) -> list[Checked]:
    """The steps that were measured on one machine, each with its prediction."""
    alone = SimulatedLink(0.0, 1.0)  # link between machines, which no step uses: there is only one
    return [
        Checked(ranks, ms, step_ms(profile, Cluster(ranks, ranks, alone), PRESENT))
        for ranks, ms in sorted(profile.measured.items())
    ]


def predicted(profile: Profile, scenario: Scenario) -> list[Predicted]:
    """Predicts a scenario for each of its numbers of ranks.

    Raises:
        NgraphError: The profile has no times for the ranks of a machine, or the ranks do not fill
            the machines.
    """
    return [_predicted(profile, scenario, ranks) for ranks in scenario.ranks]


def _predicted(profile: Profile, scenario: Scenario, ranks: int) -> Predicted:
    cluster = scenario.cluster(profile, ranks)
    ms = {strategy: step_ms(profile, cluster, strategy) for strategy in STRATEGIES}
    best = min(STRATEGIES, key=ms.__getitem__)
    even = step_ms(profile.without_spread(), cluster, best)
    failures_every_s = scenario.hours_between_failures * 3600 / ranks
    return Predicted(
        ranks,
        ms,
        ms[best] - even,
        compute_ms(profile, cluster) / ms[best],
        best_checkpointing(profile.checkpoint_s, profile.restart_s, failures_every_s),
    )


# -- as text -------------------------------------------------------------------------------------


def as_dict(profile: Profile, known: Sequence[Checked], rows: Sequence[Predicted]) -> Any:
    """Returns measured steps and predictions as values for JSON."""
    return {
        "profile": profile.name,
        "processor": profile.processor,
        "cores": profile.cores,
        "samples": profile.samples,
        "measured": [row._asdict() for row in known],
        "predicted": [
            {
                **row._asdict(),
                "ms": {str(strategy): ms for strategy, ms in row.ms.items()},
                "checkpointing": row.checkpointing._asdict(),
            }
            for row in rows
        ],
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns an aligned Markdown table with right-aligned numbers."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows)]
    lines = [
        [cell.rjust(width) for cell, width in zip(row, widths)]
        for row in [header, ["-" * (width - 1) + ":" for width in widths], *rows]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def checked_table(rows: Sequence[Checked]) -> str:
    """A Markdown table of measured steps and their predictions."""
    header = ["ranks", "measured ms", "predicted ms", "predicted / measured"]
    return table(
        header,
        [
            [str(r.ranks), f"{r.measured_ms:.1f}", f"{r.predicted_ms:.1f}", f"{r.ratio:.2f}"]
            for r in rows
        ],
    )


def predicted_table(rows: Sequence[Predicted]) -> str:
    """A Markdown table of predicted steps, with the cost of slow ranks and of failures."""
    header = [
        "ranks",
        *(f"{strategy}, ms" for strategy in STRATEGIES),
        "slow ranks, ms",
        "efficiency",
    ]
    return table(
        [*header, "checkpoint every", "useful time"],
        [
            [
                str(row.ranks),
                *(f"{row.ms[strategy]:.1f}" for strategy in STRATEGIES),
                f"{row.waiting_ms:.1f}",
                f"{row.efficiency:.0%}",
                _duration(row.checkpointing.interval_s),
                f"{row.checkpointing.useful:.2%}",
            ]
            for row in rows
        ],
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
