"""Processes of tests that join a job."""

from __future__ import annotations

import pytest

from paddle_ngraph.distributed import job
from paddle_ngraph.partitioning import background_compile


@pytest.fixture
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is in no job; the test may join one, which ends with the test."""
    monkeypatch.setattr(job, "_jobs", [])
    # A job disables background compilation permanently.
    monkeypatch.setattr(background_compile, "_queue", background_compile._CompileQueue())
