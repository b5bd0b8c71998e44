"""Metrics for Prometheus: the counters of :func:`paddle_ngraph.stats` as metric families.

::

    prometheus_client.REGISTRY.register(paddle_ngraph.metrics.Collector())

needs the package ``prometheus-client``: ``pip install paddle-ngraph[metrics]``.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector as _Collector

from paddle_ngraph import api, installation
from paddle_ngraph.version import __version__

_PREFIX = "paddle_ngraph"


class Collector(_Collector):
    """Collects the counters of the process when Prometheus asks for them.

    Families, whose names begin with ``paddle_ngraph_``: ``runs_total`` by ``outcome`` and
    ``reason``, which add up to ``stats()["runs"]``; ``functions_total`` by ``origin``: ``reused``,
    ``loaded``, ``built`` and ``built_in_background``; ``operators_total`` by ``side``;
    ``kernel_calls_total`` and ``kernel_call_seconds_total``; ``pool_bytes`` by ``state``, ``live``
    and ``idle``; ``build_info`` with the versions. :func:`paddle_ngraph.reset_stats` starts
    counters again from zero, as the start of a process does.
    """

    def collect(self) -> Iterable[Metric]:
        """Yields the metric families."""
        stats = api.stats()
        runs = CounterMetricFamily(
            f"{_PREFIX}_runs", "Runs by outcome and reason.", labels=["outcome", "reason"]
        )
        runs.add_metric(["engine", "engine"], stats["engine_runs"])
        for reason, count in stats["native"].items():
            runs.add_metric(["native", reason], count)
        for reason, count in stats["raised"].items():
            runs.add_metric(["raised", reason], count)
        yield runs
        in_background = stats["functions_built_in_background"]
        functions = {
            "reused": stats["functions_reused"],
            "loaded": stats["functions_loaded"],
            "built": stats["functions_built"] - in_background,
            "built_in_background": in_background,
        }
        yield _counters("functions", "Functions that runs needed.", "origin", functions)
        operators = {"engine": stats["ops_converted"], "native": stats["ops_native"]}
        yield _counters("operators", "Operators of rewritten programs.", "side", operators)
        yield CounterMetricFamily(
            f"{_PREFIX}_kernel_calls",
            "Calls of Paddle's kernels inside functions.",
            value=stats["kernel_calls"],
        )
        yield CounterMetricFamily(
            f"{_PREFIX}_kernel_call_seconds",
            "Seconds in these calls.",
            value=stats["kernel_call_ns"] / 1e9,
        )
        pool = GaugeMetricFamily(
            f"{_PREFIX}_pool_bytes", "Bytes of the engine's memory pool.", labels=["state"]
        )
        pool.add_metric(["live"], stats["pool_bytes_live"])
        pool.add_metric(["idle"], stats["pool_bytes_idle"])
        yield pool
        versions = {name: installed or "" for name, installed, _ in installation.packages()}
        yield InfoMetricFamily(
            f"{_PREFIX}_build", "Versions.", value={"paddle_ngraph": __version__, **versions}
        )


def _counters(name: str, meaning: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{_PREFIX}_{name}", meaning, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
