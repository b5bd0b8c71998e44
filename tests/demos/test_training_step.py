"""The benchmark of a training step: it measures, and writes what it measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import training_step


def test_results_are_written(tmp_path, capsys):
    arguments = ["--models", "lenet", "--rounds", "1", "--steps", "2", "--output", str(tmp_path)]
    assert training_step.main(arguments) == 0, capsys.readouterr()
    data = json.loads((tmp_path / "training_step.json").read_text())
    (result,) = data["results"]
    assert result["engine"]["engine_runs"] > 0
    assert result["speedup"] == pytest.approx(result["native_ms"] / result["ngraph_ms"])
    assert data["environment"]["threads of Paddle"].isdigit()
    page = (tmp_path / "training_step.md").read_text()
    assert "| LeNet-5, 28 x 28, batch 64, momentum |" in page
