"""A model on its way through the passes of a build."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import openvino as ov

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.settings import Settings


class Update(NamedTuple):
    """A step, as the engine takes it (core/ov/optimizer_updates.h).

    What it reads is an input of the interval, ``n``, where states follow the others, or a result of
    the model, ``-1 - n``.

    Attributes:
        optimizer: Its number.
        attributes: Its attributes, in their order.
        states: The states that it writes, the parameter first.
        gradients: What is added (nothing to fill a state),
        factors: and multiplied by each of these, to be the gradient.
        parameters: Its numbers.
    """

    optimizer: int
    attributes: list[float]
    states: list[int]
    gradients: list[int]
    factors: list[int]
    parameters: list[int]


@dataclass
class Draft:
    """A model on its way through the passes.

    Attributes:
        model: The model. Its results are the outputs of the interval, the new values of those
            states that no update writes, and what updates read.
        positions: The input that feeds each parameter of the model; numbers after the inputs
            continue through the draws.
        bridge: The bridge that made it.
        settings: What it is built for.
        splits_batch: Whether the batch may be computed in parts.
        parts: How many parts the batch has: the model is for one part.
        updates: The steps of optimizers that a run takes when the model is done.
    """

    model: ov.Model
    positions: list[int]
    bridge: NgraphBridge
    settings: Settings
    splits_batch: bool = False
    parts: int = 1
    updates: list[Update] = field(default_factory=list)

    def models(self) -> list[ov.Model]:
        """The model, and those inside of loops and branches."""
        return [self.model, *self.bridge.inner_models()]
