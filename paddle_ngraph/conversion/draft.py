"""The draft of a function: a model and its bridge, which the passes of a build modify."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import openvino as ov

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.settings import RunSettings


class Update(NamedTuple):
    """An optimizer update, as the engine runs it (core/ov/optimizer_updates.h).

    Operands are inputs of the subgraph, ``n``, where states follow the other inputs, or results of
    the model, ``-1 - n``.

    Attributes:
        optimizer: The id of the optimizer.
        attributes: The attributes of the optimizer, in the order of the core.
        states: The states that it writes, the parameter first.
        gradients: The operands whose sum, multiplied by ``factors``, is the gradient; none for an
            update that fills a state.
        factors: The operands, of one element each, by which that sum is multiplied.
        parameters: The scalar operands of the optimizer.
    """

    optimizer: int
    attributes: list[float]
    states: list[int]
    gradients: list[int]
    factors: list[int]
    parameters: list[int]


@dataclass
class Draft:
    """A model during the passes.

    Attributes:
        model: The model. Its results are the outputs of the subgraph, the new values of states
            without an update, and operands of updates.
        positions: The index of the input that feeds each parameter of the model; indices after the
            inputs continue through the samples of :attr:`FunctionInputs.draws`.
        builder: The builder that built it.
        settings: The settings of the build.
        splits_batch: Whether the batch may be computed in chunks.
        parts: The number of chunks of the batch: the model computes one chunk.
        updates: The optimizer updates that a run does after the model.
    """

    model: ov.Model
    positions: list[int]
    builder: FunctionBuilder
    settings: RunSettings
    splits_batch: bool = False
    parts: int = 1
    updates: list[Update] = field(default_factory=list)

    @property
    def bridge(self) -> NgraphBridge:
        """The bridge that converted the graph."""
        return self.builder.bridge

    def models(self) -> list[ov.Model]:
        """The model of the draft, and the models of bodies of loops and branches in it."""
        return [self.model, *self.builder.inner_models()]
