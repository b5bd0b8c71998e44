"""Image classifiers that are trained on photographs, through the engine, within minutes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.static import InputSpec

import paddle_ngraph
from benchmarks.pictures import PHOTOGRAPHS, SIDE, Crops
from benchmarks.worker import PeerError

CLASSES = len(PHOTOGRAPHS)


@dataclass(frozen=True)
class Stage:
    """A stage of training, with images of one size.

    Attributes:
        side: Width and height of an image, in pixels.
        batch: Images per step.
        steps: Number of steps.
        rate: The highest learning rate of Adam, reached after a tenth of the steps; the rate then
            falls to 0.
    """

    side: int
    batch: int
    steps: int
    rate: float

    def rates(self) -> Iterator[float]:
        """Yields the learning rate of each step."""
        rise = max(1, self.steps // 10)
        for step in range(self.steps):
            fall = (1 + math.cos(math.pi * step / self.steps)) / 2
            yield self.rate * min(1.0, (step + 1) / rise) * fall


# Small images first: a step costs a fraction of that of large ones, and trains most of the filters.
STAGES: dict[str, tuple[Stage, ...]] = {
    "resnet50": (Stage(64, 16, 400, 5e-4), Stage(SIDE, 8, 80, 2e-4)),
    "mobilenet_v2": (Stage(96, 16, 600, 1e-3), Stage(SIDE, 8, 100, 2e-4)),
}
QUICK = (Stage(32, 4, 10, 1e-3),)
_SEED = 2


class Learner:
    """A network of ``paddle.vision.models`` that is trained in all its layers, in dynamic mode.

    Args:
        name: Name of the network.
        stages: Stages of training.
    """

    def __init__(self, name: str, stages: tuple[Stage, ...]) -> None:
        paddle.seed(_SEED)
        self._network = getattr(paddle.vision.models, name)(num_classes=CLASSES).train()
        self._compiled = paddle_ngraph.compile(self._network)
        self._optimizer = paddle.optimizer.Adam(parameters=self._network.parameters())
        self._steps = self._all_steps(stages)

    def learn(self, steps: int) -> float:
        """Runs ``steps`` steps, or those that are left; returns their mean loss.

        Raises:
            PeerError: The engine did not run.
        """
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph():
            losses = list(islice(self._steps, steps))
        if paddle_ngraph.stats()["engine_runs"] < before + len(losses):
            raise PeerError("the engine did not run")
        return float(np.mean(losses))

    def save(self, folder: Path) -> Path:
        """Writes a ProgramDesc program in evaluation mode, for images ``x`` of 224 x 224."""
        prefix = folder / "learned"
        inputs = [InputSpec([None, 3, SIDE, SIDE], "float32", "x")]
        with paddle.pir_utils.OldIrGuard():
            paddle.jit.save(self._network.eval(), str(prefix), inputs)
        paddle.enable_static()
        return prefix.with_suffix(".pdmodel")

    def _all_steps(self, stages: tuple[Stage, ...]) -> Iterator[float]:
        generator, crops = np.random.default_rng(_SEED), Crops()
        for stage in stages:
            for rate in stage.rates():
                yield self._step(rate, *crops.batch(generator, stage.batch, stage.side))

    def _step(self, rate: float, pictures: Any, numbers: Any) -> float:
        self._optimizer.set_lr(rate)
        logits = self._compiled(paddle.to_tensor(pictures))
        loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(numbers))
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss)
