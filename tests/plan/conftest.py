"""Plans are tested on four cores, whatever the machine has: a core is a name to them."""

from __future__ import annotations

import pytest

from paddle_ngraph.plan import data_dependency_engine, devices


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (devices, data_dependency_engine):
        monkeypatch.setattr(module, "usable_cores", lambda: (0, 1, 2, 3))


@pytest.fixture
def planned_runs(monkeypatch: pytest.MonkeyPatch) -> list[data_dependency_engine.PlannedProgram]:
    """Lists what the data-dependency engine has run, once for each run."""
    runs: list[data_dependency_engine.PlannedProgram] = []
    run = data_dependency_engine.PlannedProgram._run_steps

    def listed(self: data_dependency_engine.PlannedProgram) -> list:
        runs.append(self)
        return run(self)

    monkeypatch.setattr(data_dependency_engine.PlannedProgram, "_run_steps", listed)
    return runs
