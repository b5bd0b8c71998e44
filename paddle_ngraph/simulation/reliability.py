"""Expected cost of slow ranks, and of failures with checkpoints and restarts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

_QUANTILES = 64


def expected(of_slow_down: Callable[[float], float], spread: float, ranks: int) -> float:
    """The expectation of a function of the slow-down of the slowest rank of a step.

    The slow-downs of ranks in a step are independent, log-normal with median 1. The distribution of
    the slowest of n ranks is F^n, and the expectation is the mean over its quantiles.

    Args:
        of_slow_down: The function; its argument is the factor on the usual time of the slowest
            rank.
        spread: The standard deviation of the logarithm of the slow-down of one rank.
        ranks: The number of ranks that wait for each other.
    """
    if spread == 0:
        return of_slow_down(1.0)
    normal = statistics.NormalDist()
    levels = ((number + 0.5) / _QUANTILES for number in range(_QUANTILES))
    slowest = (math.exp(spread * normal.inv_cdf(level ** (1 / ranks))) for level in levels)
    return statistics.fmean(of_slow_down(each) for each in slowest)


class Checkpointing(NamedTuple):
    """A checkpoint interval, and the useful work that it yields.

    Attributes:
        interval_s: The seconds of work between two checkpoints.
        useful: The fraction of the time that is work which need not be repeated.
    """

    interval_s: float
    useful: float


def useful_fraction(
    interval_s: float, checkpoint_s: float, restart_s: float, failures_every_s: float
) -> float:
    """The fraction of the time that is useful work, with failures at a constant rate.

    The fraction is the reciprocal of the complete model of J. T. Daly, "A higher order estimate of
    the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22
    (2006).

    Args:
        interval_s: The seconds of work between two checkpoints.
        checkpoint_s: The seconds of writing a checkpoint.
        restart_s: The seconds from a failure until the work continues.
        failures_every_s: The mean time between failures of the whole job, in seconds.
    """
    mean = failures_every_s
    exponent = restart_s / mean + (interval_s + checkpoint_s) / mean
    if exponent > 500:  # the work never finishes; expm1() would overflow
        return 0.0
    lost = math.exp(restart_s / mean) * math.expm1((interval_s + checkpoint_s) / mean)
    return interval_s / (mean * lost)


def best_checkpointing(
    checkpoint_s: float, restart_s: float, failures_every_s: float
) -> Checkpointing:
    """The interval with the most useful work.

    For frequent checkpoints the interval is about ``sqrt(2 * checkpoint_s * failures_every_s)``
    (J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (1974)). Here, the derivative of Daly's model is solved for its root, where (1 -
    x) exp(x + c) = 1, with x the interval and c the checkpoint, both divided by the mean time
    between failures.
    """
    ratio = checkpoint_s / failures_every_s
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if math.log1p(-middle) + middle + ratio > 0:
            low = middle
        else:
            high = middle
    interval = low * failures_every_s
    useful = useful_fraction(interval, checkpoint_s, restart_s, failures_every_s)
    return Checkpointing(interval, useful)
