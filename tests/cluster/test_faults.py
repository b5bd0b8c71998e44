"""A training with random faults, FAULTS of them: its losses are those of an undisturbed one."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster import faults, machines
from tests.cluster.machines import LIMIT, Machines
from tests.cluster.test_training import launched, lines, losses
from tests.cluster.trainings import REFUSED, release

pytest.importorskip("ray", reason="make cluster has an environment with Ray")
pytestmark = [
    pytest.mark.skipif(bool(machines.why_impossible()), reason=machines.why_impossible() or "none"),
    pytest.mark.slow("each fault starts all workers again"),
]
SCRIPT = Path(__file__).with_name("trainings.py")
COUNT, SEED = int(os.environ.get("FAULTS", 6)), int(os.environ.get("SEED", 1))
STEPS, MACHINES, STORAGE_MB = 3, 3, 48


@pytest.fixture
def storage(tmp_path):
    """A small file system that all machines see."""
    folder = tmp_path / "storage"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={STORAGE_MB}m", "none", folder], check=True
    )
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def last_step(folder: Path) -> int:
    return max((max(losses(folder, rank), default=-1) for rank in range(2)), default=-1)


def last_pids(folder: Path) -> list[int]:
    started = [[line for line in lines(folder, rank) if line[0] == "start"] for rank in range(2)]
    return [int(each[-1][3]) for each in started if each]


def test_a_training_survives_random_faults(tmp_path, storage):
    names = faults.sampled(COUNT, SEED)
    print(f"seed {SEED}:", *names)
    steps = STEPS * (COUNT + 2)
    expected = launched(tmp_path / "launched", "static", "--steps", steps)
    folder = tmp_path / "ray"
    folder.mkdir()
    chance = random.Random(SEED)
    with Machines(tmp_path, [1] * MACHINES) as cluster:
        cluster.start(*range(MACHINES + 1))
        # The training waits for each fault: otherwise it ends while machines are replaced.
        held = [STEPS * (number + 1) for number in range(COUNT)]
        options = ["--steps", steps, "--storage", storage, "--failures", -1, "--held", *held]
        driver = cluster.run(SCRIPT, folder, *options)
        scene = faults.Scene(cluster, MACHINES, storage, lambda: last_pids(folder))

        def wait_for_step(step: int) -> bool:
            """Returns whether the training has come so far, and runs."""
            end = time.monotonic() + LIMIT
            while last_step(folder) < step:
                if driver.process.poll() is not None:
                    return False
                assert time.monotonic() < end, driver.output()[-6000:]
                time.sleep(0.05)
            return True

        for step, name in zip(held, names):
            if not wait_for_step(step):
                break
            ends = faults.FAULTS[name](scene, chance)
            print(name, "at step", last_step(folder), flush=True)
            release(folder, step)
            if name in faults.BLOCKING:
                time.sleep(faults.CUT_SECONDS)
            elif not wait_for_step(step + 2):
                break
            ends()
        status = driver.wait()
    sentences = [line for line in driver.output().splitlines() if line.startswith(REFUSED)]
    if sentences:
        assert len(sentences) == 1 and "10.9.0." in sentences[0], sentences
    else:
        assert status == 0, driver.output()[-6000:]
        for rank in range(2):
            assert losses(folder, rank) == losses(expected, rank)
