"""The servers of demos/serving_demo, without a server: how they divide the cores."""

from __future__ import annotations

import pytest

from demos.serving_demo.settings import Settings, workers_and_threads


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [(1, None, (1, 1)), (8, None, (8, 1)), (8, 2, (2, 4)), (8, 3, (3, 2)), (2, 5, (2, 1))],
)
def test_workers_and_threads_use_no_more_than_the_cores(cores, workers, expected):
    assert workers_and_threads(cores, workers) == expected


def test_settings_reach_the_workers(monkeypatch, tmp_path):
    settings = Settings(tmp_path, "ngraph", 3)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.from_environment() == settings
    assert settings.environment()["FLAGS_ngraph_num_threads"] == "3"
