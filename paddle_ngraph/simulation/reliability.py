"""What slow ranks and failures cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

_QUANTILES = 64


def expected(of_slow_down: Callable[[float], float], spread: float, ranks: int) -> float:
    """The expectation of something that depends on how slow the slowest rank of a step is.

    The slow-down of a rank in a step is drawn from a log-normal distribution around 1, for each on
    its own. That of the slowest of n has F^n for its distribution, and the expectation is the mean
    over its quantiles.

    Args:
        of_slow_down: Called with how many times as long as usual the slowest rank takes.
        spread: The standard deviation of the logarithm of the slow-down of one rank.
        ranks: How many ranks wait for each other.
    """
    if spread == 0:
        return of_slow_down(1.0)
    normal = statistics.NormalDist()
    levels = ((number + 0.5) / _QUANTILES for number in range(_QUANTILES))
    slowest = (math.exp(spread * normal.inv_cdf(level ** (1 / ranks))) for level in levels)
    return statistics.fmean(of_slow_down(each) for each in slowest)


class Checkpointing(NamedTuple):
    """How often to write checkpoints.

    Attributes:
        interval_s: The seconds of work between two of them.
        useful: The part of the time that is work which does not have to be done again.
    """

    interval_s: float
    useful: float


def useful_part(
    interval_s: float, checkpoint_s: float, restart_s: float, failures_every_s: float
) -> float:
    """The part of the time that is useful work, where failures come at any time alike.

    That is one over the complete model of J. T. Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006).

    Args:
        interval_s: The seconds of work between two checkpoints.
        checkpoint_s: What a checkpoint takes.
        restart_s: What it takes until the work goes on after a failure.
        failures_every_s: The mean time between failures of the whole job.
    """
    mean = failures_every_s
    exponent = restart_s / mean + (interval_s + checkpoint_s) / mean
    if exponent > 500:  # it never gets done
        return 0.0
    lost = math.exp(restart_s / mean) * math.expm1((interval_s + checkpoint_s) / mean)
    return interval_s / (mean * lost)


def best_checkpointing(
    checkpoint_s: float, restart_s: float, failures_every_s: float
) -> Checkpointing:
    """The interval with the most useful work.

    For frequent checkpoints it is about ``sqrt(2 * checkpoint_s * failures_every_s)`` (J. W. Young,
    "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17
    (1974)). Here the derivative of Daly's model is solved: it is 0 where (1 - x) exp(x + c) = 1,
    with x the interval and c the checkpoint, both divided by the mean time between failures.
    """
    part = checkpoint_s / failures_every_s
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if math.log1p(-middle) + middle + part > 0:
            low = middle
        else:
            high = middle
    interval = low * failures_every_s
    useful = useful_part(interval, checkpoint_s, restart_s, failures_every_s)
    return Checkpointing(interval, useful)
