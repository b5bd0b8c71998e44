"""Counters and their Prometheus families."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import paddle_ngraph
from paddle_ngraph import _core, installation, metrics, statistics
from paddle_ngraph.run_counters import Stats, none_counted


@pytest.fixture
def some_runs():
    """Runs by the engine and natively, of a program with an operator that has no converter."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data("x", [-1, 64], "float32")
        y = paddle.tanh(paddle.matmul(x, x, transpose_y=True))
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle_ngraph.use_ngraph():
        for rows in (3, 0, 3):
            feed = {"x": np.ones((rows, 64), "float32")}
            executor.run(program, feed=feed, fetch_list=[y])


def samples() -> dict[str, Counter[tuple[str, ...]]]:
    """The values of a scrape, by name of the sample and by labels."""
    registry = CollectorRegistry()
    registry.register(metrics.Collector())
    found: dict[str, Counter[tuple[str, ...]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            found.setdefault(sample.name, Counter())[labels] = sample.value
    return found


def test_stats_have_the_declared_counters():
    assert set(paddle_ngraph.stats()) == set(Stats.__annotations__)
    assert {name: type(value) for name, value in paddle_ngraph.stats().items()} == {
        name: type(value) for name, value in none_counted().items()
    }


def test_without_an_engine_all_counters_are_zero(monkeypatch):
    monkeypatch.setattr(installation, "why_unavailable", lambda: "none")
    assert paddle_ngraph.stats() == none_counted()
    assert samples()["paddle_ngraph_runs_total"] == {("engine", "engine"): 0}


def test_runs_add_up(some_runs):
    stats, found = paddle_ngraph.stats(), samples()
    runs = found["paddle_ngraph_runs_total"]
    assert runs["engine", "engine"] == stats["engine_runs"] == 2
    assert runs["native", "empty_feed"] == 1
    assert (
        runs.total()
        == stats["runs"]
        == len([event for event in statistics.events() if event.outcome != "function"])
    )


def test_functions_add_up(some_runs):
    """Each run of the engine needs a function: one built for it, loaded, or reused."""
    functions = samples()["paddle_ngraph_functions_total"]
    assert functions.total() == paddle_ngraph.stats()["engine_runs"]


def test_every_reason_has_its_outcome():
    for reason in statistics.REASONS:
        assert reason.outcome in ("engine", "native", "raised", "function")
    assert len(_core.totals()[0]) == len(statistics.REASONS)


def test_versions_are_labels():
    (labels,) = samples()["paddle_ngraph_build_info"]
    assert paddle_ngraph.__version__ in labels


def test_reset_starts_from_zero(some_runs):
    paddle_ngraph.reset_stats()
    assert samples()["paddle_ngraph_runs_total"].total() == 0


class Observations:
    """As ``opentelemetry.metrics``: a meter of which a reader collects the observable counters."""

    Observation = staticmethod(lambda value, attributes: (value, attributes))

    def __init__(self) -> None:
        self.counters: dict[str, Any] = {}

    def get_meter(self, _name: str) -> Observations:
        return self

    def create_observable_counter(self, name, callbacks, unit, description) -> None:
        assert unit == "{run}" and description
        self.counters[name] = callbacks

    def collect(self, name: str) -> list[Any]:
        return [each for callback in self.counters[name] for each in callback(None)]


def test_the_example_of_opentelemetry_adds_up(some_runs, monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "operations" / "metrics.md"
    (example,) = re.findall(r"```python not run: .*?\n(.*?)```", page.read_text(), re.DOTALL)
    reader = Observations()
    monkeypatch.setitem(sys.modules, "opentelemetry", SimpleNamespace(metrics=reader))
    exec(compile(example, str(page), "exec"), {})
    found = reader.collect("paddle_ngraph.runs")
    assert sum(value for value, _ in found) == paddle_ngraph.stats()["runs"] == 3
    assert (1, {"outcome": "native", "reason": "empty_feed"}) in found
