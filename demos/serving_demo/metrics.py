"""Metrics of all workers: each counts in files of its own, and any of them adds these up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

import paddle_ngraph

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = Histogram(
    "request_seconds",
    "Time in which a worker computed an answer.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, float("inf")),
)
_MEMORY = Gauge("resident_bytes", "Resident memory of a worker.", multiprocess_mode="liveall")
_COUNTERS = {
    name: Counter(f"ngraph_{name}", f"`{name}` of paddle_ngraph.stats().")
    for name in ("engine_runs", "native_runs", "functions_built", "functions_loaded")
}
_counted = dict.fromkeys(_COUNTERS, 0)


@contextmanager
def measured() -> Iterator[None]:
    """Measures a request."""
    start = time.perf_counter()
    yield
    _SECONDS.observe(time.perf_counter() - start)
    update()


def update() -> None:
    """Adds what the engine has done since the last call."""
    stats: dict[str, Any] = {**paddle_ngraph.stats()}
    for name, counter in _COUNTERS.items():
        counter.inc(stats[name] - _counted[name])
        _counted[name] = stats[name]
    _MEMORY.set(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)


def exposition() -> bytes:
    """Returns the sums over all workers, in the text format of Prometheus."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
