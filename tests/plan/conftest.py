"""Plans are tested on four cores, whatever the machine has: a core is a name to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paddle_ngraph.plan import data_dependency_engine
from tests.programs import cores_of_plans


@pytest.fixture(autouse=True)
def four_cores() -> Iterator[None]:
    with cores_of_plans(4):
        yield


@pytest.fixture
def planned_runs(monkeypatch: pytest.MonkeyPatch) -> list[data_dependency_engine.PlannedProgram]:
    """Lists the programs that the data-dependency engine has run, once for each run."""
    runs: list[data_dependency_engine.PlannedProgram] = []
    run = data_dependency_engine.PlannedProgram._run_steps

    def listed(self: data_dependency_engine.PlannedProgram) -> list:
        runs.append(self)
        return run(self)

    monkeypatch.setattr(data_dependency_engine.PlannedProgram, "_run_steps", listed)
    return runs
