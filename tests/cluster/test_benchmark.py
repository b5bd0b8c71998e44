"""The benchmark of steps under Ray runs; machines under test say nothing about its ratio."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as command

pytest.importorskip("ray", reason="make cluster has an environment with Ray")


def test_steps_under_ray_are_measured(tmp_path):
    options = ["ray_steps", "--quick", "--models", "mlp", "--output", str(tmp_path)]
    assert command.main(options) == 0
    (path,) = tmp_path.glob("ray_steps_*.json")
    (row,) = json.loads(path.read_text())["steps"]
    assert len(row["ms"]) == len(row["before_ms"]) == 2 and row["ratio"] > 0
