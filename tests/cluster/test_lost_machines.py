"""Trainings on clusters of Ray of their own, whose machines are lost or cannot form a job."""

from __future__ import annotations

import re

import pytest

from tests import jobs
from tests.cluster import machines
from tests.cluster.machines import Machines
from tests.cluster.test_training import (
    SCRIPT,
    has_trained,
    launched,
    lines,
    losses,
    refusal,
    wait_for,
)
from tests.cluster.trainings import release

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytestmark = pytest.mark.skipif(
    bool(machines.why_impossible()), reason=machines.why_impossible() or "none"
)


def test_a_machine_that_is_switched_off_makes_no_difference(tmp_path):
    expected = launched(tmp_path / "launched", "static", "--steps", 16)
    folder = tmp_path / "ray"
    folder.mkdir()
    with Machines(tmp_path, [1, 1, 1]) as cluster:
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, folder, "--steps", 16, "--held", 4)
        wait_for(has_trained(folder, 1, 4), driver)
        cluster.switch_off(2)
        release(folder, 4)
        cluster.start(3)
        assert driver.wait() == 0, driver.output()[-6000:]
    for rank in range(2):
        assert losses(folder, rank) == losses(expected, rank)


def test_a_machine_that_is_lost_too_often_is_named(tmp_path):
    with Machines(tmp_path, [1, 1]) as cluster:
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, tmp_path, "--steps", 2000, "--failures", 0)
        wait_for(has_trained(tmp_path, 1, 2), driver)
        cluster.switch_off(2)
        assert re.search(r"10\.9\.0\.3\b.* no further restart is allowed", refusal(driver))


def test_a_storage_that_is_not_shared_and_other_versions_are_one_sentence(tmp_path):
    storage, other = tmp_path / "storage", tmp_path / "version.py"
    storage.mkdir()
    version = jobs.ROOT / "paddle_ngraph" / "version.py"
    other.write_text(version.read_text().replace('__version__ = "', '__version__ = "9.'))
    with Machines(tmp_path, [1, 1]) as cluster:
        cluster.before_start[2] = f"mount -t tmpfs none {storage}"
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, tmp_path, "--storage", storage, name="storage_driver")
        sentence = refusal(driver)
        assert "does not see the storage_path of" in sentence and "share" in sentence
        assert "10.9.0.2" in sentence and "10.9.0.3" in sentence
        cluster.switch_off(2)
    with Machines(tmp_path, [1, 1]) as cluster:
        cluster.before_start[2] = f"mount --bind {other} {version}"
        cluster.start(0, 1, 2)
        sentence = refusal(cluster.run(SCRIPT, tmp_path, name="version_driver"))
        assert " has 9." in sentence or "has 9." in sentence.partition(", and ")[2]
        assert "install equal versions on all machines" in sentence
    assert lines(tmp_path, 0) == []


def ranks_of_starts(folder):
    return [int(line[2]) for line in lines(folder, 0) if line[0] == "start"]


def test_an_elastic_job_goes_on_with_fewer_workers_and_grows_again(tmp_path):
    expected = launched(tmp_path / "launched", "static", "--steps", 60, "--dropout", 0)
    folder = tmp_path / "ray"
    folder.mkdir()
    options = ["--steps", 60, "--dropout", 0, "--workers", 1, 2, "--held", 3, 30]
    with Machines(tmp_path, [1, 1, 1]) as cluster:
        cluster.start(0, 1, 2)
        driver = cluster.run(SCRIPT, folder, *options)
        wait_for(has_trained(folder, 1, 3), driver)
        cluster.switch_off(2)
        release(folder, 3)
        wait_for(lambda: ranks_of_starts(folder)[-1] == 1, driver)
        cluster.start(3)
        wait_for(lambda: ranks_of_starts(folder)[-1] == 2, driver)
        release(folder, 30)
        assert driver.wait() == 0, driver.output()[-6000:]
    means = {}
    for where in (folder, expected):
        of_rank = [losses(where, rank) for rank in range(2)]
        means[where] = sum(float.fromhex(min(each[59])) for each in of_rank)
    assert means[folder] == pytest.approx(means[expected], rel=1e-4)
