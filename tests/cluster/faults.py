"""Random faults of the machines of a cluster, each of which a training has to survive."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.machines import Machines

CUT_SECONDS = 5.0
DELAY_SECONDS = 0.05


@dataclass
class Scene:
    """The cluster of a training, for faults.

    Attributes:
        cluster: The machines, of which 1 and above have workers.
        machines: Their number, without machine 0.
        storage: The storage of the training, a file system of its own.
        pids: The processes of the ranks that train.
    """

    cluster: Machines
    machines: int
    storage: Path
    pids: Callable[[], list[int]]

    def some_machine(self, chance: random.Random) -> int:
        """The number of a machine."""
        return chance.randint(1, self.machines)


# A fault begins, and returns what ends it when the training has gone on, or has to.
Fault = Callable[[Scene, random.Random], Callable[[], None]]


def _nothing() -> None:
    pass


def kill_worker(scene: Scene, chance: random.Random) -> Callable[[], None]:
    with contextlib.suppress(ProcessLookupError):  # it was about to end
        os.kill(chance.choice(scene.pids()), signal.SIGKILL)
    return _nothing


def kill_machine(scene: Scene, chance: random.Random) -> Callable[[], None]:
    machine = scene.some_machine(chance)
    scene.cluster.switch_off(machine)
    return lambda: scene.cluster.replace(machine)


def cut_link(scene: Scene, chance: random.Random) -> Callable[[], None]:
    machine = scene.some_machine(chance)
    scene.cluster.cut(machine)
    time.sleep(CUT_SECONDS)
    scene.cluster.mend(machine)
    return _nothing


def cut_link_for_good(scene: Scene, chance: random.Random) -> Callable[[], None]:
    machine = scene.some_machine(chance)
    scene.cluster.cut(machine)
    return lambda: scene.cluster.replace(machine)


def slow_link(scene: Scene, chance: random.Random) -> Callable[[], None]:
    machine = scene.some_machine(chance)
    scene.cluster.delay(machine, DELAY_SECONDS)
    return lambda: scene.cluster.restore(machine)


def fill_disk(scene: Scene, chance: random.Random) -> Callable[[], None]:
    filler = scene.storage / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return filler.unlink


FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (kill_worker, kill_machine, cut_link, cut_link_for_good, slow_link, fill_disk)
}
# The training cannot go on before these end.
BLOCKING = {"fill_disk"}


def sampled(count: int, seed: int) -> list[str]:
    """The names of faults: each occurs, if there are enough, in a random order."""
    chance = random.Random(seed)
    names = [list(FAULTS)[number % len(FAULTS)] for number in range(count)]
    chance.shuffle(names)
    return names
